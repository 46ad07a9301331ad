"""Hosts for tests: inventories built by hand, and machine roots written under a temporary directory."""

from __future__ import annotations

from pathlib import Path

from inferswarm.resources.accelerators import Accelerator, AcceleratorProbe
from inferswarm.resources.cpuinfo import CpuFacts
from inferswarm.resources.discovery import HostInventory, NetworkAddress, NetworkInterface
from inferswarm.resources.numa import HugePages
from inferswarm.resources.nvml import NvmlReport
from inferswarm.resources.types import Fact, NamedFact, observed, unknown

X86_CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480+
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu sse2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512_vnni avx512_bf16 amx_bf16 amx_int8

processor\t: 1
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480+
physical id\t: 0
core id\t\t: 1
flags\t\t: fpu sse2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512_vnni avx512_bf16 amx_bf16 amx_int8

processor\t: 2
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8480+
physical id\t: 1
core id\t\t: 0
flags\t\t: fpu sse2 avx avx2 fma f16c avx512f avx512bw avx512vl avx512_vnni avx512_bf16 amx_bf16 amx_int8

"""
ARM_CPUINFO = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimddp sve i8mm bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd40

processor\t: 1
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd05

Hardware\t: a board
"""


def write_file(root: Path, name: str, text: str) -> None:
    """Write a file of a made-up machine, with the directories above it."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def make_accelerator(uuid: str | None, name: str = "Card", kind: str = "cuda") -> Accelerator:
    """Return an accelerator with 8 GB; None leaves its UUID unknown."""
    identity: Fact[str] = unknown("no UUID in this test") if uuid is None else observed(uuid, "test")
    return Accelerator(
        kind=kind,  # type: ignore[arg-type]
        name=name,
        uuid=identity,
        memory_bytes=observed(8_000_000_000, "test"),
        architecture=observed("sm_86", "test"),
    )


def make_interface(name: str, address: str) -> NetworkInterface:
    """Return an Ethernet interface with one address."""
    return NetworkInterface(
        name=name,
        kind="ethernet",
        is_up=True,
        bits_per_second=observed(10**9, "test"),
        mtu_bytes=observed(1500, "test"),
        addresses=(NetworkAddress(family="ipv4", address=address, mask="255.255.255.0"),),
    )


def make_inventory(
    *,
    host: Fact[str] | None = None,
    cpus: Fact[int] | None = None,
    total: Fact[int] | None = None,
    limit: Fact[int] | None = None,
    accelerators: tuple[Accelerator, ...] = (),
    interfaces: tuple[NetworkInterface, ...] = (),
    torch_version: str = "2.13.0",
) -> HostInventory:
    """Return the inventory of a host with 4 CPUs, 16 GB and no accelerator, unless told otherwise."""
    four = observed(4, "test") if cpus is None else cpus
    return HostInventory(
        host_id=observed("host-00000000000000aa", "test") if host is None else host,
        name=observed("elm", "test"),
        cpu=CpuFacts(
            model_name=observed("Test CPU", "test"),
            sockets=observed(1, "test"),
            cores=four,
            logical_cpus=four,
            usable_cpus=four,
            isa=observed("avx2 avx512f", "test"),
            numa_nodes=observed(1, "test"),
            last_level_cache_bytes=observed(32 * 2**20, "test"),
        ),
        ram_total_bytes=observed(16_000_000_000, "test") if total is None else total,
        ram_available_bytes=observed(12_000_000_000, "test"),
        memory_limit_bytes=limit,
        cpu_quota=None,
        huge_pages=HugePages(transparent=observed("madvise", "test")),
        memory_mechanism="cgroup-v2",
        memory_mechanism_detail="test",
        interfaces=interfaces,
        disks=(),
        accelerators=AcceleratorProbe(torch_version=observed(torch_version, "test"), accelerators=accelerators),
        nvml=NvmlReport(driver=unknown("no driver in this test")),
        platform=(NamedFact(name="kernel", fact=observed("6.1", "test")),),
    )
