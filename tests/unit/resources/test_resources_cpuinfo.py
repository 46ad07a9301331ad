from __future__ import annotations

from pathlib import Path

import pytest

from inferswarm.resources import cpuinfo
from inferswarm.resources.types import observed, unknown
from tests.unit.resources.resources_samples import ARM_CPUINFO, X86_CPUINFO, write_file

NO_NUMA = unknown("test")
ONE_CPU = observed(1, "test")


def describe(text: str, topology: dict[int, tuple[int, int]] | None = None) -> cpuinfo.CpuFacts:
    return cpuinfo.describe_cpu(
        text, topology=topology or {}, caches=(), numa_nodes=NO_NUMA, usable_cpus=ONE_CPU, source="text"
    )


def test_x86_is_read_from_cpuinfo_alone() -> None:
    facts = describe(X86_CPUINFO)
    assert facts.model_name.value == "Intel(R) Xeon(R) Platinum 8480+"
    assert (facts.sockets.value, facts.cores.value, facts.logical_cpus.value) == (2, 3, 3)
    assert facts.isa_names == (
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512vl",
        "avx512_vnni",
        "avx512_bf16",
        "amx_bf16",
        "amx_int8",
    )


def test_arm_instruction_sets_are_those_that_every_core_has() -> None:
    facts = describe(ARM_CPUINFO)
    assert facts.isa_names == ("asimd", "asimdhp", "asimddp")  # sve, i8mm and bf16 are the big core's alone
    assert facts.model_name.value == "Arm part 0xd40"
    assert facts.logical_cpus.value == 2


def test_arm_sockets_need_sysfs() -> None:
    assert not describe(ARM_CPUINFO).sockets.known
    told = describe(ARM_CPUINFO, {0: (0, 0), 1: (0, 1)})
    assert (told.sockets.value, told.cores.value) == (1, 2)


def test_a_package_that_the_kernel_does_not_tell_stays_unknown() -> None:
    facts = describe(ARM_CPUINFO, {0: (-1, 0), 1: (-1, 1)})
    assert not facts.sockets.known
    assert "neither" in facts.sockets.detail


@pytest.mark.parametrize("text", ["", "garbage\n\nmore: garbage\n", "processor : x\nflags: avx2\n"])
def test_nothing_readable_gives_unknowns_with_reasons(text: str) -> None:
    facts = describe(text)
    for fact in (facts.model_name, facts.sockets, facts.cores, facts.logical_cpus, facts.isa):
        assert not fact.known
        assert "text" in fact.detail
    assert facts.isa_names == ()


def test_no_decisive_instruction_set_is_a_known_empty_list() -> None:
    facts = describe("processor : 0\nflags : fpu sse2\n")
    assert facts.isa.value == ""
    assert facts.isa.known


@pytest.mark.parametrize(("text", "size"), [("48K", 49152), ("2M", 2 * 2**20), ("1G\n", 2**30), ("100", 100)])
def test_sizes(text: str, size: int) -> None:
    assert cpuinfo.parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "numbers"), [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("0,2-3,9\n", (0, 2, 3, 9)), ("", ())]
)
def test_cpu_lists(text: str, numbers: tuple[int, ...]) -> None:
    assert cpuinfo.parse_cpu_list(text) == numbers


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    write_file(tmp_path, "proc/cpuinfo", X86_CPUINFO)
    for cpu, package in ((0, 0), (1, 0), (2, 1)):
        write_file(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", f"{package}\n")
        write_file(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/core_id", f"{cpu}\n")
    caches = [("1", "Data", "48K", "0"), ("1", "Instruction", "32K", "0"), ("3", "Unified", "32M", "0-1")]
    for index, values in enumerate(caches):
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            write_file(tmp_path, f"sys/devices/system/cpu/cpu0/cache/index{index}/{name}", value + "\n")
    write_file(tmp_path, "sys/devices/system/cpu/cpu0/cache/index9/level", "nonsense")
    for node in (0, 1):
        write_file(tmp_path, f"sys/devices/system/node/node{node}/cpulist", "0\n")
    facts = cpuinfo.read_cpu(tmp_path)
    assert [(cache.level, cache.kind, cache.bytes, cache.shared_by) for cache in facts.caches] == [
        (1, "Data", 49152, 1),
        (1, "Instruction", 32768, 1),
        (3, "Unified", 2**25, 2),
    ]
    assert facts.last_level_cache_bytes.value == 2**25
    assert (facts.sockets.value, facts.cores.value, facts.numa_nodes.value) == (2, 3, 2)


def test_an_empty_machine_gives_unknowns(tmp_path: Path) -> None:
    facts = cpuinfo.read_cpu(tmp_path)
    assert not facts.numa_nodes.known
    assert not facts.last_level_cache_bytes.known
    assert not facts.isa.known


def test_this_machine_has_cpus_and_a_model() -> None:
    facts = cpuinfo.read_cpu()
    assert facts.model_name.known
    assert facts.logical_cpus.value is not None
    assert facts.usable_cpus.value is not None
    assert 1 <= facts.usable_cpus.value <= facts.logical_cpus.value
