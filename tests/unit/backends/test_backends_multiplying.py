"""The multiplying probe: all maps in each sample, both numbers of rows, truthful context, a budget that is kept."""

from __future__ import annotations

import pytest
import torch

from inferswarm.backends import probe
from inferswarm.backends.torch_backend import multiplying
from inferswarm.errors import MeasurementError, SpecError

MAP_BYTES = 128 * 128 * 4


@pytest.fixture(autouse=True)
def small_maps(monkeypatch):
    monkeypatch.setattr(multiplying, "SIDE", 128)
    monkeypatch.setattr(multiplying, "wanted_bytes", lambda: 5 * MAP_BYTES - 1)


def test_enough_maps_are_made_and_each_sample_goes_through_all_of_them(monkeypatch):
    clock = iter(float(second) for second in range(10**6))
    monkeypatch.setattr(multiplying.time, "perf_counter", lambda: next(clock))
    found = multiplying.measure_multiply("fp32", 1, 10**8, 0.0)
    assert [item.rows for item in found] == [1, 64]
    assert {item.set_bytes for item in found} == {5 * MAP_BYTES}
    for item in found:  # one second by this clock
        assert item.samples == (2 * item.rows * 128 * 128 * 5.0,) * 8


def test_a_small_budget_makes_fewer_maps_and_leaves_room_to_build_one():
    found = multiplying.measure_multiply("fp32", 1, 3 * MAP_BYTES, 0.0)
    assert {item.set_bytes for item in found} == {2 * MAP_BYTES}
    with pytest.raises(MeasurementError, match="needs 131,072 B for one map of 128 × 128, has 131,071 B"):
        multiplying.measure_multiply("fp32", 1, 2 * MAP_BYTES - 1, 0.0)


@pytest.mark.parametrize("representation", ["fp32", "bf16"])
def test_the_record_says_what_was_multiplied(representation):
    options = {"compute_unit_id": "cu", "threads": 1, "budget_bytes": 10**8, "seconds": 0.0}
    records = probe.probe_multiply(representation, **options)
    assert [record.context_value("shape") for record in records] == ["1x128x128", "64x128x128"]
    for record in records:
        assert (record.subject, record.metric, record.unit) == ("cu", "multiply-rate", "FLOP/s")
        assert record.context_value("representation") == representation
        assert record.context_value("torch") == torch.__version__
        assert record.context_value("form") in ("onednn-packed", "plain")
        assert min(record.samples) > 0


def test_an_unknown_representation_is_refused():
    with pytest.raises(SpecError, match="'int3'"):
        multiplying.measure_multiply("int3", 1, 10**8, 0.0)
