"""The unsplit execution that a split one is compared with: whole chain, one process, same partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from inferswarm.backends.assignment import unsplit_assignment
from inferswarm.backends.base import StageAssignment
from inferswarm.backends.direct import DirectResult, run_direct
from inferswarm.backends.registry import make_executor
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
    """Execute an answer's prompt on the whole chain with the threads and chunks that the plan gave each unit."""
    assignment = unsplit_assignment(plan, model.description, model.opened.object, problem)
    return _run(assignment, answer, plan.chunk_positions, None)


def compare_with_fp32(plan: ExecutionPlan, model: Model, problem: PlanningProblem, answer: Generation) -> Agreement:
    """Execute in fp32, free-running and along the answer's own tokens."""
    assignment = unsplit_assignment(plan, model.description, model.opened.object, problem)
    reference = replace(assignment, representation="fp32")
    free = _run(reference, answer, plan.chunk_positions, None)
    guided = _run(reference, answer, plan.chunk_positions, answer.tokens)
    pairs = list(zip(answer.tokens, free.tokens, strict=False))
    prefix = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))
    same = sum(ours == theirs for ours, theirs in zip(answer.tokens, guided.tokens, strict=False))
    return Agreement(len(answer.tokens), prefix, same)


def _run(
    assignment: StageAssignment, answer: Generation, chunk_positions: int, forced: Sequence[int] | None
) -> DirectResult:
    executor = make_executor(assignment)
    executor.materialize(lambda done, total: None)
    return run_direct(
        executor,
        answer.record.prompt_ids,
        max_tokens=len(answer.tokens),
        chunk_positions=chunk_positions,
        forced=forced,
        sampling=answer.record.sampling,
        session_positions=answer.partition.session_positions,
    )
