"""What a change of plans gains and costs, and whether both plans fit beside each other. Pure functions of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from inferswarm.errors import SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.recovery_records import OVERLAPPING, TransitionMode
from inferswarm.planner import (
    ChangeHistory,
    ChangePolicy,
    ChangeVerdict,
    ExecutionPlan,
    ProposedChange,
    gain_confidence,
    judge_change,
)
from inferswarm.planner.objective import shares_of
from inferswarm.planner.plan import Interval
from inferswarm.resources.types import MemoryResource, ResourceGraph
from inferswarm.swarm.acquiring_estimates import AcquiringEstimate
from inferswarm.swarm.reservations import PARTICIPANT_TERM
from inferswarm.units import format_bytes, format_seconds


class BroughtUp(NamedTuple):
    """How long a plan took to come up, as it was measured when it was realized."""

    epoch: int
    starting_seconds: float
    """For all but the states: processes, their libraries, connections. Of all stages, which start at once."""
    state_bytes: int
    state_seconds: float
    """What all stages together needed for their states, one after the other."""

    def seconds_for(self, state_bytes: int) -> float | None:
        """Return how long so many bytes of states take at the measured rate; None where nothing tells one."""
        if not state_bytes:
            return 0.0
        if not self.state_bytes or self.state_seconds <= 0:
            return None
        return state_bytes * self.state_seconds / self.state_bytes


def brought_up(realized: m.Realized, acquired_seconds: float = 0.0) -> BroughtUp:
    """Return what a realization's own figures say; how long it acquired depends on what was there already."""
    seconds = [stage.seconds for stage in realized.stages]
    return BroughtUp(
        epoch=realized.epoch,
        starting_seconds=max(0.0, realized.seconds - acquired_seconds - max(seconds, default=0.0)),
        state_bytes=sum(state.bytes for stage in realized.stages for state in stage.states),
        state_seconds=sum(seconds),
    )


class BringingUp(NamedTuple):
    """What bringing up another plan is expected to take, in seconds, and from what."""

    measured_epoch: int
    starting_seconds: float
    state_bytes: int
    state_seconds: float
    num_sessions: int
    session_seconds: float
    """What each open session takes to be computed again, at most: a whole request."""
    acquiring: AcquiringEstimate | None = None
    """Of what its Nodes lack; None: they acquire nothing."""

    @property
    def known_seconds(self) -> float:
        """All that can be told: as `seconds`, without acquiring where that takes an unknown time."""
        acquiring = 0.0 if self.acquiring is None else self.acquiring.upper_seconds or 0.0
        return acquiring + self.starting_seconds + self.state_seconds + self.num_sessions * self.session_seconds

    @property
    def seconds(self) -> float | None:
        """In all: an upper estimate, since states are counted one after the other and every session as open.

        None where nothing bounds it.
        """
        is_unknown = self.acquiring is not None and self.acquiring.upper_seconds is None
        return None if is_unknown else self.known_seconds

    def __str__(self) -> str:
        """The sum, for people."""
        sessions = "1 session" if self.num_sessions == 1 else f"{self.num_sessions} sessions"
        return (
            f"starting stages {format_seconds(self.starting_seconds)} as measured for epoch {self.measured_epoch}, "
            f"their states ({format_bytes(self.state_bytes)}) {format_seconds(self.state_seconds)} at the rate of "
            f"then, computing at most {sessions} again {format_seconds(self.num_sessions * self.session_seconds)}"
            + ("" if self.acquiring is None else f", {self.acquiring}")
        )


def bringing_up(
    proposed: ExecutionPlan, before: BroughtUp, acquiring: AcquiringEstimate | None = None
) -> BringingUp | None:
    """Return what it takes to bring a plan up beside or instead of another one; None where it cannot be told."""
    if proposed.prediction is None:
        return None
    state_bytes = sum(state.bytes for placement in proposed.placements for state in placement.states)
    state_seconds = before.seconds_for(state_bytes)
    if state_seconds is None:
        return None
    return BringingUp(
        measured_epoch=before.epoch,
        starting_seconds=before.starting_seconds,
        state_bytes=state_bytes,
        state_seconds=state_seconds,
        num_sessions=proposed.sessions,
        session_seconds=proposed.prediction.request.point,
        acquiring=acquiring,
    )


