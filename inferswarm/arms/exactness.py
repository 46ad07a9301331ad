"""One model cut in many ways: equal answers wherever it is cut, and recorded partitions computed again elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferswarm.arms.answers import Unsplit, keep_rows, rows_of
from inferswarm.arms.questions import Question, ids_of
from inferswarm.arms.serving_split import realized_digest
from inferswarm.campaigns.arm import Arm
from inferswarm.planner.problem import Workload
from inferswarm.swarm import Model, Swarm


class Cut(NamedTuple):
    """One way to cut a chain: the Nodes in order, and the first unit behind each cut."""

    nodes: tuple[str, ...]
    cuts: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name it for conditions and files."""
        return "-".join((*self.nodes, *map(str, self.cuts)))


def read_cuts(text: str) -> tuple[Cut, ...]:
    """Read cuts as a parameter writes them: `amber+birch:6 amber+birch+cedar:10,20`.

    Raises ValueError for a cut that is no number.
    """
    found = []
    for item in text.split():
        nodes, _, cuts = item.partition(":")
        found.append(Cut(tuple(nodes.split("+")), tuple(int(cut) for cut in cuts.split(",") if cut)))
    return tuple(found)


def compare_cuts(
    arm: Arm,
    swarm: Swarm,
    model: Model,
    workload: Workload,
    representation: str,
    cuts: Sequence[Cut],
    questions: Sequence[Question],
) -> None:
    """Realize a model cut in each way, in one representation, and compare every answer with the unsplit execution.

    All Nodes compute with equally many threads, so that the partition is the same wherever the chain is cut, and one
    unsplit execution stands for all. Every cut but the first also computes the first one's sessions again from their
    record. Outputs: `split`, `unsplit`, `recorded` and `replayed`. Series: `rows-differing`. Writes a document
    `plan-REPRESENTATION-CUT.json` for each plan.
    """
    unsplit: Unsplit | None = None
    recorded: dict[str, int] = {}
    for cut in cuts:
        plan = swarm.force(model, cut.nodes, cuts=cut.cuts, representation=representation, workload=workload)
        arm.document(f"plan-{representation}-{cut.name}.json", plan)
        unsplit = unsplit or Unsplit(plan, model, swarm.problem(model, workload))
        with swarm.realize(plan, model) as service:
            arm.realized(realized_digest(swarm))
            for question in questions:
                key = f"{representation} {cut.name} {question.key}"
                ids = ids_of(model, question)
                answer = service.generate(ids, max_tokens=workload.output_tokens, ignore_stop=True)
                mine, direct = rows_of(answer.record), unsplit.rows(answer)
                keep_rows(arm, mine, condition="split", key=key, representation=representation)
                keep_rows(arm, direct, condition="unsplit", key=key, representation=representation)
                arm.sample("rows-differing", mine.differing(direct), "rows", condition=representation, key=key)
                if question.key in recorded:
                    again = service.replay(recorded[question.key])
                    first = rows_of(service.record(recorded[question.key]))
                    keep_rows(arm, first, condition="recorded", key=key, representation=representation)
                    keep_rows(
                        arm, rows_of(again.record), condition="replayed", key=key, representation=representation
                    )
                else:
                    recorded[question.key] = answer.session
        arm.progress(f"{representation} {cut.name}")
