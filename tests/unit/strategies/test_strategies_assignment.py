"""From a plan to assignments: each participant's part, and the unsplit oracle with the same partition."""

import itertools

import msgspec
import pytest

from inferswarm.backends.assignment import make_assignments, unsplit_assignment
from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.documents import digest, read_document, write_document
from inferswarm.errors import SpecError
from inferswarm.planner.plan import ExecutionPlan, MemoryAccount, Placement
from inferswarm.planner.problem import Workload
from inferswarm.strategies.dense.model import DenseModel
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
    oracle = unsplit_assignment(make_plan(problem), model.description, model.object, problem)
    assert (oracle.participant, oracle.first_unit, oracle.end_unit) == ("unsplit", 0, 6)
    assert oracle.threads == (UnitThreads(0, 2, 1), UnitThreads(2, 4, 2), UnitThreads(4, 6, 1))
    assert len(oracle.requirement.tensors) == len(model.object.tensors)


def test_assignments_survive_a_round_trip(model):
    problem = model.problem()
    for item in make_assignments(make_plan(problem), model.description, model.object, problem):
        assert read_document(StageAssignment, write_document(item), "test") == item


def test_a_plan_of_another_problem_is_refused(model):
    plan = make_plan(model.problem())
    other = model.problem(chunk_positions=32)
    for make in (make_assignments, unsplit_assignment):
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
