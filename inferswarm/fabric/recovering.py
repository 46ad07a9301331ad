"""Brings a scope back whose epoch was lost: one change of epochs at a time, until something serves or nothing can.

The order of events is that of `fabric/recovery.py`. What is tried: first the plan that was ordered, then its
fallbacks, each where all of its Nodes are members; of each plan, first with the stages that survived, then from
nothing. While no plan has its Nodes, the suspended sessions wait for one to come back, for a bounded time.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
from msgspec.structs import replace

from inferswarm.backends.base import StageAssignment
from inferswarm.documents import digest
from inferswarm.errors import InferSwarmError
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.authority import Realization, RealizationState
from inferswarm.fabric.authority_keeper import AuthorityKeeper
from inferswarm.fabric.holding import SessionNeed, plan_holding
from inferswarm.fabric.realizing import Realizer
from inferswarm.fabric.recovery_records import TransitionMode, TransitionOutcome, TransitionRecord, Trigger
from inferswarm.fabric.running import Recovery, RunningPlan, first_plan

CONTRACT = "prompt and committed tokens are computed again in the recorded steps, where no stage kept their state"
ADOPTING_ATTEMPTS = 2
"""So often a plan is tried with stages that survived, before it is tried from nothing."""
ATTEMPTS = 3
"""So often one plan is tried in one change: a second loss while the first is repaired is no reason to give it up."""

MOST_FRUITLESS = 5
"""So often in a row a recovered plan may be lost before anything was committed by it."""
RETRY_SECONDS = 0.1
"""How long a Coordinator whose lease lapsed waits until it asks its machine again."""

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
Serve = Callable[[RunningPlan], Awaitable[None]]
"""Called with a plan that has authority: lets sessions go on. Raises InferSwarmError when it cannot be reached."""


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be served in a scope, whoever coordinates it."""

    question: m.Realize
    epochs: tuple[int, ...]
    """Those that have served it, the latest last."""

    def choices(self) -> tuple[m.Fallback, ...]:
        """Return the plans that may serve it, the best first."""
        return (first_plan(self.question), *self.question.fallbacks)


