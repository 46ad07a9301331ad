"""Stages whose Compute Units share too few cores are in each other's way while chunks follow each other."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.errors import SpecError
from inferswarm.planner import Inputs, Policy, Throughput, Workload
from inferswarm.planner.core_sharing import core_shares
from inferswarm.resources.graph import SwarmGraph
from inferswarm.resources.types import CoreSet, ResourceGraph
from tests.unit.planner.planner_cases import make_economics, make_graph, make_problem

replace = msgspec.structs.replace
NAMES = ("ash", "birch", "oak")


def on_cores(graph: ResourceGraph, num_cores: int | None, threads: int = 1) -> ResourceGraph:
    """Let all Compute Units share this many cores; None: each has its own."""
    units = tuple(
        replace(unit, threads=threads, core_set_id=msgspec.UNSET if num_cores is None else "cores")
        for unit in graph.compute_units
    )
    sets = msgspec.UNSET if num_cores is None else (CoreSet(id="cores", num_cores=num_cores),)
    return replace(graph, compute_units=units, core_sets=sets)


def make_inputs(num_cores: int | None, threads: int = 1, prompt_tokens: int = 64, objective=msgspec.UNSET) -> Inputs:
    """Three stages of two units, which take 1 s each for a chunk; four chunks by default."""
    return Inputs(
        make_problem(6),
        on_cores(make_graph(dict.fromkeys(NAMES, 2000)), num_cores, threads),
        Workload(prompt_tokens=prompt_tokens, output_tokens=3, concurrency=1, objective=objective),
        Policy(pinned_nodes=NAMES),
        make_economics(dict.fromkeys(NAMES, 1.0), path_seconds=1e-3),
    )


def first_token(inputs: Inputs) -> float:
    return inputs.decide().plan.prediction.ttft.point


@pytest.mark.parametrize(
    ("num_cores", "threads", "pace"),
    [
        (3, 1, 1.0),  # a core for each: the slowest stage sets the pace
        (2, 1, 1.5),  # three stages' work on two cores
        (1, 1, 3.0),
        (2, 2, 3.0),  # each keeps both cores busy
    ],
)
def test_the_later_chunks_come_as_fast_as_the_cores_can_do_all_of_the_work(
    num_cores: int, threads: int, pace: float
) -> None:
    apart = first_token(make_inputs(None, threads))
    stage = (apart - first_token(make_inputs(None, threads, prompt_tokens=16))) / 3
    assert first_token(make_inputs(num_cores, threads)) - apart == pytest.approx(3 * stage * (pace - 1))


@pytest.mark.parametrize(
    ("threads", "most"),
    [
        ((1, 1, 1), 1.5),  # single threads fill two cores
        ((2, 1, 1), 3.0),  # while the stage of two threads waits for a second core, one core is at work
        ((2, 2, 2), 3.0),
    ],
)
def test_at_worst_stages_of_several_threads_keep_each_other_from_the_cores(
    threads: tuple[int, ...], most: float
) -> None:
    def pace(inputs: Inputs, bound: str) -> float:
        units = zip(inputs.graph.compute_units, threads, strict=True)
        several = tuple(replace(unit, threads=count) for unit, count in units)
        ttft = inputs._replace(graph=replace(inputs.graph, compute_units=several)).decide().plan.prediction.ttft
        return getattr(ttft, bound)

    apart, together = make_inputs(None), make_inputs(2)
    stage = (pace(apart, "point") - pace(make_inputs(None, prompt_tokens=16), "point")) / 3
    assert pace(together, "point") - pace(apart, "point") == pytest.approx(3 * stage * (sum(threads) / 2 - 1))
    high = make_economics({"ash": 1.0}, path_seconds=1e-3).services[0].high
    assert pace(together, "high") - pace(apart, "high") == pytest.approx(3 * stage * high * (most - 1))


@pytest.mark.parametrize(
    ("threads", "num_cores", "shares"),
    [
        ((1, 1, 1), 2, [(0.5, 0.5, 0.5)]),
        ((2, 2), 2, [(1.0, 1.0)]),
        ((2, 1, 1), 2, [(1.0, 0.5, 0.5), (1.0, 0.75, 0.25), (1.0, 0.25, 0.75)]),
        ((6, 3, 2), 8, [(0.75, 0.375, 0.25), (0.875, 0.6875, 0.125)]),
    ],
)
def test_stages_that_cannot_be_at_work_at_once_count_half_as_if_they_never_were(
    threads: tuple[int, ...], num_cores: int, shares: list[tuple[float, ...]]
) -> None:
    assert list(core_shares(threads, num_cores)) == shares


def test_one_chunk_and_single_steps_have_the_cores_to_themselves() -> None:
    apart, together = (make_inputs(cores, prompt_tokens=16).decide().plan.prediction for cores in (None, 1))
    assert apart == together


def test_the_parts_still_add_up_to_the_request() -> None:
    decision = make_inputs(1).decide()
    prediction = decision.plan.prediction
    assert sum(term.seconds for term in prediction.terms) == pytest.approx(prediction.request.point)
    assert sum(share.seconds for share in decision.breakdown.ttft) == pytest.approx(prediction.ttft.point)


def test_many_sessions_end_at_the_cores() -> None:
    rates = []
    for cores in (None, 1):
        inputs = make_inputs(cores, objective=Throughput())
        decision = inputs._replace(workload=replace(inputs.workload, concurrency=1000)).decide()
        rates.append(decision.plan.prediction.throughput.point)
    assert rates[0] / rates[1] == pytest.approx(3.0)  # three equal stages, one core


@pytest.mark.parametrize("core_sets", [msgspec.UNSET, (), (CoreSet(id="cores", num_cores=0),)])
def test_cores_that_are_not_there_are_refused(core_sets: tuple[CoreSet, ...] | msgspec.UnsetType) -> None:
    with pytest.raises(SpecError, match="cores of"):
        SwarmGraph(replace(on_cores(make_graph(dict.fromkeys(NAMES, 2000)), 1), core_sets=core_sets))
