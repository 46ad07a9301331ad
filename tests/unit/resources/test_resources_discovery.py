from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferswarm.documents import canonical_bytes, read_document, write_document
from inferswarm.errors import SpecError
from inferswarm.resources.accelerators import parse_probe, probe_accelerators
from inferswarm.resources.discovery import HostInventory, discover, read_disk, read_interfaces
from inferswarm.resources.types import Fact, observed, unknown
from tests.unit.resources.resources_samples import make_inventory, write_file

NO_PYTHON = "/no/such/python"
MACHINE_ID = "3d1219c7c4c5404aaa1f6d2a48adfda4"


def card(**changes: Any) -> dict[str, Any]:
    fields = {
        "kind": "cuda",
        "name": "Card",
        "memory_bytes": 8,
        "uuid": "GPU-AB12",
        "bus": None,
        "architecture": "sm_90",
    }
    return fields | changes


def answer(*cards: dict[str, Any], **changes: Any) -> str:
    fields = {"torch": "2.13.0", "source": "test", "reason": "", "nvml": "", "accelerators": list(cards)}
    return "a line that a library printed\n" + json.dumps(fields | changes)


def test_this_host_is_read_back_from_its_document() -> None:
    found = discover("salt", python=NO_PYTHON, disk_paths=(Path("/"),))
    assert read_document(HostInventory, write_document(found), "test") == found
    assert found.ram_total_bytes.value is not None
    assert found.ram_total_bytes.value > 0
    assert found.disks[0].total_bytes.known
    assert found.name.known


def test_the_same_host_has_the_same_identity_every_time_and_another_in_another_swarm() -> None:
    first, second = (discover("salt", python=NO_PYTHON).host_id for _ in range(2))
    assert first == second
    assert discover("pepper", python=NO_PYTHON).host_id != first


def test_the_machine_id_is_nowhere_in_the_document(tmp_path: Path) -> None:
    write_file(tmp_path, "etc/machine-id", MACHINE_ID)
    found = discover("salt", root=tmp_path, python=NO_PYTHON)
    assert found.host_id.known
    assert MACHINE_ID.encode() not in canonical_bytes(found)


def test_a_host_without_an_identity_is_unknown_or_keeps_a_random_one(tmp_path: Path) -> None:
    nothing = discover("salt", root=tmp_path / "machine", python=NO_PYTHON)
    assert not nothing.host_id.known
    assert "no state directory was given" in nothing.host_id.detail
    kept = [discover("salt", tmp_path / "state", root=tmp_path / "machine", python=NO_PYTHON) for _ in range(2)]
    assert kept[0].host_id.known
    assert kept[0].host_id == kept[1].host_id


def test_a_machine_that_tells_nothing_has_reasons_instead(tmp_path: Path) -> None:
    found = discover("salt", root=tmp_path, python=NO_PYTHON, disk_paths=(tmp_path,))
    assert found.cpu_quota is not None
    unknowns = (
        found.cpu_quota,
        found.huge_pages.transparent,
        found.nvml.driver,
        found.disks[0].medium,
        found.cpu.numa_nodes,
        found.cpu.threads_per_core,
    )
    assert all(not fact.known and fact.detail not in ("", "not asked") for fact in unknowns)


