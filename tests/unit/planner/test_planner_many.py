"""Decisions over more Compute Units than every set of which can be judged."""

from __future__ import annotations

import importlib
import math
import random

import msgspec
import pytest

from inferswarm.documents import canonical_bytes, digest, read_document
from inferswarm.errors import SpecError
from inferswarm.planner import Decision, Policy, SolverLimits, Throughput, Workload, decide
from inferswarm.planner.assemble import make_case
from inferswarm.planner.sites import GraphView
from inferswarm.planner.solvers import build_instance, evaluate, solving
from tests.unit.planner.planner_cases import (
    AMBER,
    World,
    make_economics,
    make_graph,
    make_problem,
    random_world,
    try_everything,
)

deciding = importlib.import_module("inferswarm.planner.decide")
replace = msgspec.structs.replace
NAMES = "abcdefgh"
WORKLOAD = Workload(prompt_tokens=40, output_tokens=11)
LIMITS = SolverLimits(seconds=20.0)


def world_of_eight(**changes) -> World:
    """Eight unlike Nodes, each with room for one to three of twelve units."""
    graph = make_graph({name: 1000 * (1 + index % 3) for index, name in enumerate(NAMES)})
    rng = random.Random(3)
    seconds = {name: rng.uniform(0.005, 0.05) for name in NAMES}
    paths = {(a, b): rng.uniform(0.001, 0.02) for a in NAMES for b in NAMES if a != b}
    world = World(make_problem(12), graph, WORKLOAD, make_economics(seconds, path_seconds=paths))
    return world._replace(**changes)


def plan_for(world: World, policy: Policy | None = None, limits: SolverLimits = LIMITS) -> Decision:
    return decide(world.problem, world.graph, world.workload, policy or Policy(), world.economics, limits)


def everything_searched(monkeypatch, exact: bool) -> None:
    """Send every world, however small, the way of the large ones."""
    monkeypatch.setattr(deciding, "MAX_COMPUTE_UNITS", 0)
    monkeypatch.setattr(solving, "MAX_EXACT_SITES", 6 if exact else 0)


@pytest.mark.parametrize("exact", [True, False])
def test_what_is_searched_is_what_is_found_when_every_set_is_judged(monkeypatch, exact):
    for seed in range(70):
        rng = random.Random(seed)
        world = random_world(seed, complete=rng.random() < 0.7)
        nodes = [node.name for node in world.graph.nodes]
        policy = Policy(
            excluded_nodes=tuple(rng.sample(nodes, rng.choice((0, 0, 1)))),
            pinned_nodes=tuple(rng.sample(nodes, rng.randint(1, min(2, len(nodes))))) if rng.random() < 0.2 else (),
            max_participants=rng.choice((None, None, 1, 2)),
        )
        judged = plan_for(world, policy)
        with monkeypatch.context() as patch:
            everything_searched(patch, exact)
            searched = plan_for(world, policy)
        assert searched.outcome == judged.outcome, seed
        assert judged.proved_optimal or not searched.proved_optimal
        if judged.plan is not None:
            expected = judged.plan.prediction.request.point
            assert searched.plan.prediction.request.point == pytest.approx(expected, rel=1e-6), seed
            assert searched.bound <= expected * (1 + 1e-12)
        assert sorted(item.compute_unit_id for item in searched.resources) == sorted(
            unit.id for unit in world.graph.compute_units
        )
        assert searched.explain()


def test_a_least_rate_is_kept_by_what_is_searched(monkeypatch):
    reached = 0
    for seed in range(40):
        world = random_world(seed, complete=True)
        tried = [item for item in try_everything(world) if item.fits]
        if not tried:
            continue
        limit = random.Random(seed).uniform(0.3, 1.0) * max(item.step for item in tried)
        expected = [item.seconds for item in tried if item.step <= limit * (1 + 1e-9)]
        with monkeypatch.context() as patch:
            everything_searched(patch, exact=False)
            decision = plan_for(world, Policy(min_tokens_per_second=1 / limit))
        assert (decision.plan is not None) == bool(expected), seed
        if expected:
            reached += 1
            assert decision.plan.prediction.request.point == pytest.approx(min(expected), rel=1e-6)
            assert decision.plan.prediction.decode_rate.point >= (1 - 1e-6) / limit
    assert reached > 10


