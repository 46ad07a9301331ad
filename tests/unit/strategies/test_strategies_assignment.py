"""From a plan to assignments: each participant's part, and the unsplit oracle with the same partition."""

import itertools

import msgspec
import pytest

from inferswarm.backends.assignment import make_assignments, unsplit_assignments
from inferswarm.backends.base import StageAssignment, UnitBinding, UnitThreads
from inferswarm.documents import digest, read_document, write_document
from inferswarm.errors import SpecError
from inferswarm.planner.plan import ExecutionPlan, MemoryAccount, Placement
from inferswarm.planner.problem import Workload
from inferswarm.resources.types import ComputeUnit, Node, ResourceGraph
from inferswarm.strategies.dense.model import DenseModel
from tests.mixing import mix
from tests.models import write_small_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return DenseModel.open(write_small_llama(tmp_path_factory.mktemp("model") / "m.gguf"))


def make_plan(problem, edges=(0, 2, 4, 6), threads=(1, 2, 1)):
    account = MemoryAccount(memory_id="ram", capacity_bytes=10, reserved_bytes=0, terms=())
    placements = tuple(
        Placement(
            participant=f"stage-{index}",
            node_id=f"node-{index}",
            node_name=f"n{index}",
            compute_unit_id=f"cpu-{index}",
            threads=threads[index],
            first_unit=first,
            end_unit=end,
            unit_ids=tuple(unit.id for unit in problem.units[first:end]),
            states=(),
            memory=account,
        )
        for index, (first, end) in enumerate(itertools.pairwise(edges))
    )
    return ExecutionPlan(
        problem_digest=digest(problem),
        graph_digest="sha256:" + "1" * 64,
        primitive="torch",
        representation="bf16",
        workload=Workload(prompt_tokens=8, output_tokens=8),
        chunk_positions=32,
        max_positions=100,
        sessions=2,
        placements=placements,
        prediction=None,
    )


def test_each_placement_gets_its_units_threads_and_bytes(model):
    problem = model.problem()
    plan = make_plan(problem)
    assignments = make_assignments(plan, model.description, model.object, problem)
    assert [item.participant for item in assignments] == ["stage-0", "stage-1", "stage-2"]
    assert [item.unit_ids for item in assignments] == [
        ("embedding", "block.0"),
        ("block.1", "block.2"),
        ("block.3", "head"),
    ]
    assert [item.threads for item in assignments] == [
        (UnitThreads(0, 2, 1),),
        (UnitThreads(2, 4, 2),),
        (UnitThreads(4, 6, 1),),
    ]
    for item in assignments:
        assert item.plan_digest == digest(plan)
        assert (item.primitive, item.representation) == ("torch", "bf16")
        assert (item.chunk_positions, item.max_positions, item.sessions) == (32, 100, 2)
        assert item.requirement == model.requirement(problem, item.participant, item.first_unit, item.end_unit)


def test_the_unsplit_oracle_keeps_the_threads_of_each_unit(model):
    problem = model.problem()
    (oracle,) = unsplit_assignments(make_plan(problem), model.description, model.object, problem)
    assert (oracle.participant, oracle.first_unit, oracle.end_unit) == ("unsplit", 0, 6)
    assert oracle.threads == (UnitThreads(0, 2, 1), UnitThreads(2, 4, 2), UnitThreads(4, 6, 1))
    assert len(oracle.requirement.tensors) == len(model.object.tensors)


def test_assignments_survive_a_round_trip(model):
    problem = model.problem()
    for plan in (make_plan(problem), mix(make_plan(problem), "bf16", "fp32", "bf16")):
        for item in make_assignments(plan, model.description, model.object, problem):
            assert read_document(StageAssignment, write_document(item), "test") == item


def test_the_assignments_of_a_plan_that_does_not_mix_say_nothing_of_payloads(model):
    problem = model.problem()
    for item in make_assignments(make_plan(problem), model.description, model.object, problem):
        assert "payload_representation" not in write_document(item)
        assert item.boundary_representation == item.representation == "bf16"


def test_each_participant_of_a_mixed_plan_computes_in_its_own_representation(model):
    problem = model.problem()
    plan = mix(make_plan(problem), "bf16", "fp32", "bf16")
    assignments = make_assignments(plan, model.description, model.object, problem)
    assert [item.representation for item in assignments] == ["bf16", "fp32", "bf16"]
    assert [item.boundary_representation for item in assignments] == ["fp32"] * 3


def test_the_oracle_of_a_mixed_plan_has_one_part_for_each_run_of_units_in_one_representation(model):
    problem = model.problem()
    plan = mix(make_plan(problem), "bf16", "bf16", "fp32")
    low, high = unsplit_assignments(plan, model.description, model.object, problem)
    assert (low.participant, high.participant) == ("unsplit-0", "unsplit-1")
    assert [(item.representation, item.boundary_representation) for item in (low, high)] == [
        ("bf16", "fp32"),
        ("fp32", "fp32"),
    ]
    assert low.threads == (UnitThreads(0, 2, 1), UnitThreads(2, 4, 2))
    assert high.threads == (UnitThreads(4, 6, 1),)
    assert low.requirement == model.requirement(problem, "unsplit-0", 0, 4)
    (whole,) = unsplit_assignments(plan, model.description, model.object, problem, representation="fp32")
    assert (whole.representation, whole.boundary_representation) == ("fp32", "fp32")
    assert whole.threads == (UnitThreads(0, 2, 1), UnitThreads(2, 4, 2), UnitThreads(4, 6, 1))


