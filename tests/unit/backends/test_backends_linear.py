"""Linear maps: the packed form computes what the plain one does, is sliced by shape alone, and is never padded."""

from __future__ import annotations

import pytest
import torch

from inferswarm.backends.torch_backend import linear as linear_module
from inferswarm.backends.torch_backend.linear import PACKED, PLAIN, Shape, build_linear

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def weight_of(outputs, columns, dtype):
    generator = torch.Generator().manual_seed(outputs + columns)
    return (torch.randn(outputs, columns, generator=generator) / columns**0.5).to(dtype)


def build(weight, granule=64, bias=None):
    def fill(first, end, target):
        target.copy_(weight[first:end])

    with torch.inference_mode():
        return build_linear(Shape(*weight.shape, weight.dtype, granule), CPU, fill, 1, bias)


def need_packing(dtype):
    if not linear_module._operators_exist(dtype):
        pytest.skip(f"oneDNN does not pack {dtype} on this machine: there is only the plain form")


@DTYPES
@pytest.mark.parametrize("rows", [1, 2, 3, 17, 64])
@pytest.mark.parametrize("shape", [(128, 64), (960, 576), (100, 64), (37, 20)])
def test_every_form_computes_the_product(dtype, rows, shape):
    weight = weight_of(*shape, dtype)
    inputs = weight_of(rows, shape[1], dtype) * shape[1] ** 0.5
    exact = inputs.double() @ weight.double().T
    with torch.inference_mode():
        found = build(weight)(inputs).double()
    assert found.shape == exact.shape
    assert (found - exact).abs().max() <= TOLERANCE[dtype] * exact.abs().max()


@DTYPES
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("slice_bytes", [linear_module.SLICE_BYTES, 64 * 64 * 4])
@pytest.mark.parametrize("shape", [(256, 64), (37, 20)])
def test_every_form_adds_the_bias(monkeypatch, dtype, rows, slice_bytes, shape):
    monkeypatch.setattr(linear_module, "SLICE_BYTES", slice_bytes)
    weight, bias = weight_of(*shape, dtype), weight_of(3, shape[0], dtype)[1] * 10
    inputs = weight_of(rows, shape[1], dtype)
    exact = inputs.double() @ weight.double().T + bias.double()
    with torch.inference_mode():
        built = build(weight, bias=bias)
        found = built(inputs).double()
    assert (found - exact).abs().max() <= TOLERANCE[dtype] * exact.abs().max()
    assert built.num_bytes == weight.nbytes + bias.nbytes


@DTYPES
def test_ordinary_shapes_are_packed_here_and_ragged_ones_are_not(dtype):
    need_packing(dtype)
    assert build(weight_of(128, 64, dtype)).form == PACKED
    assert build(weight_of(37, 20, dtype)).form == PLAIN


@DTYPES
def test_packing_adds_no_bytes(dtype):
    weight = weight_of(960, 576, dtype)
    assert build(weight).num_bytes == weight.nbytes


@DTYPES
def test_slices_are_cut_by_shape_at_whole_granules(dtype, monkeypatch):
    need_packing(dtype)
    monkeypatch.setattr(linear_module, "SLICE_BYTES", 64 * 64 * dtype.itemsize * 2)
    shape = Shape(320, 64, dtype, granule=96)
    assert list(shape.slices()) == [(0, 96), (96, 192), (192, 288), (288, 320)]
    weight = weight_of(320, 64, dtype)
    inputs = weight_of(3, 64, dtype)
    with torch.inference_mode():
        sliced = build(weight, granule=64)
        monkeypatch.undo()
        assert len(sliced._slices) == 3
        torch.testing.assert_close(sliced(inputs), build(weight)(inputs))


def test_a_granule_larger_than_a_slice_still_makes_progress(monkeypatch):
    monkeypatch.setattr(linear_module, "SLICE_BYTES", 1024)
    assert list(Shape(512, 64, torch.float32, 256).slices()) == [(0, 256), (256, 512)]


def test_without_the_operators_weights_stay_plain(monkeypatch):
    monkeypatch.setattr(linear_module, "_operators_exist", lambda dtype: False)
    linear_module.packs.cache_clear()
    try:
        assert build(weight_of(128, 64, torch.float32)).form == PLAIN
    finally:
        linear_module.packs.cache_clear()


@DTYPES
def test_the_same_rows_give_the_same_bits_again_from_anywhere_in_memory(dtype):
    weight = weight_of(576, 576, dtype)
    inputs = weight_of(5, 576, dtype)
    padded = torch.zeros(9, 576, dtype=dtype)
    padded[3:8] = inputs
    with torch.inference_mode():
        found = build(weight)
        first = found(inputs)
        assert torch.equal(found(inputs.clone()), first)
        assert torch.equal(build(weight)(padded[3:8].clone()), first)
