"""What a Coordinator serves in its scope: a plan in force and its sessions, ordered, lost, recovered and retired."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from inferswarm.errors import CommitRefused, InferSwarmError, RealizationFailed, StageLost, WireError
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.acquiring import Acquirer
from inferswarm.fabric.authority import EpochState, RealizationState, RefusalCode
from inferswarm.fabric.authority_keeper import ENDED, AuthorityKeeper
from inferswarm.fabric.changing import Changer, Ordered, planned
from inferswarm.fabric.feeding import reach_first
from inferswarm.fabric.ledger import Ledger
from inferswarm.fabric.membership import Membership, OnProgress
from inferswarm.fabric.realizing import Realizer
from inferswarm.fabric.recovering import Recoverer, Spawn, Standing
from inferswarm.fabric.recovery_records import OVERLAPPING, Trigger
from inferswarm.fabric.running import RunningPlan
from inferswarm.fabric.sessions import Sessions
from inferswarm.fabric.stage_liveness import SILENT_SECONDS
from inferswarm.fabric.text_side import TextSide
from inferswarm.fabric.transport import watch_stream

ROUTE = "the route"
"""Named as what was lost when messages do not arrive though every stage lives."""
DOUBT_LEASES = 1.5
"""So many leases a broken route waits for a death that explains it: by then the lease of a lost Node has run out."""
SETTLE_LEASES = 2.0
"""So many leases after its start a Coordinator waits for the Nodes of the plan that its predecessor served."""

_standing = msgspec.msgpack.Decoder(Standing)


class ScopeTerms(msgspec.Struct, frozen=True):
    """How long things may take in a scope, in seconds."""

    lease_seconds: float
    patience_seconds: float
    """How long sessions wait for a Node when no plan has all of its Nodes."""
    silent_seconds: float = SILENT_SECONDS
    """How long the system of the first stage's Node may acknowledge nothing of what was sent to it."""


