"""Turns a plan into running stages and gives it authority; takes both away again.

All participants are prepared at once; authority comes after every one is ready; whatever fails, nothing of the
attempt stays and its id is dead.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Iterable
from typing import NamedTuple

import msgspec

from inferswarm.backends.base import StageAssignment
from inferswarm.backends.representing import carried_by, check_backend
from inferswarm.documents import digest
from inferswarm.errors import (
    CommitRefused,
    EngineError,
    FabricError,
    InferSwarmError,
    RealizationFailed,
    SpecError,
)
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.authority import RealizationState, RefusalCode
from inferswarm.fabric.authority_keeper import AuthorityKeeper
from inferswarm.fabric.frames import Address, plan_prefix
from inferswarm.fabric.membership import Membership, OnProgress
from inferswarm.fabric.transport import make_endpoint, parse_endpoint
from inferswarm.planner.plan import ExecutionPlan, Placement
from inferswarm.strategies.chain import Description


class RunningPlan(NamedTuple):
    """A plan that has authority, and where its stages are."""

    plan: ExecutionPlan
    plan_digest: str
    realization: str
    epoch: int
    stages: tuple[m.Materialized, ...]
    endpoints: tuple[str, ...]
    pids: tuple[int, ...]
    run_ahead: int
    vocabulary_size: int
    address: Address
    """What this epoch's frames carry."""
    model: str = ""
    """Digest of the model as the stages hold it (`model_digest`); empty where it is not known."""
    paths: tuple[m.PathUse, ...] = ()
    """The measured paths that messages take, in route order."""


def check_assignments(plan: ExecutionPlan, assignments: tuple[StageAssignment, ...]) -> str:
    """Return the plan's digest.

    Raises SpecError unless there is one assignment for each placement, of this plan, with its representations, and
    for what the plan's backend cannot do (`representing.check_backend`).
    """
    plan_digest = digest(plan)
    check_backend(plan)
    if len(assignments) != len(plan.placements):
        raise SpecError("assignments", len(assignments), f"{len(plan.placements)}, one for each placement")
    for placement, assignment in zip(plan.placements, assignments, strict=True):
        wanted = (
            placement.participant,
            placement.first_unit,
            placement.end_unit,
            plan_digest,
            plan.primitive,
            plan.representation_of(placement),
            carried_by(plan),
        )
        found = (
            assignment.participant,
            assignment.first_unit,
            assignment.end_unit,
            assignment.plan_digest,
            assignment.primitive,
            assignment.representation,
            assignment.boundary_representation,
        )
        if found != wanted:
            raise SpecError(f"assignment of {placement.participant}", found, f"the plan's {wanted}")
    return plan_digest


def model_digest(description: Description, placements: Iterable[Placement], stages: Iterable[m.Materialized]) -> str:
    """Return the digest of a description and of what all states were read from: the same for every cut.

    Empty where it is not known of a state. Raises RealizationFailed when two participants read another thing for the
    same state: their Nodes hold different models.
    """
    known: dict[str, str | None] = {}
    for placement, stage in zip(placements, stages, strict=True):
        for state in stage.states:
            if known.setdefault(state.state_id, state.source_digest) != state.source_digest:
                reason = f"{placement.participant} read another {state.state_id} than a participant before it"
                raise RealizationFailed(placement.node_name, reason)
    if not known or None in known.values():
        return ""
    return digest((digest(description), sorted(known.items())))


