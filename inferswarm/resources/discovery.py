"""What this host has: every value with where it was read, or the reason why it is unknown.

`discover` reads the machine that it runs on and nothing else, changes nothing, and never imports torch (see
`accelerators`). Its cost is the accelerator probe: starting an interpreter, and importing torch in it when the
installed build can have accelerators.
"""

from __future__ import annotations

import platform
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from inferswarm.documents import Document
from inferswarm.errors import SpecError
from inferswarm.resources.accelerators import AcceleratorProbe, probe_accelerators, with_hardware
from inferswarm.resources.cgroups import effective_memory_limit, find_memory_controller
from inferswarm.resources.cpu_limits import allowed_cpus, effective_cpu_quota
from inferswarm.resources.cpuinfo import CpuFacts, read_cpu
from inferswarm.resources.identity import host_id, load_or_create_host_salt, read_machine_source
from inferswarm.resources.network import NetworkAddress, NetworkInterface, read_interfaces
from inferswarm.resources.numa import HugePages, read_huge_pages
from inferswarm.resources.nvml import NvmlReport, probe_nvml
from inferswarm.resources.storage import Disk, read_disk
from inferswarm.resources.types import Fact, NamedFact, observed, unknown

__all__ = [
    "Disk",
    "HostInventory",
    "NetworkAddress",
    "NetworkInterface",
    "discover",
    "read_disk",
    "read_interfaces",
]


class HostInventory(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.host-inventory/1"):
    """Everything that was found on one host at one moment."""

    host_id: Fact[str]
    name: Fact[str]
    cpu: CpuFacts
    ram_total_bytes: Fact[int]
    ram_available_bytes: Fact[int]
    memory_limit_bytes: Fact[int] | None
    """The tightest limit that already lies on this process; None when no group that it can see sets one."""
    cpu_quota: Fact[float] | None
    """The tightest CPU quota on this process, in CPUs; None when no group that it can see sets one."""
    allowed_cpus: tuple[int, ...] = ()
    """The logical CPUs that processes here may run on; none where that is not known."""
    huge_pages: HugePages
    memory_mechanism: str
    """`cgroup-v1`, `cgroup-v2` or `none`: what can enforce an envelope here."""
    memory_mechanism_detail: str
    """Where groups are made, or why none can be had."""
    interfaces: tuple[NetworkInterface, ...]
    disks: tuple[Disk, ...]
    accelerators: AcceleratorProbe
    nvml: NvmlReport
    """What NVIDIA's management library tells; also of cards that torch cannot use."""
    platform: tuple[NamedFact, ...]
    """Kernel, libc, Python: what people read."""

    @property
    def usable_memory_bytes(self) -> Fact[int]:
        """Return the RAM that processes here may use: the total, or the limit when that is tighter."""
        if self.memory_limit_bytes is None or not self.ram_total_bytes.known:
            return self.ram_total_bytes
        if not self.memory_limit_bytes.known:
            return self.memory_limit_bytes
        return min(self.ram_total_bytes, self.memory_limit_bytes, key=lambda fact: fact.value or 0)


def _memory() -> tuple[Fact[int], Fact[int]]:
    try:
        memory = psutil.virtual_memory()
    except (OSError, psutil.Error) as error:
        return unknown(f"psutil: {error}"), unknown(f"psutil: {error}")
    return observed(int(memory.total), "psutil.virtual_memory"), observed(
        int(memory.available), "psutil.virtual_memory"
    )


def _host_identity(swarm_salt: str, state_directory: Path | None, root: Path) -> Fact[str]:
    source = read_machine_source(root)
    if source.value is not None:
        return observed(host_id(swarm_salt, source.value), f"salted digest of {source.detail}")
    if state_directory is None:
        return unknown(f"nothing identifies this machine and no state directory was given ({source.detail})")
    salt = load_or_create_host_salt(state_directory)
    return observed(host_id(swarm_salt, salt), f"salted digest of a random value kept in {state_directory}")


def _platform() -> tuple[NamedFact, ...]:
    libc = " ".join(part for part in platform.libc_ver() if part)
    values = (("kernel", platform.release()), ("libc", libc), ("python", platform.python_version()))
    return tuple(
        NamedFact(name=name, fact=observed(value, "platform") if value else unknown("platform states none"))
        for name, value in values
    )


def discover(
    swarm_salt: str,
    state_directory: Path | None = None,
    *,
    disk_paths: tuple[Path, ...] = (),
    python: str = sys.executable,
    accelerator_timeout_seconds: float = 60.0,
    root: Path = Path("/"),
) -> HostInventory:
    """Return what this host has. `state_directory` keeps a random identity where the machine has none of its own.

    `python` is the interpreter whose torch is asked for accelerators. Raises SpecError for an empty salt, or when
    the state directory is needed and cannot be written.
    """
    if not swarm_salt:
        raise SpecError("swarm salt", swarm_salt, "a text that is this swarm's own")
    with ThreadPoolExecutor(max_workers=2) as executor:
        pending = executor.submit(probe_accelerators, python, accelerator_timeout_seconds)
        pending_nvml = executor.submit(probe_nvml, root=root)
        controller = find_memory_controller(root)
        total, available = _memory()
        hostname = socket.gethostname()
        nvml = pending_nvml.result()
        return HostInventory(
            host_id=_host_identity(swarm_salt, state_directory, root),
            name=observed(hostname, "gethostname") if hostname else unknown("gethostname gives an empty name"),
            cpu=read_cpu(root),
            ram_total_bytes=total,
            ram_available_bytes=available,
            memory_limit_bytes=effective_memory_limit(root),
            cpu_quota=effective_cpu_quota(root),
            allowed_cpus=allowed_cpus(),
            huge_pages=read_huge_pages(root),
            memory_mechanism=controller.mechanism,
            memory_mechanism_detail=controller.detail,
            interfaces=read_interfaces(root),
            disks=tuple(read_disk(path, root) for path in disk_paths),
            accelerators=with_hardware(pending.result(), nvml, root),
            nvml=nvml,
            platform=_platform(),
        )
