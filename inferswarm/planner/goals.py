"""What a search makes least, and the limits on single figures of a plan that it keeps.

The objective is one figure, or two weighed. What is asked again about a decision makes another figure least; the
limits stay those of objective and policy. What is predicted is a request that is alone, but for the wait between
tokens with all sessions at work.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import msgspec

from inferswarm.planner.objective import excessive_wait, shares_of
from inferswarm.planner.plan import ExecutionPlan, Interval
from inferswarm.planner.problem import Policy, Workload
from inferswarm.planner.search import SLACK
from inferswarm.planner.solvers.gauges import Goal
from inferswarm.units import format_seconds

Aim = Literal["workload", "first-token", "next-token", "throughput"]
"""What to make best: the workload's own objective, or one figure alone."""
MANY_TOKENS = 10**6
"""Steps that outweigh every first token, where the time between tokens alone counts."""


class ServiceLimits(NamedTuple):
    """The most seconds to the first token and of a whole request; None without a limit."""

    first_token: float | None
    request: float | None

    def broken_by(self, plan: ExecutionPlan | None) -> tuple[str, ...]:
        """Say which limits a plan breaks, in numbers; none where it has no prediction."""
        if plan is None or plan.prediction is None:
            return ()
        checks: tuple[tuple[str, Interval, float | None], ...] = (
            ("the first token", plan.prediction.ttft, self.first_token),
            ("a request", plan.prediction.request, self.request),
        )
        return tuple(
            f"{what} takes {format_seconds(figure.point)}, at most {format_seconds(limit)} are allowed"
            for what, figure, limit in checks
            if limit is not None and figure.point > limit * (1 + SLACK)
        )


def limits_of(workload: Workload, policy: Policy) -> ServiceLimits:
    """Return the limits of objective and policy together: the stricter one of each."""
    own = policy.max_first_token_seconds
    firsts = [workload.max_first_token_seconds, None if isinstance(own, msgspec.UnsetType) else own]
    request = policy.max_request_seconds
    return ServiceLimits(
        min((limit for limit in firsts if limit is not None), default=None),
        None if isinstance(request, msgspec.UnsetType) else request,
    )


def broken_by(plan: ExecutionPlan | None, policy: Policy) -> tuple[str, ...]:
    """Say which limits a plan breaks, in numbers: those of the policy, and the objective's on first token and wait.

    None where it has no prediction. The least rate is not among them: searches keep it for every plan.
    """
    if plan is None:
        return ()
    broken = limits_of(plan.workload, policy).broken_by(plan)
    waited, most = excessive_wait(plan.workload, plan.prediction), plan.workload.max_inter_token_seconds
    if waited is None or most is None:
        return broken
    wait = f"a session waits {format_seconds(waited)} between tokens, at most {format_seconds(most)} are allowed"
    return (*broken, wait)


def goal_of(workload: Workload, policy: Policy, aim: Aim = "workload") -> Goal:
    """Return what a search makes least for an aim, within every limit of the workload and the policy."""
    limits, shares = limits_of(workload, policy), shares_of(workload)
    wait, rate, later = workload.max_inter_token_seconds, policy.min_tokens_per_second, workload.output_tokens - 1
    factors = {
        "workload": (shares.request, later, shares.cadence),
        "first-token": (1.0, 0, 0.0),
        "next-token": (1.0, MANY_TOKENS, 0.0),
        "throughput": (0.0, 0, 1.0),
    }
    request, tokens, cadence = factors[aim]
    return Goal(
        request=request,
        later_tokens=tokens,
        cadence=cadence,
        sessions=workload.concurrency,
        first_limit=math.inf if limits.first_token is None else limits.first_token,
        request_limit=math.inf if limits.request is None else limits.request,
        request_tokens=later,
        step_limit=math.inf if rate is None else 1 / rate,
        wait_limit=math.inf if wait is None else wait,
    )
