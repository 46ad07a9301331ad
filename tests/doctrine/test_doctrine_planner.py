"""The planner's rules. Each test names the change of the code that turns it red."""

from __future__ import annotations

import re
from itertools import permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.documents import digest
from inferswarm.planner import Decision, PathCurve, Policy, Workload, decide, force_plan
from inferswarm.planner.plan import CandidateFamily
from inferswarm.planner.problem import RepresentationBytes, TransientTerm
from inferswarm.resources.types import declared
from tests.unit.planner.planner_cases import (
    AMBER,
    COPPER,
    ENOUGH,
    World,
    make_economics,
    make_graph,
    make_problem,
    random_world,
    try_everything,
)

replace = msgspec.structs.replace
WORKLOAD = Workload(prompt_tokens=16, output_tokens=11)
SEEDS = st.integers(0, 10**9)
repeatable = settings(max_examples=40, derandomize=True, deadline=None)


def plan_of(world: World, **policy) -> Decision:
    return decide(world.problem, world.graph, world.workload, Policy(**policy), world.economics)


def two_nodes(a: float, b: float, **options) -> World:
    graph = options.pop("graph", None) or make_graph({"a": ENOUGH, "b": ENOUGH})
    return World(make_problem(4, **options), graph, WORKLOAD, make_economics({"a": a, "b": b}))


def of(decision: Decision, *names: str) -> CandidateFamily:
    return next(family for family in decision.families if family.node_names == names)


def nodes_of(decision: Decision) -> list[str]:
    assert decision.plan is not None
    return [placement.node_name for placement in decision.plan.placements]


@pytest.mark.rule(1)
def test_the_fastest_candidate_is_stopped_at_the_first_gate_that_it_fails():
    """Technical gates come before policy, policy before price, and the gate's reason is recorded.

    Mutation: in `draft_families` test the policy's refusals before the finding's.
    """
    graph = make_graph({"fast": 10, "quick": ENOUGH, "slow": ENOUGH})
    economics = make_economics({"fast": 0.0001, "quick": 0.001, "slow": 0.1})
    world = World(make_problem(4), graph, WORKLOAD, economics)
    decision = plan_of(world, excluded_nodes=("fast", "quick"))
    fast, quick, slow = of(decision, "fast"), of(decision, "quick"), of(decision, "slow")
    assert (fast.status, quick.status, slow.status) == ("TECHNICALLY_INFEASIBLE", "POLICY_EXCLUDED", "RANKED")
    assert "peak memory" in fast.reasons[0]
    assert quick.reasons == ("policy: Node quick is excluded",)
    assert fast.request_seconds is None
    assert nodes_of(decision) == ["slow"]


@pytest.mark.rule(2)
def test_slow_is_feasible_until_a_rate_is_demanded():
    """0.7 tokens per second are feasible; a least rate of 1 excludes them by policy.

    Mutation: make `technical_findings` refuse families below a rate, or let the rate give TECHNICALLY_INFEASIBLE.
    """
    world = World(make_problem(4), make_graph({"a": ENOUGH}), WORKLOAD, make_economics({"a": 1 / 0.7 / 4}))
    free = plan_of(world)
    assert free.plan is not None
    assert free.plan.prediction is not None
    assert free.plan.prediction.decode_rate.point == pytest.approx(0.7)
    bound = plan_of(world, min_tokens_per_second=1.0)
    assert of(bound, "a").status == "POLICY_EXCLUDED"
    assert "0.7" in of(bound, "a").reasons[0]
    assert bound.plan is None


@pytest.mark.rule(3)
def test_one_unit_that_is_better_alone_is_used_alone():
    """The number of Compute Units is no objective, and the one left out is told why.

    Mutation: sort `_preference` by the number of sites, largest first, before the time.
    """
    decision = plan_of(two_nodes(0.01, 0.011))
    assert nodes_of(decision) == ["a"]
    (reason,) = [item.reason for item in decision.resources if item.node_name == "b"]
    assert reason.startswith("not needed: the best plan with it takes ")


