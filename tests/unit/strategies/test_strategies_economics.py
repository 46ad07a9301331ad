from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import msgspec
import pytest

from inferswarm.documents import digest, read_document, write_document
from inferswarm.errors import SpecError
from inferswarm.evidence.types import Observation, make_context
from inferswarm.planner.economics import Economics
from inferswarm.planner.problem import (
    Boundary,
    ExecutionUnit,
    Implementation,
    PlanningProblem,
    RepresentationBytes,
)
from inferswarm.resources.types import Envelope, ResourceGraph
from inferswarm.resources.virtual import graph_of_envelopes
from inferswarm.strategies.economics import make_economics, path_subject, phases_of
from inferswarm.strategies.problem import make_problem
from tests.unit.backends.backends_support import small_description
from tests.unit.resources.resources_samples import make_inventory

SHAPE = "llama/30x576"
CLASSES = ("block", "table")
BIRCH, OAK = (
    Envelope(name="birch", threads=1, memory_bytes=10**9),
    Envelope(name="oak", threads=2, memory_bytes=10**9),
)


def make_graph(torch_version: str = "2.13.0", backends: tuple[str, ...] = ("null", "torch")) -> ResourceGraph:
    inventory = make_inventory(torch_version=torch_version)
    return graph_of_envelopes(inventory, "swarm-1", (BIRCH, OAK), {}, "none", backends=backends)


GRAPH = make_graph()
UNIT, OTHER_UNIT = GRAPH.compute_units


def unit_record(
    cost_class: str, phase: str, positions: int, seconds: float, *, before: int = 0, **changes: object
) -> Observation:
    context: dict[str, str | int | float] = {
        "backend": "torch",
        "representation": "fp32",
        "cost_class": cost_class,
        "phase": phase,
        "positions": positions,
        "context_positions": before,
        "threads": UNIT.threads,
        "model_shape": SHAPE,
        "torch": "2.13.0",
        "cpu": "Test CPU",
    }
    fields: dict[str, object] = {
        "subject": UNIT.id,
        "metric": "unit-seconds",
        "unit": "s",
        "samples": (seconds,) * 5,
        "protocol": "test/1",
        "taken_at_ns": "1",
        "producer": "test",
    }
    for key, value in changes.items():
        if key in fields:
            fields[key] = value
        else:
            context[key] = value  # type: ignore[assignment]
    return Observation(context=make_context(**context), **fields)  # type: ignore[arg-type]


def path_record(
    source: str,
    target: str,
    payload: int,
    seconds: float,
    transport: str = "tcp",
    addresses: tuple[str, str] = ("10.0.0.1", "10.0.0.2"),
) -> Observation:
    return Observation(
        subject=path_subject(source, target, addresses),
        metric="message-seconds",
        unit="s",
        samples=(seconds,) * 5,
        context=make_context(
            payload_bytes=payload, transport=transport, address_source=addresses[0], address_target=addresses[1]
        ),
        protocol="test/1",
        taken_at_ns="1",
        producer="test",
    )


def complete(unit_id: str = UNIT.id, threads: int = UNIT.threads) -> list[Observation]:
    """Return everything that one Compute Unit needs for `CLASSES`, at known costs."""
    records = []
    for cost_class, scale in (("block", 1.0), ("table", 0.01)):
        for positions, before in ((8, 0), (64, 0), (64, 256)):
            seconds = scale * (1e-4 + 2e-5 * positions + 3e-8 * positions * (before + positions / 2))
            records.append(
                unit_record(
                    cost_class, "first-pass", positions, seconds, before=before, subject=unit_id, threads=threads
                )
            )
        for before in (0, 512):
            records.append(
                unit_record(
                    cost_class,
                    "step",
                    1,
                    scale * (5e-4 + 1e-7 * (before + 0.5)),
                    before=before,
                    subject=unit_id,
                    threads=threads,
                )
            )
    return records


def paths() -> list[Observation]:
    ids = [node.id for node in GRAPH.nodes]
    return [
        path_record(source, target, size, 5e-5 + size * 1e-9)
        for source, target in itertools.permutations(ids, 2)
        for size in (64, 4096, 65536)
    ]


def everything() -> list[Observation]:
    return complete() + complete(OTHER_UNIT.id, OTHER_UNIT.threads) + paths()


def economics(records: list[Observation], graph: ResourceGraph = GRAPH, **options: object) -> Economics:
    return make_economics(CLASSES, SHAPE, graph, records, representations=("fp32",), **options)  # type: ignore[arg-type]