def request_seconds(plan: ExecutionPlan) -> Interval | None:
    """Return how long a request takes, as the plan's own objective counts it; None for a plan without a price.

    With throughput as the objective it is what a request takes of all sessions together: its tokens by their rate.
    With a mix it is the value of the mix, in which all of a request's tokens count.
    """
    prediction = plan.prediction
    if prediction is None:
        return None
    shares, rate, tokens = shares_of(plan.workload), prediction.throughput, plan.workload.output_tokens
    if not shares.cadence:
        return prediction.request
    if isinstance(rate, msgspec.UnsetType) or rate.low <= 0:
        return None
    whole = tokens if plan.workload.throughput is not None else 1
    request = prediction.request
    return Interval(
        whole * shares.value(request.low, 1 / rate.high),
        whole * shares.value(request.point, 1 / rate.point),
        whole * shares.value(request.high, 1 / rate.low),
    )


def expected_requests(present: Interval, policy: ChangePolicy) -> float:
    """Return how many requests are taken to be still to come, where nobody says.

    So many as follow each other under the present plan for as long as a change is remembered (the half-life of flap
    damping): a resource that stays that long is taken to be there for so long again.
    """
    return policy.penalty_half_life_seconds / present.point if present.point > 0 else 0.0


def propose(
    present: Interval, proposed: Interval, requests: float, bringing: BringingUp, *, interrupts: bool
) -> ProposedChange:
    """Return a change as `planner.change` judges it. One that interrupts serves nothing while it is prepared.

    Raises SpecError where nothing bounds the preparation: there is nothing to judge.
    """
    if bringing.seconds is None:
        raise SpecError("preparation", str(bringing), "an upper estimate")
    return ProposedChange(
        present_request_seconds=present.point,
        proposed_request_seconds=proposed.point,
        remaining_requests=requests,
        preparation_seconds=bringing.seconds,
        interruption_seconds=bringing.seconds if interrupts else 0.0,
        confidence=gain_confidence(present, proposed),
    )


class Weighed(NamedTuple):
    """A change with all that was worked out of it; without a verdict where something could not be told."""

    reasons: tuple[str, ...]
    mode: TransitionMode
    no_room: tuple[str, ...]
    bringing_up: BringingUp | None = None
    change: ProposedChange | None = None
    verdict: ChangeVerdict | None = None
    by_policy: bool = False
    """Whether only calm speaks against it: it would be worth it."""

    @property
    def go(self) -> bool:
        """Whether the change is to be made; what could not be told is no reason to go."""
        return self.verdict is not None and self.verdict.go


def weigh(
    present: ExecutionPlan,
    proposed: ExecutionPlan,
    graph: ResourceGraph,
    before: BroughtUp | None,
    requests: float | None,
    policy: ChangePolicy,
    history: ChangeHistory,
    now_seconds: float,
    acquiring: AcquiringEstimate | None = None,
) -> Weighed:
    """Work out a change for the better. `present` has the prices of now; `requests` None: see `expected_requests`.

    `acquiring` is of what the proposed plan's Nodes lack; None: they acquire nothing.
    """
    mode, no_room = mode_of(present, proposed, graph)
    bringing = None if before is None else bringing_up(proposed, before, acquiring)
    times = request_seconds(present), request_seconds(proposed)
    if times[0] is None or times[1] is None:
        which = "that serves" if times[0] is None else "that was proposed"
        return Weighed((f"the plan {which} has no price: nothing says what is gained",), mode, no_room, bringing)
    if bringing is None:
        return Weighed(("nothing says how long the other plan takes to come up",), mode, no_room)
    if bringing.seconds is None:
        return Weighed((f"nothing bounds its preparation: {acquiring}",), mode, no_room, bringing)
    requests = expected_requests(times[0], policy) if requests is None else requests
    change = propose(times[0], times[1], requests, bringing, interrupts=mode is not OVERLAPPING)
    verdict = judge_change(change, policy, history, now_seconds)
    worth_it = judge_change(change, policy).go
    return Weighed(verdict.reasons, mode, no_room, bringing, change, verdict, worth_it and not verdict.go)


def weigh_departure(
    present: ExecutionPlan,
    proposed: ExecutionPlan,
    graph: ResourceGraph,
    before: BroughtUp | None,
    acquiring: AcquiringEstimate | None = None,
) -> Weighed:
    """Work out a change that has to be: like a recovery it is judged by no economics."""
    mode, no_room = mode_of(present, proposed, graph)
    bringing = None if before is None else bringing_up(proposed, before, acquiring)
    times = request_seconds(present), request_seconds(proposed)
    seconds = 0.0 if bringing is None else bringing.known_seconds
    change = ProposedChange(
        present_request_seconds=0.0 if times[0] is None else times[0].point,
        proposed_request_seconds=0.0 if times[1] is None else times[1].point,
        remaining_requests=0.0,
        preparation_seconds=seconds,
        interruption_seconds=0.0 if mode is OVERLAPPING else seconds,
        confidence=1.0,
        reason="recovery",
    )
    verdict = judge_change(change)
    return Weighed(verdict.reasons, mode, no_room, bringing, change, verdict)