def test_a_cpu_quota_lowers_what_may_be_used(tmp_path: Path) -> None:
    write_file(tmp_path, "proc/self/cgroup", "0::/box\n")
    write_file(tmp_path, "proc/self/mountinfo", "31 23 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    write_file(tmp_path, "sys/fs/cgroup/box/cpu.max", "100000 100000\n")
    found = discover("salt", root=tmp_path, python=NO_PYTHON)
    assert found.cpu_quota is not None
    assert found.cpu_quota.value == 1.0
    assert found.cpu.usable_cpus.value == 1


def test_an_empty_salt_is_refused() -> None:
    with pytest.raises(SpecError, match="swarm salt"):
        discover("")


@pytest.mark.parametrize(
    ("total", "limit", "usable"),
    [
        (observed(100, "t"), None, 100),
        (observed(100, "t"), observed(60, "t"), 60),
        (observed(100, "t"), observed(600, "t"), 100),
        (observed(100, "t"), unknown("cannot be read"), None),
        (unknown("cannot be read"), observed(60, "t"), None),
        (unknown("cannot be read"), None, None),
    ],
)
def test_usable_memory_is_the_tighter_of_total_and_limit(
    total: Fact[int], limit: Fact[int] | None, usable: int | None
) -> None:
    assert make_inventory(total=total, limit=limit).usable_memory_bytes.value == usable


def test_loopback_is_there_with_its_addresses() -> None:
    loopback = [interface for interface in read_interfaces() if interface.kind == "loopback"]
    assert [address.address for address in loopback[0].addresses if address.family == "ipv4"] == ["127.0.0.1"]
    assert not loopback[0].bits_per_second.known


def test_a_disk_path_that_does_not_exist_yet_is_on_its_ancestor(tmp_path: Path) -> None:
    assert read_disk(tmp_path / "not" / "yet").total_bytes.value == read_disk(tmp_path).total_bytes.value


def test_asking_for_accelerators_brings_no_torch_into_the_asking_process() -> None:
    program = (
        "import sys\n"
        "from inferswarm.resources.discovery import discover\n"
        "found = discover('salt')\n"
        "print(found.accelerators.torch_version.value)\n"
        "print('torch' in sys.modules, any('libtorch' in line for line in open('/proc/self/maps')))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    version, imported = finished.stdout.splitlines()
    assert version[0].isdigit()
    assert imported == "False False"


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[[dict[str, str]], str]:
    """Make a Python without site-packages that sees the given files (name to text) as its modules."""

    def make(modules: dict[str, str]) -> str:
        for name, text in modules.items():
            write_file(tmp_path / "modules", name, text)
        script = tmp_path / "python"
        insert = f"import sys; sys.path.insert(0, {str(tmp_path / 'modules')!r}); sys.argv.pop(0); exec(sys.argv[1])"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S -c "{insert}" "$@"\n')
        script.chmod(0o755)
        return str(script)

    return make


def test_a_missing_torch_is_an_unknown_with_its_reason(interpreter: Callable[[dict[str, str]], str]) -> None:
    found = probe_accelerators(interpreter({}))
    assert found.torch_version.detail == "torch is not installed"
    assert found.accelerators == ()


def test_a_torch_that_cannot_be_imported_is_an_unknown_with_its_reason(
    interpreter: Callable[[dict[str, str]], str],
) -> None:
    found = probe_accelerators(interpreter({"torch/__init__.py": "raise OSError('libcudart is missing')"}))
    assert found.torch_version.detail == "torch cannot be imported: libcudart is missing"


def test_a_build_without_accelerators_is_not_imported(interpreter: Callable[[dict[str, str]], str]) -> None:
    version = "__version__ = '9.8.7+cpu'\ncuda = None\nhip = None\nxpu = None\n"
    modules = {"torch/__init__.py": "raise OSError('imported')", "torch/version.py": version}
    found = probe_accelerators(interpreter(modules))
    assert found.torch_version.value == "9.8.7+cpu"
    assert "not imported" in found.torch_version.detail


CUDA_TORCH = """
from types import SimpleNamespace as Is
__version__ = "9.8.7+cu1"
version = Is(hip=None)
def properties(index):
    return Is(name="Card", total_memory=8, major=9, minor=0, pci_domain_id=0, pci_bus_id=index, pci_device_id=0)
cuda = Is(is_available=lambda: True, device_count=lambda: 2, get_device_properties=properties)
backends = Is(mps=Is(is_available=lambda: False))
"""
NVML = """
class NVMLError(Exception):
    pass
def nvmlInit(): pass
def nvmlDeviceGetHandleByPciBusId(bus): return bus.decode()
def nvmlDeviceGetUUID(handle):
    if handle.startswith("00000000:01"):
        raise NVMLError("no such card")
    return "GPU-" + handle
"""


def test_cards_are_told_apart_by_nvml_where_torch_states_no_uuid(
    interpreter: Callable[[dict[str, str]], str],
) -> None:
    version = "__version__ = '9.8.7+cu1'\ncuda = '1'\nhip = None\nxpu = None\n"
    modules = {"torch/__init__.py": CUDA_TORCH, "torch/version.py": version, "pynvml.py": NVML}
    found = probe_accelerators(interpreter(modules))
    assert found.torch_version.value == "9.8.7+cu1"
    first, second = found.accelerators
    assert (first.uuid.value, first.architecture.value) == ("00000000:00:00.0", "sm_90")
    assert second.uuid.detail == "torch states no UUID; NVML: no such card"


@pytest.mark.parametrize(
    ("script", "timeout_seconds", "reason"),
    [
        ("exec sleep 30", 0.2, "did not answer within 0.2 s"),
        ("echo broken >&2; exit 3", 30, "ended with status 3: broken"),
        ("exit 0", 30, "the probe printed nothing"),
        ("echo not-json", 30, "makes no sense"),
    ],
)
def test_a_probe_that_fails_is_an_unknown_with_its_reason(
    tmp_path: Path, script: str, timeout_seconds: float, reason: str
) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\n{script}\n")
    interpreter.chmod(0o755)
    assert reason in probe_accelerators(str(interpreter), timeout_seconds).torch_version.detail


def test_an_interpreter_that_is_not_there_is_an_unknown() -> None:
    assert "cannot be started" in probe_accelerators(NO_PYTHON).torch_version.detail


def test_an_accelerator_is_read_with_its_uuid_in_one_spelling() -> None:
    found = parse_probe(answer(card(), card(uuid="ab12", kind="hip", architecture="gfx1100")))
    assert found.torch_version.value == "2.13.0"
    assert [item.uuid.value for item in found.accelerators] == ["ab12", "ab12"]
    assert [item.architecture.value for item in found.accelerators] == ["sm_90", "gfx1100"]
    assert found.accelerators[0].memory_bytes.value == 8


def test_an_accelerator_without_uuid_or_size_has_unknowns() -> None:
    found = parse_probe(answer(card(uuid=None, memory_bytes=None), nvml="not found")).accelerators[0]
    assert found.uuid.detail == "torch states no UUID; NVML: not found"
    assert not found.memory_bytes.known


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"torch": 1}',
        json.dumps({"torch": "2", "reason": "", "nvml": "", "accelerators": [{"kind": "cuda"}]}),
        '{"torch": "2", "torch": "3"}',
        "null",
    ],
)
def test_an_answer_that_makes_no_sense_is_an_unknown(text: str) -> None:
    found = parse_probe(text)
    assert not found.torch_version.known
    assert found.accelerators == ()
