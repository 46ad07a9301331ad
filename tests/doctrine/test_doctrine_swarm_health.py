"""Rules about evidence and health at the level of a swarm: what acts on plans and measurements, and what does not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from inferswarm import errors
from inferswarm.errors import InferSwarmError
from inferswarm.evidence.drift import record_run
from inferswarm.evidence.events import AXES, Scope
from inferswarm.evidence.health import exclusions
from inferswarm.evidence.quarantine import quarantines_of
from inferswarm.planner import Policy, Workload, decide
from inferswarm.swarm.health_events import events_of_fault
from inferswarm.swarm.health_view import HealthView
from tests.integration.null_swarm import null_plan
from tests.unit.evidence.evidence_samples import SECOND, make_event, make_record, noisy
from tests.unit.planner.planner_cases import AMBER, make_economics, make_graph, make_problem
from tests.unit.test_swarm_health import GRAPH, UNIT, Bench, degrade

WORKLOAD = Workload(prompt_tokens=16, output_tokens=11)
INTEGRITY_ERRORS = ("ReplayDiverged",)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.rule(28)
def test_a_measurement_says_how_its_run_went_and_one_that_drifted_is_not_used(bench: Bench) -> None:
    """A run in which the machine changed has no one value: its record says so, is left aside and is measured again.

    Mutation: drop `unusable_drift` from `ObservationStore.query`, or from `HealthKeeper.review`.
    """
    steady = bench.measure(1e-3)
    bench.now += SECOND
    ramp = tuple(1e-3 * (1 + step / 10) for step in range(24))
    bench.store.append([record_run(make_record(samples=ramp, at_ns=bench.now), num_warm_up=1, interleaving="alone")])
    assert bench.store.query(newest=1, steady_only=True) == (steady,)
    (doubt,) = bench.review().doubts
    assert "drifted while it was measured" in doubt.reason


@pytest.mark.rule(30)
def test_what_a_swarm_measures_moves_no_accepted_baseline(bench: Bench) -> None:
    """Slower and slower records raise an alert against the one that was accepted; it is the same until somebody acts.

    Mutation: let `HealthKeeper.review` append a baseline of the newest record.
    """
    bench.measure(1e-3)
    bench.accept()
    for step in range(1, 12):
        bench.measure(1e-3 * 1.06**step)
        bench.review()
    (alert,) = bench.keeper.report().alerts
    assert alert.baseline_version == 1
    assert bench.keeper.report().num_baselines == 1
    assert bench.accept() == 1


@pytest.mark.rule(31)
def test_what_goes_to_the_planner_are_five_answers(bench: Bench) -> None:
    """A unit that is slow, trusted and compatible is each of these by itself, and nothing sums them up.

    Mutation: in `performance_changes`, write an event of another axis for a degraded scope.
    """
    degrade(bench)
    bench.keeper.note([make_event("integrity-checked", UNIT), make_event("compatible", UNIT)])
    (health,) = bench.keeper.in_force(GRAPH)
    states = {axis: health.on(axis).state for axis in AXES}
    assert states == {
        "availability": "unknown",
        "compatibility": "compatible",
        "integrity": "trusted",
        "qualification": "unknown",
        "performance": "degraded",
    }
    text = str(HealthView(bench.keeper.report(), GRAPH))
    assert all(axis in text for axis in AXES)


@pytest.mark.rule(32)
def test_a_degraded_unit_stays_in_the_plans_and_its_price_decides(bench: Bench) -> None:
    """An alert shuts nothing: the plan is as without it, until the observations that it is about change the price.

    Mutation: let `exclusions` name a degraded performance.
    """
    degrade(bench)
    (health,) = bench.keeper.in_force(GRAPH)
    assert exclusions(health) == ()
    graph = make_graph({"birch": 9000, "oak": 9000})
    slow = tuple(
        msgspec.structs.replace(health, scope=Scope("compute-unit", unit.id))
        for unit in graph.compute_units
        if unit.node_id == next(node.id for node in graph.nodes if node.name == "birch")
    )
    problem = make_problem(4, representations=(AMBER,))

    def nodes(birch: float, given: tuple[object, ...]) -> list[str]:
        economics = make_economics({"birch": birch, "oak": 0.02}, representations=(AMBER,))
        found = decide(problem, graph, WORKLOAD, Policy(), economics, health=given)  # type: ignore[arg-type]
        assert found.plan is not None
        return [placement.node_name for placement in found.plan.placements]

    assert nodes(0.01, slow) == nodes(0.01, ()) == ["birch"]
    assert nodes(0.08, slow) == ["oak"]


def every_error() -> list[InferSwarmError]:
    """Return one of each error, with every attribute that any of them has."""
    found = []
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, InferSwarmError):
            error = kind.__new__(kind)
            Exception.__init__(error, "seen")
            for name in ("code", "subject", "reason", "mechanism", "detail"):
                setattr(error, name, "SLOW")
            error.node, error.participant, error.position = "birch", "its agent", 3  # type: ignore[attr-defined]
            found.append(error)
    return found


@pytest.mark.rule(35)
@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_of_all_errors_only_one_that_shows_other_results_touches_integrity(error: InferSwarmError) -> None:
    """Slow, silent, lost, refused, too large, out of memory: none quarantines anything.

    Mutation: let `_lost` or the case of EnvelopeExceeded make an event of the integrity axis.
    """
    events = events_of_fault(error, GRAPH, null_plan(("amber",)), 10**18)
    shut = quarantines_of(events).active
    assert bool(shut) == (type(error).__name__ in INTEGRITY_ERRORS)


@pytest.mark.rule(36)
def test_a_swarm_s_alert_is_shown_with_all_that_it_states(bench: Bench) -> None:
    """Terminal and notebook show fact, scope, baseline, freshness, response, impact and revalidation, and no cause.

    Mutation: leave one of them out of `views.health._alert`.
    """
    degrade(bench)
    (alert,) = bench.keeper.report().alerts
    view = HealthView(bench.keeper.report(), GRAPH)
    text = " ".join(str(view).split())
    for said in (alert.fact, alert.response, alert.impact, alert.revalidation, "version 1", "freshness", "scope"):
        assert said in text
    html = view._repr_html_()
    assert all(said in html for said in (alert.metric, alert.response, alert.impact))
    assert "cause" not in text


@pytest.mark.rule("36a")
def test_a_doubt_goes_to_the_records_of_its_representation_and_model_alone(bench: Bench) -> None:
    """What is slower in one representation of one model is measured again there; other keys are other evidence.

    Mutation: compare fewer keys in `health._of_one_probe`.
    """
    others = [{"representation": "bf16"}, {"model.shape": "another"}]
    for changed in others:
        bench.store.append([make_record(context=changed, samples=noisy(1e-3), at_ns=bench.now)])
    same = make_record(context={"cost.class": "head"}, samples=noisy(1e-3), at_ns=bench.now)
    bench.store.append([same])
    degrade_one(bench)
    doubted = {question for question, _, _ in bench.keeper.doubts(GRAPH)}
    contexts = [{item.key: item.value for item in context} for _, _, context in doubted]
    assert {item["cost.class"] for item in contexts} == {"block", "head"}
    assert {(item["representation"], item["model.shape"]) for item in contexts} == {("fp32", "llama/30x576")}


def degrade_one(bench: Bench) -> None:
    """Degrade one question, where records of others are there."""
    bench.measure(1e-3)
    bench.accept()
    for _ in range(2):
        bench.measure(2e-3)
        bench.review()
