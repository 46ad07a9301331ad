"""The probe: real executor, real shapes, enough samples, truthful context, and nothing when nothing fits."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from inferswarm.backends.probe import MIN_SAMPLES, probe_cost_classes
from inferswarm.backends.torch_backend import bench, probing
from inferswarm.backends.torch_backend.executor import TorchExecutor
from inferswarm.errors import MeasurementError, SpecError
from inferswarm.strategies.dense.description import BlockKind, Rope
from inferswarm.strategies.shape import block_classes, shape_digest
from tests.unit.backends.backends_support import small_description

DESCRIPTION = small_description(num_blocks=30, vocabulary_size=4096)
OPTIONS = {"compute_unit_id": "cu", "threads": 1, "max_positions": 300, "chunk_positions": 64, "seconds": 0.3}


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def probed(request):
    seen = []
    observations = probe_cost_classes(
        DESCRIPTION,
        request.param,
        budget_bytes=10**8,
        progress=lambda done, total: seen.append((done, total)),
        **OPTIONS,
    )
    return request.param, observations, seen


def cells(observations, metric, pause="0"):
    return {
        tuple(
            item.context_value(key) for key in ("cost.class", "phase", "positions", "context.positions")
        ): item.samples
        for item in observations
        if item.metric == metric and item.context_value("pause.seconds") == pause
    }


def test_every_class_is_measured_at_every_point_with_enough_samples(probed):
    _, observations, _ = probed
    expected = {("embedding", "step", "1", "16"), ("head", "step", "1", "16")}
    expected |= {("embedding", "first-pass", size, "0") for size in ("8", "16", "32", "64")}
    expected |= {("block", "step", "1", context) for context in ("16", "128", "299")}
    sizes = ("8", "16", "32", "64")
    expected |= {("block", "first-pass", size, context) for size in sizes for context in ("0", "236")}
    times = cells(observations, "unit-seconds")
    assert set(times) == expected
    assert set(cells(observations, "step-overhead-seconds")) == expected
    assert all(len(samples) >= MIN_SAMPLES and min(samples) > 0 for samples in times.values())


def test_the_shortest_steps_and_the_shortest_chunk_of_blocks_are_measured_after_a_pause_too(probed):
    _, observations, _ = probed
    pause = f"{bench.PAUSE_SECONDS:g}"
    expected = {("block", "step", "1", "16"), ("block", "step", "1", "128"), ("block", "first-pass", "8", "0")}
    times = cells(observations, "unit-seconds", pause)
    assert set(times) == set(cells(observations, "step-overhead-seconds", pause)) == expected
    assert cells(observations, "step-transient-bytes", pause) == {}
    assert all(0 < max(samples) < bench.PAUSE_SECONDS for samples in times.values())  # the pause is no part of a step
    used = {item.context_value("num.units") for item in observations if item.context_value("cost.class") == "block"}
    assert used == {str(probing.MAX_BLOCKS)}


def test_a_paused_cell_sleeps_before_each_of_its_steps_and_no_other_cell_does(monkeypatch):
    slept = []
    monkeypatch.setattr(bench.time, "sleep", slept.append)
    observations = probe_cost_classes(DESCRIPTION, "fp32", budget_bytes=10**8, **OPTIONS | {"seconds": 0.0})
    paused = cells(observations, "unit-seconds", f"{bench.PAUSE_SECONDS:g}")
    assert slept == [bench.PAUSE_SECONDS] * sum(len(samples) + bench.WARM_UP_ROUNDS for samples in paused.values())


def test_the_context_says_what_was_measured(probed):
    representation, observations, _ = probed
    for item in observations:
        assert item.subject == "cu"
        assert item.unit == ("B" if item.metric == "step-transient-bytes" else "s")
        assert item.context_value("backend") == "torch"
        assert item.context_value("representation") == representation
        assert item.context_value("threads") == "1"
        assert item.context_value("torch") == torch.__version__
        assert item.context_value("model.shape") == shape_digest(DESCRIPTION)
        assert item.context_value("cpu")
        assert int(item.context_value("set.bytes")) > 0


def test_each_kind_of_block_is_a_class_of_its_own(monkeypatch):
    made = []
    initialize = TorchExecutor.__init__

    def recorded(self, assignment, *arguments):
        made.append(
            (assignment.first_unit, assignment.description.kind_of(0).window, assignment.description.num_blocks)
        )
        initialize(self, assignment, *arguments)

    monkeypatch.setattr(TorchExecutor, "__init__", recorded)
    rope = Rope(base=100.0, rotated_size=16)
    description = small_description(
        num_blocks=3,
        block_kinds=(BlockKind(rope=rope, window=8), BlockKind(rope=rope)),
        block_pattern=(0, 0, 1),
    )
    observations = probe_cost_classes(description, "fp32", budget_bytes=10**8, **OPTIONS | {"seconds": 0.0})
    classes = block_classes(description)
    assert {item.context_value("cost.class") for item in observations} == {"embedding", "head", *classes}
    assert {item.context_value("model.shape") for item in observations} == {shape_digest(description)}
    times = cells(observations, "unit-seconds")
    for name in set(classes):
        assert {key[3] for key in times if key[0] == name and key[1] == "step"} == {"16", "128", "299"}
    assert [window for first, window, blocks in made if first == 1 and blocks == probing.MAX_BLOCKS] == [8, None]


def test_kinds_are_measured_one_by_one_where_they_do_not_fit_together():
    rope = Rope(base=100.0, rotated_size=16)
    description = small_description(
        vocabulary_size=4096,
        block_kinds=(BlockKind(rope=rope, window=8), BlockKind(rope=rope)),
        block_pattern=(0, 0, 1, 0),
    )
    budget = probing.STAGING_BYTES + 600_000
    observations = probe_cost_classes(description, "fp32", budget_bytes=budget, **OPTIONS | {"seconds": 0.0})
    assert {item.context_value("cost.class") for item in observations} == set(block_classes(description))


def test_a_position_takes_less_in_a_larger_chunk(probed):
    _, observations, _ = probed
    times = cells(observations, "unit-seconds")
    assert min(times["block", "first-pass", "64", "0"]) / 64 < min(times["block", "first-pass", "8", "0"]) / 8


def test_transient_memory_is_measured_and_grows_with_the_chunk(probed):
    _, observations, _ = probed
    rises = cells(observations, "step-transient-bytes")
    assert max(rises["block", "first-pass", "64", "236"]) >= max(rises["block", "first-pass", "8", "0"])
    assert max(rises["head", "step", "1", "16"]) < 2**20


def test_progress_rises_to_the_end(probed):
    _, _, seen = probed
    assert seen[-1] == (100, 100)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_blocks_exceed_the_cache_when_the_budget_allows(monkeypatch):
    made = defaultdict(list)
    initialize = TorchExecutor.__init__

    def recorded(self, assignment, *arguments):
        made[assignment.first_unit == 1].append(assignment.end_unit - assignment.first_unit)
        initialize(self, assignment, *arguments)

    monkeypatch.setattr(TorchExecutor, "__init__", recorded)
    probe_cost_classes(DESCRIPTION, "fp32", budget_bytes=10**8, **OPTIONS | {"seconds": 0.0})
    assert made[True] == [probing.MAX_BLOCKS]


def test_classes_that_do_not_fit_are_left_out():
    block_only = probing.STAGING_BYTES + 600_000
    observations = probe_cost_classes(DESCRIPTION, "fp32", budget_bytes=block_only, **OPTIONS | {"seconds": 0.0})
    assert {item.context_value("cost.class") for item in observations} == {"block"}


def test_a_budget_that_holds_nothing_is_an_error():
    with pytest.raises(MeasurementError, match=r"a budget of 1,000 B holds no unit in fp32: the smallest needs"):
        probe_cost_classes(DESCRIPTION, "fp32", budget_bytes=1000, **OPTIONS)


def test_without_a_resettable_peak_there_is_no_transient_figure(monkeypatch):
    monkeypatch.setattr(bench, "reset_peak", lambda: False)
    observations = probe_cost_classes(DESCRIPTION, "fp32", budget_bytes=10**8, **OPTIONS | {"seconds": 0.0})
    assert {item.metric for item in observations} == {"unit-seconds", "step-overhead-seconds"}


def test_an_unknown_representation_is_refused():
    with pytest.raises(SpecError, match="'int3'"):
        probe_cost_classes(DESCRIPTION, "int3", budget_bytes=10**8, **OPTIONS)


def test_a_timed_step_is_the_executors_own_step():
    assert "step" not in vars(probing.TimedExecutor)
    assert probing.TimedExecutor.step is TorchExecutor.step