def mode_of(
    present: ExecutionPlan, proposed: ExecutionPlan, graph: ResourceGraph
) -> tuple[TransitionMode, tuple[str, ...]]:
    """Return how to change: both plans at once where both fit, else one after the other, and why not at once."""
    beside = fit_beside(present, proposed, graph)
    return (OVERLAPPING, ()) if beside.fits else (TransitionMode.SAFE_INTERRUPTED_CUTOVER, beside.reasons)


def is_same_work(one: ExecutionPlan, other: ExecutionPlan) -> bool:
    """Return whether two plans do the same in the same places, whatever else was there when they were made."""

    def work(plan: ExecutionPlan) -> tuple[object, ...]:
        return (
            plan.primitive,
            plan.representation,
            plan.max_positions,
            plan.sessions,
            *(
                (item.compute_unit_id, item.threads, item.first_unit, item.end_unit, item.states_memory_id)
                for item in plan.placements
            ),
        )

    return work(one) == work(other)


def uses(plan: ExecutionPlan, node_id: str) -> bool:
    """Return whether a Node has a part in a plan."""
    return any(placement.node_id == node_id for placement in plan.placements)


def held_bytes(plan: ExecutionPlan, memory_id: str) -> int:
    """Return the peak of a plan's participants on a Memory Resource, all together, beside what is reserved there."""
    accounts = [account for placement in plan.placements for account in placement.accounts]
    return max((account.needed_bytes for account in accounts if account.memory_id == memory_id), default=0)


class Beside(NamedTuple):
    """Whether a second plan has room beside the first, and what speaks against it."""

    fits: bool
    reasons: tuple[str, ...]


def fit_beside(present: ExecutionPlan, proposed: ExecutionPlan, graph: ResourceGraph) -> Beside:
    """Say whether both plans' peaks fit at once, on every Memory Resource of each Node that has a part in both.

    What is reserved there is measured with the processes of one plan. Another plan's processes are counted as much
    again, unless its participants count their own. An unknown capacity or reservation is no room.
    """
    both = {item.node_id for item in present.placements} & {item.node_id for item in proposed.placements}
    against = tuple(
        reason
        for memory in graph.memory_resources
        if memory.node_id in both and (reason := _why_no_room(memory, present, proposed, graph)) is not None
    )
    return Beside(not against, against)


def _why_no_room(
    memory: MemoryResource, present: ExecutionPlan, proposed: ExecutionPlan, graph: ResourceGraph
) -> str | None:
    name = next(node.name for node in graph.nodes if node.id == memory.node_id)
    capacity, reserved = memory.capacity_bytes.value, memory.reserved_bytes.value
    if capacity is None or reserved is None:
        return f"{name} ({memory.kind}): its capacity or what is reserved there is unknown"
    processes = 0 if _counts_its_process(proposed, memory.id) else reserved
    first, second = held_bytes(present, memory.id), held_bytes(proposed, memory.id)
    kept = max((reserved, *_reserved_in(proposed, memory.id)))  # more where the operator keeps some free
    needed = kept + first + second + processes
    if needed <= capacity:
        return None
    parts = [kept, first, second, processes] if processes else [kept, first, second]
    return (
        f"{name} ({memory.kind}): {' + '.join(format_bytes(part) for part in parts)} for both plans at once, "
        f"it has {format_bytes(capacity)}"
    )


def _reserved_in(plan: ExecutionPlan, memory_id: str) -> tuple[int, ...]:
    accounts = [account for placement in plan.placements for account in placement.accounts]
    return tuple(account.reserved_bytes or 0 for account in accounts if account.memory_id == memory_id)


def _counts_its_process(plan: ExecutionPlan, memory_id: str) -> bool:
    return any(
        account.memory_id == memory_id and any(term.name == PARTICIPANT_TERM for term in account.terms)
        for placement in plan.placements
        for account in placement.accounts
    )


def room_beside(plan: ExecutionPlan | None, memory: MemoryResource) -> int:
    """Return the bytes that one more empty stage would find free beside a plan; 0 where that is unknown.

    What such a stage needs is counted as much as all that is reserved, which holds one. Without a plan, what is
    reserved counts once: the stage is the one that it was measured with.
    """
    capacity, reserved = memory.capacity_bytes.value, memory.reserved_bytes.value
    if capacity is None or reserved is None:
        return 0
    taken = reserved if plan is None else 2 * reserved + held_bytes(plan, memory.id)
    return max(0, capacity - taken)


def join_texts(texts: Sequence[str]) -> str:
    """Return reasons as one text."""
    return "; ".join(texts)
