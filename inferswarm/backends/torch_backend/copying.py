"""How fast bytes move between RAM and an accelerator: both ways, small and large, pinned RAM and pageable.

Every sample is one copy, from its start until the accelerator has finished it. All combinations take turns. A stage
moves payloads of the small size between steps, and states of the large one when it is materialized.
"""

from __future__ import annotations

import time
from itertools import product
from typing import Final, Literal, NamedTuple

import torch

from inferswarm.backends.torch_backend.device import finish
from inferswarm.errors import MeasurementError, SpecError

PAYLOAD_BYTES: Final = (64 * 2**10, 16 * 2**20)
WARM_UP_COPIES: Final = 3
_MIN_SAMPLES: Final = 15
_MAX_SAMPLES: Final = 200
_BASE_SAMPLES: Final = 5

Direction = Literal["into", "out-of"]


class Copied(NamedTuple):
    """Seconds of each copy, raw and in the order taken; `into` is from RAM to the accelerator."""

    direction: Direction
    payload_bytes: int
    pinned: bool
    samples: tuple[float, ...]

    @property
    def bytes_per_second(self) -> tuple[float, ...]:
        """The same as rates."""
        return tuple(self.payload_bytes / seconds for seconds in self.samples)


def measure_copies(device: torch.device, seconds: float) -> tuple[Copied, ...]:
    """Copy each size both ways, from and to both kinds of RAM, in turns for about `seconds`.

    At least 15 samples of each, after a warm-up. Raises SpecError for a CPU, which has nothing to copy to.
    """
    _refuse_cpu(device)
    directions: tuple[Direction, ...] = ("into", "out-of")
    combinations = list(product(directions, PAYLOAD_BYTES, (True, False)))
    near = {
        (size, pinned): torch.ones(size, dtype=torch.uint8, pin_memory=pinned)
        for size, pinned in product(PAYLOAD_BYTES, (True, False))
    }
    far = {size: torch.zeros(size, dtype=torch.uint8, device=device) for size in PAYLOAD_BYTES}
    samples: dict[tuple[Direction, int, bool], list[float]] = {item: [] for item in combinations}
    deadline = time.monotonic() + seconds
    turn = 0
    while turn < WARM_UP_COPIES + _MIN_SAMPLES or (turn < _MAX_SAMPLES and time.monotonic() < deadline):
        for item in combinations:
            direction, size, pinned = item
            target, source = far[size], near[size, pinned]
            if direction == "out-of":
                target, source = source, target
            taken = _seconds(target, source, device)
            if turn >= WARM_UP_COPIES:
                samples[item].append(taken)
        turn += 1
    if any(int(tensor.min()) != 1 for tensor in far.values()):
        raise MeasurementError(f"copies to {device} did not arrive")
    return tuple(Copied(*item, tuple(samples[item])) for item in combinations)


def taken_bytes(device: torch.device) -> tuple[float, ...]:
    """Return how many bytes of an accelerator's memory are not free now, whoever holds them; five samples.

    Raises SpecError for a CPU, MeasurementError where torch does not tell.
    """
    _refuse_cpu(device)
    backend = torch.get_device_module(device.type)
    if not hasattr(backend, "mem_get_info"):
        raise MeasurementError(f"torch {torch.__version__} does not tell how much memory of {device} is free")
    samples = []
    for _ in range(_BASE_SAMPLES):
        free, whole = backend.mem_get_info(device)
        samples.append(float(whole - free))
    return tuple(samples)


def _refuse_cpu(device: torch.device) -> None:
    if device.type == "cpu":
        raise SpecError("compute unit kind", "cpu", "an accelerator: a CPU computes where its states lie")


def _seconds(target: torch.Tensor, source: torch.Tensor, device: torch.device) -> float:
    finish(device)
    started = time.perf_counter()
    target.copy_(source)
    finish(device)
    return time.perf_counter() - started