def test_complete_records_give_every_curve_with_its_coefficients() -> None:
    found = economics(everything())
    assert found.missing == ()
    assert len(found.services) == 2 * 2 * 2
    block = next(
        curve
        for curve in found.services
        if (curve.compute_unit_id, curve.cost_class, curve.phase) == (UNIT.id, "block", "first-pass")
    )
    assert block.base_seconds == pytest.approx(1e-4, rel=1e-6)
    assert block.seconds_per_position == pytest.approx(2e-5, rel=1e-6)
    assert block.seconds_per_position_context == pytest.approx(3e-8, rel=1e-6)
    assert block.seconds(64, 256) == pytest.approx(1e-4 + 2e-5 * 64 + 3e-8 * 64 * 288, rel=1e-6)
    assert [curve.latency_seconds for curve in found.paths] == pytest.approx([5e-5, 5e-5])
    assert [curve.seconds(10**6) for curve in found.paths] == pytest.approx([1.05e-3, 1.05e-3])


def test_every_curve_names_exactly_the_records_it_was_made_of() -> None:
    records = everything()
    found = economics(records)
    by_id = {record.id: record for record in records}
    used = [identity for curve in (*found.services, *found.paths) for identity in curve.evidence_ids]
    assert sorted(used) == sorted(by_id)
    for curve in found.services:
        for identity in curve.evidence_ids:
            record = by_id[identity]
            assert record.subject == curve.compute_unit_id
            assert record.context_value("cost.class") == curve.cost_class
            assert record.context_value("phase") == curve.phase


def test_the_same_records_in_any_order_give_the_same_document() -> None:
    records = everything()
    expected = digest(economics(records))
    generator = random.Random(1)
    for _ in range(5):
        generator.shuffle(records)
        assert digest(economics(records)) == expected
    assert digest(read_document(Economics, write_document(economics(records)), "test")) == expected


def test_nothing_measured_gives_no_curve_and_says_what_is_missing() -> None:
    found = economics([])
    assert (found.services, found.paths) == ((), ())
    assert len(found.missing) == 8 + 2
    first = found.missing[0]
    assert first.startswith("unit-seconds of block in fp32, first-pass, on ")
    assert first.endswith("no record of unit-seconds exists")
    assert sum(f"({UNIT.id})" in reason for reason in found.missing) == 4
    assert sorted(reason for reason in found.missing if "→" in reason) == [
        "message-seconds birch → oak: no record of message-seconds exists",
        "message-seconds oak → birch: no record of message-seconds exists",
    ]


Change = Callable[[Observation], Observation]


def with_context(key: str, value: str | None) -> Change:
    def change(record: Observation) -> Observation:
        kept = {item.key.replace(".", "_"): item.value for item in record.context if item.key != key}
        if value is not None:
            kept[key.replace(".", "_")] = value
        return msgspec.structs.replace(record, context=make_context(**kept))

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_context("backend", "reference"), "backend is 'reference', needed 'torch'"),
        (with_context("representation", "bf16"), "representation is 'bf16', needed 'fp32'"),
        (with_context("threads", "2"), "threads is '2', needed '1'"),
        (with_context("model.shape", "other"), f"model.shape is 'other', needed '{SHAPE}'"),
        (with_context("torch", "2.12.0"), "torch is '2.12.0', needed '2.13.0'"),
        (with_context("cpu", "Old CPU"), "cpu is 'Old CPU', needed 'Test CPU'"),
        (with_context("threads", None), "does not state threads, needed '1'"),
        (lambda record: msgspec.structs.replace(record, unit="ms"), "unit is 'ms', needed 's'"),
        (lambda record: msgspec.structs.replace(record, evidence_class="nominal"), "class is nominal"),
        (lambda record: msgspec.structs.replace(record, subject="cpu-other"), "subject is 'cpu-other', needed"),
        (with_context("positions", "many"), "states positions as 'many'"),
        (with_context("positions", "0"), "states positions as '0'"),
        (with_context("context.positions", None), "states context.positions as None"),
        (lambda record: msgspec.structs.replace(record, samples=(0.0,) * 5), "a time is a positive finite number"),
        (lambda record: msgspec.structs.replace(record, samples=(1.0,)), "at least 5 samples"),
    ],
)
def test_records_of_another_context_make_no_curve(change: Change, reason: str) -> None:
    records = [change(record) for record in complete()]
    found = economics(records)
    assert found.services == ()
    ours = [text for text in found.missing if f"({UNIT.id})" in text]
    assert len(ours) == 4
    assert all(reason in text for text in ours)


