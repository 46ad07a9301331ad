"""Nodes that a model fits on only together, chosen from what an empty Node costs and from the model's own sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from inferswarm.demo.envelopes import LARGER_SHARE, ROUND_BYTES, SMALLER_SHARE, measure_base, smallest_whole_bytes
from inferswarm.planner.problem import PlanningProblem
from inferswarm.resources.types import Envelope
from inferswarm.swarm.measuring import each_once


class Seat(NamedTuple):
    """What a Node is to be: its name, its threads, and the share of the whole model's bytes that it offers."""

    name: str
    threads: int
    share: float


TWO_SEATS = (Seat("amber", 2, LARGER_SHARE), Seat("birch", 1, SMALLER_SHARE))
"""Neither holds a whole model beside what it costs to run; both together do, with the token table twice."""
THREE_SEATS = (Seat("amber", 2, 0.64), Seat("birch", 1, 0.56), Seat("cedar", 1, 0.48))
"""No two of them hold a whole model, because its token table is needed at both ends; all three do."""
CROSSED_SEATS = (Seat("amber", 1, LARGER_SHARE), Seat("birch", 2, SMALLER_SHARE))
"""As the two, but the one with more memory has fewer threads."""
ALIKE_SEATS = (Seat("amber", 1, SMALLER_SHARE), Seat("birch", 1, SMALLER_SHARE), Seat("cedar", 1, SMALLER_SHARE))
"""Any two of them hold a whole model, and compute it in the same arithmetic."""
AMPLE_BYTES = 1_200_000_000
"""More than any part of SmolLM2-135M takes in any representation: of a Node that memory shall not limit."""
LARGE_BYTES = 2_000_000_000
"""The same for Gemma 3 270M, with a courier beside it."""


def seated(
    problem: PlanningProblem, seats: Sequence[Seat], state: Path, mechanism: str, say: Callable[[str], None]
) -> tuple[Envelope, ...]:
    """Measure what an empty Node of each number of threads costs, and return the envelopes of the seats.

    Raises EnvelopeExceeded or MeasurementError when that cannot be measured.
    """
    whole = smallest_whole_bytes(problem)
    bases = {
        threads: measure_base(str(state), mechanism, threads, each_once(say))
        for threads in sorted({seat.threads for seat in seats})
    }
    return tuple(
        Envelope(
            name=seat.name,
            threads=seat.threads,
            memory_bytes=(bases[seat.threads] + int(seat.share * whole)) // ROUND_BYTES * ROUND_BYTES,
        )
        for seat in seats
    )


def ample(names: Sequence[str], threads: int = 1, memory_bytes: int = AMPLE_BYTES) -> tuple[Envelope, ...]:
    """Return envelopes that memory does not limit, all with so many threads: of equal arithmetic."""
    return tuple(Envelope(name=name, threads=threads, memory_bytes=memory_bytes) for name in names)
