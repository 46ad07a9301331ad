"""Several Compute Units in one Node: what is measured of it, and that a second participant pays for its process."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from inferswarm.errors import MeasurementError, SpecError
from inferswarm.evidence.facts import path_subject
from inferswarm.fabric import messages as m
from inferswarm.planner import decide
from inferswarm.planner.decide import force_plan
from inferswarm.planner.economics import Economics, PathCurve, ServiceCurve
from inferswarm.planner.problem import Policy, Throughput, Workload
from inferswarm.resources.types import Envelope, ResourceGraph, observed
from inferswarm.resources.virtual import graph_of_envelopes, graph_of_host
from inferswarm.strategies.problem import make_problem
from inferswarm.swarm.known import BASE_METRIC, FURTHER_METRIC, currency_of
from inferswarm.swarm.reservations import PARTICIPANT_TERM, Reservations, with_participants
from tests.unit.backends.backends_support import small_description
from tests.unit.resources.resources_samples import make_accelerator, make_inventory
from tests.units_rig import AGENT, ELM, MIB, OAK, STAGE, Machine, Rig, of_envelopes

WORKLOAD = Workload(prompt_tokens=16, output_tokens=8)


def test_a_further_stage_is_measured_where_units_share_a_memory_and_nowhere_else(tmp_path: Path) -> None:
    rig, machine = of_envelopes(tmp_path, OAK, ELM), Machine()
    rig.measure(machine)
    oak, _ = (node.id for node in rig.graph.nodes)
    assert [record.subject for record in rig.store.query(metric=FURTHER_METRIC)] == [oak]
    assert set(rig.store.query(oak, FURTHER_METRIC)[0].samples) == {float(STAGE)}
    assert {record.samples[0] for record in rig.store.query(metric=BASE_METRIC)} == {float(AGENT + STAGE)}
    warmed = [command.threads for command in machine.commands(m.Warm)]
    assert warmed == [1, 2, 1]  # the further stage is that of the unit with the most threads
    assert rig.due == [None, None]
    assert all(not running for running in machine.stages.values())


def test_memory_is_read_with_one_thread_and_more_each_in_a_record_of_its_own(tmp_path: Path) -> None:
    rig = of_envelopes(tmp_path, Envelope.parse("oak:threads=3,memory=2GB"))
    rig.measure(Machine())
    found = rig.store.query(metric="read-bandwidth")
    assert [(item.context_value("threads"), item.samples[0]) for item in found] == [
        ("1", 1e10),
        ("2", 2e10),
        ("3", 3e10),
    ]


def test_what_participants_are_charged_adds_up_to_what_was_measured(tmp_path: Path) -> None:
    """One participant on a Node is charged the measured base, two the base and a further stage; on every Node."""
    rig = of_envelopes(tmp_path, OAK, ELM)
    rig.measure(Machine())
    found = rig.reserved
    assert found.participant_bytes == STAGE
    for name in ("oak", "elm"):
        reserved = found.nodes[name].value
        assert reserved is not None
        assert reserved + found.participant_bytes == AGENT + STAGE
        assert reserved + 2 * found.participant_bytes == AGENT + 2 * STAGE


def test_without_shared_memory_reservations_are_the_measured_bases(tmp_path: Path) -> None:
    rig = of_envelopes(tmp_path, ELM)
    rig.measure(Machine())
    assert rig.reserved == Reservations({"elm": observed(AGENT + STAGE, "measured as none charges it")}, {}, 0)
    problem = make_problem(small_description())
    assert with_participants(problem, 0) is problem


def test_a_node_whose_further_stage_is_unknown_has_no_known_reservation(tmp_path: Path) -> None:
    rig = of_envelopes(tmp_path, ELM)
    rig.measure(Machine())
    larger = of_envelopes(tmp_path, msgspec.structs.replace(ELM, more_threads=(1,)))
    assert larger.due == ["stale: threads was '1', is '1+1' now"]
    assert larger.reserved.nodes == {}


def test_a_stage_that_seems_to_take_nothing_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="with one stage more its mechanism charges"):
        of_envelopes(tmp_path, OAK).measure(Machine(stage_bytes=0))


def test_a_base_is_measured_with_a_stage_on_each_accelerator(tmp_path: Path) -> None:
    graph = graph_of_host(make_inventory(accelerators=(make_accelerator("aa"),)), "swarm-1", backends=("torch",))
    rig, machine = Rig(tmp_path, graph), Machine()
    rig.measure(machine)
    card, vram = graph.compute_units[1], graph.memory_resources[1].id
    assert [command.kind for command in machine.commands(m.Warm)] == ["cpu", "cuda"]
    assert [command.compute_unit_id for command in machine.commands(m.ProbeAccelerator)] == [card.id]
    found = rig.reserved
    assert found.nodes["elm"].value == AGENT + 2 * STAGE
    assert found.accelerators[vram].value == 300 * MIB
    assert rig.due == [None]
    without = Rig(tmp_path, graph_of_host(make_inventory(), "swarm-1", backends=("torch",)))
    assert without.reserved.nodes == {}  # that base was another one


@pytest.mark.parametrize(
    ("kinds", "tags", "ram", "vram"),
    [
        ({"cuda"}, (), AGENT + STAGE, 300 * MIB - STAGE),
        ({"cpu", "cuda"}, (), AGENT + STAGE, 300 * MIB - STAGE),
        ({"cpu", "cuda"}, ("states:addressable",), AGENT + 2 * STAGE, 300 * MIB - STAGE),
    ],
)
def test_what_participants_count_comes_off_the_memory_where_they_count_it(
    tmp_path: Path, kinds: set[str], tags: tuple[str, ...], ram: int, vram: int
) -> None:
    """A participant on a card counts its process on the card, and so nothing of it comes off the RAM that it needs.

    Mutation: take what every participant counts off every Node's RAM.
    """
    oak = of_envelopes(tmp_path, OAK)
    host = graph_of_host(
        make_inventory(accelerators=(make_accelerator("aa"),)), "swarm-1", name="elm", backends=("torch",)
    )
    units = tuple(
        msgspec.structs.replace(unit, capabilities=(*unit.capabilities, *(tags if unit.kind == "cuda" else ())))
        for unit in host.compute_units
        if unit.kind in kinds
    )
    graph = msgspec.structs.replace(
        host,
        nodes=(*oak.graph.nodes, *host.nodes),
        compute_units=(*oak.graph.compute_units, *units),
        memory_resources=(*oak.graph.memory_resources, *host.memory_resources),
        core_sets=oak.graph.core_sets,
    )
    rig = Rig(tmp_path, graph)
    rig.measure(Machine())
    found = rig.reserved
    assert found.participant_bytes == STAGE
    assert found.nodes["oak"].value == AGENT
    assert found.nodes["elm"].value == ram
    assert found.accelerators[host.memory_resources[1].id].value == vram


def economics(rig: Rig, within: float, between: float) -> Economics:
    """Return curves in which every unit takes a millisecond, and a message within a Node and to another as given."""
    problem = make_problem(small_description())
    services = tuple(
        ServiceCurve(compute_unit_id=unit.id, cost_class=name, representation="fp32", phase=phase, base_seconds=1e-3)
        for unit in rig.graph.compute_units
        for name in dict.fromkeys(item.cost_class for item in problem.units)
        for phase in ("first-pass", "step", "opening")
    )
    nodes = [node.id for node in rig.graph.nodes]
    paths = tuple(
        PathCurve(source=a, target=b, latency_seconds=within if a == b else between, seconds_per_byte=0.0)
        for a in nodes
        for b in nodes
    )
    return Economics(services=services, paths=paths)


def with_memory(rig: Rig, room: dict[str, int]) -> ResourceGraph:
    """Return the graph with so much room for each Node's participants, what each needs for its process included."""
    names = {node.id: node.name for node in rig.graph.nodes}
    return msgspec.structs.replace(
        rig.graph,
        memory_resources=tuple(
            msgspec.structs.replace(
                memory,
                capacity_bytes=observed(room[names[memory.node_id]], "test"),
                reserved_bytes=observed(0, "test"),
            )
            for memory in rig.graph.memory_resources
        ),
    )


