"""What operators may demand, and what becomes of it."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.errors import SpecError
from inferswarm.planner import Decision, Policy, Workload, decide
from tests.unit.planner.planner_cases import (
    AMBER,
    COPPER,
    ENOUGH,
    World,
    make_economics,
    make_graph,
    make_problem,
    sizes,
)

TWO = (AMBER, COPPER)
WORLD = World(
    make_problem(4, representations=TWO, illegal=[1]),
    make_graph({"a": ENOUGH, "b": ENOUGH, "c": ENOUGH}),
    Workload(prompt_tokens=16, output_tokens=11),
    make_economics({"a": 0.01, "b": 0.02, "c": 0.03}, representations=TWO),
)


def under(**policy) -> Decision:
    return decide(WORLD.problem, WORLD.graph, WORLD.workload, Policy(**policy), WORLD.economics)


def used(decision: Decision) -> list[tuple[str, int, int]]:
    assert decision.plan is not None
    return [(item.node_name, item.first_unit, item.end_unit) for item in decision.plan.placements]


def excluded(decision: Decision) -> set[tuple[str, tuple[str, ...]]]:
    return {
        (family.representation, family.node_names)
        for family in decision.families
        if family.status == "POLICY_EXCLUDED"
    }


def test_without_demands_nothing_is_excluded_and_the_best_wins():
    decision = under()
    assert excluded(decision) == set()
    assert used(decision) == [("a", 0, 4)]
    assert decision.proved_optimal
    assert decision.overrides == ()


@pytest.mark.parametrize("name", ["a", "node-a"])
def test_an_excluded_node_is_named_by_name_or_id_and_not_used(name):
    decision = under(excluded_nodes=(name,))
    assert used(decision) == [("b", 0, 4)]
    assert {nodes for _, nodes in excluded(decision)} == {("a",), ("a", "b"), ("a", "c"), ("a", "b", "c")}
    reasons = {item.node_name: item.reason for item in decision.resources}
    assert reasons["a"] == "excluded by policy: Node a is excluded"


def test_representations_are_limited_to_those_allowed():
    decision = under(representations=(COPPER,))
    assert decision.plan.representation == COPPER
    assert {representation for representation, _ in excluded(decision)} == {AMBER}


def test_a_plan_may_have_at_most_so_many_participants():
    assert {len(nodes) for _, nodes in excluded(under(max_participants=1))} == {2, 3}


def test_a_least_rate_excludes_what_is_too_slow():
    # 4 units at 10 ms are 25 tokens/s on a, 12.5 on b; together they are slower than a alone.
    decision = under(min_tokens_per_second=20.0)
    assert used(decision) == [("a", 0, 4)]
    statuses = {family.node_names: family.status for family in decision.families}
    assert (statuses[("a",)], statuses[("b",)], statuses[("c",)]) == ("RANKED", "POLICY_EXCLUDED", "POLICY_EXCLUDED")
    slow = next(family for family in decision.families if family.node_names == ("b",))
    assert slow.reasons == ("policy: no plan reaches 20 tokens/s (its best plan: 12.5)",)
    assert slow.best is not None


def test_a_rate_that_nothing_reaches_leaves_no_plan_and_says_so():
    decision = under(min_tokens_per_second=1000.0)
    assert (decision.outcome, decision.plan) == ("NO_FEASIBLE_PLAN", None)
    assert "technically feasible" in decision.summary
    assert not decision.proved_optimal


def test_a_family_is_kept_by_a_slower_member_that_reaches_the_rate():
    # Pipelining makes the even split best for a long prompt, but only most units on `a` give 20 tokens/s.
    problem = make_problem(6)
    graph = make_graph({"a": 5000, "b": 5000})
    economics = make_economics({"a": 0.008, "b": 0.012}, path_seconds=0.0)
    workload = Workload(prompt_tokens=1600, output_tokens=2)
    free = decide(problem, graph, workload, Policy(), economics)
    bound = decide(problem, graph, workload, Policy(min_tokens_per_second=18.5), economics)
    assert used(free) == [("a", 0, 4), ("b", 4, 6)]
    assert used(bound) == [("a", 0, 5), ("b", 5, 6)]
    assert bound.plan.prediction.decode_rate.point >= 18.5
    assert bound.plan.prediction.request.point > free.plan.prediction.request.point


def test_pinned_nodes_are_used_in_order_and_recorded_as_an_override():
    decision = under(pinned_nodes=("c", "a"))
    assert [name for name, _, _ in used(decision)] == ["c", "a"]
    assert decision.overrides == ("Nodes pinned, in this order: c, a",)
    assert decision.proved_optimal


def test_pinned_cuts_are_used_and_recorded_as_an_override():
    decision = under(pinned_nodes=("a", "b", "c"), pinned_cuts=(0, 2))
    assert used(decision) == [("a", 0, 1), ("b", 1, 3), ("c", 3, 4)]
    assert decision.overrides[1] == "cuts pinned after units 0, 2"


def test_pins_that_do_not_fit_leave_no_plan_though_the_family_is_feasible():
    graph = make_graph({"a": ENOUGH, "b": 1000})
    policy = Policy(pinned_nodes=("a", "b"), pinned_cuts=(0,))
    decision = decide(WORLD.problem, graph, WORLD.workload, policy, WORLD.economics)
    assert decision.outcome == "NO_FEASIBLE_PLAN"
    family = next(item for item in decision.families if item.node_names == ("a", "b"))
    assert family.status == "POLICY_EXCLUDED"
    assert "b (mem-b): peak memory in amber: needs 3,000 B, has 1,000" in " ".join(family.reasons)


def test_a_pinned_node_with_two_compute_units_leaves_the_choice_between_them():
    graph = make_graph({"a": ENOUGH, "b": ENOUGH})
    units = tuple(msgspec.structs.replace(unit, node_id="node-a") for unit in graph.compute_units)
    graph = msgspec.structs.replace(graph, compute_units=units)
    economics = make_economics({"a": 0.03, "b": 0.02})
    decision = decide(make_problem(), graph, WORLD.workload, Policy(pinned_nodes=("a",)), economics)
    assert decision.plan.placements[0].compute_unit_id == "cu-b"


def test_pins_without_a_price_abstain_instead_of_choosing():
    economics = make_economics({"a": 0.01, "b": 0.02}, path_seconds={("a", "b"): 0.001}, representations=TWO)
    graph = make_graph({"a": ENOUGH, "b": ENOUGH})
    decision = decide(WORLD.problem, graph, WORLD.workload, Policy(pinned_nodes=("a", "b")), economics)
    assert decision.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    assert "path curve b → a" in decision.missing_evidence


@pytest.mark.parametrize(
    ("policy", "needed"),
    [
        ({"representations": ("zinc",)}, "one of ['amber', 'copper']"),
        ({"excluded_nodes": ("z",)}, "one of the Nodes ['a', 'b', 'c']"),
        ({"pinned_nodes": ("z",)}, "one of the Nodes ['a', 'b', 'c']"),
        ({"pinned_nodes": ("a", "a")}, "at most 1 times"),
        ({"pinned_cuts": (0,)}, "pinned_nodes as well"),
        ({"pinned_nodes": ("a", "b"), "pinned_cuts": (0, 2)}, "1 cuts for 2 participants"),
        ({"pinned_nodes": ("a", "b", "c"), "pinned_cuts": (2, 0)}, "ascending cuts"),
        ({"pinned_nodes": ("a", "b", "c"), "pinned_cuts": (0, 0)}, "ascending cuts"),
        ({"pinned_nodes": ("a", "b"), "pinned_cuts": (1,)}, "after one of the units [0, 2]"),
        ({"pinned_nodes": ("a", "b"), "pinned_cuts": (3,)}, "after one of the units [0, 2]"),
        ({"pinned_nodes": ("a", "b"), "pinned_cuts": (-1,)}, "after one of the units [0, 2]"),
        ({"max_participants": 0}, "at least 1"),
        ({"min_tokens_per_second": 0.0}, "more than 0"),
    ],
)
def test_impossible_demands_are_refused_with_what_would_be_right(policy, needed):
    with pytest.raises(SpecError) as error:
        under(**policy)
    assert needed in error.value.needed


def test_a_name_that_two_nodes_have_is_refused():
    graph = make_graph({"a": ENOUGH, "b": ENOUGH})
    nodes = tuple(msgspec.structs.replace(node, name="twin") for node in graph.nodes)
    graph = msgspec.structs.replace(graph, nodes=nodes)
    with pytest.raises(SpecError, match="several Nodes have that name"):
        decide(WORLD.problem, graph, WORLD.workload, Policy(excluded_nodes=("twin",)), WORLD.economics)


def test_sizes_of_the_second_representation_are_half_of_the_first():
    assert [size.bytes for size in sizes(1000, TWO)] == [1000, 500]
