"""Watches one running swarm: what its processes say becomes events, and what was shut is checked again on request."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from inferswarm.artifacts.taxonomy import INTEGRITY_MISMATCH
from inferswarm.documents import digest
from inferswarm.errors import ArtifactError, FabricError, InferSwarmError, MeasurementError, ReplayDiverged, SpecError
from inferswarm.evidence.currency import Doubt
from inferswarm.evidence.events import EventKind, HealthEvent, Scope
from inferswarm.evidence.health import health_of
from inferswarm.evidence.quarantine import quarantines_of
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client, status_of
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.resources.types import ResourceGraph
from inferswarm.strategies.catalog import CATALOG, verify_model
from inferswarm.strategies.shape import shape_digest
from inferswarm.swarm.health import HealthKeeper
from inferswarm.swarm.health_checks import Checked, check_implementation, check_known_answer
from inferswarm.swarm.health_events import (
    CHECKSUM_CODE,
    COORDINATOR,
    TELLING,
    Members,
    corrupt_frames,
    events_of_fault,
    evidence_of,
    failed_probe,
    observe_members,
    participant_scope,
    refused_frames,
)
from inferswarm.swarm.model import Model
from inferswarm.swarm.tiny_plans import Seat

MAX_PASSES = 4
"""How often one call may go over what is in doubt: the measurement, its confirmation, and two more if it is busy."""
MeasureOnce = Callable[[frozenset[str], tuple[Doubt, ...], bool], None]
"""Measures what is due without the missing Nodes, and what is in doubt; told whether it is the first pass."""


class Degraded(NamedTuple):
    """That a scope has open alerts, and the model whose cost classes they are about, if any is."""

    model: Model | None


class _Running(NamedTuple):
    plan: ExecutionPlan
    epoch: int


class HealthWatch:
    """Turns what happens in one swarm into entries of its journal."""

    def __init__(self, keeper: HealthKeeper, client: Client, graph: Callable[[], ResourceGraph]) -> None:
        """Listen to the faults that `client` hears of; `graph` gives the resources as they are now."""
        self._keeper = keeper
        self._client = client
        self._graph = graph
        self._running: _Running | None = None
        self._plans: dict[str, ExecutionPlan] = {}
        """Every plan that may have authority here, by digest."""
        self._refused: dict[tuple[int | None, str], int] = {}
        client.on_fault = self.saw_fault

    def runs(self, plan: ExecutionPlan, epoch: int, others: Sequence[ExecutionPlan] = ()) -> None:
        """Say which plan has authority from now on: replays and frames are about it; its participants are there.

        `others` are plans that its Coordinator may go on with by itself. Which one it is, it says each time.
        """
        self._plans |= {digest(item): item for item in (plan, *others)}
        self._run(plan, epoch)

    def _run(self, plan: ExecutionPlan, epoch: int) -> None:
        self._running = _Running(plan, epoch)
        for placement in plan.placements:
            scope = participant_scope(placement.participant, placement.node_id)
            if self._availability(scope) == "unavailable":
                evidence = evidence_of(kind="realized", plan=digest(plan), epoch=epoch, at_ns=self._keeper.clock())
                detail = f"realized again, as epoch {epoch}"
                self._note("returned", scope, detail, evidence)
                self._note("availability-revalidated", scope, detail, evidence)

    def _follow(self, status: m.SwarmStatus) -> None:
        """Hear which epoch is in force: after a loss a Coordinator goes on by itself, perhaps with another plan.

        Of a plan that nobody here knows nothing is said.
        """
        if status.epoch is None or (self._running is not None and status.epoch == self._running.epoch):
            return
        plan = self._plans.get(status.plan_digest or "")
        if plan is None:
            self._running = None
        else:
            self._run(plan, status.epoch)

    def saw_fault(self, error: InferSwarmError, question: m.Question) -> None:
        """Note what an error of the fabric shows about a resource, if anything."""
        if isinstance(error, MeasurementError):
            self._keeper.note(failed_probe(error, question, self._keeper.clock()))
        if not isinstance(error, TELLING):
            return
        if isinstance(error, ReplayDiverged):
            with contextlib.suppress(FabricError):  # nobody says which plan it was by now: the last one known
                self._follow(status_of(self._client))
        plan = None if self._running is None else self._running.plan
        self._keeper.note(events_of_fault(error, self._graph(), plan, self._keeper.clock()))

    def observe(self) -> Members:
        """Look who is there and what was refused, note what changed, and return who is missing.

        A Node that is back is asked whether it answers; only then is it available again.
        """
        status = status_of(self._client)
        self._follow(status)
        graph = self._graph()
        found = observe_members(graph, status, self._keeper.events(), self._keeper.clock())
        self._keeper.note(found.events)
        self._see_frames(status)
        for node in graph.nodes:
            scope = Scope("node", node.id)
            if node.id not in found.missing and self._availability(scope) == "returned":
                self._ask_after_return(scope)
        return found

    def _availability(self, scope: Scope) -> str:
        return health_of(scope, self._keeper.events()).availability.state

    def _ask_after_return(self, scope: Scope) -> None:
        report = self._client.ask(m.OnNode(node_id=scope.id, command=m.InspectNode()))
        if isinstance(report, m.NodeReport):
            evidence = evidence_of(report=digest(report), at_ns=self._keeper.clock())
            detail = f"its agent answers, {report.agent_resident_bytes:,} B resident"
            self._note("availability-revalidated", scope, detail, evidence)

    def _see_frames(self, status: m.SwarmStatus) -> None:
        """Note frames that were refused for their checksum since the last look, while a plan has authority."""
        running = self._running
        if running is None:  # what a ledger of earlier runs has counted is no news
            self._refused[None, COORDINATOR] = dict(status.refusals).get(CHECKSUM_CODE, 0)
            return
        if status.epoch != running.epoch:
            return
        try:
            answer = self._client.ask(m.StageReports(epoch=running.epoch))
        except FabricError:
            return  # the route is gone, and its counters with it
        if not isinstance(answer, m.StageReportList):
            raise FabricError(f"expected stage reports, got {type(answer).__name__}")
        events: list[HealthEvent] = []
        for refused in refused_frames(running.plan, answer.reports, dict(status.refusals)):
            # stages count from their start, the Coordinator's ledger from its own
            key = (None if refused.receiver == COORDINATOR else running.epoch, refused.receiver)
            num_new = refused.num_frames - self._refused.get(key, 0)
            if num_new > 0:
                self._refused[key] = refused.num_frames
                events += corrupt_frames(refused, num_new, digest(running.plan), self._keeper.clock())
        self._keeper.note(events)

    # -- measuring --

    def settle(self, measure_once: MeasureOnce) -> None:
        """Measure, and again what that leaves in doubt: deviations to confirm, alerts to clear, runs that drifted."""
        settle_doubts(self._keeper, self._graph(), self.observe().missing, measure_once)

    def degraded(self, scope: Scope, given: Model | None, known: Sequence[Model]) -> Degraded | None:
        """Return what has to be measured to revalidate a scope's open alerts, or None when it has none.

        Raises SpecError when they are about the cost classes of a model that is neither given nor known.
        """
        alerts = self._keeper.alerts_about(scope, self._graph())
        if not alerts:
            return None
        shapes = {item.value for alert in alerts for item in alert.scope if item.key == "model.shape"}
        models = known if given is None else [given]
        fitting = [model for model in models if shape_digest(model.description) in shapes]
        if shapes and not fitting:
            name = None if given is None else given.name
            raise SpecError("model", name, "the one whose cost classes the alerts are about")
        return Degraded(fitting[0] if fitting else None)

    # -- revalidation --

    def refuse_shut(self, model: Model) -> None:
        """Raise ArtifactError for a model whose bytes are in quarantine where they lie."""
        for item in quarantines_of(self._keeper.events()).of(Scope("artifact-at-source", str(model.path))):
            raise ArtifactError(INTEGRITY_MISMATCH, str(model.path), f"is in quarantine: {item.detail}")

    def check(self, scope: Scope, model: Model | None) -> Checked | None:
        """Run the check that tells whether a scope may be trusted again, and note what came out.

        Does nothing and returns None when the scope is neither in quarantine nor back from an absence. Raises
        SpecError for a scope that nothing here can check, CommitRefused while a plan has authority, FabricError for a
        scope that is back, was checked and does not work.
        """
        shut = quarantines_of(self._keeper.events()).of(scope)
        returned = self._availability(scope) == "returned"
        if not shut and not returned:
            return None
        self._running = None  # no plan may have authority, and what the check itself says of replays is its result
        found = self._run_check(scope, model)
        if shut:
            kind: EventKind = "integrity-revalidation-passed" if found.passed else "integrity-revalidation-failed"
            self._note(kind, scope, found.detail, found.evidence_id)
        elif found.passed:
            self._note("availability-revalidated", scope, found.detail, found.evidence_id)
        else:
            raise FabricError(f"{scope} is back and does not work: {found.detail}")
        return found

    def _note(self, kind: EventKind, scope: Scope, detail: str, evidence: str) -> None:
        at_ns = str(self._keeper.clock())
        event = HealthEvent(kind=kind, implicated=(scope,), at_ns=at_ns, evidence_ids=(evidence,), detail=detail)
        self._keeper.note([event])

    def _run_check(self, scope: Scope, model: Model | None) -> Checked:
        at_ns = self._keeper.clock()
        if scope.kind == "path":
            ends = [end for end in _ends(scope) if end != COORDINATOR]  # which sends to and hears from every route
            return check_known_answer(self._client, [self._seat(scope, end) for end in ends], at_ns)
        if scope.kind in ("node", "memory-resource"):
            return check_known_answer(self._client, [self._seat(scope, scope.id)], at_ns)
        if scope.kind == "compute-unit":
            return check_implementation(self._client, self._seat(scope, scope.id), "torch", "fp32", at_ns)
        if scope.kind == "implementation":
            what, _, unit = scope.id.rpartition("@")
            primitive, _, representation = what.partition("/")
            return check_implementation(self._client, self._seat(scope, unit), primitive, representation, at_ns)
        return self._check_artifact(scope, model, at_ns)

    @staticmethod
    def _check_artifact(scope: Scope, model: Model | None, at_ns: int) -> Checked:
        """Read a known model's whole file and compare its digest with the recorded one."""
        if model is None or str(model.path) != scope.id or model.name not in CATALOG:
            raise SpecError("scope", str(scope), "the known model that lies there: its digest is recorded")
        evidence = evidence_of(kind="whole file", path=scope.id, sha256=CATALOG[model.name].sha256, at_ns=at_ns)
        try:
            verify_model(model.name)
        except ArtifactError as error:
            return Checked(False, str(error), evidence)
        return Checked(True, f"the whole file has the recorded sha256 {CATALOG[model.name].sha256}", evidence)

    def _seat(self, scope: Scope, identity: str) -> Seat:
        """Return the Compute Unit that stands for a resource: itself, or the first CPU of its Node."""
        graph = self._graph()
        nodes = {node.id: node for node in graph.nodes}
        owner = {memory.id: memory.node_id for memory in graph.memory_resources}.get(identity, identity)
        units = [unit for unit in graph.compute_units if unit.id == identity or unit.node_id == owner]
        units.sort(key=lambda unit: (unit.id != identity, unit.kind != "cpu", unit.id))
        if not units:
            raise SpecError("scope", str(scope), f"resources of this swarm: {sorted(nodes)}")
        return Seat(nodes[units[0].node_id], units[0])


def settle_doubts(
    keeper: HealthKeeper, graph: ResourceGraph, missing: frozenset[str], measure_once: MeasureOnce
) -> None:
    """Measure, and again what that leaves in doubt, without the missing Nodes; see `HealthWatch.settle`."""
    doubts = keeper.doubts(graph)
    for number in range(MAX_PASSES):
        since_ns = keeper.clock()
        measure_once(missing, doubts, number == 0)
        doubts = keeper.review(since_ns, graph).doubts
        if not doubts:
            return


def _ends(scope: Scope) -> tuple[str, str]:
    source, _, target = scope.id.partition("->")
    return source, target


def read_scope(text: str) -> Scope:
    """Read `KIND ID`, as scopes are written for people. Raises SpecError for another form."""
    kind, _, identity = text.strip().partition(" ")
    try:
        return msgspec.convert({"kind": kind, "id": identity.strip()}, Scope)
    except (msgspec.ValidationError, ValueError) as error:
        raise SpecError("scope", text, f"a kind and an id, such as 'path node-1->node-2' ({error})") from error
