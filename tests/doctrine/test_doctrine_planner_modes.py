"""What a participant computes in and where its states are: choices of the plan, one for each participant."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.planner import Policy, Workload, decide
from inferswarm.planner.modes import ADDRESSABLE
from inferswarm.planner.problem import Mixture
from tests.unit.planner.planner_cases import AMBER, COPPER, make_economics, make_graph, make_memory, make_problem

replace = msgspec.structs.replace
WORKLOAD = Workload(prompt_tokens=16, output_tokens=11)


@pytest.mark.rule(11)
def test_states_may_be_in_a_memory_that_is_not_the_nearest():
    """A Compute Unit too small for the chain executes it with states in another Memory Resource of its Node.

    Mutation: let the search hold states in `memory_ids[0]` only, or count them in the nearest account as well.
    """
    graph = make_graph({"ash": 500}, capabilities=(ADDRESSABLE,))
    (unit,), (near,) = graph.compute_units, graph.memory_resources
    far = replace(make_memory("far", 10_000, 0), node_id=near.node_id)
    graph = replace(
        graph,
        compute_units=(replace(unit, memory_ids=(near.id, far.id)),),
        memory_resources=(near, far),
    )
    economics = make_economics({"ash": 0.01})
    apart = tuple(replace(curve, states="apart") for curve in economics.services)
    problem = make_problem(4, mutable_bytes=1)
    plan = decide(problem, graph, WORKLOAD, Policy(), replace(economics, services=apart)).plan
    (placement,) = plan.placements
    assert (placement.memory.memory_id, placement.states_memory_id) == (near.id, far.id)
    assert placement.states_memory.needed_bytes == 4000
    assert placement.memory.needed_bytes == 4 * 64


@pytest.mark.rule(15)
def test_the_same_state_keeps_its_identity_in_every_representation():
    """Two participants that compute in different representations hold one shared state under one id.

    Mutation: put the representation into a state's id, or let all participants have one representation.
    """
    both = (AMBER, COPPER)
    mixture = Mixture(name="mixed", primitive="plain", representations=both, payload_representation=AMBER)
    problem = replace(make_problem(4, representations=both, tied=True), mixtures=(mixture,))
    quick, slow = {"ash": 0.01, "birch": 0.05}, {"ash": 0.05, "birch": 0.01}
    amber, copper = (
        make_economics(table, representations=(name,)) for table, name in ((quick, AMBER), (slow, COPPER))
    )
    economics = replace(amber, services=amber.services + copper.services)
    graph = make_graph({"ash": 2000, "birch": 1000})
    plan = decide(problem, graph, WORKLOAD, Policy(mix_representations=True), economics).plan
    held = [
        (state.state_id, state.representation, state.bytes)
        for placement in plan.placements
        for state in placement.states
        if state.state_id == "s0"
    ]
    assert sorted(held) == [("s0", AMBER, 1000), ("s0", COPPER, 500)]
