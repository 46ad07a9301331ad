"""A first pass through a participant before it serves: what a library prepares at its first use is ready then."""

from __future__ import annotations

from inferswarm.backends.base import Counters, StageAssignment, StageExecutor
from inferswarm.backends.sessions import payload_bytes

_SESSION = "warm-up"


def warm_up(executor: StageExecutor, assignment: StageAssignment) -> Counters:
    """Compute a chunk and a step of zeros in a session of its own, and forget it. Returns what was counted so far.

    Whatever is wrong with the participant's states shows here, before it has authority: raises FabricError as every
    step does.
    """
    last = assignment.end_unit == len(assignment.description.unit_ids)
    chunk = min(assignment.chunk_positions, assignment.max_positions - 1)
    executor.open(_SESSION)
    try:
        for start, count in ((0, chunk), (chunk, 1)):
            if count:
                executor.step(_SESSION, start, count, bytes(payload_bytes(assignment, count)), sample=last)
    finally:
        executor.close(_SESSION)
    return executor.counters()