def test_an_instance_has_the_memory_and_the_value_that_plans_have():
    for seed in range(80):
        world = random_world(seed, complete=True)
        view = GraphView(world.graph)
        for implementation in world.problem.implementations:
            case = make_case(world.problem, implementation, world.workload, world.economics, ("p", "g"))
            built = build_instance(case, view, view.sites)
            starts = (0, *built.instance.ends[:-1])
            for first, start in enumerate(starts):
                needed = case.memory.needed_from(start)
                for end in range(first + 1, built.instance.num_atoms + 1):
                    assert built.instance.peak(first, end) == needed[built.instance.ends[end - 1] - start - 1]
        place = {site.id: index for index, site in enumerate(view.sites)}
        last = world.problem.implementations[-1].representation
        for tried in try_everything(world):
            if tried.representation == last:
                ends = [built.instance.ends.index(end) + 1 for end in tried.ends]
                steps = tuple((place[site], end) for site, end in zip(tried.sites, ends, strict=True))
                expected = tried.seconds if tried.fits else None
                assert evaluate(built.instance, steps) == (None if expected is None else pytest.approx(expected))


def test_a_decision_records_method_bound_and_gap_and_explains_them():
    decision = plan_for(world_of_eight())
    (report,) = decision.solvers
    assert report.method == "constraint programming"
    assert "8 Compute Units, more than 6" in report.why
    assert report.status == "OPTIMAL"
    assert decision.proved_optimal
    assert decision.plan.prediction.request.point == pytest.approx(report.value)
    assert report.bound <= report.value <= report.bound + 2 * report.rounding_seconds + 1e-9
    assert decision.gap == pytest.approx(report.gap, abs=1e-6)
    text = " ".join(decision.explain().split())
    for part in ("constraint programming", "proved bound", "gap 0.000%", "rounding within"):
        assert part in text
    assert read_document(Decision, canonical_bytes(decision), "decision") == decision


def test_few_units_are_reported_as_searched_exactly():
    world = world_of_eight(graph=make_graph(dict.fromkeys("abc", 5000)))
    (report,) = plan_for(world).solvers
    assert (report.method, report.status, report.gap) == ("dynamic programming", "OPTIMAL", 0.0)
    assert "dynamic programming, because" in plan_for(world).explain()


def test_equal_inputs_give_equal_decisions():
    assert digest(plan_for(world_of_eight())) == digest(plan_for(world_of_eight()))


def test_without_time_there_is_a_plan_and_a_gap_and_no_claim_of_a_proof():
    best = plan_for(world_of_eight())
    hasty = plan_for(world_of_eight(), limits=SolverLimits(seconds=0.0))
    assert hasty.outcome == "SELECTED"
    assert hasty.bound <= best.plan.prediction.request.point <= hasty.plan.prediction.request.point * (1 + 1e-9)
    if not hasty.proved_optimal:
        assert hasty.gap > 0
        unused = [item.reason for item in hasty.resources if not item.used]
        assert all("can be at most" in reason for reason in unused)


def test_each_unused_unit_says_that_no_plan_with_it_is_better():
    decision = plan_for(world_of_eight())
    unused = [item.reason for item in decision.resources if not item.used]
    assert len(unused) == 8 - len(decision.plan.placements) > 0
    assert all(reason.startswith("not needed: no plan with it") for reason in unused)
    excluded = plan_for(world_of_eight(), Policy(excluded_nodes=(decision.plan.placements[0].node_name,)))
    assert any(item.reason.startswith("excluded by policy") for item in excluded.resources)
    assert excluded.plan.prediction.request.point > decision.plan.prediction.request.point


def test_that_nothing_fits_is_proved():
    decision = plan_for(world_of_eight(graph=make_graph(dict.fromkeys(NAMES, 1100))))
    assert decision.outcome == "NO_FEASIBLE_PLAN"
    assert decision.families[-1].reasons == (
        "no subset of these 8 Compute Units has an order and legal cuts that fit: proved",
    )
    assert {report.status for report in decision.solvers} == {"INFEASIBLE"}


def test_that_no_order_is_linked_is_proved():
    links = [(name, "a") for name in NAMES[1:]]
    decision = plan_for(world_of_eight(graph=make_graph(dict.fromkeys(NAMES, 3000), links=links)))
    assert decision.outcome == "NO_FEASIBLE_PLAN"
    assert decision.families[-1].status == "TECHNICALLY_INFEASIBLE"


def test_when_a_search_ends_without_plan_or_proof_the_decision_says_so(monkeypatch):
    many = importlib.import_module("inferswarm.planner.many")
    real = many.solve

    def gave_up(instance, limits, **options):
        return real(instance, limits, **options)._replace(status="UNKNOWN", steps=None, value=None, bound=0.0)

    monkeypatch.setattr(many, "solve", gave_up)
    decision = plan_for(world_of_eight())
    assert decision.plan is None
    assert not decision.proved_optimal
    assert decision.summary.endswith("that there is none is not proved")
    assert decision.solvers[0].status == "UNKNOWN"


