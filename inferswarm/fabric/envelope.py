"""What holds a Node to its declared memory: a cgroup around agent and stages, or a limit on each stage's data.

* `cgroup-v1`, `cgroup-v2`: the kernel kills a process of the Node when unreclaimable memory passes the limit.
* `rlimit-data`: needs no privilege. Each stage may map at most the limit less what the agent and the Node's other
  stages have mapped; a larger allocation fails inside the stage, which then ends with a status of its own, or by a
  signal where the code that asked does not look at what it got. Where a Node has several stages, the agent looks
  again every `SAMPLE_SECONDS`: in between, two of them can pass the limit together, and then the next allocation of
  either fails.
* `none`: nothing was declared.

What counts against the limit differs between them, so a Node's base is measured with `charged_bytes` of the same
mechanism that will enforce the plan.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from inferswarm.errors import DiscoveryError, MeasurementError, SpecError
from inferswarm.fabric.proc import ProcessMemory, process_memory
from inferswarm.resources.cgroups import MemoryCgroup, Unavailable, find_memory_controller


class NodeEnvelope:
    """The envelope of the Node that this process is the agent of."""

    mechanism = "none"
    limit_bytes: int | None = None
    _explained_overflows = 0

    def limit_stage(self, pid: int) -> None:
        """Put a stage that was just started under the limit, where the mechanism does not do so by itself."""

    def share(self) -> None:
        """Hold all stages to the limit together, where the mechanism holds each by itself; to be called often."""

    def charged_bytes(self, pids: Iterable[int]) -> int | None:
        """Return what counts against the limit now; `pids` are the agent and its stages."""
        return sum(memory.resident for memory in _memories(pids))

    def mechanism_peak_bytes(self) -> int | None:
        """Return the mechanism's own peak since the last reset, or None when it keeps none."""
        return None

    def reset_peak(self) -> None:
        """Start a new peak, where the mechanism keeps one."""

    def overflows(self) -> int:
        """Return how many processes the mechanism has stopped."""
        return 0

    def explain_overflow(self) -> bool:
        """Return whether there was an overflow that no death has been explained by yet, and use it up."""
        if self.overflows() <= self._explained_overflows:
            return False
        self._explained_overflows += 1
        return True

    def leave(self) -> None:
        """Leave the envelope and remove what it needed, once the stages have gone."""


class CgroupEnvelope(NodeEnvelope):
    """A cgroup that this process has entered; its children are born in it."""

    def __init__(self, group: MemoryCgroup, outside: Path) -> None:
        """Enter `group`; `outside` is the procs file to go back to at the end."""
        self._group = group
        self._outside = outside
        self.mechanism = group.mechanism
        self.limit_bytes = group.limit_bytes
        group.add(os.getpid())

    def charged_bytes(self, pids: Iterable[int]) -> int | None:
        """Return the group's unreclaimable bytes."""
        return self._group.unreclaimable_bytes()

    def mechanism_peak_bytes(self) -> int | None:
        """Return the group's peak usage, page cache included; None when this kernel keeps none."""
        try:
            return self._group.peak_bytes()
        except MeasurementError:
            return None

    def reset_peak(self) -> None:
        """Reset the group's peak; a kernel that cannot keeps the old one."""
        try:
            self._group.reset_peak()
        except MeasurementError:
            return

    def overflows(self) -> int:
        """Return how many processes of the group the kernel has killed for memory."""
        return self._group.oom_kills()

    def leave(self) -> None:
        """Move this process out and remove the group."""
        self._outside.write_text(str(os.getpid()))
        self._group.remove()


THREAD_STACK_BYTES = 8 * 2**20
"""What a thread of a compiled library maps at once for its stack (`ulimit -s` of Linux systems)."""


class _Look(NamedTuple):
    """A stage when the agent last looked: bytes mapped and still allowed, and the most it ever mapped in a second."""

    at_seconds: float
    held: int
    room: int
    pace: float


