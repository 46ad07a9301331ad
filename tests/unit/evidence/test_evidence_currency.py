from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from inferswarm.backends.probe import PROTOCOL as COST_CLASS_PROTOCOL
from inferswarm.documents import read_document, write_document
from inferswarm.errors import SpecError
from inferswarm.evidence.applicability import assess, select
from inferswarm.evidence.currency import Currency, find_invalidated, find_stale, with_facts
from inferswarm.evidence.dependencies import DEPENDENCIES, Dependency, MetricDependencies, dependencies_of
from inferswarm.evidence.facts import FactTable, SubjectFacts, facts_of, path_subject
from inferswarm.evidence.types import Observation, make_context
from inferswarm.resources.types import Envelope, NamedFact, observed, unknown
from inferswarm.resources.virtual import graph_of_envelopes
from inferswarm.strategies.economics import PATH_METRIC
from inferswarm.strategies.economics import path_subject as path_subject_of_economics
from inferswarm.strategies.overheads import SERVICE_METRIC
from tests.unit.evidence.evidence_samples import DAY, NOW, SECOND, SUBJECTS, make_record, make_table
from tests.unit.resources.resources_samples import make_inventory

SUBJECT_METRICS = (
    ("cpu-1", "unit-seconds"),
    ("cpu-1", "step-overhead-seconds"),
    ("gpu-1", "unit-seconds"),
    ("gpu-1", "step-overhead-seconds"),
    ("gpu-1", "copy-seconds"),
    ("node-1", "runtime-base-bytes"),
    ("node-1", "read-bandwidth"),
    ("path:node-1->node-2", "message-seconds"),
)


def all_records() -> list[Observation]:
    return [make_record(subject, metric) for subject, metric in SUBJECT_METRICS]


def currency(changes: dict[tuple[str, str], str | None] | None = None, **options: object) -> Currency:
    return Currency(make_table(changes), NOW + SECOND, **options)  # type: ignore[arg-type]


def found(currency_: Currency, records: list[Observation] | None = None) -> set[tuple[str, str]]:
    return {(item.subject, item.metric) for item in find_stale(records or all_records(), currency_)}


def test_every_record_is_current_while_nothing_changes() -> None:
    for record in all_records():
        assert currency().standing(record) == ("current", (), ""), record.metric
    assert find_stale(all_records(), currency()) == ()


@pytest.mark.parametrize(
    ("subject", "key", "stale"),
    [
        ("gpu-1", "driver", {"unit-seconds", "step-overhead-seconds"}),
        ("gpu-1", "pcie.slot", {"step-overhead-seconds", "copy-seconds"}),
        ("gpu-1", "pcie.width", {"step-overhead-seconds", "copy-seconds"}),
        ("gpu-1", "clock.policy", {"unit-seconds", "step-overhead-seconds"}),
        ("gpu-1", "numa.binding", {"copy-seconds"}),
        ("gpu-1", "torch", {"unit-seconds", "step-overhead-seconds"}),
        ("cpu-1", "threads", {"unit-seconds", "step-overhead-seconds"}),
        ("cpu-1", "isa", {"unit-seconds", "step-overhead-seconds"}),
        ("cpu-1", "numa.binding", {"unit-seconds", "step-overhead-seconds"}),
        ("cpu-1", "kernel", {"unit-seconds", "step-overhead-seconds"}),
        ("cpu-1", "python", {"step-overhead-seconds"}),
        ("node-1", "threads", {"runtime-base-bytes"}),
        ("node-1", "numa.binding", {"read-bandwidth"}),
        ("node-1", "mechanism", {"runtime-base-bytes"}),
        ("node-1", "libc", {"runtime-base-bytes"}),
        ("path:node-1->node-2", "mtu", {"message-seconds"}),
        ("path:node-1->node-2", "addresses", {"message-seconds"}),
    ],
)
def test_one_changed_fact_makes_stale_what_depends_on_it_and_nothing_else(
    subject: str, key: str, stale: set[str]
) -> None:
    changed = currency({(subject, key): "another"})
    assert found(changed) == {(subject, metric) for metric in stale}
    for item in find_invalidated(all_records(), currency(), changed):
        assert [finding.key for finding in item.findings] == [key]
        assert item.findings[0].needed == "another"
        assert item.remeasure.endswith(f"({subject})")


