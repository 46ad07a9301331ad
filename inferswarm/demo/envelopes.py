"""Chooses two unlike envelopes that a model fits only together: from the measured base and the model's own sizes."""

from __future__ import annotations

import os

from inferswarm.errors import MeasurementError
from inferswarm.planner.problem import PlanningProblem, bytes_in
from inferswarm.resources.types import Envelope
from inferswarm.swarm import Swarm
from inferswarm.swarm.measuring import OnProgress

LARGER_SHARE = 0.86
SMALLER_SHARE = 0.76
"""Shares of the whole model's bytes, in its smallest representation, that the two Nodes offer beside their base."""
ROUND_BYTES = 10**6
SCALE_BYTES = 2 * 10**9
"""Envelope of the Node on which the base is weighed: far more than a base can be."""


def measure_base(state: str | None, mechanism: str, threads: int, on_progress: OnProgress) -> int:
    """Return what an empty stage and its agent cost on a Node with so many threads, as the mechanism charges it."""
    scale = Envelope(name=f"scale-{threads}", threads=threads, memory_bytes=SCALE_BYTES)
    with Swarm.local([scale], state=state, mechanism=mechanism) as swarm:
        swarm.measure(on_progress=on_progress)
        (memory,) = swarm.graph.document.memory_resources
    if memory.reserved_bytes.value is None:
        raise MeasurementError(f"the runtime base is unknown: {memory.reserved_bytes.detail}")
    return memory.reserved_bytes.value


def smallest_whole_bytes(problem: PlanningProblem) -> int:
    """Return the bytes of all states, each once, in the legal representation where that is least."""
    return min(
        sum(bytes_in(state.sizes, item.representation) for state in problem.states)
        for item in problem.implementations
    )


def choose_envelopes(
    problem: PlanningProblem, bases: tuple[int, int], threads: tuple[int, int]
) -> tuple[Envelope, ...]:
    """Return two envelopes, the first larger, each too small for the whole model, large enough together."""
    whole = smallest_whole_bytes(problem)
    sizes = [base + int(share * whole) for base, share in zip(bases, (LARGER_SHARE, SMALLER_SHARE), strict=True)]
    rounded = [size // ROUND_BYTES * ROUND_BYTES for size in sizes]
    return (
        Envelope(name="amber", threads=threads[0], memory_bytes=rounded[0]),
        Envelope(name="birch", threads=threads[1], memory_bytes=rounded[1]),
    )


def unlike_threads() -> tuple[int, int]:
    """Return the threads of the two Nodes: all that this process may use, and one."""
    return max(1, len(os.sched_getaffinity(0))), 1
