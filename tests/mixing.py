"""Plans that mix representations, made by hand, and what mixed chains are compared with.

`Converted` puts a conversion before an executor that knows one representation only: integer arithmetic on the bits of
the numbers, which shares nothing with the backends' own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace

from inferswarm.backends.base import StageAssignment, StepOutput
from inferswarm.planner.plan import ExecutionPlan

MIXTURE = "bf16+fp32"
ORDERS = (("bf16", "fp32"), ("fp32", "bf16"))


def mix(plan: ExecutionPlan, *representations: str, name: str = MIXTURE, payload: str = "fp32") -> ExecutionPlan:
    """Return the plan with one representation for each participant, in the order of the route."""
    placements = tuple(
        replace(
            placement,
            representation=representation,
            states=tuple(replace(state, representation=representation) for state in placement.states),
        )
        for placement, representation in zip(plan.placements, representations, strict=True)
    )
    return replace(plan, representation=name, payload_representation=payload, placements=placements)


def carrying(assignment: StageAssignment, payload: str = "fp32") -> StageAssignment:
    """Return the assignment with payloads in that representation."""
    return replace(assignment, payload_representation=payload)


def widened(payload: bytes | memoryview) -> bytes:
    """Return the fp32 bytes of bf16 numbers."""
    return (np.frombuffer(payload, dtype="<u2").astype("<u4") << 16).tobytes()


def rounded(payload: bytes | memoryview) -> bytes:
    """Return the bf16 bytes of finite fp32 numbers: the nearest, and of two equally near ones the even one."""
    bits = np.frombuffer(payload, dtype="<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


CONVERSIONS = {("bf16", "fp32"): widened, ("fp32", "bf16"): rounded}
"""(what comes, what is computed in) → how payloads are converted."""


class Converted:
    """An executor that knows one representation, behind a conversion."""

    def __init__(self, executor: Any, convert: Callable[[bytes | memoryview], bytes]) -> None:
        self._executor: Any = executor
        self._convert = convert

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def step(self, session: str, start: int, count: int, payload: bytes | memoryview, *, sample: bool) -> StepOutput:
        """Compute a step of what the payload is converted to."""
        output: StepOutput = self._executor.step(session, start, count, self._convert(payload), sample=sample)
        return output
