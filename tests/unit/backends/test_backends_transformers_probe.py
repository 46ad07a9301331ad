"""The probe of hosted models: every cost class at every point through the real executor, truthfully labelled."""

from __future__ import annotations

import msgspec
import pytest
import torch

from inferswarm.backends.probe import MIN_SAMPLES, probe_cost_classes
from inferswarm.backends.transformers_backend.describing import describe_hosted
from inferswarm.backends.transformers_backend.probing import probe_hosted
from inferswarm.errors import MeasurementError, SpecError
from inferswarm.strategies.problem import STAGING_BYTES
from inferswarm.strategies.shape import block_classes, shape_digest
from tests.hosted import save_family

OPTIONS = {"compute_unit_id": "cu", "threads": 1, "max_positions": 96, "chunk_positions": 32, "seconds": 0.2}
BUDGET = 10**8


@pytest.fixture(scope="module")
def description(tmp_path_factory):
    return describe_hosted(save_family("deepseek_v3", tmp_path_factory.mktemp("model")))[0]


@pytest.fixture(scope="module")
def observations(description):
    return probe_cost_classes(description, "fp32", budget_bytes=BUDGET, **OPTIONS)


def points(observations, metric):
    keys = ("cost.class", "phase", "positions", "context.positions")
    return {
        tuple(item.context_value(key) for key in keys): item.samples for item in observations if item.metric == metric
    }


def test_every_class_is_measured_at_every_point_with_enough_samples(description, observations):
    classes = set(block_classes(description))
    assert len(classes) == 2  # the first block has no experts
    expected = {("embedding", "step", "1", "16"), ("head", "step", "1", "16")}
    expected |= {("embedding", "first-pass", size, "0") for size in ("8", "16", "32")}
    for name in classes:
        expected |= {(name, "step", "1", context) for context in ("16", "95")}
        expected |= {(name, "first-pass", size, context) for size in ("8", "16", "32") for context in ("0", "64")}
    for metric in ("unit-seconds", "step-overhead-seconds"):
        assert set(points(observations, metric)) == expected
    assert all(len(samples) >= MIN_SAMPLES for samples in points(observations, "unit-seconds").values())
    assert all(min(samples) > 0 for samples in points(observations, "unit-seconds").values())


def test_the_context_says_that_the_host_computed(description, observations):
    for item in observations:
        assert item.context_value("backend") == "transformers"
        assert item.context_value("model.shape") == shape_digest(description)
        assert item.context_value("torch") == torch.__version__


def test_what_does_not_fit_is_left_out_and_nothing_at_all_is_an_error(description):
    wide = msgspec.structs.replace(description, kept_values_per_position=(10**9,) * 3)  # no block fits any more
    found = probe_hosted(wide, "bf16", 1, 96, 32, BUDGET, 0.1, 1)
    assert {cell.cost_class for cell in found} == {"embedding", "head"}
    with pytest.raises(MeasurementError, match="holds no unit in bf16"):
        probe_hosted(wide, "bf16", 1, 96, 32, STAGING_BYTES, 0.1, 1)


def test_an_unknown_representation_is_refused(description):
    with pytest.raises(SpecError, match="'int4'"):
        probe_cost_classes(description, "int4", budget_bytes=BUDGET, **OPTIONS)
