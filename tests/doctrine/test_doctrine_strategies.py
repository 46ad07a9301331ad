"""Rules about what a strategy states of a model."""

import msgspec
import pytest

from inferswarm.documents import digest
from inferswarm.planner.problem import Implementation, bytes_in
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.problem import make_problem


@pytest.fixture(scope="module")
def model():
    return DenseModel.open("smollm2-135m")


@pytest.mark.rule(15)
def test_a_state_has_one_identity_in_every_representation_and_place(model):
    """Two representations share each state's id, and so do the two places of the tied table.

    Mutation: put the representation into a state's id in `_states`, or give the head a table of its own.
    """
    problem = model.problem()
    for state in problem.states:
        assert {size.representation for size in state.sizes} == {"fp32", "bf16"}
        assert bytes_in(state.sizes, "fp32") == 2 * bytes_in(state.sizes, "bf16")
    only = {
        representation: make_problem(
            model.description, implementations=(Implementation(primitive="torch", representation=representation),)
        )
        for representation in ("fp32", "bf16")
    }
    assert [state.id for state in only["fp32"].states] == [state.id for state in only["bf16"].states]
    first = model.requirement(problem, "stage-0", 0, 5)
    last = model.requirement(problem, "stage-1", 25, 32)
    assert set(first.state_ids) & set(last.state_ids) == {"token-table"}


@pytest.mark.rule(41)
def test_the_payload_of_a_boundary_is_what_the_strategy_says(model):
    """Another hidden size is another payload; the problem carries no universal message size.

    Mutation: return a constant for `payload_bytes_per_position` in `make_problem`.
    """
    wider = msgspec.structs.replace(model.description, hidden_size=1024)
    for representation, width in (("fp32", 4), ("bf16", 2)):
        for description in (model.description, wider):
            payloads = {
                bytes_in(boundary.payload_bytes_per_position, representation)
                for boundary in make_problem(description).boundaries
            }
            assert payloads == {description.hidden_size * width}
    assert digest(make_problem(wider)) != digest(model.problem())
