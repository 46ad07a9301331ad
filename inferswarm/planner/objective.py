"""The one objective: how much a request's time and the cadence of many sessions weigh in the value of a plan.

    value = request × (time of one request alone) + cadence × (seconds for each token of all sessions together)

Both count in seconds, and the least value is the best. With C sessions at once the second is
max(Σ steps / C, slowest step) over all parts of a plan.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from inferswarm.planner.plan import Prediction
from inferswarm.planner.problem import Mix, Workload
from inferswarm.planner.search import SLACK


class Shares(NamedTuple):
    """What counts: `request` for the time of a request, `cadence` for the time for each token of all sessions."""

    request: float
    cadence: float

    def value(self, request_seconds: float, token_seconds: float) -> float:
        """Return the value of a plan from its two figures, in seconds."""
        return (self.request * request_seconds if self.request else 0.0) + (
            self.cadence * token_seconds if self.cadence else 0.0
        )


def shares_of(workload: Workload) -> Shares:
    """Return what counts in a workload's objective; in a mix, all of a request's tokens count."""
    objective = workload.objective
    if isinstance(objective, Mix):
        return Shares(objective.request_weight, (1 - objective.request_weight) * workload.output_tokens)
    return Shares(1.0, 0.0) if isinstance(objective, msgspec.UnsetType) else Shares(0.0, 1.0)


def predicted_value(workload: Workload, prediction: Prediction) -> float:
    """Return the value of a plan by its prediction: what its search made least."""
    shares = shares_of(workload)
    together = prediction.throughput
    if shares.cadence and isinstance(together, msgspec.UnsetType):
        return float("inf")
    each = 0.0 if isinstance(together, msgspec.UnsetType) else 1 / together.point
    return shares.value(prediction.request.point, each)


def excessive_wait(workload: Workload, prediction: Prediction | None) -> float | None:
    """Return the seconds that a session waits between tokens, all at work, where the objective allows fewer.

    None where it allows them, and where nothing is predicted of it.
    """
    limit = workload.max_inter_token_seconds
    if limit is None or prediction is None or isinstance(prediction.throughput, msgspec.UnsetType):
        return None
    waited = workload.concurrency / prediction.throughput.point
    return waited if waited > limit * (1 + SLACK) else None