def test_two_participants_of_one_node_are_counted_on_its_one_memory(tmp_path: Path) -> None:
    """Room for one participant's process and all states is not room for two processes."""
    rig = of_envelopes(tmp_path, OAK)
    problem = with_participants(make_problem(small_description()), STAGE)
    units = tuple(unit.id for unit in rig.graph.compute_units)

    def accounts(room: int) -> list[bool]:
        graph = with_memory(rig, {"oak": room})
        plan = force_plan(problem, graph, WORKLOAD, economics(rig, 0.0, 0.0), units, (2,), "fp32")
        return [placement.memory.fits for placement in plan.placements]

    whole = force_plan(
        problem,
        with_memory(rig, {"oak": 10**10}),
        WORKLOAD,
        economics(rig, 0.0, 0.0),
        units,
        (2,),
        "fp32",
    )
    needed = whole.placements[0].memory.needed_bytes
    assert needed == whole.placements[1].memory.needed_bytes
    assert needed > 2 * STAGE
    assert [term.name for term in whole.placements[0].memory.terms].count(PARTICIPANT_TERM) == 1
    assert accounts(needed) == [True, True]
    assert accounts(needed - 1) == [False, False]


@pytest.mark.parametrize(
    ("within", "between", "nodes"),
    [(1e-5, 1e-2, {"oak"}), (1e-2, 1e-5, {"oak", "elm"})],
)
def test_the_planner_chooses_among_units_of_one_node_and_of_two_by_price(
    tmp_path: Path, within: float, between: float, nodes: set[str]
) -> None:
    rig = of_envelopes(tmp_path, OAK, ELM)
    problem = make_problem(small_description())
    graph = with_memory(rig, {"oak": 10**10, "elm": 10**10})
    sessions = msgspec.structs.replace(WORKLOAD, concurrency=2, objective=Throughput())
    policy = Policy(representations=("fp32",), max_participants=2)
    decision = decide(problem, graph, sessions, policy, economics(rig, within, between))
    assert decision.plan is not None
    assert len(decision.plan.placements) == 2
    assert {placement.node_name for placement in decision.plan.placements} == nodes