def first_placement(plan, **changes):
    first, *others = plan.placements
    return msgspec.structs.replace(plan, placements=(msgspec.structs.replace(first, **changes), *others))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda plan: mix(plan, "bf16", "fp32", "bf16", name="fp32"), "plan representation"),
        (lambda plan: mix(plan, "bf16", "fp32", "int8"), "placement stage-2 representation"),
        (lambda plan: mix(plan, "bf16", "fp32", "bf16", payload="bf16"), "plan payload_representation"),
        (lambda plan: msgspec.structs.replace(plan, payload_representation="fp32"), "plan representation"),
        (lambda plan: first_placement(plan, representation="fp32"), "plan representation"),
        (lambda plan: msgspec.structs.replace(plan, representation="int8"), "placement stage-0 representation"),
        (lambda plan: first_placement(plan, states_memory_id="vram"), "placement stage-0 states_memory_id"),
        (lambda plan: msgspec.structs.replace(plan, primitive="abacus"), "primitive"),
    ],
)
def test_what_strategy_and_backend_do_not_offer_is_refused_by_name(model, change, field):
    problem = model.problem()
    with pytest.raises(SpecError) as refused:
        make_assignments(change(make_plan(problem)), model.description, model.object, problem)
    assert refused.value.field == field


def test_a_problem_without_mixtures_lets_no_plan_mix(model):
    problem = msgspec.structs.replace(model.problem(), mixtures=msgspec.UNSET)
    plan = mix(make_plan(problem), "bf16", "fp32", "bf16")
    with pytest.raises(SpecError, match="a mixture that problem"):
        make_assignments(plan, model.description, model.object, problem)


def test_a_plan_of_another_problem_is_refused(model):
    plan = make_plan(model.problem())
    other = model.problem(chunk_positions=32)
    for make in (make_assignments, unsplit_assignments):
        with pytest.raises(SpecError, match="problem_digest"):
            make(plan, model.description, model.object, other)


@pytest.mark.parametrize("edges", [(0, 2), (0, 2, 5), (1, 4, 6), (0, 3, 3, 6)])
def test_placements_that_do_not_cover_the_chain_are_refused(model, edges):
    problem = model.problem()
    with pytest.raises(SpecError):
        make_assignments(make_plan(problem, edges), model.description, model.object, problem)


def test_placements_that_overlap_or_name_other_units_are_refused(model):
    problem = model.problem()
    plan = make_plan(problem)
    first, second, third = plan.placements
    wrong = [
        (first, third, second),
        (first, first, third),
        (first, msgspec.structs.replace(second, unit_ids=("block.2", "block.1")), third),
        (first, msgspec.structs.replace(second, first_unit=3), third),
        (),
    ]
    for placements in wrong:
        with pytest.raises(SpecError):
            make_assignments(
                msgspec.structs.replace(plan, placements=placements), model.description, model.object, problem
            )


def graph_of(*units):
    nodes = tuple(Node(id=f"node-{index}", name=f"n{index}", host_id="host-1") for index in range(3))
    return ResourceGraph(swarm_id="s", nodes=nodes, compute_units=units, memory_resources=(), links=())


def compute_unit(index, **changes):
    fields = {"id": f"cpu-{index}", "node_id": f"node-{index}", "kind": "cpu", "name": "CPU", "threads": 1}
    return ComputeUnit(memory_ids=("ram",), **fields | changes)


def test_an_assignment_carries_the_compute_unit_that_its_placement_is_on(model):
    problem = model.problem()
    plan = make_plan(problem)
    graph = graph_of(compute_unit(0), compute_unit(1, kind="cuda"), compute_unit(2, cpus=(4, 5)))
    bound = make_assignments(plan, model.description, model.object, problem, graph)
    assert [item.compute_unit for item in bound] == [
        UnitBinding(id="cpu-0", kind="cpu"),
        UnitBinding(id="cpu-1", kind="cuda"),
        UnitBinding(id="cpu-2", kind="cpu", cpus=(4, 5)),
    ]
    for item in bound:
        assert read_document(StageAssignment, write_document(item), "test") == item
    free = make_assignments(plan, model.description, model.object, problem)
    assert {item.kind for item in free} == {"cpu"}


@pytest.mark.parametrize("missing", [(), (compute_unit(1, node_id="node-0"),)])
def test_a_placement_on_a_compute_unit_that_its_node_lacks_is_refused(model, missing):
    problem = model.problem()
    graph = graph_of(compute_unit(0), *missing, compute_unit(2))
    with pytest.raises(
        SpecError, match="placement stage-1: compute unit: found 'cpu-1', needed a Compute Unit of Node n1"
    ):
        make_assignments(make_plan(problem), model.description, model.object, problem, graph)