def test_every_fact_of_every_subject_reaches_its_own_records_and_no_others() -> None:
    reached: set[tuple[str, str]] = set()
    for subject, (kind, facts) in SUBJECTS.items():
        for key in facts:
            declared = {
                (subject, metric)
                for owner, metric in SUBJECT_METRICS
                if owner == subject and key in dependencies_of(metric).keys_for(kind, "torch")  # type: ignore
            }
            assert found(currency({(subject, key): "another"})) == declared, (subject, key)
            reached |= declared
    assert reached == set(SUBJECT_METRICS)


@pytest.mark.parametrize(
    ("key", "stale"),
    [
        ("model.revision", {"unit-seconds", "step-overhead-seconds"}),
        ("representation", {"unit-seconds", "step-overhead-seconds"}),
        ("payload.bytes", {"copy-seconds", "message-seconds"}),
        ("set.bytes", {"read-bandwidth"}),
        ("nobody.heard.of.it", set()),
    ],
)
def test_another_question_concerns_the_kinds_that_know_its_key(key: str, stale: set[str]) -> None:
    assert {metric for _, metric in found(currency(asked={key: "another"}))} == stale


def test_a_fact_of_a_cpu_does_not_concern_an_accelerator() -> None:
    dependencies = dependencies_of("unit-seconds")
    assert dependencies is not None
    assert {"threads", "isa"} <= set(dependencies.keys_for("cpu", "torch"))
    assert not {"driver", "clock.policy"} & set(dependencies.keys_for("cpu", "torch"))
    assert not {"threads", "isa"} & set(dependencies.keys_for("cuda", "torch"))
    assert "torch" not in dependencies.keys_for("cpu", "reference")


@pytest.mark.parametrize(
    ("record", "table", "reason"),
    [
        (
            make_record("gpu-1", context={"driver": ""}),
            make_table(),
            "does not state driver, which is '550.1'",
        ),
        (make_record(), make_table({("cpu-1", "kernel"): None}), "kernel is unknown now: nothing is said about it"),
        (make_record(metric="new-metric"), make_table(), "nobody declared what new-metric depends on"),
    ],
)
def test_what_cannot_be_compared_is_neither_current_nor_stale(
    record: Observation, table: FactTable, reason: str
) -> None:
    at = Currency(table, NOW)
    standing = at.standing(record)
    assert standing.state == "undetermined"
    assert reason in standing.reasons[0]
    assert standing.remeasure
    assert find_stale([record], at) == ()
    assert at.refusals(record) == tuple(f"undetermined: {item}" for item in standing.reasons)
    assert at._replace(undetermined_applies=True).refusals(record) == ()


def test_an_unknown_fact_keeps_its_reason() -> None:
    facts = (NamedFact(name="driver", fact=unknown("NVML did not answer")),)
    table = FactTable(subjects=(SubjectFacts(subject="gpu-1", kind="cuda", facts=facts),))
    standing = Currency(table, NOW).standing(make_record("gpu-1"))
    assert standing.state == "undetermined"
    assert "driver is unknown now: NVML did not answer" in standing.reasons


def test_a_difference_outweighs_what_cannot_be_compared() -> None:
    record = make_record("gpu-1", context={"driver": "", "torch": "1.0"})
    standing = currency().standing(record)
    assert standing.state == "stale"
    assert {finding.key: finding.differs for finding in standing.findings} == {"driver": False, "torch": True}
    assert [finding.key for finding in find_stale([record], currency())[0].findings] == ["torch"]


