"""What should happen: from an abstract problem and measured economics to a plan or a truthful refusal. Pure."""

from inferswarm.planner.economics import Economics, PathCurve, ServiceCurve
from inferswarm.planner.plan import Decision, ExecutionPlan, Placement, Prediction
from inferswarm.planner.problem import PlanningProblem, Policy, Workload

__all__ = [
    "Decision",
    "Economics",
    "ExecutionPlan",
    "PathCurve",
    "Placement",
    "PlanningProblem",
    "Policy",
    "Prediction",
    "ServiceCurve",
    "Workload",
]
