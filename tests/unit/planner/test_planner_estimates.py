"""Declared curves are no evidence: left aside unless asked for, and labeled wherever they count."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.documents import digest, write_document
from inferswarm.errors import SpecError
from inferswarm.planner import ESTIMATE, Economics, PathCurve, Policy, ServiceCurve, Workload, decide, force_plan
from inferswarm.planner.economics import usable
from tests.unit.planner.planner_cases import AMBER, ENOUGH, make_economics, make_graph, make_problem

replace = msgspec.structs.replace
WORKLOAD = Workload(prompt_tokens=16, output_tokens=11)
PROBLEM, GRAPH = make_problem(4), make_graph({"birch": ENOUGH, "oak": ENOUGH})
MEASURED = make_economics({"birch": 0.01, "oak": 0.02})


def declared(economics: Economics) -> Economics:
    return replace(
        economics,
        services=tuple(replace(curve, basis="declared") for curve in economics.services),
        paths=tuple(replace(curve, basis="declared") for curve in economics.paths),
    )


DECLARED = declared(MEASURED)


@pytest.mark.parametrize("curve", [MEASURED.services[0], MEASURED.paths[0]])
def test_a_measured_curve_is_written_as_it_always_was(curve: ServiceCurve | PathCurve) -> None:
    assert curve.provenance == "measured"
    assert "basis" not in write_document(curve)


@pytest.mark.parametrize("curve", [DECLARED.services[0], DECLARED.paths[0]])
def test_a_declared_curve_says_so_and_has_another_digest(curve: ServiceCurve | PathCurve) -> None:
    assert curve.provenance == "declared"
    assert digest(curve) != digest(replace(curve, basis=msgspec.UNSET))


def test_without_being_asked_declared_curves_select_nothing() -> None:
    decision = decide(PROBLEM, GRAPH, WORKLOAD, Policy(), DECLARED)
    assert decision.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    assert decision.plan is None
    assert any("on request" in reason for reason in decision.missing_evidence)
    assert not decision.is_estimate
    assert ESTIMATE not in decision.summary


def test_on_request_the_same_plan_comes_and_everything_says_that_it_is_an_estimate() -> None:
    real = decide(PROBLEM, GRAPH, WORKLOAD, Policy(), MEASURED)
    guessed = decide(PROBLEM, GRAPH, WORKLOAD, Policy(), DECLARED, allow_estimates=True)
    assert guessed.plan is not None
    assert real.plan is not None
    assert guessed.plan.placements == real.plan.placements
    assert guessed.is_estimate
    assert guessed.plan.prediction is not None
    assert guessed.plan.prediction.is_estimate
    assert guessed.summary.startswith(ESTIMATE)
    assert ESTIMATE in guessed.search
    assert guessed.explain().count(ESTIMATE) >= 3
    assert "nothing here was measured" in guessed.explain()


def test_a_decision_by_measured_curves_says_nothing_of_estimates_even_when_they_are_allowed() -> None:
    decision = decide(PROBLEM, GRAPH, WORKLOAD, Policy(), MEASURED, allow_estimates=True)
    assert not decision.is_estimate
    assert ESTIMATE not in write_document(decision)
    assert "basis" not in write_document(decision)
    assert decision == decide(PROBLEM, GRAPH, WORKLOAD, Policy(), MEASURED)


def test_a_measured_curve_goes_before_a_declared_one() -> None:
    wrong = declared(make_economics({"birch": 5.0, "oak": 0.0001}))
    both = replace(MEASURED, services=(*wrong.services, *MEASURED.services), paths=(*wrong.paths, *MEASURED.paths))
    assert usable(both, allow_estimates=True) == MEASURED
    assert set(usable(both, allow_estimates=False).services) == set(MEASURED.services)


def test_a_unit_with_declared_curves_only_is_unranked_beside_a_measured_one() -> None:
    part = [curve for curve in DECLARED.services if curve.compute_unit_id == "cu-oak"]
    known = [curve for curve in MEASURED.services if curve.compute_unit_id == "cu-birch"]
    mixed = Economics(services=(*known, *part), paths=MEASURED.paths)
    decision = decide(PROBLEM, GRAPH, WORKLOAD, Policy(), mixed)
    alone = {family.node_names: family.status for family in decision.families if len(family.node_names) == 1}
    assert alone == {("birch",): "RANKED", ("oak",): "FEASIBLE_UNRANKED"}
    assert not decision.proved_optimal
    assert any("cu-oak" in name for name in decision.missing_evidence)


def test_a_named_plan_is_priced_by_declared_curves_on_request_only() -> None:
    named = (PROBLEM, GRAPH, WORKLOAD, DECLARED, ("oak",), (), AMBER)
    assert force_plan(*named).prediction is None
    prediction = force_plan(*named, allow_estimates=True).prediction
    assert prediction is not None
    assert prediction.is_estimate


def test_two_declared_curves_for_one_thing_are_refused_as_ever() -> None:
    double = replace(DECLARED, services=(*DECLARED.services, DECLARED.services[0]))
    with pytest.raises(SpecError, match="two curves"):
        decide(PROBLEM, GRAPH, WORKLOAD, Policy(), double, allow_estimates=True)
