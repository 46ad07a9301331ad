"""The rules of changing a plan, of estimates and of health in planning. Each test names what turns it red."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.evidence.events import Scope
from inferswarm.evidence.health import AxisState, Health
from inferswarm.planner import (
    ChangeHistory,
    ChangePolicy,
    Inputs,
    Policy,
    ProposedChange,
    Workload,
    after_change,
    decide,
    judge_change,
    worth_measuring,
)
from tests.unit.planner.planner_cases import ENOUGH, make_economics, make_graph, make_problem

replace = msgspec.structs.replace
WORKLOAD = Workload(prompt_tokens=16, output_tokens=11)


def from_two_nodes_to_one(remaining: float, **changes) -> ProposedChange:
    """A change whose figures are known: first tokens of 1877.5 ms and 373.6 ms, a preparation of 68.13 s."""
    fields = {
        "present_request_seconds": 1.8775,
        "proposed_request_seconds": 0.3736,
        "remaining_requests": remaining,
        "preparation_seconds": 68.13,
        "confidence": 0.95,
    }
    return ProposedChange(**(fields | changes))


@pytest.mark.rule(52)
def test_a_change_that_sixty_four_requests_pay_for_is_made_and_one_for_forty_five_is_not():
    """1.504 s × 64 = 96.2 s > 68.1 s: go. 1.504 s × 45 = 67.7 s < 68.1 s: stay.

    Mutation: compare the gain of one request, or the share gained, with the preparation; or use `<` for `<=`.
    """
    go, stay = judge_change(from_two_nodes_to_one(64)), judge_change(from_two_nodes_to_one(45))
    assert go.go
    assert go.benefit_seconds == pytest.approx(96.25, abs=0.01)
    assert not stay.go
    assert stay.benefit_seconds == pytest.approx(67.68, abs=0.01)
    assert stay.break_even_requests == pytest.approx(45.3, abs=0.01)


@pytest.mark.rule(52)
@pytest.mark.parametrize("doubt", [{"confidence": 0.89}, {"interruption_seconds": 90.1}])
def test_neither_doubt_nor_a_long_interruption_is_bought_with_gain(doubt):
    """However much is gained, confidence and interruption keep their limits.

    Mutation: let `_economics` return after the first condition that holds.
    """
    assert judge_change(from_two_nodes_to_one(10**9)).go
    assert not judge_change(from_two_nodes_to_one(10**9, **doubt)).go


@pytest.mark.rule(52)
def test_plans_do_not_thrash():
    """A gain that comes back each minute moves a plan a few times in an hour, not sixty times.

    Mutation: leave `suppressed` out of `after_change`, or let the penalty decay at once.
    """
    policy, history, made = ChangePolicy(), ChangeHistory(), 0
    for minute in range(60):
        if judge_change(from_two_nodes_to_one(64), policy, history, minute * 60.0).go:
            history, made = after_change(history, policy, minute * 60.0), made + 1
    assert 1 <= made <= 8


@pytest.mark.rule(53)
def test_a_recovery_waits_for_no_break_even():
    """What the work needs to go on is done at once, however slow it is afterwards.

    Mutation: judge a recovery by `_economics` or by `_calm`.
    """
    change = from_two_nodes_to_one(0, reason="recovery", proposed_request_seconds=60.0, confidence=0.0)
    assert judge_change(change, history=ChangeHistory(penalty=9.0, suppressed=True)).go


@pytest.mark.rule(26)
def test_declared_curves_select_nothing_that_nobody_asked_for():
    """The planner itself leaves declared curves aside, whoever hands them over.

    Mutation: let `usable` return the economics as they are.
    """
    measured = make_economics({"birch": 0.01, "oak": 0.02})
    declared = replace(
        measured,
        services=tuple(replace(curve, basis="declared") for curve in measured.services),
        paths=tuple(replace(curve, basis="declared") for curve in measured.paths),
    )
    problem, graph = make_problem(4), make_graph({"birch": ENOUGH, "oak": ENOUGH})
    silent = decide(problem, graph, WORKLOAD, Policy(), declared)
    assert silent.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    asked = decide(problem, graph, WORKLOAD, Policy(), declared, allow_estimates=True)
    assert asked.outcome == "SELECTED"
    assert asked.is_estimate
    assert asked.plan.prediction.is_estimate


@pytest.mark.rule(27)
def test_an_abstention_names_the_measurement_that_ends_it():
    """Where nothing can be ranked, the measurement worth making is named, and making it gives a plan.

    Mutation: leave `_unknown` out of `_variations`.
    """
    problem, graph = make_problem(4), make_graph({"birch": ENOUGH, "oak": 10})
    inputs = Inputs(problem, graph, WORKLOAD, Policy(), make_economics({}))
    decision = inputs.decide()
    assert decision.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    (named,) = worth_measuring(inputs, decision).decisive
    assert named.subject == "cu-birch amber"
    assert inputs._replace(economics=make_economics({"birch": 0.01})).decide().outcome == "SELECTED"


@pytest.mark.rule(34)
def test_no_speed_outweighs_a_quarantine_and_no_pin_opens_it():
    """The fastest Compute Unit in quarantine is not chosen, and the family is excluded for integrity, not by policy.

    Mutation: leave `integrity_refusals` out of `draft_families`, or count them among the policy's refusals.
    """
    shut = Health(
        scope=Scope("compute-unit", "cu-birch"),
        integrity=AxisState(axis="integrity", state="quarantined", detail="a digest did not match"),
    )
    problem, graph = make_problem(4), make_graph({"birch": ENOUGH, "oak": ENOUGH})
    economics = make_economics({"birch": 0.000001, "oak": 5.0})
    decision = decide(problem, graph, WORKLOAD, Policy(), economics, health=(shut,))
    assert [placement.node_name for placement in decision.plan.placements] == ["oak"]
    statuses = {family.status for family in decision.families if "birch" in family.node_names}
    assert statuses == {"INTEGRITY_EXCLUDED"}
    pinned = decide(problem, graph, WORKLOAD, Policy(pinned_nodes=("birch",)), economics, health=(shut,))
    assert pinned.plan is None


@pytest.mark.rule(32)
def test_a_slow_unit_is_ranked_by_its_curves_and_excluded_by_nothing():
    """Degraded performance closes no gate: with the same curves the same is decided, but for the digest of health.

    Mutation: add `performance` to `TECHNICAL`, and to what `exclusions` names.
    """
    slow = Health(
        scope=Scope("compute-unit", "cu-birch"),
        performance=AxisState(axis="performance", state="degraded", detail="slower than its baseline"),
    )
    problem, graph = make_problem(4), make_graph({"birch": ENOUGH, "oak": ENOUGH})
    economics = make_economics({"birch": 0.01, "oak": 0.02})
    plain = decide(problem, graph, WORKLOAD, Policy(), economics)
    decision = decide(problem, graph, WORKLOAD, Policy(), economics, health=(slow,))
    assert (decision.plan, decision.families) == (plain.plan, plain.families)