def test_a_resource_that_is_not_there_has_no_current_records_until_it_is_back() -> None:
    gone = Currency(make_table(without="gpu-1"), NOW)
    assert {subject for subject, _ in found(gone)} == {"gpu-1"}
    assert gone.standing(make_record("gpu-1")).findings[0].key == "subject"
    assert found(Currency(make_table(), NOW)) == set()


@pytest.mark.parametrize(
    ("age_ns", "state"),
    [(0, "current"), (7 * DAY, "current"), (7 * DAY + SECOND, "stale"), (-SECOND, "stale")],
)
def test_a_record_holds_as_long_as_its_kind_says(age_ns: int, state: str) -> None:
    record = make_record("path:node-1->node-2", "message-seconds", at_ns=NOW - age_ns)
    standing = Currency(make_table(), NOW).standing(record)
    assert standing.state == state
    assert [finding.key for finding in standing.findings] == ([] if state == "current" else ["age"])


def test_another_version_of_the_protocol_is_stale() -> None:
    standing = currency().standing(make_record(protocol="cost-classes/3"))
    assert standing.state == "stale"
    assert standing.reasons == ("was taken by protocol 'cost-classes/3', needed cost-classes/2",)


def test_the_order_of_records_changes_nothing() -> None:
    records = all_records()
    changed = currency({("gpu-1", "driver"): "x", ("cpu-1", "threads"): "8"})
    expected = find_stale(records, changed)
    assert len(expected) == 4
    for seed in range(5):
        random.Random(seed).shuffle(records)
        assert find_stale(records, changed) == expected


def test_an_invalidation_names_what_was_not_stale_before() -> None:
    before = currency({("gpu-1", "driver"): "x"})
    after = currency({("gpu-1", "driver"): "x", ("node-1", "mechanism"): "none"})
    assert [item.metric for item in find_invalidated(all_records(), before, after)] == ["runtime-base-bytes"]
    assert find_invalidated(all_records(), after, after) == ()


def test_applicability_refuses_what_does_not_hold_with_what_to_measure() -> None:
    record = make_record()
    changed = currency({("cpu-1", "threads"): "8"})
    assert assess(record, {"backend": "torch"}, currency=currency()).applies
    verdict = assess(record, {"backend": "torch"}, currency=changed)
    assert verdict == (False, ("stale: threads was '4', is '8' now",))
    chosen = select([record], "cpu-1", "unit-seconds", {}, currency=changed)
    assert chosen.applicable == ()
    assert "threads was '4', is '8' now" in (chosen.unknown_reason or "")
    assert "this Compute Unit (cpu-1)" in changed.standing(record).remeasure


def test_a_staleness_is_a_document() -> None:
    (item, *_) = find_stale(all_records(), currency({("gpu-1", "driver"): "x"}))
    assert read_document(type(item), write_document(item), "test") == item


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": ""},
        {"protocols": ()},
        {"remeasure": ""},
        {"max_age_seconds": 0.0},
        {"max_age_seconds": float("inf")},
        {"asked": ("kernel",)},
        {"depends_on": (Dependency(key="a"), Dependency(key="a"))},
    ],
)
def test_a_declaration_that_says_nothing_or_contradicts_itself_is_refused(changes: dict[str, object]) -> None:
    whole = dependencies_of("read-bandwidth")
    assert whole is not None
    with pytest.raises(ValueError, match=r"needs a metric|largest age|given twice|finite"):
        msgspec.structs.replace(whole, **changes)


def test_each_kind_is_declared_once_and_is_a_document() -> None:
    metrics = [item.metric for item in DEPENDENCIES]
    assert len(set(metrics)) == len(metrics)
    assert {SERVICE_METRIC, PATH_METRIC} <= set(metrics)
    for item in DEPENDENCIES:
        assert read_document(MetricDependencies, write_document(item), "test") == item


