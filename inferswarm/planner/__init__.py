"""What should happen: from an abstract problem and measured economics to a plan or a truthful refusal. Pure."""

from inferswarm.planner.binding import Binding, bindings
from inferswarm.planner.change import (
    ChangeHistory,
    ChangePolicy,
    ChangeVerdict,
    ProposedChange,
    after_change,
    gain_confidence,
    judge_change,
)
from inferswarm.planner.counterfactuals import Counterfactual, Counterfactuals, counterfactuals
from inferswarm.planner.decide import MAX_COMPUTE_UNITS, check_drift, decide, force_plan, require_plan
from inferswarm.planner.economics import Economics, PathCurve, ServiceCurve
from inferswarm.planner.explain import explain
from inferswarm.planner.measurements import DecisiveMeasurement, WorthMeasuring, worth_measuring
from inferswarm.planner.memory import allocated_positions
from inferswarm.planner.pareto import ParetoFront, ParetoPoint, pareto_front
from inferswarm.planner.plan import (
    ESTIMATE,
    Breakdown,
    CandidateFamily,
    Decision,
    ExecutionPlan,
    MemoryAccount,
    MemoryTerm,
    Placement,
    Prediction,
    SolverReport,
)
from inferswarm.planner.problem import Mix, PlanningProblem, Policy, Reservation, Throughput, Workload
from inferswarm.planner.qualification import QualificationRecord, QualifiedMake
from inferswarm.planner.resolving import Inputs
from inferswarm.planner.solvers.solution import SolverLimits
from inferswarm.planner.whatif import WhatIf, varied

__all__ = [
    "ESTIMATE",
    "MAX_COMPUTE_UNITS",
    "Binding",
    "Breakdown",
    "CandidateFamily",
    "ChangeHistory",
    "ChangePolicy",
    "ChangeVerdict",
    "Counterfactual",
    "Counterfactuals",
    "Decision",
    "DecisiveMeasurement",
    "Economics",
    "ExecutionPlan",
    "Inputs",
    "MemoryAccount",
    "MemoryTerm",
    "Mix",
    "ParetoFront",
    "ParetoPoint",
    "PathCurve",
    "Placement",
    "PlanningProblem",
    "Policy",
    "Prediction",
    "ProposedChange",
    "QualificationRecord",
    "QualifiedMake",
    "Reservation",
    "ServiceCurve",
    "SolverLimits",
    "SolverReport",
    "Throughput",
    "WhatIf",
    "Workload",
    "WorthMeasuring",
    "after_change",
    "allocated_positions",
    "bindings",
    "check_drift",
    "counterfactuals",
    "decide",
    "explain",
    "force_plan",
    "gain_confidence",
    "judge_change",
    "pareto_front",
    "require_plan",
    "varied",
    "worth_measuring",
]