@pytest.mark.rule(4)
def test_everything_may_be_used_and_nothing_must_be():
    """With every resource allowed, fewer of them win when they are better, and more when more are.

    Mutation: drop single sites from the sets in `feasible_members`, or keep only them.
    """
    assert nodes_of(plan_of(two_nodes(0.01, 0.01))) == ["a"]
    halves = make_graph({"a": 2000, "b": 2000})
    assert nodes_of(plan_of(two_nodes(0.01, 0.02, graph=halves))) in (["a", "b"], ["b", "a"])


@pytest.mark.rule(5)
@repeatable
@given(SEEDS, st.randoms(use_true_random=False))
def test_demands_remove_and_prices_reorder_but_neither_changes_what_is_possible(seed, rng):
    """The families and which of them are possible are the same under any demand and any price.

    Mutation: skip families that the policy refuses instead of recording them, or let a price decide feasibility.
    """
    world = random_world(seed)
    nodes = [node.name for node in world.graph.nodes]
    demands = {"excluded_nodes": (rng.choice(nodes),), "max_participants": rng.choice((None, 1))}
    services = world.economics.services
    dearer = tuple(replace(curve, base_seconds=curve.base_seconds * rng.uniform(1, 9)) for curve in services)
    fewer = tuple(rng.sample(services, len(services) // 2))

    def possible(decision: Decision) -> set[tuple[str, tuple[str, ...], bool]]:
        return {
            (item.representation, item.compute_unit_ids, item.status == "TECHNICALLY_INFEASIBLE")
            for item in decision.families
        }

    expected = possible(plan_of(world))
    assert possible(plan_of(world, **demands)) == expected
    for other in (dearer, fewer):
        assert possible(plan_of(world._replace(economics=replace(world.economics, services=other)))) == expected


@pytest.mark.rule(6)
@repeatable
@given(SEEDS)
def test_every_family_and_every_compute_unit_has_its_reason(seed):
    """Each Compute Unit has exactly one reason, each family at least one, and unused is never called used.

    Mutation: return an empty reason tuple for a ranked family, or leave unavailable units out of the reasons.
    """
    world = random_world(seed)
    decision = plan_of(world)
    assert sorted(item.compute_unit_id for item in decision.resources) == sorted(
        unit.id for unit in world.graph.compute_units
    )
    used = {item.compute_unit_id for item in decision.plan.placements} if decision.plan else set()
    assert {item.compute_unit_id for item in decision.resources if item.used} == used
    assert all(item.reason for item in decision.resources)
    keys = [(item.representation, item.primitive, item.compute_unit_ids) for item in decision.families]
    assert len(keys) == len(set(keys))
    assert all(item.reasons and all(item.reasons) for item in decision.families)
    assert decision.explain()


@pytest.mark.rule(7)
def test_a_plan_keeps_its_expectation_with_bounds_and_the_records_behind_it():
    """A plan states what is expected, how surely, and from which records.

    Mutation: give each curve's point as its bounds, or leave `evidence_ids` empty.
    """
    world = two_nodes(0.01, 0.02, graph=make_graph({"a": 2000, "b": 2000}))
    decision = plan_of(world._replace(economics=make_economics({"a": 0.01, "b": 0.02}, low=0.9, high=1.3)))
    assert decision.plan is not None
    prediction = decision.plan.prediction
    assert prediction is not None
    for interval in (prediction.ttft, prediction.inter_token, prediction.request, prediction.decode_rate):
        assert 0 < interval.low < interval.point < interval.high
    assert {"pass-a", "step-a", "pass-b", "step-b"} < set(prediction.evidence_ids)
    assert any(name.startswith("path-") for name in prediction.evidence_ids)


@pytest.mark.rule(10)
def test_no_plan_goes_where_no_link_was_discovered():
    """Without a Link in one of the directions that a route needs, the pair has no plan, whatever curves exist.

    Mutation: let `GraphView.linked` ignore availability, or take a path curve for a Link.
    """
    for absent in (("a", "b"), ("b", "a")):
        links = [pair for pair in permutations("ab", 2) if pair != absent]
        decision = plan_of(two_nodes(0.01, 0.02, graph=make_graph({"a": 3000, "b": 3000}, links=links)))
        assert of(decision, "a", "b").status == "TECHNICALLY_INFEASIBLE"
        assert f"{absent[0]} → {absent[1]}" in of(decision, "a", "b").reasons[0]
        assert decision.plan is None


@pytest.mark.rule(13)
def test_cpus_with_their_memory_are_enough():
    """Where only CPUs can hold the work, CPUs are selected.

    Mutation: refuse or penalize sites whose Compute Unit is of kind `cpu`.
    """
    graph = make_graph({"a": 3000, "b": 1500, "quick": 100})
    units = tuple(replace(unit, kind="cuda" if unit.name == "quick" else "cpu") for unit in graph.compute_units)
    economics = make_economics({"a": 0.1, "b": 0.1, "quick": 0.0001})
    decision = plan_of(World(make_problem(4), replace(graph, compute_units=units), WORKLOAD, economics))
    assert sorted(nodes_of(decision)) == ["a", "b"]


@pytest.mark.rule(15)
def test_a_state_has_one_identity_in_every_representation_and_place():
    """The same state id is placed in either representation, and on two Nodes.

    Mutation: build the placed state's id from its representation or its Node.
    """
    problem = make_problem(2, representations=(AMBER, COPPER), tied=True)
    graph, economics = make_graph({"a": ENOUGH, "b": ENOUGH}), make_economics({})
    held = set()
    for representation in (AMBER, COPPER):
        plan = force_plan(problem, graph, WORKLOAD, economics, ("a", "b"), (0,), representation)
        for placement in plan.placements:
            held |= {(state.state_id, state.representation, placement.node_name) for state in placement.states}
    assert held == {("s0", form, node) for form in (AMBER, COPPER) for node in "ab"}


@pytest.mark.rule(24)
def test_the_peak_decides_not_the_rest():
    """States alone fit; with session state and a transient the peak is one byte too much, and each is listed.

    Mutation: leave the transients, or the mutable state, out of `RangeMemory`.
    """
    transient = TransientTerm(name="passing", representation=AMBER, fixed_bytes=10)
    problem = make_problem(4, mutable_bytes=1, transients=(transient,))
    peak = 4000 + 4 * 64 + 10
    economics = make_economics({"a": 0.01})
    fits = decide(problem, make_graph({"a": peak}), WORKLOAD, Policy(), economics)
    lacks = decide(problem, make_graph({"a": peak - 1}), WORKLOAD, Policy(), economics)
    assert (of(fits, "a").status, of(lacks, "a").status) == ("RANKED", "TECHNICALLY_INFEASIBLE")
    terms = {term.name: term.bytes for term in of(lacks, "a").memory[0].terms}
    assert terms == {"states": 4000, "mutable state": 256, "passing": 10}


@pytest.mark.rule(27)
def test_unknown_performance_abstains_and_unknown_capacity_never_fits():
    """Without evidence a plan is feasible and has no place in the ranking; an unknown size is not a size.

    Mutation: price a missing curve as 0, or read an unknown capacity as unlimited.
    """
    world = two_nodes(0.01, 0.02)
    decision = plan_of(world._replace(economics=make_economics({})))
    assert {family.status for family in decision.families} == {"FEASIBLE_UNRANKED"}
    assert decision.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    assert decision.missing_evidence
    for graph in (make_graph({"a": None, "b": None}), make_graph({"a": ENOUGH, "b": ENOUGH}, reserved=None)):
        unknown = plan_of(world._replace(graph=graph))
        assert {family.status for family in unknown.families} == {"TECHNICALLY_INFEASIBLE"}
        assert "unknown (nobody could read it)" in unknown.families[0].reasons[0]


@pytest.mark.rule(37)
@pytest.mark.rule("43a")
@repeatable
@given(SEEDS)
def test_only_what_the_strategy_allows_comes_out_and_nothing_else_is_even_mentioned(seed):
    """Every plan is one of the legal ones; every family, rejected or not, has an implementation that was offered.

    Mutation: add a representation to the loop over implementations, or cut at every boundary.
    """
    world = random_world(seed)
    legal = {(item.representation, item.sites, item.ends) for item in try_everything(world) if item.fits}
    offered = {(item.primitive, item.representation) for item in world.problem.implementations}
    for family in plan_of(world).families:
        assert (family.primitive, family.representation) in offered
        if family.best is not None:
            placements = family.best.placements
            sites = tuple(item.compute_unit_id for item in placements)
            assert (family.representation, sites, tuple(item.end_unit for item in placements)) in legal


@pytest.mark.rule(38)
def test_other_names_give_the_same_decision_under_those_names():
    """Units, states, classes, resources and representations under other names, in another order: the same answer.

    Mutation: prefer or refuse anything by its name, or rank families before sorting sites by id.
    """
    world = World(
        make_problem(5, last_only=True, tied=True),
        make_graph({"a": 3500, "b": 2500, "c": 2500}),
        WORKLOAD,
        make_economics({"a": 0.01, "b": 0.02, "c": 0.03}),
    )
    words = {"a": "zebra", "b": "yak", "c": "xerus", "violet": "plum", "ochre": "rust", AMBER: "jade"}
    words |= {f"u{index}": f"work {9 - index}" for index in range(5)} | {"s0": "zero", "s1": "one"}
    pattern = re.compile(r'(?<=["-])(?:' + "|".join(sorted(words, key=len, reverse=True)) + r')(?=["-])')

    def renamed(document):
        text = pattern.sub(lambda match: words[match.group()], msgspec.json.encode(document).decode())
        return msgspec.json.decode(text, type=type(document))

    other = World(renamed(world.problem), renamed(world.graph), WORKLOAD, renamed(world.economics))
    backwards = {name: getattr(other.graph, name)[::-1] for name in ("nodes", "compute_units", "links")}
    other = other._replace(graph=replace(other.graph, **backwards))
    one, two = plan_of(world), plan_of(other)
    assert one.plan is not None
    assert two.plan is not None
    assert [(words[item.node_name], item.first_unit, item.end_unit) for item in one.plan.placements] == [
        (item.node_name, item.first_unit, item.end_unit) for item in two.plan.placements
    ]
    assert one.plan.prediction is not None
    assert two.plan.prediction is not None
    assert one.plan.prediction.request == two.plan.prediction.request
    statuses = {frozenset(words[name] for name in item.node_names): item.status for item in one.families}
    assert statuses == {frozenset(item.node_names): item.status for item in two.families}


@pytest.mark.rule(39)
@repeatable
@given(SEEDS)
def test_no_plan_is_cut_where_the_strategy_forbids_it(seed):
    """On random problems with forbidden boundaries every cut of every family's plan is a legal one.

    Mutation: let `building._atoms` end at every boundary.
    """
    world = random_world(seed)
    for family in plan_of(world).families:
        if family.best is not None:
            for placement in family.best.placements[:-1]:
                assert world.problem.boundaries[placement.end_unit - 1].legal


@pytest.mark.rule(39)
def test_a_cut_that_is_forbidden_stays_forbidden_when_only_it_would_fit():
    """A chain that would fit only if it were cut at a forbidden boundary has no plan.

    Mutation: let `building._atoms` end at every boundary.
    """
    graph = make_graph({"a": 2000, "b": 2000})
    assert plan_of(two_nodes(0.01, 0.01, graph=graph)).plan is not None
    assert plan_of(two_nodes(0.01, 0.01, graph=graph, illegal=[1])).plan is None


@pytest.mark.rule(41)
def test_each_boundary_has_its_own_payload():
    """The planner takes each boundary's bytes from the strategy, and cuts where they are few.

    Mutation: price every boundary with the payload of the first one.
    """
    graph = make_graph({"a": 3000, "b": 3000})
    for narrow in range(3):
        problem = make_problem(4)
        boundaries = tuple(
            replace(item, payload_bytes_per_position=(RepresentationBytes(AMBER, 10 if index == narrow else 10**6),))
            for index, item in enumerate(problem.boundaries)
        )
        economics = make_economics({"a": 0.01, "b": 0.01}, seconds_per_byte=1e-6)
        decision = decide(replace(problem, boundaries=boundaries), graph, WORKLOAD, Policy(), economics)
        assert decision.plan is not None
        assert decision.plan.placements[0].end_unit == narrow + 1


@pytest.mark.rule(44)
def test_a_plan_cannot_be_edited_and_another_plan_has_another_digest():
    """Assigning to a field raises; any replaced field gives another digest.

    Mutation: make `ExecutionPlan` or `Placement` unfrozen, or leave a field out of the canonical bytes.
    """
    plan = plan_of(two_nodes(0.01, 0.02)).plan
    assert plan is not None
    with pytest.raises(AttributeError):
        plan.representation = COPPER  # type: ignore[misc]
    with pytest.raises(AttributeError):
        plan.placements[0].end_unit = 1  # type: ignore[misc]
    others = [
        replace(plan, representation=COPPER),
        replace(plan, graph_digest=plan.problem_digest),
        replace(plan, sessions=2),
        replace(plan, prediction=None),
        replace(plan, placements=(replace(plan.placements[0], threads=99),)),
    ]
    assert len({digest(plan), *map(digest, others)}) == 1 + len(others)


@pytest.mark.rule(66)
def test_a_cut_must_earn_what_it_costs_and_every_cost_is_shown():
    """With nothing to gain the cut disappears; where it pays, its path and its way back are terms of the price.

    Mutation: leave the path or the feedback out of the price.
    """
    assert len(nodes_of(plan_of(two_nodes(0.01, 0.01)))) == 1
    paying = two_nodes(0.01, 0.01, chunk_positions=4)._replace(workload=Workload(prompt_tokens=400, output_tokens=3))
    decision = plan_of(paying)
    assert decision.plan is not None
    assert len(decision.plan.placements) == 2
    assert decision.plan.prediction is not None
    prediction = decision.plan.prediction
    assert {term.what for term in prediction.terms} == {"first-pass", "step", "path", "feedback"}
    assert all(term.seconds > 0 for term in prediction.terms)
    assert sum(term.seconds for term in prediction.terms) == pytest.approx(prediction.request.point)
    dear = paying._replace(economics=make_economics({"a": 0.01, "b": 0.01}, path_seconds=1.0))
    assert len(nodes_of(plan_of(dear))) == 1


@pytest.mark.rule(67)
@pytest.mark.parametrize(("latency", "frequent_is_worse"), [(0.0, False), (0.5, True)])
def test_small_frequent_crossings_lose_where_latency_rules(latency, frequent_is_worse):
    """Two crossings of half the bytes tie with one crossing where bytes rule, and lose where latency does.

    Mutation: price a path by its bytes alone.
    """
    graph = make_graph({"a": ENOUGH, "b": ENOUGH, "c": ENOUGH})
    whole = make_problem(3, payload_bytes=1000, feedback_bytes=0)
    split = make_problem(3, payload_bytes=500, feedback_bytes=0)
    economics = make_economics({"a": 0.01, "b": 0.01, "c": 0.01}, path_seconds=latency, seconds_per_byte=1e-4)
    once = force_plan(whole, graph, WORKLOAD, economics, ("a", "b"), (0,), AMBER).prediction
    twice = force_plan(split, graph, WORKLOAD, economics, ("a", "b", "c"), (0, 1), AMBER).prediction
    assert once is not None
    assert twice is not None
    if frequent_is_worse:
        assert twice.request.point > once.request.point + 11 * latency * 0.99
    else:
        assert twice.request.point == pytest.approx(once.request.point)


@pytest.mark.rule(68)
def test_a_finer_legal_division_can_win():
    """Where only a coarse cut is legal the stages are uneven; a finer one makes the first pass faster.

    Mutation: leave the slowest stage's waiting chunks out of the time to first token.
    """
    workload = Workload(prompt_tokens=400, output_tokens=1)
    coarse = plan_of(two_nodes(0.01, 0.01, chunk_positions=4, illegal=[1, 2])._replace(workload=workload))
    fine = plan_of(two_nodes(0.01, 0.01, chunk_positions=4)._replace(workload=workload))
    assert coarse.plan is not None
    assert fine.plan is not None
    assert fine.plan.placements[0].end_unit == 2
    assert coarse.plan.prediction is not None
    assert fine.plan.prediction is not None
    assert fine.plan.prediction.request.high < coarse.plan.prediction.request.low


@pytest.mark.rule(69)
def test_a_bad_way_within_a_node_loses_to_a_good_network():
    """Two Compute Units of one Node with a slow path between them lose to two Nodes with a fast one.

    Mutation: price a path within a Node as 0, or prefer fewer Nodes.
    """
    graph = make_graph({"a": 2000, "b": 2000, "far": 2000})
    units = tuple(replace(unit, node_id="node-a") if unit.name == "b" else unit for unit in graph.compute_units)
    economics = make_economics({"a": 0.01, "b": 0.01, "far": 0.01}, path_seconds=0.001)
    within = PathCurve(source="node-a", target="node-a", latency_seconds=0.2, seconds_per_byte=0.0)
    world = World(
        make_problem(4),
        replace(graph, compute_units=units),
        WORKLOAD,
        replace(economics, paths=(*economics.paths, within)),
    )
    assert "far" in nodes_of(plan_of(world))
    quick = replace(within, latency_seconds=0.0001)
    near = world._replace(economics=replace(economics, paths=(*economics.paths, quick)))
    assert nodes_of(plan_of(near)) == ["a", "a"]


@pytest.mark.rule(70)
def test_the_whole_route_is_chosen_at_once_and_two_nodes_may_become_one():
    """The nearest next Node leads into an expensive path; the joint optimum takes the longer first step.

    Mutation: extend routes by the cheapest next hop only.
    """
    paths = {("a", "b"): 0.01, ("b", "c"): 5.0, ("a", "c"): 0.1, ("c", "b"): 0.1, ("b", "a"): 0.1, ("c", "a"): 0.1}
    problem = make_problem(3)
    heavy = replace(problem.states[0], sizes=(RepresentationBytes(AMBER, 2000),))
    problem = replace(problem, states=(heavy, *problem.states[1:]))
    graph = make_graph({"a": 2000, "b": 1000, "c": 1000})
    economics = make_economics({"a": 0.01, "b": 0.01, "c": 0.01}, path_seconds=paths)
    assert nodes_of(plan_of(World(problem, graph, WORKLOAD, economics))) == ["a", "c", "b"]
    assert nodes_of(plan_of(two_nodes(0.01, 0.01))) == ["a"]


@pytest.mark.rule(73)
@repeatable
@given(SEEDS)
def test_feasibility_asks_for_no_faster_link_than_gigabit_ethernet(seed):
    """Whatever the links are nominally, with gigabit Ethernet everywhere the same families are feasible.

    Mutation: refuse links below some nominal rate, or of some kind.
    """
    world = random_world(seed)

    def statuses(bits: int, kind: str) -> list[str]:
        links = tuple(replace(link, kind=kind, nominal_bits_per_second=declared(bits)) for link in world.graph.links)
        return [family.status for family in plan_of(world._replace(graph=replace(world.graph, links=links))).families]

    assert statuses(10**9, "ethernet") == statuses(4 * 10**11, "other")
