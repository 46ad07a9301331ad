"""Linear maps, with or without bias, in the fastest form that one materialization allows.

On CPUs a weight is *packed*: oneDNN reorders it once into the blocks that its kernels read, and the plain copy is
dropped. Measured on one core of an AVX-512 machine, weights larger than the last-level cache: one row 35 GB/s in
fp32 and 32 GB/s in bf16, against 16 and 15 for torch's `linear` on the plain weight; 64 rows 205 and 380 GFLOP/s
against 88 and 330. Fusing the activation or the residual into the operator gained nothing. Where oneDNN or its
operators are absent, where it would pad the weight, and on accelerators, the weight stays plain. Which it is depends
on shape, type and machine, never on a measurement at run time, and the executor's `kernel()` names it.

A large weight is cut by rows into slices of at most `SLICE_BYTES`, so that packing needs little staging. The cuts
depend on the shape alone.
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import torch
from torch.nn.functional import linear

from inferswarm.backends.torch_backend.device import set_threads

SLICE_BYTES = 8 * 2**20
PACKED = "onednn-packed"
PLAIN = "plain"
_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""What a mapping is; Python's default is shared memory, which RLIMIT_DATA does not count."""

FillRows = Callable[[int, int, torch.Tensor], None]
"""`fill(first, end, target)` writes rows [first, end) of a weight into `target`, [end - first, columns]."""


class Linear(Protocol):
    """A map from [rows, columns] to [rows, outputs]."""

    form: str
    num_bytes: int

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows @ weight.T + bias in the weight's type."""


class PlainLinear:
    """The weight as torch stores it, [outputs, columns]."""

    form = PLAIN

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self._bias = bias
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows @ weight.T + bias."""
        return linear(rows, self.weight, self._bias)


class PackedLinear:
    """The weight in oneDNN's blocks, one opaque tensor for each slice of outputs."""

    form = PACKED

    def __init__(self, slices: list[tuple[torch.Tensor, torch.Tensor | None]], num_bytes: int) -> None:
        """`slices` are blocks of the weight, each with its part of the bias."""
        self._slices = slices
        self._operator = torch.ops.mkldnn._linear_pointwise.default
        self.num_bytes = num_bytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows @ weight.T + bias."""
        operator = self._operator
        outputs: list[torch.Tensor] = [operator(rows, part, bias, "none", [], None) for part, bias in self._slices]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


class Shape(NamedTuple):
    """What a linear map's form depends on. `granule` divides the row index of every cut."""

    outputs: int
    columns: int
    dtype: torch.dtype
    granule: int = 64

    def slices(self) -> Iterator[tuple[int, int]]:
        """Yield the row intervals of the slices, in order."""
        row = self.columns * self.dtype.itemsize
        step = max(1, SLICE_BYTES // (row * self.granule)) * self.granule
        for first in range(0, self.outputs, step):
            yield first, min(first + step, self.outputs)


def build_linear(
    shape: Shape, device: torch.device, fill: FillRows, threads: int, bias: torch.Tensor | None = None
) -> Linear:
    """Return the map whose weight `fill` gives, slice by slice, each row once and in order.

    `threads` is how many the map will be used with: oneDNN may choose its blocks by it. `bias` is [outputs] in the
    weight's type. Raises MemoryError, or RuntimeError as torch does, where a limit leaves no room.
    """
    slices = list(shape.slices())
    if form_of(shape, device) == PLAIN:
        weight = torch.empty(shape.outputs, shape.columns, dtype=shape.dtype, device=device)
        for first, end in slices:
            fill(first, end, weight[first:end])
        return PlainLinear(weight, bias)
    packed = []
    plain = _staging(max(end - first for first, end in slices), shape.columns, shape.dtype)
    for first, end in slices:
        staging = plain[: end - first]
        fill(first, end, staging)
        set_threads(threads)
        # a slice of the bias gets memory of its own: where it lies must not depend on the slice
        packed.append((_pack(staging), None if bias is None else bias[first:end].clone()))
    num_values = shape.outputs * (shape.columns + (bias is not None))
    return PackedLinear(packed, num_values * shape.dtype.itemsize)


def form_of(shape: Shape, device: torch.device) -> str:
    """Return the form that a weight of this shape takes on this machine."""
    packed = device.type == "cpu" and all(
        packs(end - first, shape.columns, shape.dtype) for first, end in shape.slices()
    )
    return PACKED if packed else PLAIN


@functools.lru_cache
def packs(outputs: int, columns: int, dtype: torch.dtype) -> bool:
    """Whether oneDNN packs a weight of this shape without padding it, on this machine."""
    if not _operators_exist(dtype):
        return False
    trial = torch.empty(outputs, columns, dtype=dtype)
    packed = _pack(trial)
    return int(torch.ops.mkldnn._nbytes(packed)) == trial.nbytes


def _operators_exist(dtype: torch.dtype) -> bool:
    names = ("_reorder_linear_weight", "_linear_pointwise", "_nbytes")
    if not torch._C._has_mkldnn or not all(hasattr(torch.ops.mkldnn, name) for name in names):
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _staging(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Return [rows, columns] outside the C library's heap, given back to the system with the last view of it.

    On the heap the plain copy of each slice leaves a hole that no packed one fits into: blocks of 134 MB took 144 MB
    more than their bytes while they were made, and twice their bytes of private mappings, which RLIMIT_DATA counts
    (glibc 2.36, slices of 8 MiB). Raises MemoryError.
    """
    length = rows * columns * dtype.itemsize
    try:
        memory = mmap.mmap(-1, length, flags=_PRIVATE)
    except OSError as error:
        raise MemoryError(f"{length:,} B to build a weight by way of: {error.strerror}") from error
    return torch.frombuffer(memory, dtype=dtype).view(rows, columns)


def _pack(weight: torch.Tensor) -> torch.Tensor:
    """Return oneDNN's blocks of a plain weight; without a hint of rows, the layout that serves few and many."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed
