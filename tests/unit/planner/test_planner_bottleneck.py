"""What figures are made of adds up to them, and the slowest part is the one that sets the pace."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.documents import digest
from inferswarm.planner import Policy, Workload, bindings, decide
from inferswarm.planner.assemble import make_case, plan_route
from inferswarm.planner.cost import price_route, rate_together
from inferswarm.planner.sites import GraphView
from tests.unit.planner.planner_cases import make_economics, make_graph, make_problem, random_world

SPLIT = decide(
    make_problem(4),
    make_graph({"birch": 3500, "oak": 2500}),
    Workload(prompt_tokens=32, output_tokens=11),
    Policy(),
    make_economics({"birch": 0.01, "oak": 0.025}),
)


@pytest.mark.parametrize("seed", range(40))
def test_the_parts_add_up_to_the_prediction(seed: int) -> None:
    world = random_world(seed, complete=True)
    decision = decide(world.problem, world.graph, world.workload, Policy(), world.economics)
    if decision.plan is None:
        assert decision.breakdown is msgspec.UNSET
        return
    parts, prediction = decision.breakdown, decision.plan.prediction
    for shares, whole in ((parts.ttft, prediction.ttft.point), (parts.inter_token, prediction.inter_token.point)):
        assert sum(share.seconds for share in shares) == pytest.approx(whole)
        assert sum(share.share for share in shares) == pytest.approx(1.0)
        assert [share.seconds for share in shares] == sorted((share.seconds for share in shares), reverse=True)


@pytest.mark.parametrize("seed", range(20))
def test_the_slowest_part_is_what_many_sessions_end_at(seed: int) -> None:
    world = random_world(seed, complete=True)
    decision = decide(world.problem, world.graph, world.workload, Policy(), world.economics)
    if decision.plan is None:
        return
    implementation = next(
        item for item in world.problem.implementations if item.representation == decision.plan.representation
    )
    digests = digest(world.problem), digest(world.graph)
    case = make_case(world.problem, implementation, world.workload, world.economics, digests)
    prices = price_route(case.pricing, plan_route(decision.plan, GraphView(world.graph)))
    assert rate_together(10**6, prices).point == pytest.approx(1 / decision.breakdown.cadence[0].seconds)


def test_waiting_chunks_are_told_apart_from_the_first() -> None:
    # Three units of 0.01 s on birch, one of 0.025 s on oak; chunks of 16: birch is the slowest, for one more chunk.
    shares = {(share.subject, share.what): share.seconds for share in SPLIT.breakdown.ttft}
    assert shares["stage-0", "first-pass"] == pytest.approx(16 * 0.03)
    assert shares["stage-0", "waiting"] == pytest.approx(16 * 0.03)
    assert shares["stage-1", "first-pass"] == pytest.approx(16 * 0.025)
    assert ("stage-1", "waiting") not in shares


def test_the_explanation_names_the_dominating_part_by_its_node() -> None:
    text = SPLIT.explain()
    assert "birch first-pass 480 ms (" in text
    assert "dominates" in text
    assert "with ever more sessions: at most 33.3 tokens/s, one each 30.0 ms, set by birch step" in text


def test_a_slower_family_is_told_what_each_part_may_take() -> None:
    decision = decide(
        make_problem(4),
        make_graph({"birch": 9000, "oak": 9000}),
        Workload(prompt_tokens=16, output_tokens=11),
        Policy(),
        make_economics({"birch": 0.01, "oak": 0.02}, path_seconds=0.5),
    )
    both = next(family for family in decision.families if len(family.node_names) == 2)
    found = bindings(decision, both)
    chosen, mine = decision.plan.prediction.request.point, both.best.prediction.request.point
    assert {binding.kind for binding in found} == {"time"}
    assert sum(binding.needed for binding in found) == pytest.approx(mine)
    assert all(binding.needed - binding.there == pytest.approx(mine - chosen) for binding in found)
    assert found[0].text in " ".join(decision.explain().split())


def test_a_family_without_room_is_told_its_bytes() -> None:
    alone = next(family for family in SPLIT.families if family.node_names == ("oak",))
    (short,) = bindings(SPLIT, alone)
    assert (short.kind, short.needed, short.there) == ("memory", 4000.0, 2500.0)


def test_the_chosen_family_has_nothing_that_binds() -> None:
    chosen = next(family for family in SPLIT.families if family.best == SPLIT.plan)
    assert bindings(SPLIT, chosen) == ()


def test_policy_and_evidence_bind_by_their_reasons() -> None:
    decision = decide(
        make_problem(4),
        make_graph({"birch": 9000, "oak": 9000}),
        Workload(),
        Policy(excluded_nodes=("birch",)),
        make_economics({"birch": 0.01}),
    )
    kinds = {family.node_names: {item.kind for item in bindings(decision, family)} for family in decision.families}
    assert kinds == {("birch",): {"policy"}, ("oak",): {"evidence"}, ("birch", "oak"): {"policy"}}
