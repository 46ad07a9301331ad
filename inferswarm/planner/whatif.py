"""What asking again tells about a decision: what else was to be had, what would change it, what to measure.

Each part solves variations of the question within its share of the time, and names what it could not settle.
"""

from __future__ import annotations

from inferswarm.documents import Document
from inferswarm.planner.counterfactuals import Counterfactuals, counterfactuals
from inferswarm.planner.measurements import WorthMeasuring, worth_measuring
from inferswarm.planner.pareto import ParetoFront, pareto_front
from inferswarm.planner.plan import Decision
from inferswarm.planner.resolving import Inputs
from inferswarm.planner.solvers.solution import SolverLimits


class WhatIf(Document, frozen=True, kw_only=True):
    """What else was to be had, what would have to be different, and which measurements could change the decision."""

    front: ParetoFront
    changes: Counterfactuals
    measurements: WorthMeasuring


def varied(inputs: Inputs, decision: Decision, seconds: float) -> WhatIf:
    """Ask a decision's question again, varied, within so many seconds in all. Raises SpecError for wrong input."""
    share = SolverLimits(seconds=seconds / 3)
    return WhatIf(
        front=pareto_front(inputs, decision, share),
        changes=counterfactuals(inputs, share),
        measurements=worth_measuring(inputs, decision, share),
    )
