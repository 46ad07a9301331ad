"""Rules about evidence: classes kept apart, unknown kept unknown, context required, and what a change makes stale."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.documents import read_document
from inferswarm.errors import DocumentError
from inferswarm.evidence.applicability import select
from inferswarm.evidence.currency import Currency, find_invalidated, find_stale
from inferswarm.evidence.events import Scope
from inferswarm.evidence.health import exclusions, health_of
from inferswarm.evidence.quarantine import quarantines_of
from inferswarm.evidence.types import ContextItem, EvidenceClass, Observation, make_context
from inferswarm.planner.economics import Economics
from inferswarm.resources.types import Envelope, ResourceGraph
from inferswarm.resources.virtual import graph_of_envelopes
from inferswarm.strategies.economics import make_economics, path_subject
from tests.unit.evidence.evidence_samples import NOW, make_event, make_record, make_table
from tests.unit.resources.resources_samples import make_inventory

ENVELOPES = (
    Envelope(name="birch", threads=1, memory_bytes=10**9),
    Envelope(name="oak", threads=2, memory_bytes=10**9),
)


def make_graph(torch_version: str = "2.13.0") -> ResourceGraph:
    inventory = make_inventory(torch_version=torch_version)
    return graph_of_envelopes(inventory, "swarm", ENVELOPES, {}, "none", backends=("torch",))


def record(subject: str, metric: str, seconds: float, **context: object) -> Observation:
    return Observation(
        subject=subject,
        metric=metric,
        unit="s",
        samples=(seconds,) * 5,
        context=make_context(**context),  # type: ignore[arg-type]
        protocol="test/1",
        taken_at_ns="1",
        producer="test",
    )


def service_context(threads: int) -> dict[str, object]:
    return {
        "backend": "torch",
        "representation": "fp32",
        "cost_class": "block",
        "phase": "step",
        "positions": 1,
        "context_positions": 0,
        "threads": threads,
        "model_shape": "llama/30x576",
        "torch": "2.13.0",
        "cpu": "Test CPU",
    }


def all_records() -> list[Observation]:
    graph = make_graph()
    records = [record(unit.id, "unit-seconds", 1e-3, **service_context(unit.threads)) for unit in graph.compute_units]
    for link in graph.links:
        for size in (64, 4096):
            subject = path_subject(link.source, link.target, ("10.0.0.1", "10.0.0.2"))
            between = {"address_source": "10.0.0.1", "address_target": "10.0.0.2", "transport": "tcp"}
            records.append(record(subject, "message-seconds", 1e-4 + size * 1e-9, payload_bytes=size, **between))
    return records


def economics(
    records: list[Observation], graph: ResourceGraph | None = None, shape: str = "llama/30x576", **options: object
) -> Economics:
    fields: dict[str, object] = {"representations": ("fp32",)} | options
    graph = graph or make_graph()
    return make_economics({"block": ("step",)}, shape, graph, records, **fields)  # type: ignore[arg-type]


def test_the_records_below_are_complete() -> None:
    found = economics(all_records())
    assert (len(found.services), len(found.paths), found.missing) == (2, 2, ())


@pytest.mark.rule(26)
@pytest.mark.parametrize("evidence_class", ["nominal", "discovered", "baseline", "estimate"])
def test_only_measured_evidence_answers_a_measured_question(evidence_class: EvidenceClass) -> None:
    """Records of any other class make no curve, however well their context fits, and are refused by their class.

    Mutation: drop the check of `evidence_class` in `assess`.
    """
    others = [msgspec.structs.replace(item, evidence_class=evidence_class) for item in all_records()]
    found = economics(others)
    assert (found.services, found.paths) == ((), ())
    assert all(f"class is {evidence_class}" in reason for reason in found.missing)


@pytest.mark.rule(27)
def test_an_unknown_is_neither_a_failure_nor_a_zero() -> None:
    """With no records nothing raises and nothing is priced at 0: the curves are absent and each absence has a reason.

    Mutation: let `_service` return a curve of zeros when nothing applies.
    """
    found = economics([])
    assert (found.services, found.paths) == ((), ())
    assert len(found.missing) == 4
    assert all("no record of" in reason for reason in found.missing)
    answer = select([], "cpu-1", "unit-seconds", {}).median
    assert answer.value is None
    assert answer.provenance == "unknown"


@pytest.mark.rule(28)
def test_a_measurement_without_context_is_no_record() -> None:
    """An observation without context is refused when it is made and when it is read.

    Mutation: drop the check of `context` in `Observation.__post_init__`.
    """
    whole = all_records()[0]
    with pytest.raises(ValueError, match="has no context"):
        msgspec.structs.replace(whole, context=())
    fields = msgspec.to_builtins(whole) | {"context": []}
    with pytest.raises(DocumentError, match="has no context"):
        read_document(Observation, msgspec.json.encode(fields), "test")


@pytest.mark.rule(29)
def test_a_change_makes_stale_only_what_depends_on_it() -> None:
    """Another torch stales the service curves and leaves the paths; so does another model; a lost path stales itself.

    Mutation: require `torch` or `model.shape` of path records too, or of none.
    """
    records = all_records()
    upgraded = economics(records, make_graph("2.14.0"))
    assert (len(upgraded.services), len(upgraded.paths)) == (0, 2)
    other_model = economics(records, shape="other")
    assert (len(other_model.services), len(other_model.paths)) == (0, 2)
    one_way = [item for item in records if not item.subject.startswith(f"path:{make_graph().nodes[0].id}")]
    without_path = economics(one_way)
    assert (len(without_path.services), len(without_path.paths)) == (2, 1)


@pytest.mark.rule("36a")
@pytest.mark.parametrize(
    "key", ["backend", "representation", "cost.class", "phase", "threads", "model.shape", "torch", "cpu"]
)
def test_changing_any_key_of_strategy_evidence_makes_it_inapplicable(key: str) -> None:
    """Each key of the context alone decides; the economics that the planner gets hold numbers and ids only.

    Mutation: leave the key out of `_Question.context`.
    """
    changed = []
    for item in all_records():
        context = tuple(
            ContextItem(entry.key, entry.value + "x") if entry.key == key else entry for entry in item.context
        )
        changed.append(msgspec.structs.replace(item, context=tuple(sorted(context))))
    found = economics(changed)
    assert found.services == ()
    assert len(found.paths) == 2
    assert all(f"{key} is " in reason for reason in found.missing)


@pytest.mark.rule(28)
def test_a_curve_holds_for_the_thread_count_it_was_measured_with() -> None:
    """The same CPU with another thread count has no curve: no number is a property of hardware alone.

    Mutation: leave `threads` out of `_Question.context`.
    """
    graph = make_graph()
    wider = msgspec.structs.replace(
        graph,
        compute_units=tuple(msgspec.structs.replace(unit, threads=unit.threads + 1) for unit in graph.compute_units),
    )
    assert economics(all_records(), wider).services == ()


# -- what a change makes stale --


def stale_after(change: dict[tuple[str, str], str | None] | None = None, **asked: str) -> set[tuple[str, str]]:
    pairs = (
        ("cpu-1", "unit-seconds"),
        ("gpu-1", "unit-seconds"),
        ("gpu-1", "copy-seconds"),
        ("node-1", "read-bandwidth"),
        ("path:node-1->node-2", "message-seconds"),
    )
    records = [make_record(subject, metric) for subject, metric in pairs]
    question = {key.replace("_", "."): value for key, value in asked.items()}
    before, after = Currency(make_table(), NOW), Currency(make_table(change), NOW, question)
    assert {before.standing(item).state for item in records} == {"current"}
    return {(item.subject, item.metric) for item in find_invalidated(records, before, after)}


@pytest.mark.rule(29)
def test_another_slot_driver_or_revision_makes_stale_what_rests_on_it_alone() -> None:
    """A slot stales copies over it, a driver what it runs, a revision the model's work; links stay as they are.

    Mutation: declare `driver` or `model.revision` for `message-seconds`, or leave `pcie.slot` out of `copy-seconds`.
    """
    assert stale_after() == set()
    assert stale_after({("gpu-1", "pcie.slot"): "0000:81:00.0"}) == {("gpu-1", "copy-seconds")}
    assert stale_after({("gpu-1", "pcie.width"): "1"}) == {("gpu-1", "copy-seconds")}
    assert stale_after({("gpu-1", "driver"): "560.0"}) == {("gpu-1", "unit-seconds")}
    assert stale_after({("cpu-1", "threads"): "2"}) == {("cpu-1", "unit-seconds")}
    assert stale_after({("node-1", "numa.binding"): "1"}) == {("node-1", "read-bandwidth")}
    assert stale_after({("path:node-1->node-2", "mtu"): "9000"}) == {("path:node-1->node-2", "message-seconds")}
    assert stale_after(model_revision="c3d4") == {("cpu-1", "unit-seconds"), ("gpu-1", "unit-seconds")}


@pytest.mark.rule(27)
def test_a_fact_that_is_unknown_makes_a_record_neither_current_nor_stale() -> None:
    """While nothing is known of the driver, the card's records are undetermined, and are not used as current ones.

    Mutation: skip an unknown fact in `currency._facts`, or let it differ.
    """
    currency = Currency(make_table({("gpu-1", "driver"): None}), NOW)
    record_of_card = make_record("gpu-1")
    assert currency.standing(record_of_card).state == "undetermined"
    assert find_stale([record_of_card], currency) == ()
    found = select([record_of_card], "gpu-1", "unit-seconds", {}, currency=currency)
    assert found.applicable == ()
    assert "driver is unknown now" in (found.unknown_reason or "")


@pytest.mark.rule("36a")
@pytest.mark.parametrize(
    "key", ["backend", "representation", "primitive", "cost.class", "phase", "model.shape", "model.revision"]
)
def test_the_declared_keys_of_a_models_work_each_decide_alone(key: str) -> None:
    """Records of a model's work know each key of their question; records of paths have no part in it.

    Mutation: leave the key out of `dependencies._MODEL_WORK`.
    """
    asked = {key: "another"}
    currency = Currency(make_table(), NOW, asked)
    standing = currency.standing(make_record())
    assert standing.state == "stale"
    assert key in [finding.key for finding in standing.findings]
    assert currency.standing(make_record("path:node-1->node-2", "message-seconds")).state == "current"


@pytest.mark.rule(32)
def test_getting_slower_changes_the_price_and_not_the_trust() -> None:
    """A throttled unit costs more in the economics that plans are ranked by; its integrity and its place stay.

    Mutation: let `throttled` be an effect on integrity in `EFFECTS`.
    """
    subject = make_graph().compute_units[0].id
    quick = all_records()
    slow = [
        msgspec.structs.replace(item, samples=tuple(3 * value for value in item.samples))
        if item.subject == subject
        else item
        for item in quick
    ]
    before, after = (
        {item.compute_unit_id: item.seconds(1, 0) for item in economics(given).services} for given in (quick, slow)
    )
    assert after[subject] == pytest.approx(3 * before[subject])
    assert min(after, key=after.__getitem__) != subject
    scope = Scope("compute-unit", subject)
    events = [make_event("integrity-checked", scope), make_event("throttled", scope), make_event("slowed", scope)]
    health = health_of(scope, events)
    assert (health.performance.state, health.integrity.state) == ("degraded", "trusted")
    assert exclusions(health) == ()
    assert quarantines_of(events).active == ()