class ScopeService:
    """Serves one scope for one Coordinator."""

    def __init__(
        self,
        keeper: AuthorityKeeper,
        ledger: Ledger,
        members: Membership,
        results_endpoint: str,
        terms: ScopeTerms,
        spawn: Spawn,
        acquirer: Acquirer,
    ) -> None:
        """`results_endpoint` is where last stages send their results; `spawn` starts what goes on beside."""
        self._keeper = keeper
        self._ledger = ledger
        self._members = members
        self._terms = terms
        self._spawn = spawn
        self._scope = keeper.state.scope
        self._acquirer = acquirer
        self._under_way: list[m.Realize] = []
        """Orders that are being realized, and do not stand yet."""
        self._realizer = Realizer(self._scope, keeper, members, results_endpoint, acquirer)
        self.sessions = Sessions(keeper, ledger, self._doubt, spawn)
        self._changer = Changer(keeper, ledger, self._realizer, self.sessions)
        self._recoverer = Recoverer(
            keeper,
            self._realizer,
            self.sessions.needs,
            lambda: self.sessions.num_committed,
            self._serve,
            self._given_up,
            self._changer.interrupt,
            terms.patience_seconds,
        )
        self._running: RunningPlan | None = None
        self._text: TextSide | None = None
        self._is_inherited = False
        self._trigger = Trigger.PARTICIPANT_LOST

    # -- on request --

    async def realize(self, question: m.Realize, on_progress: OnProgress) -> m.Realized:
        """Turn a plan into the epoch in force. Raises CommitRefused while another serves, or what went wrong.

        What a predecessor of this Coordinator served makes way.
        """
        await self.sessions.begun.wait()
        if self._is_inherited:
            await self.retire(None, "another plan was ordered")
        started = time.monotonic()
        path = question.model_path
        text = None if path is None else await asyncio.to_thread(TextSide, path)
        for plan in (question.plan, *(item.plan for item in question.fallbacks)):
            self._ledger.save_plan(plan)
        standing = Standing(question, ())
        with self._ordering(question):
            running = await self._realizer.realize(standing.choices()[0], on_progress)
            self._text = text
            self._recoverer.standing = standing
            try:
                await self._serve(running)
            except InferSwarmError:
                await self.retire(None, "it was lost as it began")
                raise
        return _realized(running, time.monotonic() - started)

    async def _serve(self, running: RunningPlan) -> None:
        """Let sessions be served by a plan that has just got authority. Raises RealizationFailed when it cannot."""
        try:
            reader, writer = await reach_first(running)
        except RealizationFailed as error:
            self._realizer.end(running.realization, error.reason)
            raise
        active = self._keeper.state.active_epoch()
        standing = self._recoverer.standing
        if active is None or active.number != running.epoch or standing is None:
            writer.close()  # a stage was lost in this very moment
            raise RealizationFailed(running.plan.placements[0].node_name, "a stage was lost as the epoch began")
        standing = Standing(standing.question, (*standing.epochs, running.epoch))
        self._recoverer.standing = standing
        self._ledger.keep_order(self._scope, msgspec.msgpack.encode(standing))
        self._running = running
        self.sessions.serve(running, writer, self._text, frozenset(standing.epochs))
        self._acquirer.serves(running.realization)

        def broke(error: WireError) -> None:
            if self._running is running:
                self._doubt(error)

        self._spawn(watch_stream("the first stage", reader, writer, self._terms.silent_seconds, broke))

    async def change(self, question: m.Change, on_progress: OnProgress) -> m.Realized:
        """Serve by another plan from now on; see `messages.Change`.

        Raises CommitRefused or AdmissionError when that may not be, or what went wrong; the record says how it ended.
        """
        await self.sessions.begun.wait()
        started = time.monotonic()
        path, standing = question.order.model_path, self._recoverer.standing
        if standing is None:
            raise CommitRefused(RefusalCode.NO_ACTIVE_AUTHORITY.value, "nothing is served that could be changed")
        text = self._text
        if path != standing.question.model_path:
            text = None if path is None else await asyncio.to_thread(TextSide, path)
        for plan in (question.order.plan, *(item.plan for item in question.order.fallbacks)):
            self._ledger.save_plan(plan)
        ordered = self._changer.begin(question)
        with self._ordering(question.order):
            if question.mode is OVERLAPPING:
                ready = await self._changer.prepare(ordered, on_progress)
                after = Standing(question.order, standing.epochs)
                await asyncio.shield(self._spawn(self._cut_over(ordered, ready, after, text)))
            else:
                await asyncio.shield(self._spawn(self._change_cold(ordered, standing, text)))
        running = self._running
        if running is None or running.plan != question.order.plan:
            raise RealizationFailed(
                question.order.plan.placements[0].node_name,
                "the plan was not realized; what became of it is in the record of the change",
            )
        return _realized(running, time.monotonic() - started)

    async def _cut_over(
        self, ordered: Ordered, ready: RunningPlan, standing: Standing, text: TextSide | None
    ) -> None:
        before, self._recoverer.standing = self._recoverer.standing, standing
        text_before, self._text = self._text, text
        try:
            running, old = await self._changer.cut_over(ordered, ready)
            await self._serve(running)
        except InferSwarmError:
            if self._running is not None:  # the epoch of before serves on
                self._recoverer.standing, self._text = before, text_before
            await self._recoverer.settled()
            return
        self._spawn(self._realizer.reclaim(old))

    async def _change_cold(self, ordered: Ordered, standing: Standing, text: TextSide | None) -> None:
        """End the epoch in force, then come to the other plan as after a loss; the one before is a fallback."""
        asked = ordered.question.order
        order = replace(asked, fallbacks=(*asked.fallbacks, *standing.choices()))
        self._recoverer.replace(Standing(order, standing.epochs), planned(ordered.transition, ordered.question))
        self._text = text
        active = self._keeper.state.active_epoch()
        if active is not None:
            self._keeper.advance(ev.EpochRetired(epoch=active.number, reason=ordered.question.detail))
        await self._recoverer.settled()

    def retain(self, question: m.Retain) -> None:
        """Record that a change was considered and not made. Raises CommitRefused when nothing serves or changes."""
        if question.plan is not None:
            self._ledger.save_plan(question.plan)
        self._changer.retain(question)

    async def retire(self, epoch: int | None, reason: str = "retired on request") -> None:
        """Take authority from what serves and stop its stages; nothing when `epoch` names something else."""
        if not self.sessions.is_named(epoch):
            return
        self._is_inherited = False
        self._ledger.keep_order(self._scope, None)
        await self._changer.interrupt(reason)
        await self._recoverer.cancel(reason)
        active = self._keeper.state.active_epoch()
        if active is not None:
            self._keeper.demand(ev.EpochRetired(epoch=active.number, reason=reason))
            await self._realizer.reclaim(active.realization_id)
        await self._keep_artifacts()

    @contextlib.contextmanager
    def _ordering(self, question: m.Realize) -> Iterator[None]:
        """Keep what an order acquires while it is realized; afterwards what stands says what is kept."""
        self._under_way.append(question)
        try:
            yield
        finally:
            self._under_way.remove(question)
            self._spawn(self._keep_artifacts())

    async def _keep_artifacts(self) -> None:
        """Let the Nodes' stores keep what the plan in force and its fallbacks need, and no more for this scope."""
        standing = self._recoverer.standing
        orders = [*self._under_way, *([] if standing is None else [standing.question])]
        choices = [choice for order in orders for choice in Standing(order, ()).choices()]
        await self._acquirer.keep_only({choice.assignments[0].plan_digest for choice in choices})

    def end(self) -> None:
        """Give authority back as this Coordinator ends on purpose: what is open is cancelled, and nothing is kept."""
        self._changer.end("its Coordinator ended")
        self._recoverer.standing = None
        self._ledger.keep_order(self._scope, None)
        active = self._keeper.state.active_epoch()
        if active is not None:
            self._keeper.advance(ev.EpochRetired(epoch=active.number, reason="its Coordinator ended"))

    async def stage_reports(self, epoch: int | None) -> m.StageReportList:
        """Return every stage's own counters. Raises CommitRefused when `epoch` is not the one that serves."""
        running = self.sessions.require_running(epoch)
        return m.StageReportList(reports=await self._realizer.reports(running))

    # -- from an earlier Coordinator --

    async def go_on(self) -> None:
        """Take over what an earlier Coordinator served, if anything: its sessions wait until its Nodes are there."""
        kept = self._ledger.order(self._scope)
        if kept is None:
            self._forget()
            return
        standing = _standing.decode(kept)
        try:
            path = standing.question.model_path
            self._text = None if path is None else await asyncio.to_thread(TextSide, path)
        except InferSwarmError as error:
            self._forget(f"{ENDED}; its model's text side is not there any more: {error}")
            return
        self._is_inherited = True
        self._recoverer.standing = standing
        self.sessions.inherit(self._text, frozenset(standing.epochs))
        settle = SETTLE_LEASES * self._terms.lease_seconds
        self._recoverer.begin(self._spawn, Trigger.COORDINATOR_RESTARTED, ENDED, settle_seconds=settle)

    def _forget(self, reason: str = ENDED) -> None:
        """Nothing is to be served: sessions that wait fail, and agents are told to stop stages that nobody knows."""
        self._ledger.keep_order(self._scope, None)
        self._recoverer.conclude_failed(reason)
        if any(session.suspended for session in self._keeper.state.sessions):
            self._keeper.advance(ev.RecoveryGivenUp(reason=reason))
        for realization in self._keeper.state.realizations:
            self._realizer.forget(realization.id)
        self.sessions.stop_serving()

    # -- what is lost, and who comes --

    def node_joined(self) -> None:
        """A Node is a member now that was not."""
        self._recoverer.node_joined()
        self._spawn(self._keep_artifacts())

    def stages_found(self, node_id: str, names: frozenset[str]) -> tuple[str, ...]:
        """Hear which stages a Node has as it joins; returns those that are nobody's.

        What it should have and has not is lost.
        """
        state = self._keeper.state
        recovering = state.transition is not None or any(item.suspended for item in state.sessions)
        expected: set[str] = set()
        for realization in state.realizations:
            on_node = [name for name, node in realization.participants if node == node_id]
            for participant in on_node:
                name = self._realizer.stage_name(realization.id, participant)
                if participant not in realization.survivors():
                    continue
                expected.add(name)
                settled = realization.state is not RealizationState.PREPARING
                counts = realization.state is not RealizationState.DEAD or recovering
                if name not in names and settled and counts:
                    self._lose(realization.id, participant, "it is no longer there")
        return tuple(sorted(names - expected))

    def stage_gone(self, node_id: str, message: m.StageGone, error: InferSwarmError) -> None:
        """A stage has ended by itself; one of a probe is heard of by the call that waits for it."""
        realization, _, participant = message.stage.partition("/")
        known = self._keeper.state.realization(realization)
        if known is None or dict(known.participants).get(participant) != node_id:
            return
        if isinstance(error, StageLost):
            error = StageLost(error.node, participant, error.reason)
        if self._running is not None and self._running.realization == realization:
            self.sessions.note_loss(error)
        self._lose(realization, participant, str(error))

    def _lose(self, realization: str, participant: str, reason: str) -> None:
        self._trigger = Trigger.PARTICIPANT_LOST
        self._keeper.advance(ev.ParticipantLost(realization_id=realization, participant=participant, reason=reason))

    def member_lost(self, name: str, effect: ev.MemberLost) -> None:
        """A Node is no member any more; effects on its realizations follow."""
        self._trigger = Trigger.NODE_LOST
        running = self._running
        if running is not None and any(item.node_id == effect.node_id for item in running.plan.placements):
            self.sessions.note_loss(StageLost(name, "its agent", effect.reason))

    def _doubt(self, error: WireError) -> None:
        """A connection of the route broke. When nobody reports a death, the route is lost itself."""
        if self._running is not None:
            self._spawn(self._end_route(self._running, error))

    async def _end_route(self, running: RunningPlan, error: WireError) -> None:
        await asyncio.sleep(DOUBT_LEASES * self._terms.lease_seconds)
        if self._running is running:
            self._recoverer.distrust(running.realization)
            self.sessions.note_loss(error)
            self._lose(running.realization, ROUTE, str(error))

    def on_effect(self, effect: ev.Effect) -> None:
        """Do what follows from an effect that the ledger has."""
        match effect:
            case ev.SessionSuspended():
                self.sessions.suspended(effect)
            case ev.SessionClosed():
                self.sessions.session_closed(effect)
            case ev.EpochSettling():
                self._running = None
                self.sessions.stop_serving(for_now=True)
            case ev.EpochLost() if self._keeper.state.active_epoch() is None:
                is_lost = effect.state == EpochState.NON_EXECUTABLE.value
                is_replaced = self._keeper.state.transition is not None
                self._running = None
                goes_on = is_lost or is_replaced
                recovers = goes_on and self._recoverer.begin(self._spawn, self._trigger, effect.reason)
                self.sessions.stop_serving(for_now=recovers)
            case ev.RealizationDied():
                if self._recoverer.standing is None:
                    self._spawn(self._realizer.reclaim(effect.realization_id))
            case _:
                pass

    def _given_up(self) -> None:
        self._ledger.keep_order(self._scope, None)
        self._is_inherited = False
        self.sessions.stop_serving()


def _realized(running: RunningPlan, seconds: float) -> m.Realized:
    return m.Realized(
        epoch=running.epoch,
        realization=running.realization,
        stages=running.stages,
        pids=running.pids,
        seconds=seconds,
        paths=running.paths,
    )
