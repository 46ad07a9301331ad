"""Which single measurement could change the decision, judged by solving again at its bounds."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.planner import Inputs, Policy, Workload, measurements, worth_measuring
from inferswarm.planner.resolving import family_of
from tests.unit.planner.planner_cases import AMBER, make_economics, make_graph, make_problem

replace = msgspec.structs.replace
WORKLOAD = Workload(prompt_tokens=16, output_tokens=11)


def make_inputs(capacities, seconds, **economics) -> Inputs:
    return Inputs(make_problem(4), make_graph(capacities), WORKLOAD, Policy(), make_economics(seconds, **economics))


def ask(inputs: Inputs, **limits):
    return worth_measuring(inputs, inputs.decide(), **limits)


CLOSE = {"birch": 0.010, "oak": 0.011}
ROOM = {"birch": 9000, "oak": 9000}


def test_measurements_whose_bounds_reach_the_rival_are_decisive() -> None:
    found = ask(make_inputs(ROOM, CLOSE, low=0.85, high=1.2))
    judged = {(item.subject, item.bound) for item in found.decisive}
    assert judged == {("cu-birch amber", "at its high bound"), ("cu-oak amber", "at its low bound")}
    assert all(family_of(item.plan) == (AMBER, ("cu-oak",)) for item in found.decisive)
    assert "birch (cu-birch) in amber again: at its high bound" in str(found)


def test_the_gain_is_the_difference_under_the_supposition() -> None:
    found = ask(make_inputs(ROOM, CLOSE, low=0.85, high=1.2))
    gains = {item.subject: item.gain_seconds for item in found.decisive}
    whole = 4 * 16 + 10 * 4  # four units: sixteen positions of the prompt, and ten later tokens
    assert gains["cu-birch amber"] == pytest.approx(whole * (0.010 * 1.2 - 0.011))
    assert gains["cu-oak amber"] == pytest.approx(whole * (0.010 - 0.011 * 0.85))
    assert [item.gain_seconds for item in found.decisive] == sorted(gains.values(), reverse=True)


def test_intervals_that_overlap_without_any_single_one_deciding_make_rivals_only() -> None:
    found = ask(make_inputs(ROOM, CLOSE, low=0.95, high=1.06))
    assert found.decisive == ()
    rivals = {family_of(rival.plan)[1]: rival.overlap_seconds for rival in found.rivals}
    assert set(rivals) == {("cu-oak",), ("cu-birch", "cu-oak")}
    assert rivals["cu-oak",] == pytest.approx(104 * (0.010 * 1.06 - 0.011 * 0.95))
    assert "no single measurement" in str(found)


def test_narrow_bounds_leave_nothing_to_measure() -> None:
    found = ask(make_inputs(ROOM, CLOSE, low=0.99, high=1.01))
    assert (found.decisive, found.rivals, found.unsettled) == ((), (), ())


def test_a_path_can_be_what_decides() -> None:
    inputs = make_inputs({"birch": 9000, "pine": 2500}, {"birch": 0.01, "pine": 0.001}, path_seconds=0.2)
    paths = tuple(replace(path, low=0.001) if path.source == "node-pine" else path for path in inputs.economics.paths)
    # One direction alone may not be enough: the way there stays slow.
    slow_there = inputs._replace(economics=replace(inputs.economics, paths=paths))
    assert not any("path" in item.what for item in ask(slow_there).decisive)
    cheap_there = tuple(
        replace(path, latency_seconds=0.0001) if path.source == "node-birch" else path for path in paths
    )
    found = ask(inputs._replace(economics=replace(inputs.economics, paths=cheap_there)))
    assert "node-pine node-birch" in {item.subject for item in found.decisive}


def test_a_unit_that_nobody_measured_is_worth_measuring_when_it_could_do_it() -> None:
    found = ask(make_inputs({"birch": 9000, "pine": 9000}, {"birch": 0.01}))
    assert {(item.subject, item.bound) for item in found.decisive} == {("cu-pine amber", "unknown")}
    assert "nothing is known of it" in str(found)


def test_a_unit_that_could_not_help_however_fast_is_not_worth_measuring() -> None:
    found = ask(make_inputs({"birch": 9000, "pine": 10}, {"birch": 0.01}))
    assert found.decisive == ()


def test_without_a_plan_the_measurement_that_gives_one_is_named() -> None:
    found = ask(make_inputs({"birch": 9000}, {}))
    (item,) = found.decisive
    assert (item.subject, item.gain_seconds) == ("cu-birch amber", None)


def test_what_the_limits_cut_off_is_named() -> None:
    found = ask(make_inputs(ROOM, CLOSE, low=0.85, high=1.2), most_solves=1)
    assert found.num_solved == 1
    assert len(found.unsettled) == 1
    assert "limits" in found.unsettled[0]


def test_curves_for_states_apart_are_none_for_states_that_are_near():
    """Mutation: leave `apart` out of the key of what is known."""
    inputs = make_inputs({"birch": 9000, "pine": 9000}, {"birch": 0.01, "pine": 0.02})
    far = replace(inputs.graph.memory_resources[1], id="far-pine")
    units = tuple(
        replace(unit, memory_ids=(*unit.memory_ids, "far-pine"), capabilities=("states:addressable",))
        if unit.id == "cu-pine"
        else unit
        for unit in inputs.graph.compute_units
    )
    graph = replace(inputs.graph, compute_units=units, memory_resources=(*inputs.graph.memory_resources, far))
    of_pine = [curve for curve in inputs.economics.services if curve.compute_unit_id == "cu-pine"]
    others = [curve for curve in inputs.economics.services if curve.compute_unit_id != "cu-pine"]
    apart = [replace(curve, states="apart") for curve in of_pine]

    def unknown(*services) -> set[str]:
        asked = inputs._replace(graph=graph, economics=replace(inputs.economics, services=services))
        return {item.subject for item in ask(asked).decisive if item.bound == "unknown"}

    assert unknown(*others, *apart) == {"cu-pine amber"}
    assert unknown(*others, *of_pine) == {"cu-pine amber, states apart"}
    assert unknown(*others, *of_pine, *apart) == set()


def test_bounds_of_curves_for_states_apart_are_moved_by_themselves():
    inputs = make_inputs({"birch": 9000}, {"birch": 0.01}, low=0.5, high=2.0)
    apart = tuple(replace(curve, states="apart") for curve in inputs.economics.services)
    both = replace(inputs.economics, services=(*inputs.economics.services, *apart))
    varied = measurements._moved_services(both, inputs.view, True, {"cu-birch"}, measurements.BOTH[:1])
    assert [item.subject for item in varied] == ["cu-birch amber", "cu-birch amber, states apart"]


def test_what_opening_a_request_takes_is_supposed_with_the_rest():
    inputs = make_inputs({"birch": 9000}, {"birch": 0.01})
    units = (replace(inputs.problem.units[0], opens_requests=True), *inputs.problem.units[1:])
    (item,) = ask(inputs._replace(problem=replace(inputs.problem, units=units))).decisive
    assert (item.subject, item.bound) == ("cu-birch amber", "unknown")