def test_a_path_within_a_node_that_nobody_measured_leaves_its_plans_without_a_price(tmp_path: Path) -> None:
    rig = of_envelopes(tmp_path, OAK)
    known = msgspec.structs.replace(economics(rig, 0.0, 0.0), paths=())
    problem = make_problem(small_description())
    units = tuple(unit.id for unit in rig.graph.compute_units)
    plan = force_plan(problem, with_memory(rig, {"oak": 10**10}), WORKLOAD, known, units, (2,), "fp32")
    assert plan.prediction is None


def test_facts_of_a_path_within_a_node_are_stated_where_it_has_several_units(tmp_path: Path) -> None:
    rig = of_envelopes(tmp_path, OAK, ELM)
    facts = currency_of(rig.graph, "none").facts
    oak, elm = (node.id for node in rig.graph.nodes)
    found = facts.of(path_subject(oak, oak))
    assert found is not None
    assert found.kind == "loopback"
    assert facts.of(path_subject(elm, elm)) is None


def test_an_envelope_says_what_it_cannot_be() -> None:
    for text, message in (
        ("oak:threads=1+,memory=1GB", "one for each Compute Unit with '\\+' between them"),
        ("oak:threads=1+0,memory=1GB", "threads: found 0, needed at least 1"),
    ):
        with pytest.raises(SpecError, match=message):
            Envelope.parse(text)
    with pytest.raises(SpecError, match="threads: found 9, needed at most 4"):
        graph_of_envelopes(make_inventory(), "s", (Envelope.parse("oak:threads=1+9,memory=1GB"),), {}, "none")
