"""Solvers behind one seam: a priced instance in, a solution with a proved bound out."""

from inferswarm.planner.solvers.building import Built, build_instance
from inferswarm.planner.solvers.instance import Common, Hold, Instance, Part, Profile, Steps, evaluate
from inferswarm.planner.solvers.solution import Solution, SolverLimits
from inferswarm.planner.solvers.solving import solve

__all__ = [
    "Built",
    "Common",
    "Hold",
    "Instance",
    "Part",
    "Profile",
    "Solution",
    "SolverLimits",
    "Steps",
    "build_instance",
    "evaluate",
    "solve",
]