class Realizer:
    """Prepares, activates and reclaims realizations for one Coordinator."""

    def __init__(self, scope: str, keeper: AuthorityKeeper, members: Membership, results_endpoint: str) -> None:
        """`results_endpoint` is where last stages send their results."""
        self._scope = scope
        self._keeper = keeper
        self._members = members
        self._results_endpoint = results_endpoint
        self._placed: dict[str, tuple[Placement, ...]] = {}
        self._reclaims: dict[str, asyncio.Task[None]] = {}

    def stage_name(self, realization: str, participant: str) -> str:
        """Return the name under which an agent keeps a participant's process."""
        return f"{realization}/{participant}"

    async def realize(self, question: m.Realize, on_progress: OnProgress) -> RunningPlan:
        """Prepare every participant, then activate. Raises what went wrong, after cleaning up."""
        plan = question.plan
        plan_digest = check_assignments(plan, question.assignments)
        if (active := self._keeper.state.active_epoch()) is not None:
            raise CommitRefused(
                RefusalCode.SCOPE_ALREADY_OWNED.value, f"epoch {active.number} serves; retire it first"
            )
        realization = f"realization-{secrets.token_hex(8)}"
        participants = tuple((item.participant, item.node_id) for item in plan.placements)
        self._keeper.demand(
            ev.RealizationStarted(realization_id=realization, plan_digest=plan_digest, participants=participants)
        )
        self._placed[realization] = plan.placements
        try:
            return await self._prepare(question, plan_digest, realization, on_progress)
        except asyncio.CancelledError:
            raise  # this Coordinator is ending: agents stop their stages without it
        except BaseException as error:
            reason = str(error) if isinstance(error, InferSwarmError) else type(error).__name__
            known = self._keeper.state.realization(realization)
            if known is not None and known.state is not RealizationState.DEAD:  # a loss may have ended it already
                self._keeper.advance(ev.RealizationEnded(realization_id=realization, reason=reason))
            await self.reclaim(realization)
            raise

    async def _prepare(
        self, question: m.Realize, plan_digest: str, realization: str, on_progress: OnProgress
    ) -> RunningPlan:
        placements = question.plan.placements
        incoming = _incoming(placements, question.paths)
        started = await _all_or_first_error(
            self._members.call(
                item.node_id, _start_of(self.stage_name(realization, item.participant), path, assignment)
            )
            for item, path, assignment in zip(placements, incoming, question.assignments, strict=True)
        )
        reached = tuple(
            _endpoint_over(answer, path, item.node_name)
            for answer, path, item in zip(started, incoming, placements, strict=True)
        )
        endpoints = tuple(answer.endpoint for answer in started if isinstance(answer, m.StageStarted))
        pids = tuple(answer.pid for answer in started if isinstance(answer, m.StageStarted))
        total = sum(_required(assignment) for assignment in question.assignments)
        done = [0] * len(placements)
        materialized = await _all_or_first_error(
            self._members.on_stage(
                placement.node_id,
                self.stage_name(realization, placement.participant),
                m.Materialize(assignment=assignment, scope=self._scope, realization=realization),
                _sum_progress(done, index, total, on_progress),
            )
            for index, (placement, assignment) in enumerate(zip(placements, question.assignments, strict=True))
        )
        stages = tuple(answer for answer in materialized if isinstance(answer, m.Materialized))
        if len(stages) != len(placements) or len(endpoints) != len(placements):
            raise FabricError("a participant answered with something else than was asked for")
        model = model_digest(question.assignments[0].description, placements, stages)
        await self._connect(question, realization, reached, incoming)
        self._keeper.demand(ev.RealizationReadied(realization_id=realization))
        activated = self._keeper.demand(ev.EpochRequested(realization_id=realization))
        epoch = next(effect.epoch for effect in activated if isinstance(effect, ev.EpochActivated))
        await self._to_all(realization, m.Activate(epoch=epoch))
        return RunningPlan(
            plan=question.plan,
            plan_digest=plan_digest,
            realization=realization,
            epoch=epoch,
            stages=stages,
            endpoints=endpoints,
            pids=pids,
            run_ahead=question.run_ahead,
            vocabulary_size=question.assignments[-1].description.vocabulary_size,
            address=Address(self._scope, epoch, realization, plan_prefix(plan_digest)),
            paths=tuple(path for path in (*incoming[1:], incoming[0]) if path is not None),
            model=model,
        )

    async def _connect(
        self,
        question: m.Realize,
        realization: str,
        endpoints: tuple[str, ...],
        incoming: tuple[m.PathUse | None, ...],
    ) -> None:
        """Tell every participant where the next one and the first one listen for it, and what to send from."""
        sources = tuple("" if path is None else path.source for path in incoming)
        following = zip((*endpoints[1:], None), (*sources[1:], ""), strict=True)
        await _all_or_first_error(
            self._members.on_stage(
                placement.node_id,
                self.stage_name(realization, placement.participant),
                m.Connect(
                    next_endpoint=next_endpoint,
                    first_endpoint=endpoints[0],
                    coordinator_endpoint=self._results_endpoint,
                    next_source=next_source,
                    first_source=sources[0],
                ),
            )
            for placement, (next_endpoint, next_source) in zip(question.plan.placements, following, strict=True)
        )

    async def _to_all(self, realization: str, command: m.StageCommand) -> None:
        await _all_or_first_error(
            self._members.on_stage(item.node_id, self.stage_name(realization, item.participant), command)
            for item in self._placed[realization]
        )

    async def reports(self, running: RunningPlan) -> tuple[m.StageReport, ...]:
        """Ask every stage what it has done."""
        answers = await _all_or_first_error(
            self._members.on_stage(item.node_id, self.stage_name(running.realization, item.participant), m.Report())
            for item in running.plan.placements
        )
        return tuple(answer for answer in answers if isinstance(answer, m.StageReport))

    async def reclaim(self, realization: str) -> None:
        """Stop every process of a realization that has no authority, and return when they have ended.

        Whoever asks waits for the same work; Nodes that are gone have no process left.
        """
        if realization in self._placed:
            placements = self._placed.pop(realization)
            self._reclaims[realization] = asyncio.ensure_future(self._stop_stages(realization, placements))
        if (task := self._reclaims.get(realization)) is not None:
            try:
                await asyncio.shield(task)
            finally:
                if task.done():
                    self._reclaims.pop(realization, None)

    async def _stop_stages(self, realization: str, placements: tuple[Placement, ...]) -> None:
        members = {link.join.node_id for link in self._members.links()}
        stops = [
            self._members.call(item.node_id, m.StopStage(stage=self.stage_name(realization, item.participant)))
            for item in placements
            if item.node_id in members
        ]
        for outcome in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, EngineError):
                raise outcome
        for epoch in self._keeper.state.epochs:
            if epoch.realization_id == realization:
                self._keeper.advance(ev.EpochReclaimed(epoch=epoch.number))

    def uses_node(self, realization: str, node_id: str) -> bool:
        """Return whether a participant of a realization is on a Node."""
        return any(item.node_id == node_id for item in self._placed.get(realization, ()))

    def participant_of(self, stage: str) -> tuple[str, str] | None:
        """Return realization and participant behind a stage's name, or None when it belongs to none."""
        realization, _, participant = stage.partition("/")
        return (realization, participant) if realization in self._placed else None


