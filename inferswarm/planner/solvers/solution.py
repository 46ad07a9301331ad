"""What every solver answers, and what it may spend."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from inferswarm.planner.solvers.instance import Steps

Method = Literal["dynamic programming", "constraint programming", "bounded heuristic"]
SolverStatus = Literal["OPTIMAL", "FEASIBLE", "INFEASIBLE", "UNKNOWN"]
"""OPTIMAL: proved the best within `rounding`. FEASIBLE: a plan, and a bound. INFEASIBLE: proved that there is none.
UNKNOWN: no plan found, and no proof that there is none."""


class SolverLimits(NamedTuple):
    """What a search may spend. Equal inputs give equal answers with one thread and when no time limit cuts in."""

    seconds: float = 10.0
    """Wall time of the search; what is found by then is returned with its gap. It is not cut off to the second: a
    program is built before it is searched, and what is running finishes its step."""
    num_threads: int = 1
    """Of the constraint program. More are not always faster: they search in different ways, and share the cores."""
    seed: int = 0
    clock: Callable[[], float] = time.perf_counter
    """Read only to keep within `seconds` and to report."""


class Solution(NamedTuple):
    """A solver's answer. `bound` is proved: no route has a smaller value. It is infinite when there is no route."""

    method: Method
    status: SolverStatus
    steps: Steps | None
    value: float | None
    bound: float
    rounding: float
    """How far the solver's rounded numbers may be off for one route; `bound` is already reduced by it."""
    wall_seconds: float
    why: str
    """Why this method was chosen."""

    @property
    def gap(self) -> float:
        """Return (value - bound) / value: 0 when proved, infinite without a plan."""
        if self.value is None:
            return math.inf
        if self.value <= 0:
            return 0.0
        return max(0.0, (self.value - self.bound) / self.value)
