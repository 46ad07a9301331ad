"""What should happen: from an abstract problem and measured economics to a plan or a truthful refusal. Pure."""

from inferswarm.planner.decide import MAX_COMPUTE_UNITS, check_drift, decide, force_plan, require_plan
from inferswarm.planner.economics import Economics, PathCurve, ServiceCurve
from inferswarm.planner.explain import explain
from inferswarm.planner.memory import allocated_positions
from inferswarm.planner.plan import (
    CandidateFamily,
    Decision,
    ExecutionPlan,
    MemoryAccount,
    MemoryTerm,
    Placement,
    Prediction,
    SolverReport,
)
from inferswarm.planner.problem import PlanningProblem, Policy, Throughput, Workload
from inferswarm.planner.solvers.solution import SolverLimits

__all__ = [
    "MAX_COMPUTE_UNITS",
    "CandidateFamily",
    "Decision",
    "Economics",
    "ExecutionPlan",
    "MemoryAccount",
    "MemoryTerm",
    "PathCurve",
    "Placement",
    "PlanningProblem",
    "Policy",
    "Prediction",
    "ServiceCurve",
    "SolverLimits",
    "SolverReport",
    "Throughput",
    "Workload",
    "allocated_positions",
    "check_drift",
    "decide",
    "explain",
    "force_plan",
    "require_plan",
]
