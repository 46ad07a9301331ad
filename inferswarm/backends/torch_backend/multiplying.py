"""How fast linear maps run here, in the form in which models would hold them: one row, and a chunk of rows.

The maps are square, and there are as many of them as exceed the last-level cache well, or as fit: each sample goes
through all of them once. One row reads every weight for two operations; a chunk of rows is bound by arithmetic.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import msgspec
import torch

from inferswarm.backends.base import UnitBinding
from inferswarm.backends.torch_backend.bench import WARM_UP_ROUNDS, wanted_bytes
from inferswarm.backends.torch_backend.device import device_of, dtype_of, finish, set_threads
from inferswarm.backends.torch_backend.linear import Linear, Shape, build_linear
from inferswarm.errors import MeasurementError

SIDE: Final = 2048
ROWS: Final = (1, 64)
_MIN_SAMPLES: Final = 8
_MAX_SAMPLES: Final = 200


class Multiplied(NamedTuple):
    """Operations (two for each weight and row) per second, raw and in the order taken, for one number of rows."""

    rows: int
    set_bytes: int
    form: str
    samples: tuple[float, ...]


@torch.inference_mode()
def measure_multiply(
    representation: str,
    threads: int,
    budget_bytes: int,
    seconds: float,
    compute_unit: UnitBinding | msgspec.UnsetType = msgspec.UNSET,
) -> tuple[Multiplied, ...]:
    """Multiply with each of `ROWS` rows in turn for about `seconds`, at least eight samples of each.

    On the CPU, unless another Compute Unit is named. Raises SpecError for a representation or an accelerator that
    torch does not have, MeasurementError when not one map fits into `budget_bytes`.
    """
    dtype = dtype_of(representation)
    device = device_of(compute_unit)
    each = SIDE * SIDE * dtype.itemsize
    num = min(-(-wanted_bytes() // each), budget_bytes // each - 1)  # one is staging while the next is built
    if num < 1:
        raise MeasurementError(
            f"multiplying in {representation}: needs {2 * each:,} B for one map of {SIDE} × {SIDE}, "
            f"has {budget_bytes:,} B"
        )
    set_threads(threads)
    generator = torch.Generator().manual_seed(0)

    def fill(first: int, end: int, target: torch.Tensor) -> None:
        target.copy_(torch.randn(end - first, SIDE, generator=generator))

    maps = [build_linear(Shape(SIDE, SIDE, dtype), device, fill, threads) for _ in range(num)]
    inputs = {rows: torch.randn(rows, SIDE, generator=generator).to(device, dtype) for rows in ROWS}
    samples: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(WARM_UP_ROUNDS):
        for given in inputs.values():
            _seconds(maps, given)
    deadline = time.monotonic() + seconds
    while (done := len(samples[ROWS[0]])) < _MIN_SAMPLES or (done < _MAX_SAMPLES and time.monotonic() < deadline):
        for rows, given in inputs.items():
            samples[rows].append(2 * rows * SIDE * SIDE * num / _seconds(maps, given))
    return tuple(Multiplied(rows, num * each, maps[0].form, tuple(samples[rows])) for rows in ROWS)


def _seconds(maps: list[Linear], given: torch.Tensor) -> float:
    started = time.perf_counter()
    for linear in maps:
        linear(given)
    finish(given.device)
    return time.perf_counter() - started
