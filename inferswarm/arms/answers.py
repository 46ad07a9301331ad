"""Answers and what they are held against: the unsplit execution with the same partition, made in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferswarm.backends.assignment import unsplit_assignments
from inferswarm.backends.direct import DirectResult, materialized, run_split_direct
from inferswarm.campaigns.arm import Arm
from inferswarm.documents import digest
from inferswarm.fabric.messages import SessionRecord
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import PlanningProblem
from inferswarm.swarm import Generation, Model


class Rows(NamedTuple):
    """One answer as it is compared: prompt, tokens, and a digest of each row of logits that a token came from."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    row_digests: tuple[str, ...]

    def differing(self, other: Rows) -> int:
        """Return how many rows are not those of the other answer; a missing row differs."""
        pairs = zip(self.row_digests, other.row_digests, strict=False)
        missing = abs(len(self.row_digests) - len(other.row_digests))
        return sum(mine != theirs for mine, theirs in pairs) + missing


def rows_of(record: SessionRecord) -> Rows:
    """Return the rows of an answer, from what the swarm's ledger holds of its session."""
    return Rows(record.prompt_ids, record.tokens, record.logits_digests)


def keep_rows(arm: Arm, rows: Rows, *, condition: str, key: str, representation: str) -> None:
    """Keep an answer as an output of the arm; its digest of logits is that of all its rows' digests in order."""
    arm.output(
        condition=condition,
        key=key,
        representation=representation,
        prompt_ids=rows.prompt_ids,
        token_ids=rows.token_ids,
        logits_digest=digest(rows.row_digests),
    )


class Unsplit:
    """The whole chain of a plan's model in this process, with the representation and threads of each of its units."""

    def __init__(self, plan: ExecutionPlan, model: Model, problem: PlanningProblem) -> None:
        """Build every state. Raises SpecError for a plan of another problem."""
        self._chunk_positions = plan.chunk_positions
        self._executors = materialized(unsplit_assignments(plan, model.description, model.opened.object, problem))

    def rows(self, answer: Generation) -> Rows:
        """Compute an answer's prompt again, in the steps that a session of that length takes."""
        found = self.execute(
            answer.record.prompt_ids,
            num_tokens=len(answer.tokens),
            session_positions=answer.partition.session_positions,
        )
        return Rows(answer.record.prompt_ids, found.tokens, found.logits_digests)

    def execute(self, prompt_ids: Sequence[int], *, num_tokens: int, session_positions: int | None) -> DirectResult:
        """Continue a prompt by so many tokens, the most likely one each time, past every end token."""
        return run_split_direct(
            self._executors,
            prompt_ids,
            max_tokens=num_tokens,
            chunk_positions=self._chunk_positions,
            session_positions=session_positions,
        )


def compare_with_unsplit(
    arm: Arm, unsplit: Unsplit, answer: Generation, *, condition: str, key: str, representation: str
) -> Rows:
    """Keep an answer, and the unsplit execution of its prompt under `unsplit`, with the same key.

    Adds a sample of the series `rows-differing`, which must be 0; returns the answer's rows.
    """
    mine, direct = rows_of(answer.record), unsplit.rows(answer)
    keep_rows(arm, mine, condition=condition, key=key, representation=representation)
    keep_rows(arm, direct, condition="unsplit", key=key, representation=representation)
    arm.sample("rows-differing", mine.differing(direct), "rows", condition=condition, key=key)
    return mine