def _incoming(placements: tuple[Placement, ...], paths: tuple[m.PathUse, ...]) -> tuple[m.PathUse | None, ...]:
    """Return, for each participant, the measured path to it: from the one before, to the first from the last."""
    by_ends = {(path.source_node, path.target_node): path for path in paths}
    before = (placements[-1], *placements[:-1])
    return tuple(by_ends.get((a.node_id, b.node_id)) for a, b in zip(before, placements, strict=True))


def _start_of(stage: str, path: m.PathUse | None, assignment: StageAssignment) -> m.StartStage:
    binding = assignment.compute_unit
    cpus = () if isinstance(binding, msgspec.UnsetType) else binding.cpus
    threads = max((item.threads for item in assignment.threads), default=0) if assignment.kind == "cpu" else 0
    return m.StartStage(stage=stage, addresses=() if path is None else (path.target,), cpus=cpus, threads=threads)


def _endpoint_over(answer: m.Answer, path: m.PathUse | None, node: str) -> str:
    """Return where a stage is reached over its path. Raises RealizationFailed when it cannot listen there."""
    if not isinstance(answer, m.StageStarted):
        raise FabricError(f"expected a started stage, got {type(answer).__name__}")
    if path is None:
        return answer.endpoint
    endpoint = dict(answer.endpoints).get(path.target)
    if endpoint is None:
        why = dict(answer.unbound).get(path.target, "it was not tried")
        raise RealizationFailed(
            node, f"the plan was priced with messages to {path.target}, where nothing listens: {why}; measure again"
        )
    if "%" not in path.target:
        return endpoint
    address, zone = path.target.partition("%")[0], path.source.partition("%")[2]
    return make_endpoint(f"{address}%{zone}", parse_endpoint(endpoint)[1])  # link-local: as the sender sees it


def _required(assignment: StageAssignment) -> int:
    return 0 if assignment.requirement is None else assignment.requirement.bytes


def _sum_progress(done: list[int], index: int, total: int, on_progress: OnProgress) -> OnProgress:
    def report(progress: m.Progressed) -> None:
        done[index] = progress.done
        on_progress(m.Progressed(request=0, done=sum(done), total=total, note=progress.note))

    return report


async def _all_or_first_error(calls: Iterable[Awaitable[m.Answer]]) -> list[m.Answer]:
    """Await all calls at once; when one fails, cancel the others, wait for them, and raise its error."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
