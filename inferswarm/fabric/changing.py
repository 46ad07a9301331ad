"""Changes the plan of a scope on purpose: make before break where both plans fit, else one after the other.

The order of events is that of `fabric/recovery.py`. Beside the plan that serves, the stages of the other one are
prepared and compute what is known of every open session, in its recorded steps, a little at a time, so that they take
no more than half of what both share. Sessions move between two committed positions. Whatever fails before that leaves
the plan in force as it was.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from inferswarm.backends.partition import first_difference
from inferswarm.documents import digest
from inferswarm.errors import AdmissionError, CommitRefused, InferSwarmError, RealizationFailed
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.admission import check_resumption, check_room
from inferswarm.fabric.authority import RefusalCode
from inferswarm.fabric.authority_keeper import AuthorityKeeper
from inferswarm.fabric.catching_up import CatchingUp
from inferswarm.fabric.holding import plan_holding
from inferswarm.fabric.ledger import Ledger
from inferswarm.fabric.membership import OnProgress
from inferswarm.fabric.realizing import Realizer
from inferswarm.fabric.recovery_records import SessionBoundary, TransitionMode, TransitionOutcome, Trigger
from inferswarm.fabric.running import RunningPlan, first_plan
from inferswarm.fabric.session_records import partition_of, planned_partition, recorded_partition
from inferswarm.fabric.sessions import Sessions
from inferswarm.planner.plan import ExecutionPlan

CONTRACT = "the new stages compute the recorded history again, in its steps, while the old ones serve on"
IMPERATIVE = frozenset({Trigger.DRAIN, Trigger.QUARANTINE})
"""Triggers that do not wait for a better time: sessions go on even when they are computed otherwise from then on."""


class Ordered(NamedTuple):
    """A change that is under way: its number, and what was asked for."""

    transition: int
    question: m.Change
    order: m.Fallback


class Changer:
    """Changes one Coordinator's plan on purpose, one change at a time."""

    def __init__(self, keeper: AuthorityKeeper, ledger: Ledger, realizer: Realizer, sessions: Sessions) -> None:
        """Nothing is under way."""
        self._keeper = keeper
        self._ledger = ledger
        self._realizer = realizer
        self._sessions = sessions
        self._preparing: asyncio.Task[RunningPlan] | None = None
        self._ordered: Ordered | None = None

    def begin(self, question: m.Change) -> Ordered:
        """Open the record of a change.

        Raises CommitRefused or AdmissionError, having changed nothing, when another epoch than the named one is in
        force, another change is under way, or an open session has no room in the new plan or would be computed
        otherwise there.
        """
        running = self._sessions.require_running(question.epoch)
        if running.epoch != question.epoch:
            code = RefusalCode.RETIRED_OR_SUPERSEDED_EPOCH.value
            raise CommitRefused(code, f"decided for epoch {question.epoch}; epoch {running.epoch} is in force")
        check_room(question.order.plan, self._sessions.open())
        self._check_partitions(question, None)
        transition = self._start(question.trigger, question.detail)
        try:
            self._keeper.demand(planned(transition, question))
        except CommitRefused as error:
            self._conclude(transition, TransitionOutcome.ABORTED_PLANNING, str(error))
            raise
        return Ordered(transition, question, first_plan(question.order))

    def retain(self, question: m.Retain) -> None:
        """Record that a change was considered and not made. Raises CommitRefused as `begin`."""
        self._sessions.require_running(question.epoch)
        transition = self._start(question.trigger, question.detail)
        if question.plan is not None:
            self._keeper.demand(_planned(transition, question, question.plan, TransitionMode.MAKE_BEFORE_BREAK))
        by_policy = question.is_policy
        outcome = TransitionOutcome.RETAINED_BY_POLICY if by_policy else TransitionOutcome.RETAINED_CURRENT_EPOCH
        self._keeper.demand(
            ev.TransitionConcluded(
                transition=transition, outcome=outcome, reason=question.reason, verdict=question.verdict
            )
        )

    def _start(self, trigger: Trigger, detail: str) -> int:
        self._keeper.demand(ev.TransitionStarted(trigger=trigger, detail=detail, recovery_contract=CONTRACT))
        record = self._keeper.state.transition
        assert record is not None, "it was just started"
        return record.number

    # -- make before break --

    async def prepare(self, ordered: Ordered, on_progress: OnProgress) -> RunningPlan:
        """Prepare the other plan beside the one in force, until its stages have what is known of all sessions.

        Raises what went wrong: the plan in force serves on, the record says so, and nothing of the attempt stays.
        RealizationFailed when the plan in force was lost meanwhile: then its recovery goes on with this change.
        """
        self._ordered = ordered
        self._preparing = asyncio.ensure_future(self._prepare(ordered, on_progress))
        try:
            return await self._preparing
        except asyncio.CancelledError:
            await self._abort(ordered, "whoever asked for it went away")
            if self._keeper.state.active_epoch() is None:
                node = ordered.order.plan.placements[0].node_name
                raise RealizationFailed(node, "the plan in force was lost while another one was prepared") from None
            raise
        except BaseException as error:
            await self._abort(ordered, str(error) if isinstance(error, InferSwarmError) else type(error).__name__)
            raise
        finally:
            self._preparing = None

    async def interrupt(self, reason: str = "the plan in force was lost while another one was prepared") -> None:
        """Give up what is being prepared, if anything is."""
        task, ordered = self._preparing, self._ordered
        if task is None or ordered is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self._abort(ordered, reason)

    def end(self, reason: str) -> None:
        """Give up what is being prepared at once; its stages are stopped by whoever stops all of them."""
        if self._preparing is not None and self._ordered is not None:
            self._preparing.cancel()
            self._conclude_aborted(self._ordered, reason)

    async def _prepare(self, ordered: Ordered, on_progress: OnProgress) -> RunningPlan:
        usual_seconds = max((active.usual_seconds() for active in self._sessions.open()), default=0.0)
        ready = await self._realizer.prepare_beside(ordered.order, ordered.transition, on_progress)
        self._check_partitions(ordered.question, ready)
        await CatchingUp(self._realizer, self._sessions, ready, ordered.order, usual_seconds).run()
        return ready

    def _check_partitions(self, question: m.Change, ready: RunningPlan | None) -> None:
        """Raise AdmissionError when an open session could not go on as exactly as it was begun.

        Before stages are `ready` their kernels are taken to be those of the sessions, and their model to be the same.
        """
        for active in self._sessions.open():
            recorded = recorded_partition(self._ledger.session(active.row.number))
            positions, steps = active.session_positions, recorded.steps
            if ready is None:
                wanted = planned_partition(question.order.plan, recorded.kernel, positions, steps)
            else:
                check_resumption(ready, active.row, positions)
                wanted = partition_of(ready, positions, steps)
            difference = first_difference(wanted, recorded)
            if difference is not None and question.trigger not in IMPERATIVE:
                field, found, earlier = difference
                raise AdmissionError(f"{field} of session {active.row.number}", found, f"{earlier}, as it was begun")

    async def cut_over(self, ordered: Ordered, ready: RunningPlan) -> tuple[RunningPlan, str]:
        """Give authority and sessions to stages that are ready.

        Returns the plan with authority, and the realization that served until now, whose stages may be stopped.
        Raises what went wrong: where the new epoch had begun, it is lost, and to be recovered as any other.
        """
        try:
            return await self._cut_over(ordered, ready)
        finally:
            self._sessions.let_go()

    async def _cut_over(self, ordered: Ordered, ready: RunningPlan) -> tuple[RunningPlan, str]:
        old = self._keeper.state.active_epoch()
        if old is None:
            raise RealizationFailed(ready.plan.placements[0].node_name, "the plan in force was lost")
        moving = self._sessions.open()
        known = {item.number: item for item in self._keeper.state.sessions if not item.suspended}
        boundaries = tuple(
            SessionBoundary(active.row.number, known[active.row.number].next_position)
            for active in moving
            if active.row.number in known
        )
        requested = ev.EpochRequested(
            realization_id=ready.realization, transition=ordered.transition, boundaries=boundaries
        )
        try:
            effects = self._keeper.demand(requested)
        except CommitRefused as error:
            await self._abort(ordered, str(error))
            raise
        epoch = next(effect.epoch for effect in effects if isinstance(effect, ev.EpochActivated))
        self._sessions.leave(moving)
        self._keeper.advance(ev.EpochRetired(epoch=old.number, reason=f"epoch {epoch} serves its sessions"))
        try:
            running = await self._realizer.take_over(
                ready, epoch, lambda held: plan_holding(self._sessions.needs(ordered.order), held)
            )
        except InferSwarmError as error:
            self._realizer.end(ready.realization, str(error))
            raise
        return running, old.realization_id

    async def _abort(self, ordered: Ordered, reason: str) -> None:
        """End a change that leaves the plan in force as it was; without one, its recovery goes on with the change."""
        self._sessions.let_go()
        record = self._keeper.state.transition
        if record is None or record.number != ordered.transition:
            return
        attempts = [item.realization_id for item in record.attempts]
        if record.realization_id is not None:
            attempts.append(record.realization_id)
        if self._keeper.state.active_epoch() is not None:
            self._conclude_aborted(ordered, reason)
        elif record.realization_id is not None:
            self._realizer.end(record.realization_id, reason)
        for realization in attempts:
            await self._realizer.reclaim(realization)

    def _conclude_aborted(self, ordered: Ordered, reason: str) -> None:
        record = self._keeper.state.transition
        if record is not None and record.number == ordered.transition:
            tried = bool(record.attempts) or record.realization_id is not None
            outcome = TransitionOutcome.ABORTED_PREPARATION if tried else TransitionOutcome.ABORTED_PLANNING
            self._conclude(ordered.transition, outcome, reason)

    def _conclude(self, transition: int, outcome: TransitionOutcome, reason: str) -> None:
        self._keeper.advance(ev.TransitionConcluded(transition=transition, outcome=outcome, reason=reason))


def planned(transition: int, question: m.Change) -> ev.TransitionPlanned:
    """Return the event that says which plan a change is to, and how."""
    return _planned(transition, question, question.order.plan, question.mode)


def _planned(
    transition: int, question: m.Change | m.Retain, plan: ExecutionPlan, mode: TransitionMode
) -> ev.TransitionPlanned:
    return ev.TransitionPlanned(
        transition=transition,
        plan_digest=digest(plan),
        decision_digest=question.decision_digest,
        snapshot_digest=question.snapshot_digest,
        mode=mode,
        verdict=question.verdict,
    )
