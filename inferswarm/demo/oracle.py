"""The unsplit execution that a split one is compared with: whole chain, one process, same partition.

Where the plan mixes representations, it mixes as well: each run of units that compute in the same one is computed as
one part, and between two runs the hidden states are converted as between two participants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inferswarm.backends.assignment import unsplit_assignments
from inferswarm.backends.base import StageExecutor
from inferswarm.backends.direct import DirectResult, materialized, run_split_direct
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import PlanningProblem
from inferswarm.swarm import Generation, Model


class Agreement(NamedTuple):
    """How an answer compares with the fp32 reference. Agreement across representations is never called equality."""

    num_tokens: int
    equal_prefix: int
    """How many of the first tokens a free-running fp32 execution produces too."""
    same_choice: int
    """At how many positions fp32, given the answer's own tokens so far, chooses the same next token."""


def run_unsplit(plan: ExecutionPlan, model: Model, problem: PlanningProblem, answer: Generation) -> DirectResult:
    """Execute an answer's prompt on the whole chain, with the representation, threads and chunks of each unit."""
    assignments = unsplit_assignments(plan, model.description, model.opened.object, problem)
    return _run(materialized(assignments), answer, plan.chunk_positions, None)


def compare_with_fp32(plan: ExecutionPlan, model: Model, problem: PlanningProblem, answer: Generation) -> Agreement:
    """Execute in fp32, free-running and along the answer's own tokens."""
    reference = materialized(
        unsplit_assignments(plan, model.description, model.opened.object, problem, representation="fp32")
    )
    free = _run(reference, answer, plan.chunk_positions, None)
    guided = _run(reference, answer, plan.chunk_positions, answer.tokens)
    pairs = list(zip(answer.tokens, free.tokens, strict=False))
    prefix = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))
    same = sum(ours == theirs for ours, theirs in zip(answer.tokens, guided.tokens, strict=False))
    return Agreement(len(answer.tokens), prefix, same)


def _run(
    executors: Sequence[StageExecutor], answer: Generation, chunk_positions: int, forced: Sequence[int] | None
) -> DirectResult:
    return run_split_direct(
        executors,
        answer.record.prompt_ids,
        max_tokens=len(answer.tokens),
        chunk_positions=chunk_positions,
        forced=forced,
        sampling=answer.record.sampling,
        session_positions=answer.partition.session_positions,
    )
