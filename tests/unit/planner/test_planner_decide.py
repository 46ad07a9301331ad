"""Decisions, forced plans and refusals on small worlds that can be checked by hand."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.documents import canonical_bytes, digest, read_document
from inferswarm.errors import InfeasiblePlan, SpecError
from inferswarm.planner import (
    MAX_COMPUTE_UNITS,
    CandidateFamily,
    Decision,
    Economics,
    ExecutionPlan,
    Policy,
    Workload,
    check_drift,
    decide,
    force_plan,
    require_plan,
)
from tests.unit.planner.planner_cases import (
    AMBER,
    COPPER,
    ENOUGH,
    make_economics,
    make_graph,
    make_link,
    make_problem,
)

replace = msgspec.structs.replace
WORKLOAD = Workload(prompt_tokens=16, output_tokens=11)
EVEN = {"a": 0.01, "b": 0.02}


def decided(problem=None, graph=None, economics=None, policy=None) -> Decision:
    return decide(
        problem or make_problem(4),
        graph or make_graph({"a": ENOUGH, "b": ENOUGH}),
        WORKLOAD,
        policy or Policy(),
        economics or make_economics(EVEN),
    )


def family(decision: Decision, *names: str, representation: str = AMBER) -> CandidateFamily:
    return next(
        item for item in decision.families if item.node_names == names and item.representation == representation
    )


def reason(decision: Decision, name: str) -> str:
    (text,) = [item.reason for item in decision.resources if item.node_name == name]
    return text


def test_a_chain_that_fits_in_no_node_is_split_where_both_fit():
    decision = decided(graph=make_graph({"a": 3000, "b": 2000}))
    assert decision.outcome == "SELECTED"
    assert [(item.node_name, item.first_unit, item.end_unit) for item in decision.plan.placements] == [
        ("a", 0, 3),
        ("b", 3, 4),
    ]
    assert decision.proved_optimal
    alone = family(decision, "a")
    assert alone.status == "TECHNICALLY_INFEASIBLE"
    assert (alone.memory[0].needed_bytes, alone.memory[0].available_bytes) == (4000, 3000)
    assert alone.reasons == (
        "a (mem-a): peak memory in amber: needs 4,000 B, has 3,000 (states 4.00 kB + mutable state 0 B)",
    )


def test_a_plan_states_everything_that_a_participant_holds():
    decision = decided(problem=make_problem(3, mutable_bytes=2), graph=make_graph({"a": 2300, "b": 1200}))
    first, second = decision.plan.placements
    assert (first.participant, first.unit_ids) == ("stage-0", ("u0", "u1"))
    assert [(state.state_id, state.bytes) for state in second.states] == [("s2", 1000)]
    assert (decision.plan.max_positions, decision.plan.sessions, decision.plan.chunk_positions) == (64, 1, 16)
    assert {term.name: term.bytes for term in second.memory.terms} == {"states": 1000, "mutable state": 128}


def test_inputs_are_recorded_by_digest():
    problem, graph, economics = make_problem(), make_graph({"a": ENOUGH}), make_economics({"a": 0.01})
    policy = Policy(max_participants=1)
    inputs = decide(problem, graph, WORKLOAD, policy, economics).inputs
    assert inputs.problem == digest(problem)
    assert inputs.graph == digest(graph)
    assert inputs.workload == digest(WORKLOAD)
    assert inputs.policy == digest(policy)
    assert inputs.economics == digest(economics)


def test_a_decision_survives_being_written_and_read():
    decision = decided()
    assert read_document(Decision, canonical_bytes(decision), "test") == decision


def test_the_same_inputs_give_the_same_bytes():
    assert canonical_bytes(decided()) == canonical_bytes(decided())


def test_identical_nodes_tie_and_the_smaller_id_wins():
    economics = make_economics({"b": 0.01, "a": 0.01})
    decision = decided(graph=make_graph({"b": ENOUGH, "a": ENOUGH}), economics=economics)
    assert [item.node_name for item in decision.plan.placements] == ["a"]
    assert family(decision, "b").reasons[0].endswith("as the chosen plan does, which comes first")


def test_every_set_of_available_units_appears_once_for_every_implementation():
    graph = make_graph({"a": ENOUGH, "b": ENOUGH, "c": ENOUGH, "gone": ENOUGH}, unavailable=["gone"])
    decision = decided(problem=make_problem(representations=(AMBER, COPPER)), graph=graph)
    keys = [(item.representation, item.node_names) for item in decision.families]
    assert len(keys) == len(set(keys)) == 2 * (7 + 1)
    assert family(decision, "gone").reasons == ("Compute Unit cu-gone on gone is not available",)
    assert reason(decision, "gone") == "not available"


def test_what_nobody_needs_is_told_what_it_would_cost():
    decision = decided()
    assert reason(decision, "a") == "used: stage-0 holds units 0–3"
    # Best with b: 3 units on a, 1 on b: a chunk of 16 takes 0.8 s + 1 ms, 10 steps take 50 ms + 2 ms each.
    assert reason(decision, "b") == "not needed: the best plan with it takes 1.32 s, the chosen one 1.04 s"


def test_a_small_node_that_adds_nothing_is_told_both():
    decision = decided(graph=make_graph({"a": ENOUGH, "b": 1500}))
    assert reason(decision, "b").endswith("; alone it does not fit")


def test_a_node_too_small_for_any_part_is_told_so():
    decision = decided(graph=make_graph({"a": ENOUGH, "b": 10}))
    assert reason(decision, "b").startswith(
        "no feasible plan contains it: b (mem-b): peak memory in amber: needs 4,000"
    )


def test_missing_capabilities_are_named():
    problem = make_problem(required=("can:fly",))
    decision = decided(problem=problem)
    assert decision.outcome == "NO_FEASIBLE_PLAN"
    assert family(decision, "a").reasons == ("Compute Unit cu-a on a lacks can:fly",)
    assert len(family(decision, "a", "b").reasons) == 2


def test_a_compute_unit_without_memory_is_infeasible():
    graph = make_graph({"a": ENOUGH})
    graph = replace(graph, compute_units=(replace(graph.compute_units[0], memory_ids=()),))
    decision = decided(graph=graph)
    assert family(decision, "a").reasons == ("Compute Unit cu-a on a addresses no Memory Resource",)


def test_a_reservation_beyond_the_capacity_is_infeasible():
    decision = decided(graph=make_graph({"a": 100}, reserved=101), problem=make_problem(1, state_bytes=0))
    assert "exceeds the capacity by 1 B" in family(decision, "a").reasons[0]


def test_more_parts_than_legal_cuts_allow_is_infeasible():
    decision = decided(problem=make_problem(4, illegal=[0, 1, 2]))
    assert family(decision, "a", "b").reasons == ("2 participants, but the legal cuts give at most 1 parts",)


def test_a_set_that_no_route_connects_names_the_missing_links():
    decision = decided(graph=make_graph({"a": 3000, "b": 3000}, links=[("a", "b")]))
    assert decision.outcome == "NO_FEASIBLE_PLAN"
    assert family(decision, "a", "b").reasons == (
        "no order connects all participants and leads back: no available Link b → a",
    )


def test_two_units_on_one_memory_resource_are_counted_together():
    graph = make_graph({"a": 3500, "b": ENOUGH})
    units = tuple(replace(unit, node_id="node-a", memory_ids=("mem-a",)) for unit in graph.compute_units)
    decision = decided(graph=replace(graph, compute_units=units))
    pair = family(decision, "a", "a")
    assert pair.status == "TECHNICALLY_INFEASIBLE"
    assert pair.reasons[0].startswith(
        "a + a: peak memory of 2 parts together in amber: needs 4,000 B, has 3,500 (at least, wherever it is cut)"
    )
    assert all(account.needed_bytes == 4000 for account in pair.memory)


def test_participants_within_a_node_need_a_path_curve_to_itself():
    graph = make_graph({"a": 3000, "b": 3000})
    units = tuple(replace(unit, node_id="node-a") for unit in graph.compute_units)
    graph = replace(graph, compute_units=units, nodes=graph.nodes[:1], links=())
    decision = decided(graph=graph)
    assert decision.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    assert decision.missing_evidence == ("path curve a → a",)
    economics = make_economics(EVEN)
    within = replace(economics.paths[0], source="node-a", target="node-a")
    assert decided(graph=graph, economics=replace(economics, paths=(within,))).outcome == "SELECTED"


def test_unknown_performance_is_feasible_and_unranked_and_named():
    decision = decided(economics=make_economics({"a": 0.01}))
    assert family(decision, "a").status == "RANKED"
    unknown = family(decision, "b")
    assert unknown.status == "FEASIBLE_UNRANKED"
    assert unknown.best is not None
    assert unknown.best.prediction is None
    assert unknown.reasons[0] == "cannot be priced: no service curve of cu-b (b) for violet, amber, first-pass"
    assert decision.outcome == "SELECTED"
    assert not decision.proved_optimal
    assert "not proved the best" in decision.search
    assert reason(decision, "b").startswith("no plan with it can be ranked: cannot be priced")


def test_nothing_to_rank_abstains():
    decision = decided(economics=replace(make_economics({}), missing=("nobody measured anything",)))
    assert decision.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    assert decision.plan is None
    assert "nobody measured anything" in decision.missing_evidence
    assert any("service curve of cu-a (a)" in name for name in decision.missing_evidence)


def test_up_to_six_available_units_every_set_is_a_family_and_with_more_each_alone():
    names = "abcdefgh"
    fewer = decided(graph=make_graph(dict.fromkeys(names, ENOUGH), unavailable=names[MAX_COMPUTE_UNITS:]))
    assert len(fewer.families) == 2**MAX_COMPUTE_UNITS - 1 + 2
    economics = make_economics(dict.fromkeys(names, 0.01))
    more = decided(graph=make_graph(dict.fromkeys(names[: MAX_COMPUTE_UNITS + 1], ENOUGH)), economics=economics)
    assert [family.node_names for family in more.families] == [(name,) for name in names[: MAX_COMPUTE_UNITS + 1]]
    assert more.outcome == "SELECTED"
    assert more.proved_optimal


def test_a_graph_that_refers_to_nothing_is_refused():
    graph = make_graph({"a": ENOUGH})
    with pytest.raises(SpecError, match="node-a"):
        decided(graph=replace(graph, nodes=()))
    with pytest.raises(SpecError, match="mem-a"):
        decided(graph=replace(graph, memory_resources=()))


def forced(
    graph=None, nodes=("a", "b"), cuts=(1,), problem=None, representation=AMBER, economics=None
) -> ExecutionPlan:
    return force_plan(
        problem or make_problem(4),
        graph or make_graph({"a": 1500, "b": ENOUGH}),
        WORKLOAD,
        economics or make_economics(EVEN),
        nodes,
        cuts,
        representation,
    )


def test_a_forced_plan_is_built_though_it_does_not_fit_and_its_account_says_so():
    plan = forced()
    first, second = plan.placements
    assert (first.memory.fits, second.memory.fits) == (False, True)
    assert (first.memory.needed_bytes, first.memory.available_bytes) == (2000, 1500)
    assert plan.prediction is not None


def test_a_forced_plan_equals_the_decided_one_where_they_agree():
    graph = make_graph({"a": 3000, "b": 2000})
    assert forced(graph=graph, nodes=("a", "b"), cuts=(2,)) == decided(graph=graph).plan


def test_a_forced_plan_of_unknown_capacity_or_price_is_built_and_says_so():
    plan = forced(graph=make_graph({"a": None, "b": None}), economics=make_economics({}))
    assert not any(item.memory.fits for item in plan.placements)
    assert plan.prediction is None


def test_a_forced_plan_may_name_a_compute_unit():
    graph = make_graph({"a": ENOUGH, "b": ENOUGH})
    units = tuple(replace(unit, node_id="node-a") for unit in graph.compute_units)
    graph = replace(graph, compute_units=units)
    assert forced(graph=graph, nodes=("cu-b",), cuts=()).placements[0].compute_unit_id == "cu-b"
    with pytest.raises(SpecError, match=r"\['cu-a', 'cu-b'\]"):
        forced(graph=graph, nodes=("a",), cuts=())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": ()}, "at least one"),
        ({"nodes": ("a", "z")}, "one of the Nodes"),
        ({"nodes": ("a", "a")}, "at most once"),
        ({"cuts": ()}, "1 cuts for 2 participants"),
        ({"cuts": (3,)}, "declares legal"),
        ({"problem": make_problem(4, illegal=[1])}, "declares legal"),
        ({"representation": "zinc"}, "one of"),
    ],
)
def test_a_forced_plan_still_obeys_the_strategy_and_the_names(options, message):
    with pytest.raises(SpecError, match=message):
        forced(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": make_graph({"a": ENOUGH, "b": ENOUGH}, unavailable=["b"])}, "cu-b on b is not available"),
        ({"graph": make_graph({"a": ENOUGH, "b": ENOUGH}, links=[("a", "b")])}, "no available Link b → a"),
        ({"problem": make_problem(4, required=("can:fly",))}, "lacks can:fly"),
    ],
)
def test_a_forced_plan_that_cannot_run_is_refused(options, message):
    with pytest.raises(InfeasiblePlan, match=message):
        forced(**options)


def test_an_unavailable_link_is_no_link():
    graph = make_graph({"a": 3000, "b": 3000}, links=[("a", "b")])
    graph = replace(graph, links=(*graph.links, make_link("b", "a", available=False)))
    assert decided(graph=graph).outcome == "NO_FEASIBLE_PLAN"


def test_a_decision_without_a_plan_raises_with_every_violation_in_numbers():
    decision = decided(graph=make_graph({"a": 1500, "b": 1000}))
    with pytest.raises(InfeasiblePlan, match="NO_FEASIBLE_PLAN") as error:
        require_plan(decision)
    found = {(item.resource, item.required, item.available) for item in error.value.violations}
    assert {("a (mem-a)", 4000, 1500), ("b (mem-b)", 4000, 1000)} <= found
    assert require_plan(decided()) == decided().plan


def test_a_decision_without_evidence_raises_with_what_is_missing():
    unpriced = decided(economics=Economics(services=(), paths=(), missing=("decode steps: drifted",)))
    with pytest.raises(InfeasiblePlan, match="missing evidence: decode steps: drifted") as error:
        require_plan(unpriced)
    assert error.value.missing == unpriced.missing_evidence != ()


def test_a_plan_for_another_snapshot_is_refused_and_never_repaired():
    graph = make_graph({"a": 3000, "b": 2000})
    plan = decided(graph=graph).plan
    check_drift(plan, graph)
    changed = make_graph({"a": 3000, "b": 2001})
    with pytest.raises(SpecError) as error:
        check_drift(plan, changed)
    assert error.value.found == digest(graph)
    assert digest(changed) in error.value.needed


@pytest.mark.parametrize("graph", [make_graph({}), make_graph({"a": ENOUGH}, unavailable=["a"])])
def test_a_swarm_with_nothing_available_has_no_plan_and_says_so(graph):
    decision = decided(graph=graph)
    assert (decision.outcome, decision.plan, decision.proved_optimal) == ("NO_FEASIBLE_PLAN", None, False)
    assert len(decision.resources) == len(graph.compute_units)
    assert "NO_FEASIBLE_PLAN" in decision.explain()
