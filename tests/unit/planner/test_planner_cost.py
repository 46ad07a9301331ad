"""The objective, against sums written out by hand."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.errors import SpecError
from inferswarm.planner import Economics, PathCurve, ServiceCurve, Workload
from inferswarm.planner.cost import Pricing, chunk_grid, predict
from inferswarm.planner.sites import GraphView, Leg, Route
from tests.unit.planner.planner_cases import AMBER, make_economics, make_graph, make_problem

replace = msgspec.structs.replace
VIEW = GraphView(make_graph({"a": 10**9, "b": 10**9, "c": 10**9}))
A, B, C = VIEW.sites


def price(problem, workload, economics) -> Pricing:
    return Pricing(problem, problem.implementations[0], workload, economics)


def route(*legs: tuple[object, int, int]) -> Route:
    return tuple(Leg(*leg) for leg in legs)


def test_one_stage_takes_the_exact_sum_over_the_chunks():
    curve = {"compute_unit_id": A.id, "cost_class": "violet", "representation": AMBER}
    first_pass = ServiceCurve(
        phase="first-pass",
        base_seconds=0.5,
        seconds_per_position=0.01,
        seconds_per_position_context=0.001,
        **curve,
    )
    step = ServiceCurve(phase="step", base_seconds=0.1, seconds_per_position_context=0.001, **curve)
    economics = Economics(services=(first_pass, step), paths=())
    workload = Workload(prompt_tokens=40, output_tokens=11)
    prediction = predict(price(make_problem(2), workload, economics), route((A, 0, 2)))
    # Chunks of 16, 16 and 8 positions behind 0, 16 and 32.
    one = sum(0.5 + 0.01 * n + 0.001 * n * (c + n / 2) for c, n in ((0, 16), (16, 16), (32, 8)))
    between = 2 * (0.1 + 0.001 * (45.5 + 0.5))
    assert prediction.ttft.point == pytest.approx(2 * one)
    assert prediction.inter_token.point == pytest.approx(between)
    assert prediction.request.point == pytest.approx(2 * one + 10 * between)
    assert prediction.decode_rate.point == pytest.approx(1 / between)


def test_chunks_follow_each_other_at_the_pace_of_the_slowest_stage():
    economics = make_economics({"a": 0.001, "b": 0.003}, path_seconds=0.002)
    workload = Workload(prompt_tokens=64, output_tokens=1)
    prediction = predict(price(make_problem(4), workload, economics), route((A, 0, 2), (B, 2, 4)))
    # 4 chunks of 16: 32 ms on a, 96 ms on b, 2 ms between; b sets the pace of the 3 later chunks.
    assert prediction.ttft.point == pytest.approx(0.032 + 0.002 + 4 * 0.096)
    assert {(term.subject, term.what): term.seconds for term in prediction.terms} == {
        ("stage-0", "first-pass"): pytest.approx(0.032),
        ("stage-0", "step"): 0,
        ("stage-1", "first-pass"): pytest.approx(4 * 0.096),
        ("stage-1", "step"): 0,
        ("stage-0 → stage-1", "path"): pytest.approx(0.002),
        ("stage-1 → stage-0", "feedback"): 0,
    }


def test_a_slow_path_can_set_the_pace_too():
    economics = make_economics({"a": 0.001, "b": 0.001}, path_seconds=1.0)
    workload = Workload(prompt_tokens=48, output_tokens=1)
    prediction = predict(price(make_problem(2), workload, economics), route((A, 0, 1), (B, 1, 2)))
    assert prediction.ttft.point == pytest.approx(2 * 0.016 + 3 * 1.0)


def test_each_step_pays_for_its_payload_forward_and_its_feedback_back():
    problem = make_problem(3, payload_bytes=100, feedback_bytes=4)
    economics = Economics(
        services=make_economics({"a": 0.01, "b": 0.01, "c": 0.01}).services,
        paths=(
            PathCurve(source="node-a", target="node-b", latency_seconds=1.0, seconds_per_byte=0.001),
            PathCurve(source="node-b", target="node-c", latency_seconds=2.0, seconds_per_byte=0.002),
            PathCurve(source="node-c", target="node-a", latency_seconds=4.0, seconds_per_byte=0.004),
        ),
    )
    prediction = predict(
        price(problem, Workload(prompt_tokens=1, output_tokens=2), economics), route((A, 0, 1), (B, 1, 2), (C, 2, 3))
    )
    assert prediction.inter_token.point == pytest.approx(0.03 + 1.1 + 2.2 + 4.016)


def test_what_a_request_takes_once_over_a_path_is_in_the_first_token_only():
    economics = make_economics({"a": 0.01, "b": 0.01}, path_seconds=1.0)
    there, back = economics.paths[:2]
    slow = tuple(replace(path, low=0.5, high=4.0, opening_seconds=0.25) for path in (there, back))
    workload = Workload(prompt_tokens=48, output_tokens=5)
    plain, opened = (
        predict(price(make_problem(2), workload, replace(economics, paths=paths)), route((A, 0, 1), (B, 1, 2)))
        for paths in (tuple(replace(path, opening_seconds=0.0) for path in slow), slow)
    )
    added = [getattr(opened.ttft, bound) - getattr(plain.ttft, bound) for bound in ("low", "point", "high")]
    assert added == pytest.approx([0.125, 0.25, 1.0])  # over the way forward, not over the way back
    assert opened.inter_token == plain.inter_token
    assert sum(term.seconds for term in opened.terms) == pytest.approx(opened.request.point)
    impossible = tuple(replace(path, opening_seconds=-0.25) for path in slow)
    broken = price(make_problem(2), workload, replace(economics, paths=impossible))
    assert predict(broken, route((A, 0, 1), (B, 1, 2))) is None


def test_one_participant_pays_for_no_path():
    economics = make_economics({"a": 0.01}, path_seconds=100.0)
    prediction = predict(price(make_problem(3), Workload(), economics), route((A, 0, 3)))
    assert prediction.inter_token.point == pytest.approx(0.03)
    assert {term.what for term in prediction.terms} == {"first-pass", "step"}


def test_a_unit_that_looks_at_the_newest_position_costs_one_position_per_prompt():
    economics = make_economics({"a": 0.01})
    workload = Workload(prompt_tokens=64, output_tokens=1)
    every = predict(price(make_problem(2), workload, economics), route((A, 0, 2)))
    once = predict(price(make_problem(2, last_only=True), workload, economics), route((A, 0, 2)))
    assert every.ttft.point == pytest.approx(2 * 0.64)
    assert once.ttft.point == pytest.approx(0.64 + 0.01)
    assert once.inter_token == every.inter_token


def test_a_unit_that_looks_at_the_newest_position_needs_no_first_pass_curve():
    economics = make_economics({"a": 0.01})
    services = tuple(
        curve for curve in economics.services if (curve.cost_class, curve.phase) != ("ochre", "first-pass")
    )
    problem = make_problem(2, last_only=True)
    pricing = price(problem, Workload(), replace(economics, services=services))
    assert predict(pricing, route((A, 0, 2))) is not None
    assert pricing.missing(VIEW, (A,), ()) == ()


def test_bounds_add_up_as_if_everything_were_low_or_high_at_once():
    economics = make_economics({"a": 0.01, "b": 0.02}, path_seconds=0.5, low=0.5, high=3.0)
    prediction = predict(price(make_problem(2), Workload(), economics), route((A, 0, 1), (B, 1, 2)))
    for interval in (prediction.ttft, prediction.inter_token, prediction.request):
        assert interval.low == pytest.approx(0.5 * interval.point)
        assert interval.high == pytest.approx(3.0 * interval.point)
    assert prediction.decode_rate.low == pytest.approx(prediction.decode_rate.point / 3)
    assert prediction.decode_rate.high == pytest.approx(prediction.decode_rate.point * 2)


def test_evidence_behind_every_curve_is_listed_once():
    economics = make_economics({"a": 0.01, "b": 0.02})
    prediction = predict(price(make_problem(4), Workload(), economics), route((A, 0, 2), (B, 2, 4)))
    assert prediction.evidence_ids == ("pass-a", "pass-b", "path-a-b", "path-b-a", "step-a", "step-b")


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ({"phase": "step"}, "service curve of cu-a (a) for violet, amber, step"),
        ({"phase": "first-pass"}, "service curve of cu-a (a) for violet, amber, first-pass"),
    ],
)
@pytest.mark.parametrize("how", ["absent", "negative", "bounds"])
def test_an_absent_or_impossible_curve_counts_as_missing_and_is_named(broken, named, how):
    economics = make_economics({"a": 0.01})

    def change(curve: ServiceCurve) -> ServiceCurve | None:
        if curve.phase != broken["phase"] or curve.cost_class != "violet":
            return curve
        if how == "absent":
            return None
        return replace(curve, base_seconds=-1.0) if how == "negative" else replace(curve, low=1.1)

    services = tuple(curve for curve in map(change, economics.services) if curve is not None)
    pricing = price(make_problem(2), Workload(), replace(economics, services=services))
    assert predict(pricing, route((A, 0, 2))) is None
    assert pricing.missing(VIEW, (A,), ()) == (named,)


@pytest.mark.parametrize("change", [{"base_seconds": -1.0}, {"low": 1.1}])
def test_an_unusable_opening_curve_is_not_taken_for_an_opening_that_costs_nothing(change):
    economics = make_economics({"a": 0.01})
    step = next(curve for curve in economics.services if (curve.phase, curve.cost_class) == ("step", "violet"))
    opening = replace(step, phase="opening", **change)
    pricing = price(make_problem(2), Workload(), replace(economics, services=(*economics.services, opening)))
    assert predict(pricing, route((A, 0, 2))) is None
    assert pricing.missing(VIEW, (A,), ()) == ("service curve of cu-a (a) for violet, amber, opening",)


@pytest.mark.parametrize("absent", [("a", "b"), ("b", "a")])
def test_a_missing_path_forward_or_back_leaves_the_route_without_a_price(absent):
    lengths = {pair: 0.001 for pair in (("a", "b"), ("b", "a")) if pair != absent}
    pricing = price(make_problem(2), Workload(), make_economics({"a": 0.01, "b": 0.01}, path_seconds=lengths))
    assert predict(pricing, route((A, 0, 1), (B, 1, 2))) is None
    assert pricing.missing(VIEW, (A, B), ((A, B), (B, A))) == (f"path curve {absent[0]} → {absent[1]}",)


def test_two_curves_for_one_thing_are_refused():
    economics = make_economics({"a": 0.01, "b": 0.01})
    doubled = replace(economics, services=economics.services + economics.services[:1])
    with pytest.raises(SpecError, match="two curves"):
        price(make_problem(), Workload(), doubled)
    with pytest.raises(SpecError, match="two curves"):
        price(make_problem(), Workload(), replace(economics, paths=economics.paths + economics.paths[:1]))


def test_curves_that_make_a_step_take_no_time_are_refused():
    with pytest.raises(SpecError, match="step of 0 seconds"):
        predict(price(make_problem(), Workload(), make_economics({"a": 0.0})), route((A, 0, 4)))


@pytest.mark.parametrize(
    ("prompt", "grid"),
    [(1, ((0, 1),)), (16, ((0, 16),)), (17, ((0, 16), (16, 1))), (32, ((0, 16), (16, 16)))],
)
def test_the_chunk_grid_covers_a_prompt(prompt, grid):
    assert chunk_grid(prompt, 16) == grid


def test_a_unit_that_opens_requests_has_no_price_without_a_curve_of_that():
    """Mutation: let `Pricing._takes_opening` look at the curves alone."""
    problem = make_problem(2)
    first = replace(problem.units[0], cost_class="first", opens_requests=True)
    problem = replace(problem, units=(first, *problem.units[1:]))
    economics = make_economics({"a": 0.01}, cost_classes=("first", "violet"))
    pricing = price(problem, Workload(), economics)
    assert predict(pricing, route((A, 0, 2))) is None
    assert pricing.missing(VIEW, (A,), ()) == ("service curve of cu-a (a) for first, amber, opening",)
    step = next(curve for curve in economics.services if (curve.phase, curve.cost_class) == ("step", "first"))
    opening = replace(step, phase="opening", base_seconds=0.5)
    known = price(problem, Workload(), replace(economics, services=(*economics.services, opening)))
    without = price(make_problem(2), Workload(), make_economics({"a": 0.01}))
    more = predict(known, route((A, 0, 2))).ttft.point - predict(without, route((A, 0, 2))).ttft.point
    assert more == pytest.approx(0.5)
