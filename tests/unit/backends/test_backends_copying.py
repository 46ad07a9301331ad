"""Copies to and from an accelerator, and how one is found: measured where there is one, refused by name elsewhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from inferswarm.backends import probe
from inferswarm.backends.base import UnitBinding
from inferswarm.backends.torch_backend import copying, device
from inferswarm.errors import MeasurementError, SpecError
from inferswarm.resources.identity import accelerator_id
from tests.unit.backends.backends_support import small_description

CPU = torch.device("cpu")
WAYS = [
    (direction, size, pinned)
    for direction in ("into", "out-of")
    for size in (64 * 2**10, 16 * 2**20)
    for pinned in (True, False)
]


def test_a_cpu_has_nothing_to_copy_to():
    for measure in (lambda: copying.measure_copies(CPU, 0.0), lambda: copying.taken_bytes(CPU)):
        with pytest.raises(SpecError, match="'cpu', needed an accelerator"):
            measure()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator here")
def test_without_an_accelerator_the_probe_is_refused_by_name():
    with pytest.raises(SpecError, match=r"compute unit: found 'cuda 0', needed one that torch \S+ can use here"):
        probe.probe_accelerator("cuda-0123", "cuda", memory_id="vram-0123", seconds=0.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator here")
def test_cost_classes_and_multiplying_on_a_missing_accelerator_are_refused_by_name():
    on = {"compute_unit_id": "cuda-0123", "kind": "cuda", "threads": 1, "budget_bytes": 10**8, "seconds": 0.0}
    with pytest.raises(SpecError, match="'cuda 0'"):
        probe.probe_cost_classes(small_description(), "fp32", max_positions=64, chunk_positions=8, **on)
    with pytest.raises(SpecError, match="'cuda 0'"):
        probe.probe_multiply("fp32", **on)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA accelerator")
def test_every_way_is_copied_and_recorded():
    properties = torch.cuda.get_device_properties(0)
    unit = accelerator_id("cuda", device.plain_uuid(str(properties.uuid)))
    records, _ = probe.probe_accelerator(unit, "cuda", memory_id="vram-1", seconds=0.0)
    assert [(record.subject, record.metric) for record in records[:1]] == [("vram-1", "runtime-base-bytes")]
    found = [
        (
            record.context_value("direction"),
            int(record.context_value("payload.bytes")),
            record.context_value("pinned") == "yes",
        )
        for record in records[1:]
    ]
    assert found == WAYS
    assert all(len(record.samples) >= 15 and min(record.samples) > 0 for record in records[1:])


class Memory:
    """Stands in for an accelerator's part of torch: copies take its clock a second for each MiB, and may be lost."""

    def __init__(self, monkeypatch, *, lost=False):
        self.clock = 0.0
        allocate = torch.ones
        monkeypatch.setattr(copying.time, "perf_counter", lambda: self.clock)
        monkeypatch.setattr(copying, "finish", lambda where: None)
        monkeypatch.setattr(copying, "_refuse_cpu", lambda where: None)
        monkeypatch.setattr(torch, "ones", lambda *size, pin_memory, **more: allocate(*size, **more))
        copy = torch.Tensor.copy_

        def copy_(target, source):
            self.clock += source.numel() / 2**20
            return target if lost else copy(target, source)

        monkeypatch.setattr(torch.Tensor, "copy_", copy_)


def test_all_ways_take_turns_and_the_warm_up_is_left_out(monkeypatch):
    Memory(monkeypatch)
    found = copying.measure_copies(CPU, 0.0)
    assert [(item.direction, item.payload_bytes, item.pinned) for item in found] == WAYS
    for item in found:
        assert item.samples == (pytest.approx(item.payload_bytes / 2**20),) * 15
        assert item.bytes_per_second[0] == pytest.approx(2**20)


def test_copies_that_do_not_arrive_are_no_measurement(monkeypatch):
    Memory(monkeypatch, lost=True)
    with pytest.raises(MeasurementError, match="did not arrive"):
        copying.measure_copies(CPU, 0.0)


def test_an_accelerator_is_found_by_its_identity_wherever_it_is_in_the_list(monkeypatch):
    cards = [SimpleNamespace(name="Card", uuid=f"GPU-{name}") for name in ("AA", "BB")]
    backend = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: len(cards), get_device_properties=cards.__getitem__
    )
    monkeypatch.setattr(torch, "get_device_module", lambda name: backend)
    binding = UnitBinding(id=accelerator_id("cuda", "bb"), kind="cuda")
    assert device.device_of(binding) == torch.device("cuda", 1)
    cards.reverse()
    assert device.device_of(binding) == torch.device("cuda", 0)
    cards[0].uuid = None
    with pytest.raises(
        SpecError, match=r"needed one of the accelerators of torch .* here: \['Card \(without a UUID\)"
    ):
        device.device_of(binding)