def test_records_of_a_replaced_cpu_or_torch_are_left_aside() -> None:
    others = [with_context("cpu", "Old CPU")(record) for record in complete()]
    others += [with_context("torch", "2.12.0")(record) for record in complete()]
    assert economics(everything() + others) == economics(everything())


@pytest.mark.parametrize("key", ["cpu", "torch"])
def test_records_that_nothing_tells_apart_are_not_mixed(key: str) -> None:
    silent = msgspec.structs.replace(
        GRAPH, nodes=tuple(msgspec.structs.replace(node, facts=()) for node in GRAPH.nodes)
    )
    other = [with_context(key, "other")(record) for record in complete()]
    assert [text for text in economics(complete(), silent).missing if f"({UNIT.id})" in text] == []
    found = economics(complete() + other, silent)
    ours = [text for text in found.missing if f"({UNIT.id})" in text]
    assert len(ours) == 4
    assert all(f"records differ in {key}" in text for text in ours)


def test_two_transports_are_told_apart_only_by_who_asks() -> None:
    source, target = (node.id for node in GRAPH.nodes)
    fast = [path_record(source, target, size, 1e-6 + size * 1e-9, "ipc") for size in (64, 4096)]
    mixed = economics(everything() + fast)
    assert [text for text in mixed.missing if "birch → oak" in text] == [
        "message-seconds birch → oak: records differ in transport (ipc, tcp) and nothing says which holds here"
    ]
    asked = economics(everything() + fast, transport="ipc")
    assert [(curve.source, curve.latency_seconds) for curve in asked.paths] == [(source, pytest.approx(1e-6))]


def test_a_unit_that_cannot_execute_is_not_asked_for() -> None:
    found = economics([], make_graph(backends=("null",)))
    assert len(found.missing) == 2
    assert all(text.startswith("message-seconds") for text in found.missing)


def test_an_unavailable_link_and_unit_are_not_asked_for() -> None:
    off = msgspec.structs.replace(
        GRAPH,
        compute_units=tuple(msgspec.structs.replace(unit, available=False) for unit in GRAPH.compute_units),
        links=tuple(msgspec.structs.replace(link, available=False) for link in GRAPH.links),
    )
    assert economics([], off) == Economics(services=(), paths=())


def test_a_graph_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(SpecError):
        economics([], msgspec.structs.replace(GRAPH, nodes=()))


def test_units_of_the_newest_position_are_priced_by_steps_only() -> None:
    sizes = (RepresentationBytes("fp32", 4),)
    problem = PlanningProblem(
        id="p",
        strategy="s",
        units=(
            ExecutionUnit(id="a", cost_class="block", states=()),
            ExecutionUnit(id="b", cost_class="head", states=(), only_last_position=True),
        ),
        states=(),
        boundaries=(Boundary(legal=True, payload_bytes_per_position=sizes),),
        feedback_bytes=4,
        implementations=(Implementation(primitive="torch", representation="fp32"),),
        transients=(),
        max_positions=8,
        chunk_positions=4,
        comparator="c",
    )
    phases = phases_of(problem)
    assert phases == {"block": ("first-pass", "step"), "head": ("step",)}
    found = make_economics(phases, SHAPE, GRAPH, [], representations=("fp32",))
    assert sum("of head" in text for text in found.missing) == 2
    assert all("step" in text for text in found.missing if "of head" in text)


def test_what_opens_requests_is_priced_for_that_and_missed_where_it_is_not() -> None:
    """Mutation: let `make_problem` say of no unit that it opens requests."""
    phases = phases_of(make_problem(small_description()))
    opened = {name for name, kinds in phases.items() if "opening" in kinds}
    assert opened == {"embedding"}
    found = make_economics(phases, SHAPE, GRAPH, [], representations=("fp32",))
    assert sum("of embedding in fp32, opening" in text for text in found.missing) == 2


def test_a_step_costs_more_behind_a_longer_context() -> None:
    found = economics(everything())
    step = next(curve for curve in found.services if curve.cost_class == "block" and curve.phase == "step")
    assert step.seconds(1, 512) > step.seconds(1, 0) > 0
    assert 0 < step.low <= 1 <= step.high


def test_no_path_is_priced_for_being_on_one_host() -> None:
    assert len({node.host_id for node in GRAPH.nodes}) == 1
    assert economics(complete() + complete(OTHER_UNIT.id, OTHER_UNIT.threads)).paths == ()
    ids = [node.id for node in GRAPH.nodes]
    slow = [path_record(*ids, size, 0.5) for size in (64, 4096)]
    assert [round(curve.seconds(4096), 6) for curve in economics(slow).paths] == [0.5]
