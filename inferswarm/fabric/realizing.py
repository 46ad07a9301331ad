"""Turns a plan into running stages and gives it authority; takes both away again.

All participants are prepared at once, from nothing or by adopting stages that a lost epoch left; authority comes
after every one is ready. An attempt that fails is dead, with its id; its stages stay for whoever adopts them, or are
stopped.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

import msgspec

from inferswarm.backends.base import StageAssignment
from inferswarm.errors import (
    CommitRefused,
    FabricError,
    InferSwarmError,
)
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.acquiring import Acquirer
from inferswarm.fabric.authority import EpochState, RealizationState, RefusalCode, numbered_realization_id
from inferswarm.fabric.authority_keeper import AuthorityKeeper
from inferswarm.fabric.frames import Address, plan_prefix
from inferswarm.fabric.holding import Holding
from inferswarm.fabric.membership import Membership, OnProgress
from inferswarm.fabric.route import Paths, connections, endpoint_over, incoming_paths, start_of
from inferswarm.fabric.running import Held, Hold, Recovery, RunningPlan, check_assignments, model_digest
from inferswarm.planner.plan import Placement

Answered = TypeVar("Answered", bound=m.Message)


class Realizer:
    """Prepares, activates and reclaims realizations for one Coordinator."""

    def __init__(
        self,
        scope: str,
        keeper: AuthorityKeeper,
        members: Membership,
        results_endpoint: str,
        acquirer: Acquirer | None = None,
    ) -> None:
        """`results_endpoint` is where last stages send their results; without `acquirer` nobody has a store."""
        self._scope = scope
        self._keeper = keeper
        self._members = members
        self._results_endpoint = results_endpoint
        self._acquirer = acquirer
        self._reclaims: dict[str, asyncio.Task[None]] = {}
        self._built: set[tuple[str, str]] = set()
        """Realizations and participants whose stages have their states."""

    def stage_name(self, realization: str, participant: str) -> str:
        """Return the name under which an agent keeps a participant's process."""
        return f"{realization}/{participant}"

    async def realize(
        self, order: m.Fallback, on_progress: OnProgress, recovery: Recovery | None = None
    ) -> RunningPlan:
        """Prepare every participant, then activate. Raises what went wrong.

        What fails is dead. Without `recovery` nothing of it stays; with it, its stages are the caller's to adopt or
        to reclaim.
        """
        plan_digest = check_assignments(order.plan, order.assignments)
        if (active := self._keeper.state.active_epoch()) is not None:
            raise CommitRefused(
                RefusalCode.SCOPE_ALREADY_OWNED.value, f"epoch {active.number} serves; retire it first"
            )
        adopts = None if recovery is None else recovery.adopts
        transition = msgspec.UNSET if recovery is None else recovery.transition
        realization = self._begin_attempt(order, plan_digest, transition, adopts)
        try:
            return await self._prepare(order, plan_digest, realization, on_progress, recovery)
        except asyncio.CancelledError:
            raise  # whoever cancels says what becomes of the attempt
        except BaseException as error:
            self._attempt_failed(realization, error)
            if recovery is None:
                await self.reclaim(realization)
            raise

    def _attempt_failed(self, realization: str, error: BaseException) -> None:
        self.end(realization, str(error) if isinstance(error, InferSwarmError) else type(error).__name__)

    def end(self, realization: str, reason: str) -> None:
        """Note that a realization is dead, unless a loss has ended it already; its stages are left as they are."""
        known = self._keeper.state.realization(realization)
        if known is not None and known.state is not RealizationState.DEAD:
            self._keeper.advance(ev.RealizationEnded(realization_id=realization, reason=reason))

    def _begin_attempt(
        self, order: m.Fallback, plan_digest: str, transition: int | msgspec.UnsetType, adopts: ev.Adoption | None
    ) -> str:
        """Give an attempt its id. Raises CommitRefused when it may not be made now."""
        realization = numbered_realization_id(self._keeper.state.next_attempt, secrets.token_hex(4))
        self._keeper.demand(
            ev.RealizationStarted(
                realization_id=realization,
                plan_digest=plan_digest,
                participants=tuple((item.participant, item.node_id) for item in order.plan.placements),
                transition=transition,
                adopts=msgspec.UNSET if adopts is None else adopts,
            )
        )
        return realization

    async def prepare_beside(self, order: m.Fallback, transition: int, on_progress: OnProgress) -> RunningPlan:
        """Prepare every participant of an attempt of a change, beside what serves; its epoch is 0: none.

        Raises what went wrong: the attempt is dead then, and its stages are the caller's to reclaim.
        """
        plan_digest = check_assignments(order.plan, order.assignments)
        realization = self._begin_attempt(order, plan_digest, transition, None)
        try:
            ready, _ = await self._make_ready(order, plan_digest, realization, on_progress, None, None)
            self._keeper.demand(ev.RealizationReadied(realization_id=realization))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._attempt_failed(realization, error)
            raise
        return ready

    async def warm(self, ready: RunningPlan, hold: Hold) -> Holding:
        """Let stages that are ready compute again what they are given, without authority; returns what they hold."""
        holding = await self._hold(ready.realization, ready.plan.placements, await self.held(ready), hold)
        await self._activate(ready, 0)
        return holding

    async def take_over(self, ready: RunningPlan, epoch: int, hold: Hold) -> RunningPlan:
        """Return a plan that has just got authority, its stages with the sessions as they are to go on."""
        placements = ready.plan.placements
        holding = await self._hold(ready.realization, placements, await self.held(ready), hold)
        await self._activate(ready, epoch)
        await self._refill(ready.realization, placements, holding)
        return ready._replace(epoch=epoch, address=ready.address._replace(epoch=epoch), fed_from=holding.fed_from)

    async def held(self, running: RunningPlan) -> list[dict[int, m.SessionHeld]]:
        """Ask every stage what it holds of each session; in route order."""
        placements = running.plan.placements
        answers = await self._to_each(running.realization, placements, [m.ReportHeld()] * len(placements))
        return [{item.session: item for item in answer.sessions} for answer in _only(m.Held, answers)]

    async def _activate(self, running: RunningPlan, epoch: int) -> None:
        placements = running.plan.placements
        await self._to_each(running.realization, placements, [m.Activate(epoch=epoch)] * len(placements))

    async def _prepare(
        self,
        order: m.Fallback,
        plan_digest: str,
        realization: str,
        on_progress: OnProgress,
        recovery: Recovery | None,
    ) -> RunningPlan:
        adopts = None if recovery is None else recovery.adopts
        hold = None if recovery is None or adopts is None else recovery.hold
        ready, holding = await self._make_ready(order, plan_digest, realization, on_progress, adopts, hold)
        self._keeper.demand(ev.RealizationReadied(realization_id=realization))
        requested = ev.EpochRequested(
            realization_id=realization, transition=msgspec.UNSET if recovery is None else recovery.transition
        )
        activated = self._keeper.demand(requested)
        epoch = next(effect.epoch for effect in activated if isinstance(effect, ev.EpochActivated))
        await self._activate(ready, epoch)
        if holding is not None:
            await self._refill(realization, order.plan.placements, holding)
        fed_from = {} if holding is None else holding.fed_from
        return ready._replace(epoch=epoch, address=ready.address._replace(epoch=epoch), fed_from=fed_from)

    async def _make_ready(
        self,
        order: m.Fallback,
        plan_digest: str,
        realization: str,
        on_progress: OnProgress,
        adopts: ev.Adoption | None,
        hold: Hold | None,
    ) -> tuple[RunningPlan, Holding | None]:
        """Start or adopt, materialize and connect every stage; with `hold`, also tell them what to hold."""
        placements = order.plan.placements
        incoming = incoming_paths(placements, order.paths)
        there = await self._begin_stages(order, realization, incoming, adopts)
        reached = tuple(
            endpoint_over(answer, path, item.node_name)
            for answer, path, item in zip(there, incoming, placements, strict=True)
        )
        found = tuple(answer for answer in there if isinstance(answer, m.StageStarted | m.Adopted))
        pairs = zip(placements, found, strict=True)
        kept = {item.participant for item, stage in pairs if isinstance(stage, m.Adopted)}
        if self._acquirer is not None:
            assignments = await self._acquirer.acquire(order, realization, kept, on_progress)
            order = msgspec.structs.replace(order, assignments=assignments)
        stages = await self._materialize(order, realization, found, on_progress)
        if self._acquirer is not None:
            made = zip((item.participant for item in placements), stages, strict=True)
            self._acquirer.materialized(realization, [item for item in made if item[0] not in kept])
        model = model_digest(order.assignments[0].description, placements, stages)
        holding = None
        if hold is not None:
            adopted = (item.sessions if isinstance(item, m.Adopted) else () for item in found)
            held = [{item.session: item for item in sessions} for sessions in adopted]
            holding = await self._hold(realization, placements, held, hold)
        links = connections(reached, incoming, self._results_endpoint)
        await self._to_each(realization, placements, links)
        ready = RunningPlan(
            plan=order.plan,
            plan_digest=plan_digest,
            realization=realization,
            epoch=0,
            stages=stages,
            endpoints=tuple(answer.endpoint for answer in found),
            pids=tuple(answer.pid for answer in found),
            run_ahead=order.run_ahead,
            vocabulary_size=order.assignments[-1].description.vocabulary_size,
            address=Address(self._scope, 0, realization, plan_prefix(plan_digest)),
            paths=tuple(path for path in (*incoming[1:], incoming[0]) if path is not None),
            model=model,
        )
        return ready, holding

    async def _begin_stages(
        self, order: m.Fallback, realization: str, incoming: Paths, adopts: ev.Adoption | None
    ) -> list[m.Answer]:
        """Start or adopt every stage. When one cannot be had, the others are there all the same."""
        placements = order.plan.placements

        async def one(item: Placement, path: m.PathUse | None, assignment: StageAssignment) -> m.Answer:
            command = self._first_command(realization, item, path, assignment, adopts)
            answer = await self._members.call(item.node_id, command)
            if isinstance(answer, m.Adopted):
                self._built.add((realization, item.participant))
            return answer

        calls = map(one, placements, incoming, order.assignments)
        if adopts is None:
            return await _all_or_first_error(calls)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    def is_built(self, realization: str, participant: str) -> bool:
        """Whether a stage is known to have its states: its realization had an epoch, or it said so."""
        had_epoch = any(epoch.realization_id == realization for epoch in self._keeper.state.epochs)
        return had_epoch or (realization, participant) in self._built

    def _first_command(
        self,
        realization: str,
        placement: Placement,
        path: m.PathUse | None,
        assignment: StageAssignment,
        adopts: ev.Adoption | None,
    ) -> m.AgentCommand:
        name = self.stage_name(realization, placement.participant)
        if adopts is None or placement.participant not in adopts.participants:
            return start_of(name, path, assignment)
        earlier = self.stage_name(adopts.realization_id, placement.participant)
        command = m.Adopt(assignment=assignment, scope=self._scope, realization=realization)
        return m.AdoptStage(stage=earlier, renamed=name, command=command)

    async def _materialize(
        self,
        order: m.Fallback,
        realization: str,
        found: tuple[m.StageStarted | m.Adopted, ...],
        on_progress: OnProgress,
    ) -> tuple[m.Materialized, ...]:
        """Return what every stage holds, those that were adopted without asking them again."""
        total = sum(_required(assignment) for assignment in order.assignments)
        done = [0] * len(found)

        async def one(index: int) -> m.Answer:
            placement, assignment, stage = order.plan.placements[index], order.assignments[index], found[index]
            if isinstance(stage, m.Adopted):
                return stage.materialized
            answer = await self._members.on_stage(
                placement.node_id,
                self.stage_name(realization, placement.participant),
                m.Materialize(assignment=assignment, scope=self._scope, realization=realization),
                _sum_progress(done, index, total, on_progress),
            )
            self._built.add((realization, placement.participant))
            return answer

        answers = await _all_or_first_error(one(index) for index in range(len(found)))
        return _only(m.Materialized, answers)

    async def _hold(
        self,
        realization: str,
        placements: tuple[Placement, ...],
        held: Held,
        hold: Hold,
    ) -> Holding:
        """Tell every stage what to hold, until each holds what the others rely on."""
        while True:
            holding = hold(held)
            answers = await self._to_each(
                realization, placements, [m.Hold(sessions=orders) for orders in holding.orders]
            )
            kept = [{item.session: item for item in answer.sessions} for answer in _only(m.Held, answers)]
            wanted = [{order.session: order.positions for order in orders} for orders in holding.orders]
            if [{number: item.positions for number, item in stage.items()} for stage in kept] == wanted:
                return holding
            if not any(order.positions for orders in holding.orders for order in orders):
                raise FabricError("a stage does not hold the sessions that it was told to open")
            held = kept

    async def _refill(self, realization: str, placements: tuple[Placement, ...], holding: Holding) -> None:
        async def one(placement: Placement, refills: tuple[m.Refill, ...]) -> m.Answer:
            for refill in refills:
                name = self.stage_name(realization, placement.participant)
                await self._members.on_stage(placement.node_id, name, refill)
            return m.Done()

        pairs = zip(placements, holding.refills, strict=True)
        await _all_or_first_error(one(placement, refills) for placement, refills in pairs)

    async def _to_each(
        self, realization: str, placements: tuple[Placement, ...], commands: Sequence[m.StageCommand]
    ) -> list[m.Answer]:
        """Give each stage its command; returns their answers, in route order."""
        return await _all_or_first_error(
            self._members.on_stage(item.node_id, self.stage_name(realization, item.participant), command)
            for item, command in zip(placements, commands, strict=True)
        )

    async def reports(self, running: RunningPlan) -> tuple[m.StageReport, ...]:
        """Ask every stage what it has done."""
        placements = running.plan.placements
        answers = await self._to_each(running.realization, placements, [m.Report()] * len(placements))
        return _only(m.StageReport, answers)

    async def reclaim(self, realization: str) -> None:
        """Stop every process of a realization that is dead, and return when they have ended.

        Whoever asks waits for the same work; Nodes that are gone have no process left, adopted stages are another
        realization's.
        """
        if realization not in self._reclaims:
            self._reclaims[realization] = asyncio.ensure_future(self._reclaim(realization))
        task = self._reclaims[realization]
        try:
            await asyncio.shield(task)
        finally:
            if task.done():
                self._reclaims.pop(realization, None)

    async def _reclaim(self, realization: str) -> None:
        await self.stop_stages(realization)
        self.forget(realization)

    async def stop_stages(self, realization: str, keep: Iterable[str] = ()) -> None:
        """Stop what may be left of a realization's stages, except participants to `keep`."""
        known = self._keeper.state.realization(realization)
        if known is None:
            return
        places = dict(known.participants)
        members = {link.join.node_id for link in self._members.links()}
        stops = [
            self._members.call(node, m.StopStage(stage=self.stage_name(realization, name)))
            for name, node in places.items()
            if node in members and name not in keep
        ]
        for outcome in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, InferSwarmError):
                raise outcome

    def forget(self, realization: str) -> None:
        """Note that nothing of a dead realization is left that is its own."""
        state = self._keeper.state
        known = state.realization(realization)
        if known is None or known.state is not RealizationState.DEAD:
            return
        self._built -= {(realization, name) for name, _ in known.participants}
        dead = (EpochState.RETIRED, EpochState.NON_EXECUTABLE)
        epochs = [item.number for item in state.epochs if item.realization_id == realization and item.state in dead]
        for number in epochs:
            self._keeper.advance(ev.EpochReclaimed(epoch=number))
        if not epochs:
            self._keeper.advance(ev.RealizationReclaimed(realization_id=realization))


def _required(assignment: StageAssignment) -> int:
    return 0 if assignment.requirement is None else assignment.requirement.bytes


def _sum_progress(done: list[int], index: int, total: int, on_progress: OnProgress) -> OnProgress:
    def report(progress: m.Progressed) -> None:
        done[index] = progress.done
        on_progress(m.Progressed(request=0, done=sum(done), total=total, note=progress.note))

    return report


def _only(kind: type[Answered], answers: Iterable[m.Answer]) -> tuple[Answered, ...]:
    """Return answers that must all be of one kind. Raises FabricError for another one."""
    found = tuple(answers)
    for answer in found:
        if not isinstance(answer, kind):
            raise FabricError(f"a participant answered with {type(answer).__name__}, not with {kind.__name__}")
    return found  # type: ignore[return-value]


async def _all_or_first_error(calls: Iterable[Awaitable[m.Answer]]) -> list[m.Answer]:
    """Await all calls at once; when one fails, cancel the others, wait for them, and raise its error."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