def test_the_declared_protocol_is_the_one_that_measures() -> None:
    dependencies = dependencies_of(SERVICE_METRIC)
    assert dependencies is not None
    assert COST_CLASS_PROTOCOL in dependencies.protocols


# -- the table of facts --

ENVELOPES = (
    Envelope(name="birch", threads=1, memory_bytes=10**9),
    Envelope(name="oak", threads=2, memory_bytes=10**9),
)


def make_graph(torch_version: str = "2.13.0"):  # type: ignore[no-untyped-def]
    inventory = make_inventory(torch_version=torch_version)
    return graph_of_envelopes(inventory, "swarm", ENVELOPES, {}, "none", backends=("torch",))


def test_a_graph_states_the_facts_of_its_units_nodes_and_paths() -> None:
    graph = make_graph()
    table = facts_of(graph)
    unit, node = graph.compute_units[1], graph.nodes[1]
    of_unit, of_node = table.of(unit.id), table.of(node.id)
    assert of_unit is not None
    assert of_node is not None
    assert (of_unit.kind, of_node.kind) == ("cpu", "node")
    assert {key: of_unit.fact(key).value for key in ("threads", "torch", "cpu")} == {  # type: ignore[union-attr]
        "threads": "2",
        "torch": "2.13.0",
        "cpu": "Test CPU",
    }
    assert of_node.fact("threads").value == "2"  # type: ignore[union-attr]
    path = table.of(path_subject(graph.nodes[0].id, node.id))
    assert path is not None
    assert path.kind == "loopback"
    assert path.fact("link.kind").value == "loopback"  # type: ignore[union-attr]
    assert path.fact("kernel") == of_node.fact("kernel")
    assert not path.fact("link.rate").known  # type: ignore[union-attr]
    assert table.of("nobody") is None
    assert of_unit.fact("nothing") is None


def test_what_is_stated_of_a_resource_goes_before_what_is_stated_of_its_node() -> None:
    graph = make_graph()
    unit, node = graph.compute_units[0], graph.nodes[0]
    stated = {
        node.id: (
            NamedFact(name="driver", fact=observed("1", "test")),
            NamedFact(name="torch", fact=unknown("gone")),
        ),
        unit.id: (NamedFact(name="driver", fact=observed("2", "test")),),
    }
    table = facts_of(graph, stated)
    assert table.of(unit.id).fact("driver").value == "2"  # type: ignore[union-attr]
    assert table.of(node.id).fact("driver").value == "1"  # type: ignore[union-attr]
    assert not table.of(unit.id).fact("torch").known  # type: ignore[union-attr]
    assert table.of(graph.compute_units[1].id).fact("driver") is None  # type: ignore[union-attr]


def test_a_path_over_a_network_has_its_rate_and_not_the_computer() -> None:
    graph = make_graph()
    rate = observed(10**9, "test")
    links = tuple(
        msgspec.structs.replace(link, kind="ethernet", nominal_bits_per_second=rate) for link in graph.links
    )
    path = facts_of(msgspec.structs.replace(graph, links=links)).of(
        path_subject(graph.nodes[0].id, graph.nodes[1].id)
    )
    assert path is not None
    assert path.kind == "path"
    assert path.fact("link.rate").value == "1000000000"  # type: ignore[union-attr]
    assert path.fact("cpu") is None
    dependencies = dependencies_of("message-seconds")
    assert dependencies is not None
    assert dependencies.keys_for("path", None) == ("link.kind", "addresses", "mtu", "link.rate")
    assert dependencies.keys_for("loopback", None) == ("link.kind", "addresses", "mtu", "cpu", "kernel")


def test_facts_about_a_resource_that_is_not_in_the_graph_are_refused() -> None:
    with pytest.raises(SpecError, match="stated facts"):
        facts_of(make_graph(), {"gpu-9": ()})


