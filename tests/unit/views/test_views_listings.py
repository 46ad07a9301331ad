"""What `discover` prints: every fact of an inventory with its value, or with the reason why it is unknown."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.resources.accelerators import Accelerator, AcceleratorProbe
from inferswarm.resources.cpuinfo import CpuFacts
from inferswarm.resources.discovery import HostInventory
from inferswarm.resources.network import NetworkAddress, NetworkInterface
from inferswarm.resources.numa import HugePagePool, HugePages, NumaNode
from inferswarm.resources.nvml import NvmlCard, NvmlReport
from inferswarm.resources.pcie import PcieLink, unknown_pcie
from inferswarm.resources.storage import Disk
from inferswarm.resources.types import NamedFact, observed, unknown
from inferswarm.views.listings import inventory_text
from inferswarm.views.text import WIDTH

GB = 10**9
IDLE_LINK = PcieLink(
    generation=observed(1, "sysfs"),
    generation_max=observed(4, "sysfs"),
    width=observed(8, "sysfs"),
    width_max=observed(16, "sysfs"),
    numa_index=observed(1, "sysfs"),
)


def card(uuid: str, name: str) -> NvmlCard:
    return NvmlCard(
        uuid=observed(uuid, "nvml"),
        name=observed(name, "nvml"),
        bus=observed("00000000:3B:00.0", "nvml"),
        memory_bytes=observed(8 * GB, "nvml"),
        pcie=unknown_pcie("nobody asked the bus"),
        power_limit_watts=observed(170.0, "nvml"),
        power_limit_max_watts=observed(200.0, "nvml"),
        compute_clock_hertz=observed(210 * 10**6, "nvml"),
        compute_clock_max_hertz=observed(1900 * 10**6, "nvml"),
        memory_clock_hertz=unknown("the driver keeps it"),
        memory_clock_max_hertz=observed(7000 * 10**6, "nvml"),
    )


INVENTORY = HostInventory(
    host_id=observed("host-1", "test"),
    name=observed("attic", "test"),
    cpu=CpuFacts(
        model_name=observed("Test CPU", "test"),
        sockets=observed(2, "test"),
        cores=observed(8, "test"),
        logical_cpus=observed(16, "test"),
        usable_cpus=observed(3, "whole CPUs of the quota"),
        isa=observed("avx2 avx512f", "test"),
        numa_nodes=observed(2, "test"),
        last_level_cache_bytes=unknown("no cache is described"),
        numa=(
            NumaNode(index=0, cpus=(0, 1, 2, 3, 8), memory_bytes=observed(64 * GB, "test"), distances=(10, 21)),
            NumaNode(index=1, cpus=(), memory_bytes=unknown("no meminfo"), distances=(21, 10)),
        ),
    ),
    ram_total_bytes=observed(64 * GB, "test"),
    ram_available_bytes=observed(60 * GB, "test"),
    memory_limit_bytes=None,
    cpu_quota=observed(3.5, "cpu.max"),
    huge_pages=HugePages(
        transparent=observed("madvise", "test"),
        pools=(HugePagePool(page_bytes=2 * 2**20, num_pages=observed(1024, "t"), num_free=unknown("no file")),),
    ),
    memory_mechanism="cgroup-v2",
    memory_mechanism_detail="here",
    interfaces=(
        NetworkInterface(
            name="eth0",
            kind="ethernet",
            is_up=True,
            bits_per_second=observed(10**9, "test"),
            mtu_bytes=observed(9000, "test"),
            duplex=observed("full", "test"),
            carrier=observed("present", "test"),
            physical=unknown("no such directory"),
            addresses=(NetworkAddress(family="ipv4", address="192.0.2.1"),),
        ),
    ),
    disks=(
        Disk(
            path="/data",
            total_bytes=observed(1000 * GB, "statvfs"),
            free_bytes=observed(400 * GB, "statvfs"),
            filesystem=observed("ext4", "mountinfo"),
            mount_point=observed("/", "mountinfo"),
            block_name=observed("nvme0n1", "sysfs"),
            medium=observed("solid state", "sysfs"),
            model=unknown("no model file"),
        ),
    ),
    accelerators=AcceleratorProbe(
        torch_version=observed("2.13", "test"),
        accelerators=(
            Accelerator(
                kind="cuda",
                name="Test Card",
                uuid=observed("aaaa", "torch"),
                memory_bytes=observed(12 * GB, "torch"),
                architecture=observed("sm_86", "torch"),
                bus=observed("0000:03:00.0", "torch"),
                pcie=IDLE_LINK,
            ),
        ),
    ),
    nvml=NvmlReport(driver=observed("550.1", "nvml"), cards=(card("aaaa", "Test Card"), card("bbbb", "Other Card"))),
    platform=(NamedFact(name="kernel", fact=observed("6.1", "platform")),),
)


def entry(name: str, inventory: HostInventory = INVENTORY) -> str:
    """Return one entry in one line: name, value and note, wherever they were wrapped."""
    found = []
    for line in inventory_text(inventory).splitlines():
        if line.startswith(name):
            found = [line]
        elif found and line.startswith(" " * 8):
            found.append(line)
        elif found:
            break
    return " ".join(" ".join(found).split())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sockets", "sockets 2 (test)"),
        ("usable CPUs", "usable CPUs 3 (whole CPUs of the quota)"),
        ("CPU quota", "CPU quota 3.5 CPUs (cpu.max)"),
        ("instruction sets", "instruction sets avx2, avx512f"),
        ("last-level cache", "last-level cache unknown (no cache is described)"),
        ("  NUMA node 0", "NUMA node 0 CPUs 0-3,8; 64.0 GB of memory; distances 10, 21"),
        ("  NUMA node 1", "NUMA node 1 no CPUs; memory unknown; distances 21, 10 (no meminfo)"),
        ("memory limit", "memory limit none (no group that is visible here sets one)"),
        ("huge pages", "huge pages transparent: madvise (test)"),
        ("  of 2.10 MB", "of 2.10 MB 1,024 set aside, an unknown number of them free"),
        ("  architecture", "architecture sm_86 (torch)"),
        ("  PCIe generation", "PCIe generation 1 now, 4 at most (sysfs)"),
        ("  PCIe lanes", "PCIe lanes 8 now, 16 at most (sysfs)"),
        ("  slot on NUMA node", "slot on NUMA node 1 (sysfs)"),
        ("  power limit", "power limit unknown (not asked)"),
        ("NVIDIA driver", "NVIDIA driver 550.1 (nvml)"),
        ("card without torch", "card without torch Other Card (nvml)"),
        ("interface eth0", "interface eth0 ethernet, up: 192.0.2.1"),
        ("  speed", "speed 1000 Mbit/s (test)"),
        ("  MTU", "MTU 9000 B (test)"),
        ("  carrier", "carrier present (test)"),
        ("  behind it", "behind it unknown (no such directory)"),
        ("disk of", "disk of /data"),
        ("  free", "free 400 GB (statvfs)"),
        ("  block device", "block device nvme0n1 (sysfs)"),
        ("  model", "model unknown (no model file)"),
    ],
)
def test_each_fact_has_its_value_or_its_reason(name, text):
    assert entry(name) == text


def test_a_card_that_torch_uses_is_listed_once():
    assert inventory_text(INVENTORY).count("Test Card") == 1


def test_a_card_without_torch_has_what_nvml_tells():
    tail = inventory_text(INVENTORY).split("card without torch", 1)[1]
    lines = [" ".join(line.split()) for line in tail.splitlines()]
    assert "power limit 170 W (nvml)" in lines
    assert "compute clock 210 MHz now, 1,900 MHz at most (nvml)" in lines
    assert "memory clock unknown now, 7,000 MHz at most (the driver keeps it)" in lines
    assert "PCIe generation unknown (nobody asked the bus)" in lines


def test_a_quota_that_cannot_be_read_is_unknown_and_not_none():
    inventory = msgspec.structs.replace(INVENTORY, cpu_quota=unknown("the groups are hidden"))
    assert entry("CPU quota", inventory) == "CPU quota unknown (the groups are hidden)"


def test_unknown_instruction_sets_are_not_called_none():
    cpu = msgspec.structs.replace(INVENTORY.cpu, isa=unknown("no flags"))
    text = entry("instruction sets", msgspec.structs.replace(INVENTORY, cpu=cpu))
    assert text == "instruction sets unknown (no flags)"


def test_no_line_is_wider_than_a_terminal():
    assert max(map(len, inventory_text(INVENTORY).splitlines())) <= WIDTH
