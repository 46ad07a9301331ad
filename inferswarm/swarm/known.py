"""What the store tells now: the records that hold against the facts in force, as bases, scratch and curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferswarm.evidence.currency import Currency
from inferswarm.evidence.facts import facts_of
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import Observation, newest_of_each, now_ns
from inferswarm.planner.economics import Economics, PathCurve
from inferswarm.planner.problem import PlanningProblem, TransientTerm
from inferswarm.resources.storage import Disk
from inferswarm.resources.types import ComputeUnit, NamedFact, Node, ResourceGraph, observed
from inferswarm.strategies.economics import PATH_METRIC, make_economics, phases_of
from inferswarm.strategies.overheads import OVERHEAD_METRIC, SERVICE_METRIC

BASE_METRIC = "runtime-base-bytes"
SCRATCH_METRIC = "step-transient-bytes"
BANDWIDTH_METRIC = "read-bandwidth"
DISK_METRIC = "disk-read-bandwidth"
TRANSPORT = "tcp-frames"


class ProbeTarget(NamedTuple):
    """One Node to measure, with its Compute Unit."""

    node: Node
    unit: ComputeUnit
    limit_bytes: int | None


def currency_of(graph: ResourceGraph, mechanism: str, disk: Disk | None = None) -> Currency:
    """Return what records are held against now: the facts of a graph whose Nodes `mechanism` holds to their memory.

    `disk` is what the Nodes read a model from, where that is known. A fact that nobody states here (a NUMA binding)
    neither confirms a record nor refuses it.
    """
    stated = [NamedFact(name="mechanism", fact=observed(mechanism, "what holds this swarm's Nodes to their memory"))]
    if disk is not None:
        stated += [
            NamedFact(name="disk", fact=disk.block_name),
            NamedFact(name="filesystem", fact=disk.filesystem),
        ]
    facts = facts_of(graph, {node.id: tuple(stated) for node in graph.nodes})
    return Currency(facts, int(now_ns()), undetermined_applies=True)


def why_unknown(store: ObservationStore, currency: Currency, subject: str, metric: str, **context: str) -> str | None:
    """Return why nothing in the store tells a metric of a subject now, or None when a record does."""
    wanted = {key.replace("_", "."): value for key, value in context.items()}
    found = newest_of_each(
        header
        for header in store.headers(subject, metric)
        if all(header.context_value(key) == value for key, value in wanted.items())
    )
    if not found:
        return "not measured yet"
    if not all(currency.refusals(header) for header in found):
        return None
    standing = currency.standing(found[-1])
    decisive = [finding.detail for finding in standing.findings if finding.differs]
    return f"{standing.state}: {(decisive or standing.reasons)[0]}"


def base_of(store: ObservationStore, target: ProbeTarget, currency: Currency) -> int | None:
    """Return the newest measured base of a Node that holds now, in bytes: the highest sample. None when unknown."""
    found = [item for item in store.query(target.node.id, BASE_METRIC) if not currency.refusals(item)]
    return int(max(found[-1].samples)) if found else None


def scratch_terms(observations: Sequence[Observation], shape: str) -> tuple[TransientTerm, ...]:
    """Return the backend's measured scratch, per representation: the highest of the newest samples of any Node."""
    highest: dict[str, float] = {}
    for observation in newest_of_each(observations):
        representation = observation.context_value("representation")
        if observation.metric == SCRATCH_METRIC and observation.context_value("model.shape") == shape:
            assert representation is not None
            highest[representation] = max(highest.get(representation, 0.0), *observation.samples)
    return tuple(
        TransientTerm(name="kernel scratch (measured)", representation=name, fixed_bytes=int(size))
        for name, size in sorted(highest.items())
    )


def economics_of(
    store: ObservationStore,
    shape: str,
    problem: PlanningProblem,
    graph: ResourceGraph,
    currency: Currency,
    representations: Sequence[str] | None = None,
) -> Economics:
    """Return the planner's view of the newest of everything in the store that applies and holds now."""
    names = representations or tuple(sorted({item.representation for item in problem.implementations}))
    (primitive,) = {item.primitive for item in problem.implementations}
    of_model = {"model.shape": shape}
    records = (
        *store.query(metric=SERVICE_METRIC, context=of_model, newest_only=True),
        *store.query(metric=OVERHEAD_METRIC, context=of_model, newest_only=True),
        *store.query(metric=PATH_METRIC, newest_only=True),
    )
    return make_economics(
        phases_of(problem),
        shape,
        graph,
        records,
        primitive=primitive,
        transport=TRANSPORT,
        representations=names,
        currency=currency,
    )


def measured_paths(store: ObservationStore, graph: ResourceGraph, currency: Currency) -> tuple[PathCurve, ...]:
    """Return what is known now of messages over the paths between the Nodes of a graph."""
    observations = store.query(metric=PATH_METRIC, newest_only=True)
    return make_economics(
        {}, "", graph, observations, transport=TRANSPORT, representations=(), currency=currency
    ).paths