class DataLimitEnvelope(NodeEnvelope):
    """RLIMIT_DATA on each stage."""

    mechanism = "rlimit-data"

    def __init__(self, limit_bytes: int) -> None:
        """Declare the limit for agent and stages together."""
        self.limit_bytes: int = limit_bytes
        self._overflows = 0
        self._stages: list[int] = []
        self._looks: dict[int, _Look] = {}

    def limit_stage(self, pid: int) -> None:
        """Limit a stage's private writable mappings to the envelope less the agent's and the other stages'."""
        self._stages.append(pid)
        self._limit({pid: memory.data for pid, memory in self._living()})

    def share(self) -> None:
        """Limit every stage anew by what the others have mapped meanwhile; a single one keeps its limit."""
        has_shared = len(self._stages) > 1
        held = {pid: memory.data for pid, memory in self._living()}
        if has_shared:  # one of them may have ended: the other gets its part
            self._limit(held)
            return
        for pid, own in held.items():
            with contextlib.suppress(ProcessLookupError):  # what was seen of it last stands
                allowed, _ = resource.prlimit(pid, resource.RLIMIT_DATA)
                self._look(pid, own, allowed)

    def _living(self) -> list[tuple[int, ProcessMemory]]:
        found = [(pid, memory) for pid in self._stages if (memory := process_memory(pid)) is not None]
        self._stages = [pid for pid, _ in found]
        return found

    def _limit(self, held: Mapping[int, int]) -> None:
        agent = process_memory(os.getpid())
        left = self.limit_bytes - (0 if agent is None else agent.data) - sum(held.values())
        for pid, own in held.items():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                _, most = resource.prlimit(pid, resource.RLIMIT_DATA)
                most = self.limit_bytes if most == resource.RLIM_INFINITY else min(most, self.limit_bytes)
                allowed = min(max(0, left + own), most)
                resource.prlimit(pid, resource.RLIMIT_DATA, (allowed, most))
                self._look(pid, own, allowed)

    def _look(self, pid: int, own: int, allowed: int) -> None:
        now = time.monotonic()
        before = self._looks.get(pid, _Look(now, own, 0, 0.0))
        passed = now - before.at_seconds
        pace = max(before.pace, (own - before.held) / passed if passed else 0.0)
        self._looks[pid] = _Look(now, own, allowed - own, pace)

    def short_room(self, pid: int, ended_at_seconds: float) -> int | None:
        """Return what a stage could still map when it was last looked at, if that was little; else None.

        Little is what it can have mapped until its end at the pace of its fastest growth, and a thread's stack.
        `ended_at_seconds` is of the monotonic clock. A stage is asked about once.
        """
        look = self._looks.pop(pid, None)
        if look is None:
            return None
        grown = look.pace * max(0.0, ended_at_seconds - look.at_seconds)
        return look.room if look.room <= grown + THREAD_STACK_BYTES else None

    def charged_bytes(self, pids: Iterable[int]) -> int | None:
        """Return the sum of private writable mappings."""
        return sum(memory.data for memory in _memories(pids))

    def count_overflow(self) -> None:
        """Note that a stage ended because an allocation failed under the limit."""
        self._overflows += 1

    def overflows(self) -> int:
        """Return how many stages ended because an allocation failed under the limit."""
        return self._overflows


class EnvelopeSpec(NamedTuple):
    """What to enforce: `group` names the cgroup, `limit_bytes` is None for a Node without a declared envelope."""

    group: str
    limit_bytes: int | None
    mechanism: str
    """`auto` takes a cgroup where one can be had and RLIMIT_DATA elsewhere; a name insists on that one."""


def enter(spec: EnvelopeSpec) -> NodeEnvelope:
    """Put this process, an agent that has done nothing yet, into its envelope.

    Raises SpecError when the mechanism that was insisted on cannot be had here.
    """
    if spec.limit_bytes is None:
        return NodeEnvelope()
    if spec.mechanism == "rlimit-data":
        return DataLimitEnvelope(spec.limit_bytes)
    controller = find_memory_controller()
    if spec.mechanism not in ("auto", controller.mechanism):
        refuse_unavailable(spec.mechanism)
    if isinstance(controller, Unavailable):
        return DataLimitEnvelope(spec.limit_bytes)
    try:
        group = controller.create(spec.group, spec.limit_bytes)
    except DiscoveryError:
        if spec.mechanism == "auto":
            return DataLimitEnvelope(spec.limit_bytes)
        raise
    return CgroupEnvelope(group, controller.way_back)


def refuse_unavailable(mechanism: str) -> None:
    """Raise SpecError unless the mechanism can be had on this machine. `auto` always can."""
    best, reason = available_mechanism()
    if mechanism not in ("auto", "rlimit-data", best):
        raise SpecError(
            "memory mechanism", mechanism, f"auto, rlimit-data or {best}, which can be had here ({reason})"
        )


def available_mechanism() -> tuple[str, str]:
    """Return the mechanism that `auto` would take on this machine, and why."""
    controller = find_memory_controller()
    if isinstance(controller, Unavailable):
        return "rlimit-data", controller.reason
    return controller.mechanism, f"groups can be made in {controller.base}"


def _memories(pids: Iterable[int]) -> list[ProcessMemory]:
    memories = (process_memory(pid) for pid in pids)
    return [memory for memory in memories if memory is not None]