def test_a_change_in_the_graph_reaches_the_records_of_the_units_it_concerns() -> None:
    graph = make_graph()
    before, after = facts_of(graph), facts_of(make_graph("2.14.0"))
    differing = {
        (item.subject, key)
        for item, other in zip(before.subjects, after.subjects, strict=True)
        for key, fact, changed in ((named.name, named.fact, other.fact(named.name)) for named in item.facts)
        if fact != changed
    }
    assert {key for _, key in differing} == {"torch"}
    assert len(differing) == 6  # two Nodes, their CPUs and their memory
    assert not {subject for subject, _ in differing if subject.startswith("path:")}


def measured(graph, **context: object) -> list[Observation]:  # type: ignore[no-untyped-def]
    """Return records as probes make them: they state what the question names and little else."""
    asked = {"backend": "torch", "representation": "fp32", "model_shape": "m"} | context
    common = {"unit": "s", "samples": (1.0,), "taken_at_ns": str(NOW), "producer": "test"}
    path = path_subject(graph.nodes[0].id, graph.nodes[1].id)
    return [
        Observation(
            subject=graph.compute_units[0].id,
            metric="unit-seconds",
            protocol="cost-classes/2",
            context=make_context(**asked),
            **common,
        ),
        Observation(
            subject=path,
            metric="message-seconds",
            protocol="message-seconds/3",
            context=make_context(payload_bytes=64),
            **common,
        ),
    ]


def test_a_record_can_state_the_facts_it_was_taken_under() -> None:
    graph = make_graph()
    unit = graph.compute_units[0].id
    of_path = (("addresses", "10.0.0.1>10.0.0.2"), ("mtu", "1500>1500"))
    stated = {
        unit: (NamedFact(name="numa.binding", fact=observed("0", "test")),),
        path_subject(graph.nodes[0].id, graph.nodes[1].id): tuple(
            NamedFact(name=name, fact=observed(value, "test")) for name, value in of_path
        ),
    }
    table = facts_of(graph, stated)
    bare = measured(graph)
    assert {Currency(table, NOW).standing(item).state for item in bare} == {"undetermined"}
    whole = [with_facts(item, table) for item in bare]
    assert {Currency(table, NOW).standing(item).state for item in whole} == {"current"}
    assert whole[0].context_value("torch") == "2.13.0"
    assert whole[1].context_value("cpu") == "Test CPU"
    assert [with_facts(item, table) for item in whole] == whole
    upgraded = Currency(facts_of(make_graph("2.14.0"), stated), NOW)
    assert [(item.subject, item.findings[0].key) for item in find_stale(whole, upgraded)] == [(unit, "torch")]


def test_what_is_unknown_is_not_stated_and_what_differs_is_refused() -> None:
    graph = make_graph()
    table = facts_of(graph)
    unit_record, path_record = measured(graph)
    assert with_facts(path_record, table).context_value("link.kind") == "loopback"
    assert with_facts(path_record, table).context_value("link.rate") is None
    (another, _) = measured(graph, torch="1.0")
    for record, problem in (
        (another, "found '1.0', needed '2.13.0'"),
        (msgspec.structs.replace(unit_record, metric="unheard-of"), "whose dependencies are declared"),
        (msgspec.structs.replace(unit_record, subject="cpu-9"), "that is present"),
    ):
        with pytest.raises(SpecError, match=problem):
            with_facts(record, table)


def test_paths_are_named_as_the_economics_name_them() -> None:
    for source, target in itertools.permutations(("a", "b"), 2):
        assert path_subject(source, target) == path_subject_of_economics(source, target)


def test_a_table_lists_each_subject_and_each_fact_once() -> None:
    fact = NamedFact(name="torch", fact=observed("1", "test"))
    with pytest.raises(ValueError, match="not sorted by name, each once"):
        SubjectFacts(subject="cpu-1", kind="cpu", facts=(fact, fact))
    subject = SubjectFacts(subject="cpu-1", kind="cpu", facts=(fact,))
    with pytest.raises(ValueError, match="not sorted, each once"):
        FactTable(subjects=(subject, subject))
