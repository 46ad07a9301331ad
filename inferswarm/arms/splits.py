"""Our plan and the split in proportion to memory, side by side: both realized in turns, ABBA, and asked the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from inferswarm.arms.answers import Unsplit, compare_with_unsplit
from inferswarm.arms.serving_split import realized_digest
from inferswarm.arms.times import Round, ask_timed, keep_prediction, keep_times, times_of
from inferswarm.campaigns.arm import Arm
from inferswarm.errors import InfeasiblePlan
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import Policy, Workload
from inferswarm.resources.types import Envelope
from inferswarm.swarm import Model, Swarm

OURS, PROPORTIONAL = "ours", "proportional"


class Split(NamedTuple):
    """Who computes what by a rule: Nodes with at least one unit, in their order, and the unit behind each cut."""

    nodes: tuple[str, ...]
    cuts: tuple[int, ...]


def proportional_split(num_units: int, envelopes: Sequence[Envelope]) -> Split:
    """Return the split whose parts have units in proportion to the memory of their Nodes, as others split models.

    Each cut is where the Nodes so far have their share of all memory, rounded to a whole unit.

    >>> pair = (Envelope(name="a", threads=1, memory_bytes=3), Envelope(name="b", threads=1, memory_bytes=1))
    >>> proportional_split(32, pair)
    Split(nodes=('a', 'b'), cuts=(23,))
    """
    total = sum(envelope.memory_bytes for envelope in envelopes)
    nodes: list[str] = []
    ends: list[int] = []
    so_far = 0
    for envelope in envelopes:
        so_far += envelope.memory_bytes
        end = round(num_units * so_far / total)
        if end > (ends[-1] if ends else 0):
            nodes.append(envelope.name)
            ends.append(end)
    return Split(tuple(nodes), tuple(end - 1 for end in ends[:-1]))


def plan_pinned(swarm: Swarm, model: Model, workload: Workload, representation: str, split: Split) -> ExecutionPlan:
    """Return the priced plan of a split. Raises InfeasiblePlan where it does not fit or cannot be priced."""
    policy = Policy(representations=(representation,), pinned_nodes=split.nodes, pinned_cuts=split.cuts)
    decision = swarm.plan(model, workload, policy, measure=False).document
    if decision.plan is None or decision.plan.prediction is None:
        raise InfeasiblePlan(f"{'+'.join(split.nodes)} cut at {split.cuts}: {decision.summary}")
    return decision.plan


class SideBySide:
    """Several plans for one model and workload, compared in turns. `rounds` has what each took, by its name."""

    def __init__(
        self, arm: Arm, swarm: Swarm, model: Model, workload: Workload, plans: Mapping[str, ExecutionPlan]
    ) -> None:
        """Write each plan as a document `plan-NAME.json`. Raises InfeasiblePlan for one that has no price."""
        self._arm, self._swarm, self._model, self._workload = arm, swarm, model, workload
        self._plans = dict(plans)
        self._rounds: dict[str, list[Round]] = {}
        for name, plan in self._plans.items():
            if plan.prediction is None:
                raise InfeasiblePlan(f"{name}: the plan has no price")
            arm.document(f"plan-{name}.json", plan)

    @property
    def rounds(self) -> Mapping[str, Sequence[Round]]:
        """What each plan was predicted to take and took, round by round."""
        return self._rounds

    def run(self, num_rounds: int, num_answers: int, compared: int = 1) -> None:
        """Serve all plans in every round, in an order that is turned around in the next (ABBA).

        Series with the plan's name as condition and the round as block. The first `compared` answers of the first
        round are held against the unsplit execution of the same plan: outputs under the plan's name and `unsplit`.
        """
        for block in range(num_rounds):
            names = list(self._plans) if block % 2 == 0 else list(reversed(self._plans))
            for name in names:
                self._serve(name, block, num_answers, compared if block == 0 else 0)
            self._arm.progress(f"round {block + 1} of {num_rounds}")

    def _serve(self, name: str, block: int, num_answers: int, compared: int) -> None:
        plan = self._plans[name]
        prediction = plan.prediction
        assert prediction is not None, "checked when it was given"
        answers = []
        with self._swarm.realize(plan, self._model) as service:
            self._arm.realized(realized_digest(self._swarm))
            for number in range(1 + num_answers):
                answer = ask_timed(service, self._model, self._workload)
                answers.append(answer)
                times = times_of(answer)
                keep_times(self._arm, times, condition=name, key=name, block=block, warm_up=not number)
        taken = tuple(times_of(answer) for answer in answers[1:])
        self._rounds.setdefault(name, []).append(Round(prediction, taken))
        if block == 0:
            keep_prediction(self._arm, prediction, condition=name, key=name, block=block)
        if compared:
            unsplit = Unsplit(plan, self._model, self._swarm.problem(self._model, self._workload))
            for number, answer in enumerate(answers[:compared]):
                key = f"{name} {number}"
                compare_with_unsplit(
                    self._arm, unsplit, answer, condition="split", key=key, representation=plan.representation
                )
