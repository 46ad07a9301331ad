"""What the store tells now: the records that hold against the facts in force, as bases, scratch and curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferswarm.evidence.currency import Currency
from inferswarm.evidence.drift import unusable_drift
from inferswarm.evidence.facts import facts_of
from inferswarm.evidence.path_facts import with_address_pairs
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import Observation, newest_of_each, now_ns
from inferswarm.planner.economics import Economics, PathCurve
from inferswarm.planner.problem import PlanningProblem, TransientTerm
from inferswarm.resources.address_pairs import pairs_on_one_machine
from inferswarm.resources.network import NetworkInterface
from inferswarm.resources.storage import Disk
from inferswarm.resources.types import NamedFact, ResourceGraph, observed
from inferswarm.strategies.economics import make_economics, phases_of
from inferswarm.strategies.overheads import OPENING_METRIC, OVERHEAD_METRIC, SERVICE_METRIC, TOKEN_METRIC, Records
from inferswarm.strategies.paths import PATH_METRIC, UNREACHED_METRIC, PathReport, report_path
from inferswarm.swarm.targets import ProbeTarget

BASE_METRIC = "runtime-base-bytes"
SCRATCH_METRIC = "step-transient-bytes"
BESIDE = "beside it"
"""What a record of a Node's base says of a courier that was there as it was measured."""
FURTHER_METRIC = "further-stage-bytes"
DISK_METRIC = "disk-read-bandwidth"
TRANSPORT = "tcp-frames"
NUM_WINDOWS = 2
"""Times at which the same cost classes are measured, apart from each other: what a machine does meanwhile to one of
them must not pass for its speed, and how far they differ belongs into the bounds. Curves are made of so many."""


def currency_of(
    graph: ResourceGraph, mechanism: str, disk: Disk | None = None, interfaces: Sequence[NetworkInterface] = ()
) -> Currency:
    """Return what records are held against now: the facts of a graph whose Nodes `mechanism` holds to their memory.

    `disk` is what the Nodes read a model from, where that is known; `interfaces` are those of the computer that all
    of them are on, and tell which records of paths hold. A fact that nobody states here (a NUMA binding) neither
    confirms a record nor refuses it.
    """
    stated = [NamedFact(name="mechanism", fact=observed(mechanism, "what holds this swarm's Nodes to their memory"))]
    if disk is not None:
        stated += [
            NamedFact(name="disk", fact=disk.block_name),
            NamedFact(name="filesystem", fact=disk.filesystem),
        ]
    facts = facts_of(graph, {node.id: tuple(stated) for node in graph.nodes})
    pairs = pairs_on_one_machine((node.id for node in graph.nodes), interfaces)
    return Currency(with_address_pairs(facts, pairs), int(now_ns()), undetermined_applies=True)


def why_unknown(store: ObservationStore, currency: Currency, subject: str, metric: str, **context: str) -> str | None:
    """Return why nothing in the store tells a metric of a subject now, or None when a record does."""
    wanted = {key.replace("_", "."): value for key, value in context.items()}
    answers = [
        header
        for header in store.headers(subject, metric)
        if all(header.context_value(key) == value for key, value in wanted.items())
    ]
    if not answers:
        return "not measured yet"
    found = newest_of_each([header for header in answers if unusable_drift(header) is None] or answers)
    if not all(currency.refusals(header) for header in found):
        return None
    standing = currency.standing(found[-1])
    decisive = [finding.detail for finding in standing.findings if finding.differs]
    return f"{standing.state}: {(decisive or standing.reasons)[0]}"


def base_of(store: ObservationStore, target: ProbeTarget, currency: Currency, num_stages: int = 1) -> int | None:
    """Return the newest measured base of a Node that holds now, in bytes: the highest sample. None when unknown.

    It counts only when it was measured with so many empty stages, and with a courier where the Node has one.
    """
    return highest_of_newest(
        (
            item
            for item in store.query(target.node.id, BASE_METRIC)
            if (item.context_value("num.stages") or "1") == str(num_stages)
            and (item.context_value("courier") == BESIDE) == target.has_store
        ),
        currency,
    )


def highest_of_newest(records: Iterable[Observation], currency: Currency) -> int | None:
    """Return the highest sample of the last of these records that holds now, in bytes; None when none does."""
    found = [item for item in records if not currency.refusals(item)]
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
        *(
            record
            for metric in (SERVICE_METRIC, OVERHEAD_METRIC)
            for record in store.query(metric=metric, context=of_model, newest=NUM_WINDOWS, steady_only=True)
        ),
        *store.query(metric=OPENING_METRIC, newest=1, steady_only=True),
        *store.query(metric=TOKEN_METRIC, newest=1, steady_only=True),
        *path_records(store),
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
    return make_economics(
        {}, "", graph, path_records(store), transport=TRANSPORT, representations=(), currency=currency
    ).paths


def path_records(store: ObservationStore) -> tuple[Observation, ...]:
    """Return the newest records of every address pair: its times, and that it was not reached."""
    return (
        *store.query(metric=PATH_METRIC, newest=1, steady_only=True),
        *store.query(metric=UNREACHED_METRIC, newest=1),
    )


def path_reports(store: ObservationStore, graph: ResourceGraph, currency: Currency) -> tuple[PathReport, ...]:
    """Return, for each two Nodes that a Link joins, every address pair with its times or its failure."""
    newest = store.query(metric=PATH_METRIC, newest=1)
    drifted = (record for record in newest if unusable_drift(record) is not None)  # refused, and so the reason
    records = Records((*path_records(store), *drifted), currency)
    ends = {(link.source, link.target) for link in graph.links if link.available}
    ends |= {(node.id, node.id) for node in graph.nodes}  # nothing was measured within a Node of one Compute Unit
    reports = (report_path(source, target, TRANSPORT, records) for source, target in sorted(ends))
    return tuple(report for report in reports if report.pairs)