def test_what_cannot_be_priced_is_not_chosen_and_not_called_infeasible():
    world = world_of_eight()
    unmeasured = plan_for(world._replace(economics=make_economics({})))
    assert unmeasured.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    assert unmeasured.families[-1].status == "FEASIBLE_UNRANKED"
    services = tuple(curve for curve in world.economics.services if curve.compute_unit_id != "cu-a")
    partly = plan_for(world._replace(economics=replace(world.economics, services=services)))
    assert partly.outcome == "SELECTED"
    assert not partly.proved_optimal
    assert any("service curve of cu-a" in name for name in partly.missing_evidence)
    assert all(placement.node_name != "a" for placement in partly.plan.placements)


def test_missing_paths_are_counted_by_their_source():
    world = world_of_eight()
    paths = tuple(path for path in world.economics.paths if path.source != "node-b")
    decision = plan_for(world._replace(economics=replace(world.economics, paths=paths)))
    assert "path curves from b to 7 of the other Nodes" in decision.missing_evidence


def test_pins_are_followed_over_many_units():
    pinned = ("h", "c", "f", "e", "b")
    decision = plan_for(world_of_eight(), Policy(pinned_nodes=pinned))
    assert decision.outcome == "SELECTED"
    assert tuple(placement.node_name for placement in decision.plan.placements) == pinned
    assert decision.overrides
    assert decision.solvers[0].why.startswith("the operator pinned the order")
    fixed = plan_for(world_of_eight(), Policy(pinned_nodes=("c", "f", "b", "e", "h"), pinned_cuts=(2, 5, 7, 9)))
    assert [placement.end_unit for placement in fixed.plan.placements] == [3, 6, 8, 10, 12]


def test_pins_with_too_many_meanings_are_refused():
    graph = make_graph(dict.fromkeys(NAMES, 5000))
    units = tuple(replace(unit, node_id=f"node-{'ab'[index % 2]}") for index, unit in enumerate(graph.compute_units))
    world = world_of_eight(graph=replace(graph, compute_units=units))
    with pytest.raises(SpecError, match="at most 4096"):
        plan_for(world, Policy(pinned_nodes=("a", "b", "a", "b", "a", "b", "a")))


def test_an_implementation_that_cannot_be_better_is_given_up_with_a_bound_that_says_so():
    names = (AMBER, "slow")
    world = world_of_eight(problem=make_problem(12, representations=names))
    quick = make_economics(dict.fromkeys(NAMES, 0.01), representations=names[:1])
    slow = make_economics(dict.fromkeys(NAMES, 1.0), representations=names[1:])
    economics = replace(quick, services=quick.services + slow.services)
    decision = plan_for(world._replace(economics=economics))
    assert decision.plan.representation == AMBER
    assert decision.proved_optimal
    better, worse = decision.solvers
    assert (better.representation, worse.representation) == names
    assert worse.bound >= better.value
    assert worse.method == "bounded heuristic"


def test_an_excluded_representation_is_not_searched():
    world = world_of_eight(problem=make_problem(12, representations=(AMBER, "other")))
    economics = make_economics(dict.fromkeys(NAMES, 0.01), representations=(AMBER, "other"))
    decision = plan_for(world._replace(economics=economics), Policy(representations=("other",)))
    assert {report.representation for report in decision.solvers} == {"other"}
    assert decision.plan.representation == "other"
    assert math.isfinite(decision.gap)


def throughput_of(world: World, sites: tuple[str, ...], ends: tuple[int, ...]) -> float | None:
    """Tokens per second by the written objective, for curves whose step time is their base."""
    step = {curve.compute_unit_id: curve.base_seconds for curve in world.economics.services if curve.phase == "step"}
    home = {unit.id: unit.node_id for unit in world.graph.compute_units}
    paths = {(path.source, path.target): path.latency_seconds for path in world.economics.paths}
    starts = (0, *ends)
    steps = [step[site] * (end - start) for site, start, end in zip(sites, starts, ends, strict=False)]
    if len(sites) > 1:
        for a, b in zip(sites, (*sites[1:], sites[0]), strict=True):
            steps.append(paths[home[a], home[b]])
    sessions = world.workload.concurrency
    return sessions / max(sum(steps), sessions * max(steps))


