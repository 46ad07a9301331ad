"""What plans were predicted to take, and what they took: cells of a plan and a workload, served in turns.

A round goes through all plans in an order shuffled anew, by representation: it measures the cost classes of a
representation again, prices each plan and serves it at once. Every prediction is thus made before what it predicts,
from measurements of the same minutes. A plan is realized once for all workloads, with room for the longest of them,
and its cuts stay those of the first round.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from inferswarm.arms.answers import Unsplit, compare_with_unsplit, keep_rows, rows_of
from inferswarm.arms.grids import Route
from inferswarm.arms.serving_split import realized_digest
from inferswarm.arms.times import Round, ask_timed, keep_prediction, keep_times, times_of
from inferswarm.campaigns.arm import Arm
from inferswarm.errors import InfeasiblePlan
from inferswarm.planner.plan import ExecutionPlan, Prediction
from inferswarm.planner.problem import Policy, Workload
from inferswarm.resources.types import Envelope
from inferswarm.swarm import Generation, Model, Swarm

UNLIKE = (
    Envelope(name="amber", threads=1, memory_bytes=1_600_000_000),
    Envelope(name="birch", threads=2, memory_bytes=1_400_000_000),
    Envelope(name="cedar", threads=1, memory_bytes=1_200_000_000),
)
"""Nodes of unlike threads, each of which may hold any part of a small model in any representation."""


class Cells:
    """The cells of routes and workloads over one swarm. `rounds` has what was predicted and measured, by cell."""

    def __init__(
        self,
        arm: Arm,
        swarm: Swarm,
        model: Model,
        routes: Sequence[Route],
        workloads: Sequence[Workload],
        compared: int = 0,
    ) -> None:
        """Nothing is served yet. Of each cell the first `compared` answers are held against the unsplit execution."""
        self._compared = compared
        self._arm, self._swarm, self._model = arm, swarm, model
        self._routes = tuple(routes)
        self._workloads = tuple(sorted(workloads, key=lambda workload: workload.positions))
        self._plans: dict[Route, ExecutionPlan] = {}
        self._rounds: dict[str, list[Round]] = {}

    @property
    def rounds(self) -> Mapping[str, Sequence[Round]]:
        """What each cell was predicted to take and took, by its key `ROUTE PROMPT`, round by round."""
        return self._rounds

    def run(self, num_rounds: int, num_answers: int, seed: int) -> None:
        """Serve every cell in every round: one answer that is a warm-up, then `num_answers`.

        Series as `times.keep_times` and `times.keep_prediction` have them, with the cell as key and the round as
        block. Outputs: `round-0`, `round-1`, … with the first counted answer of each cell, and `split` and `unsplit`
        with those that are compared. Writes a document `plan-ROUTE.json` for each plan that is realized. Raises
        InfeasiblePlan for a route that does not fit or cannot be priced.
        """
        shuffle = random.Random(seed)
        for block in range(num_rounds):
            forms = sorted({route.representation for route in self._routes})
            shuffle.shuffle(forms)
            for form in forms:
                members = [route for route in self._routes if route.representation == form]
                shuffle.shuffle(members)
                self._swarm.measure_units(self._model, self._workloads[-1], (form,))
                self._arm.progress(f"round {block + 1} of {num_rounds}: measured {form} again")
                for route in members:
                    self._serve(route, block, num_answers)
            self._arm.progress(f"round {block + 1} of {num_rounds}: served {len(self._routes)} plans")

    def _serve(self, route: Route, block: int, num_answers: int) -> None:
        priced = {workload: self._price(route, workload) for workload in self._workloads}
        answers: dict[str, Generation] = {}
        with self._swarm.realize(self._plans[route], self._model) as service:
            self._arm.realized(realized_digest(self._swarm))
            for workload, prediction in priced.items():
                key = f"{route.name} {workload.prompt_tokens}"
                keep_prediction(self._arm, prediction, condition="", key=key, block=block)
                taken = []
                for number in range(1 + num_answers):
                    answer = ask_timed(service, self._model, workload)
                    if number == 1:
                        rows, form = rows_of(answer.record), route.representation
                        keep_rows(self._arm, rows, condition=f"round-{block}", key=key, representation=form)
                    if block == 0 and number < self._compared:
                        answers[f"{key} {number}"] = answer
                    times = times_of(answer)
                    keep_times(self._arm, times, condition="", key=key, block=block, warm_up=not number)
                    taken += [times] if number else []
                self._rounds.setdefault(key, []).append(Round(prediction, tuple(taken)))
        if answers:
            self._compare(route, answers)

    def _compare(self, route: Route, answers: Mapping[str, Generation]) -> None:
        problem = self._swarm.problem(self._model, self._workloads[-1])
        unsplit = Unsplit(self._plans[route], self._model, problem)
        for key, answer in answers.items():
            compare_with_unsplit(
                self._arm, unsplit, answer, condition="split", key=key, representation=route.representation
            )

    def _price(self, route: Route, workload: Workload) -> Prediction:
        """Return what a plan is predicted to take by what was measured last; the first one of a route is realized."""
        fixed = self._plans.get(route)
        cuts = route.cuts if fixed is None else tuple(item.end_unit - 1 for item in fixed.placements[:-1])
        policy = Policy(representations=(route.representation,), pinned_nodes=route.nodes, pinned_cuts=cuts)
        decision = self._swarm.plan(self._model, workload, policy, measure=False).document
        if decision.plan is None or decision.plan.prediction is None:
            raise InfeasiblePlan(f"{route.name}: {decision.summary}")
        if workload == self._workloads[-1] and fixed is None:
            self._plans[route] = decision.plan
            self._arm.document(f"plan-{route.name}.json", decision.plan)
        return decision.plan.prediction
