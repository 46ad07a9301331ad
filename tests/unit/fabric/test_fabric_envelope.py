"""What holds a Node to its memory: entering, limiting a child, leaving; with the mechanisms that are really here."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from inferswarm.errors import DiscoveryError, MeasurementError, SpecError
from inferswarm.fabric import envelope
from inferswarm.fabric.envelope import (
    CgroupEnvelope,
    DataLimitEnvelope,
    EnvelopeSpec,
    NodeEnvelope,
    available_mechanism,
    enter,
)
from inferswarm.fabric.proc import process_memory
from inferswarm.resources.cgroups import MemoryController, Unavailable, find_memory_controller

MIB = 2**20
ALLOCATE = """
import sys
sys.stdin.readline()
try:
    kept = bytearray(int(sys.argv[1]))
    sys.stdout.write("had it")
except MemoryError:
    sys.stdout.write("refused")
"""


class FakeGroup:
    """Stands for a cgroup of the kernel's; knows what was done to it."""

    mechanism = "cgroup-v2"
    limit_bytes = 64 * MIB

    def __init__(self) -> None:
        self.members: list[int] = []
        self.removed = False

    def add(self, pid: int) -> None:
        self.members.append(pid)

    def remove(self) -> None:
        self.removed = True

    def unreclaimable_bytes(self) -> int:
        return 17

    def peak_bytes(self) -> int:
        raise MeasurementError("this kernel keeps no peak")

    def reset_peak(self) -> None:
        raise MeasurementError("this kernel keeps no peak")

    def oom_kills(self) -> int:
        return 3


def spec(limit_bytes: int | None = 64 * MIB, mechanism: str = "auto") -> EnvelopeSpec:
    return EnvelopeSpec("inferswarm-test", limit_bytes, mechanism)


def with_controller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: object) -> Path:
    """Let `enter` find a controller whose `create` gives `outcome`; returns the file that leads out of the group."""

    def create(name: str, limit_bytes: int) -> object:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    own = tmp_path / "own" / "cgroup.procs"
    own.parent.mkdir()
    found = SimpleNamespace(mechanism="cgroup-v2", create=create, base=tmp_path, way_back=own)
    monkeypatch.setattr(envelope, "find_memory_controller", lambda: found)
    return own


def without_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "find_memory_controller", lambda: Unavailable("nothing is delegated"))


def test_a_node_without_a_declared_envelope_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    without_controller(monkeypatch)
    entered = enter(spec(limit_bytes=None, mechanism="cgroup-v1"))
    assert type(entered) is NodeEnvelope
    assert (entered.mechanism, entered.limit_bytes, entered.overflows()) == ("none", None, 0)
    memory = process_memory(os.getpid())
    assert memory is not None
    assert entered.charged_bytes([os.getpid()]) == pytest.approx(memory.resident, rel=0.2)


def test_auto_takes_a_cgroup_where_one_can_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    group = FakeGroup()
    way_back = with_controller(monkeypatch, tmp_path, group)
    entered = enter(spec())
    assert isinstance(entered, CgroupEnvelope)
    assert group.members == [os.getpid()]
    assert (entered.mechanism, entered.limit_bytes) == ("cgroup-v2", 64 * MIB)
    assert (entered.charged_bytes([]), entered.overflows()) == (17, 3)
    assert entered.mechanism_peak_bytes() is None
    entered.reset_peak()
    entered.leave()
    assert way_back.read_text() == str(os.getpid())
    assert group.removed


@pytest.mark.parametrize("mechanism", ["auto", "rlimit-data"])
def test_without_a_cgroup_each_stage_is_limited(monkeypatch: pytest.MonkeyPatch, mechanism: str) -> None:
    without_controller(monkeypatch)
    entered = enter(spec(mechanism=mechanism))
    assert isinstance(entered, DataLimitEnvelope)
    assert (entered.mechanism, entered.limit_bytes) == ("rlimit-data", 64 * MIB)


def test_a_cgroup_that_the_kernel_refuses_is_replaced_only_by_auto(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_controller(monkeypatch, tmp_path, DiscoveryError("memory cgroup", "read-only"))
    assert isinstance(enter(spec()), DataLimitEnvelope)
    with pytest.raises(DiscoveryError):
        enter(spec(mechanism="cgroup-v2"))


def test_insisting_on_a_cgroup_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    without_controller(monkeypatch)
    for mechanism in ("cgroup-v1", "cgroup-v2", "abacus"):
        with pytest.raises(SpecError, match="nothing is delegated") as caught:
            enter(spec(mechanism=mechanism))
        assert caught.value.found == mechanism


def test_a_cgroup_of_another_version_is_not_taken_instead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    group = FakeGroup()
    with_controller(monkeypatch, tmp_path, group)
    with pytest.raises(SpecError, match="cgroup-v2, which can be had"):
        enter(spec(mechanism="cgroup-v1"))
    assert group.members == []


def test_what_auto_would_take_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism, reason = available_mechanism()
    real = find_memory_controller()
    assert mechanism == (real.mechanism if isinstance(real, MemoryController) else "rlimit-data")
    assert reason
    without_controller(monkeypatch)
    assert available_mechanism() == ("rlimit-data", "nothing is delegated")


@pytest.mark.parametrize(("wanted_bytes", "outcome"), [(16 * MIB, "had it"), (512 * MIB, "refused")])
def test_an_allocation_beyond_the_limit_fails_inside_the_child(wanted_bytes: int, outcome: str) -> None:
    own = process_memory(os.getpid())
    assert own is not None
    held = DataLimitEnvelope(own.data + 128 * MIB)
    command = [sys.executable, "-c", ALLOCATE, str(wanted_bytes)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    held.limit_stage(child.pid)
    said, _ = child.communicate("go\n")
    assert said == outcome


def test_a_stage_gets_what_the_agent_has_not_taken() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    own = process_memory(os.getpid())
    assert own is not None
    for limit, left in ((own.data + 64 * MIB, 64 * MIB), (MIB, 0)):
        DataLimitEnvelope(limit).limit_stage(child.pid)
        soft, hard = resource.prlimit(child.pid, resource.RLIMIT_DATA)
        assert hard == limit
        assert soft == pytest.approx(left, abs=8 * MIB)
    child.communicate("\n")


def test_stages_of_one_node_share_its_data_limit() -> None:
    """What one has mapped, the other cannot have; when it has ended, the other can."""
    own = process_memory(os.getpid())
    assert own is not None
    limit = own.data + 192 * MIB
    held = DataLimitEnvelope(limit)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", "a = bytearray(96 << 20); print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
        held.limit_stage(child.pid)
    for child in children:
        assert resource.prlimit(child.pid, resource.RLIMIT_DATA)[0] == pytest.approx(96 * MIB, abs=16 * MIB)
    children[0].communicate("\n")
    held.share()
    assert resource.prlimit(children[1].pid, resource.RLIMIT_DATA)[0] == pytest.approx(192 * MIB, abs=16 * MIB)
    children[1].communicate("\n")


def test_what_is_charged_under_a_data_limit_is_what_it_counts() -> None:
    held = DataLimitEnvelope(64 * MIB)
    memory = process_memory(os.getpid())
    assert memory is not None
    assert held.charged_bytes([os.getpid(), 2**22 + 1]) == pytest.approx(memory.data, rel=0.2)
    assert held.overflows() == 0
    held.count_overflow()
    assert held.overflows() == 1
    assert held.mechanism_peak_bytes() is None