@pytest.mark.parametrize("sessions", [1, 2, 8])
def test_throughput_is_the_most_of_all_plans_and_its_bottleneck_is_the_slowest_stage_or_path(sessions):
    rng = random.Random(sessions)
    for _ in range(6):
        seconds = {name: rng.uniform(0.01, 0.05) for name in "abcd"}
        graph = make_graph({name: rng.randint(2, 4) * 1000 for name in "abcd"})
        paths = {(a, b): rng.uniform(0.001, 0.2) for a in "abcd" for b in "abcd" if a != b}
        workload = Workload(prompt_tokens=16, output_tokens=11, concurrency=sessions, objective=Throughput())
        world = World(make_problem(6), graph, workload, make_economics(seconds, path_seconds=paths))
        expected = max(throughput_of(world, item.sites, item.ends) for item in try_everything(world) if item.fits)
        decision = plan_for(world)
        prediction = decision.plan.prediction
        assert prediction.throughput.point == pytest.approx(expected, rel=1e-6)
        assert 1 / decision.bound >= expected * (1 - 1e-9)
        assert f"{expected:.3g} tokens/s" in decision.summary
        assert "tokens per second of all" in decision.explain()
        assert read_document(Decision, canonical_bytes(decision), "decision") == decision


def test_many_sessions_want_more_stages_than_one_request_does():
    graph = make_graph(dict.fromkeys("abc", 10**9))
    economics = make_economics(dict.fromkeys("abc", 0.01), path_seconds=0.001)
    single = Workload(prompt_tokens=16, output_tokens=11, concurrency=8)
    many = Workload(prompt_tokens=16, output_tokens=11, concurrency=8, objective=Throughput())
    one = plan_for(World(make_problem(6), graph, single, economics))
    together = plan_for(World(make_problem(6), graph, many, economics))
    assert len(one.plan.placements) == 1
    assert [placement.end_unit for placement in together.plan.placements] == [2, 4, 6]
    assert together.plan.prediction.throughput.point == pytest.approx(1 / 0.02)


def test_sessions_that_wait_too_long_leave_no_plan():
    graph = make_graph(dict.fromkeys("abc", 10**9))
    economics = make_economics(dict.fromkeys("abc", 0.01), path_seconds=0.001)

    def outcome(limit: float) -> Decision:
        objective = Throughput(max_inter_token_seconds=limit)
        workload = Workload(prompt_tokens=16, output_tokens=11, concurrency=8, objective=objective)
        return plan_for(World(make_problem(6), graph, workload, economics))

    # Eight sessions at 50 tokens per second: 0.16 s from one token of a session to its next.
    assert outcome(0.161).outcome == "SELECTED"
    refused = outcome(0.159)
    assert refused.outcome == "NO_FEASIBLE_PLAN"
    assert {family.status for family in refused.families} == {"POLICY_EXCLUDED"}
    assert "160 ms" in refused.families[-1].reasons[0]


def test_a_workload_without_an_objective_is_written_as_before():
    assert canonical_bytes(Workload()) == b'{"concurrency":1,"output_tokens":128,"prompt_tokens":256}'
    with pytest.raises(SpecError, match="more than 0"):
        Workload(objective=Throughput(max_inter_token_seconds=0.0))


def test_without_a_path_within_a_node_of_two_compute_units_nothing_is_proved_of_all_plans():
    world = world_of_eight()
    twin = replace(world.graph.compute_units[0], id="cu-a2")
    curves = world.economics.services
    own = tuple(replace(curve, compute_unit_id="cu-a2") for curve in curves if curve.compute_unit_id == "cu-a")
    world = world._replace(
        graph=replace(world.graph, compute_units=(*world.graph.compute_units, twin)),
        economics=replace(world.economics, services=(*curves, *own)),
    )
    decision = plan_for(world)
    assert decision.missing_evidence == ("path curve a → a",)
    assert not decision.proved_optimal


def test_where_no_plan_is_found_each_unit_says_what_it_lacks_alone():
    names = [f"n{index}" for index in range(8)]
    economics = make_economics(dict.fromkeys(names, 0.01))
    decision = decide(make_problem(4), make_graph(dict.fromkeys(names, 100)), Workload(), Policy(), economics)
    assert (decision.outcome, len(decision.resources)) == ("NO_FEASIBLE_PLAN", 8)
    for item in decision.resources:
        assert item.reason.startswith("no plan was found, with it or without it; alone: ")
        assert f"{item.node_name} (mem-{item.node_name})" in item.reason
        assert "4.00 kB" in item.reason