class Recoverer:
    """Recovers one Coordinator's scope."""

    def __init__(
        self,
        keeper: AuthorityKeeper,
        realizer: Realizer,
        needs: Callable[[m.Fallback], list[SessionNeed]],
        progress: Callable[[], int],
        serve: Serve,
        on_given_up: Callable[[], None],
        clear_the_way: Callable[[], Awaitable[None]],
        patience_seconds: float,
    ) -> None:
        """`needs` says what a plan's stages would have to hold; sessions wait for a Node at most `patience_seconds`.

        `progress` counts what was committed; `on_given_up` hears when nothing will be served any more;
        `clear_the_way` ends what else was being prepared. Nothing is recovered before something is ordered.
        """
        self._clear_the_way = clear_the_way
        self._ordered: ev.TransitionPlanned | None = None
        """How the plan that was just ordered is come to, where that was said with the order."""
        self._progress = progress
        self._served: tuple[m.Fallback, int] | None = None
        """The plan that was recovered last, and what was committed before it served."""
        self._num_fruitless = 0
        self._on_given_up = on_given_up
        self._keeper = keeper
        self._realizer = realizer
        self._needs = needs
        self._serve = serve
        self._patience = patience_seconds
        self._task: asyncio.Task[None] | None = None
        self._joined = asyncio.Event()
        self._distrusted: set[str] = set()
        self.standing: Standing | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether something is being recovered."""
        return self._task is not None and not self._task.done()

    def node_joined(self) -> None:
        """A Node is there that was not: a plan may have all of its Nodes by now."""
        self._joined.set()

    def distrust(self, realization: str) -> None:
        """Adopt nothing of a realization: what failed of it is not known."""
        self._distrusted.add(realization)

    async def settled(self) -> None:
        """Wait until nothing is being recovered any more."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    def replace(self, standing: Standing, ordered: ev.TransitionPlanned) -> None:
        """Serve something else from the next recovery on, which comes to its first plan in the ordered way."""
        self.standing = standing
        self._ordered = ordered

    def begin(self, spawn: Spawn, trigger: Trigger, detail: str, *, settle_seconds: float = 0.0) -> bool:
        """Recover, unless that is under way; returns whether it is now.

        For `settle_seconds` the first plan's Nodes are waited for, though another plan could be realized.
        """
        if self.standing is None:
            return False
        if not self.is_under_way:
            self._task = spawn(self._run(self.standing, trigger, detail, settle_seconds))
        return True

    async def cancel(self, reason: str) -> None:
        """Recover nothing any more: sessions that wait fail, what was prepared is stopped."""
        self.standing = None
        if self._task is None or not self.is_under_way:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._give_up(TransitionOutcome.FAILED_REALIZATION, reason)

    def conclude_failed(self, reason: str) -> None:
        """End a change that an earlier Coordinator left under way: it is not gone on with."""
        self._conclude(TransitionOutcome.FAILED_REALIZATION, reason)

    # -- one recovery --

    async def _run(self, standing: Standing, trigger: Trigger, detail: str, settle: float) -> None:
        await self._clear_the_way()
        now = time.monotonic()
        settled, until = now + settle, now + max(self._patience, settle)
        failures = self._fruitless()
        while self._keeper.state.active_epoch() is None:
            if self._keeper.state.transition is None and not self._started(trigger, detail):
                await asyncio.sleep(RETRY_SECONDS)  # the lease lapsed; it is renewed, or this Coordinator ends
                continue
            self._joined.clear()
            waits_for_first = time.monotonic() < settled
            choice = self._choose(standing, failures, waits_for_first=waits_for_first)
            if choice is not None:
                failures[digest(choice.plan)] += 1
                await self._attempt(standing, choice, failures[digest(choice.plan)])
            elif all(failures[digest(item.plan)] >= ATTEMPTS for item in standing.choices()):
                last = self._record().attempts[-1:]
                await self._give_up(TransitionOutcome.FAILED_REALIZATION, last[0].reason if last else detail)
                return
            elif not await self._node_joins(settled if waits_for_first else until) and time.monotonic() >= until:
                await self._give_up(TransitionOutcome.ABORTED_PLANNING, f"{detail}; no plan has all of its Nodes")
                return
            if self._keeper.state.active_epoch() is not None:
                await self._reclaim_dead()

    def _fruitless(self) -> Counter[str]:
        """Return the failures to begin with: a plan that is lost again and again before it commits is not tried.

        So what a session itself brings about, such as memory that it needs, ends in a failure and not in a circle.
        """
        waiting = any(session.suspended for session in self._keeper.state.sessions)
        if self._served is None or not waiting or self._progress() > self._served[1]:
            self._num_fruitless = 0
            return Counter()
        self._num_fruitless += 1
        if self._num_fruitless < MOST_FRUITLESS:
            return Counter()
        self._num_fruitless = 0
        return Counter({digest(self._served[0].plan): ATTEMPTS})

    def _started(self, trigger: Trigger, detail: str) -> bool:
        effects = self._keeper.advance(
            ev.TransitionStarted(trigger=trigger, detail=detail, recovery_contract=CONTRACT)
        )
        return not any(isinstance(effect, ev.Refused) for effect in effects)

    async def _give_up(self, outcome: TransitionOutcome, reason: str) -> None:
        self.standing = None
        self._conclude(outcome, reason)
        self._keeper.advance(ev.RecoveryGivenUp(reason=reason))
        self._on_given_up()
        await self._reclaim_dead()

    async def _node_joins(self, until: float) -> bool:
        try:
            await asyncio.wait_for(self._joined.wait(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            return False
        return True

    def _choose(self, standing: Standing, failures: Counter[str], *, waits_for_first: bool) -> m.Fallback | None:
        """Return the best plan whose Nodes are all members and that was not tried too often."""
        members = {member.node_id for member in self._keeper.state.members}
        for choice in standing.choices():
            there = all(item.node_id in members for item in choice.plan.placements)
            if there and failures[digest(choice.plan)] < ATTEMPTS:
                return choice
            if waits_for_first:
                return None
        return None

    async def _attempt(self, standing: Standing, choice: m.Fallback, number: int) -> None:
        """Prepare one plan and give it authority; what goes wrong is in the record of the change."""
        adopts = self._survivors(standing, choice) if number <= ADOPTING_ATTEMPTS else None
        dead = [item.id for item in self._keeper.state.realizations if item.state is RealizationState.DEAD]
        for realization in dead:  # makes room first
            kept = adopts.participants if adopts is not None and adopts.realization_id == realization else ()
            await self._realizer.stop_stages(realization, kept)
        adopts = None if adopts is None else self._survivors(standing, choice, adopts)
        count = 0 if adopts is None else len(adopts.participants)
        whole = len(choice.plan.placements)
        mode = {0: TransitionMode.REPLAY, whole: TransitionMode.READOPTION}.get(
            count, TransitionMode.REBUILD_ONE_STAGE
        )
        record, plan_digest = self._record(), digest(choice.plan)
        planned = self._ordered
        if planned is None or (planned.transition, planned.plan_digest) != (record.number, plan_digest):
            planned = ev.TransitionPlanned(
                transition=record.number,
                plan_digest=plan_digest,
                decision_digest="",
                snapshot_digest="",
                mode=mode,
            )
        try:
            self._keeper.demand(planned)
            recovery = Recovery(record.number, adopts, lambda held: plan_holding(self._needs(choice), held))
            running = await self._realizer.realize(choice, _quietly, recovery)
            for realization in dead:
                self._realizer.forget(realization)
            await self._serve(running)
            self._served = (choice, self._progress())
        except InferSwarmError:
            return  # the attempt is dead, and its record says why; without the lease, the next event ends it all

    def _survivors(
        self, standing: Standing, choice: m.Fallback, among: ev.Adoption | None = None
    ) -> ev.Adoption | None:
        """Return the stages of the newest dead realization that a plan can use where they are."""
        known = {digest(item.plan): item for item in standing.choices()}
        for realization in reversed(self._keeper.state.realizations):
            earlier = known.get(realization.plan_digest)
            is_left = realization.state is RealizationState.DEAD and realization.id not in self._distrusted
            if earlier is None or not is_left:
                continue
            kept = self._usable(realization, earlier, choice)
            if among is not None:
                kept = tuple(name for name in kept if name in among.participants)
            if kept and (among is None or among.realization_id == realization.id):
                return ev.Adoption(realization_id=realization.id, participants=kept)
        return None

    def _usable(self, realization: Realization, earlier: m.Fallback, choice: m.Fallback) -> tuple[str, ...]:
        members = {member.node_id: member.incarnation for member in self._keeper.state.members}
        incarnations = dict(realization.incarnations)
        before = {item.participant: item for item in earlier.assignments}
        places = dict(realization.participants)
        return tuple(
            item.participant
            for item, assignment in zip(choice.plan.placements, choice.assignments, strict=True)
            if item.participant in realization.survivors()
            and self._realizer.is_built(realization.id, item.participant)
            and places[item.participant] == item.node_id
            and members.get(item.node_id) == incarnations.get(item.node_id)
            and _is_same_work(before[item.participant], assignment)
        )

    async def _reclaim_dead(self) -> None:
        for realization in self._keeper.state.realizations:
            if realization.state is RealizationState.DEAD:
                await self._realizer.reclaim(realization.id)

    def _record(self) -> TransitionRecord:
        record = self._keeper.state.transition
        assert record is not None, "a change is under way"
        return record

    def _conclude(self, outcome: TransitionOutcome, reason: str) -> None:
        """End the change that is under way, if there is one, in a way that says whether anything was tried."""
        record = self._keeper.state.transition
        if record is None:
            return
        tried = bool(record.attempts) or record.realization_id is not None
        if outcome is TransitionOutcome.FAILED_REALIZATION and not tried:
            outcome = TransitionOutcome.FAILED_UNRECOVERABLE_STATE
        elif outcome is TransitionOutcome.ABORTED_PLANNING and tried:
            outcome = TransitionOutcome.FAILED_REALIZATION
        self._keeper.advance(ev.TransitionConcluded(transition=record.number, outcome=outcome, reason=reason))


def _is_same_work(before: StageAssignment, after: StageAssignment) -> bool:
    """Whether a stage that holds one assignment can do another: they differ in nothing but the plan."""
    return replace(before, plan_digest="") == replace(after, plan_digest="")


def _quietly(_: m.Progressed) -> None:
    """Nobody waits for the progress of a recovery."""
