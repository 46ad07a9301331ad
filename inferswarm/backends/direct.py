"""Driving executors in one process, without a swarm: the unsplit oracle, and a split that only passes bytes.

Steps follow the same grid as everywhere (prompt chunks, then single positions), or steps given by the caller: a
recorded partition, or another one over known tokens. Torch-free; the executors may not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inferswarm.backends.base import LogProbabilities, StageAssignment, StageExecutor, StepOutput
from inferswarm.backends.partition import Step, prompt_steps
from inferswarm.backends.registry import make_executor
from inferswarm.backends.sampling import make_sampler
from inferswarm.errors import FabricError, SpecError
from inferswarm.strategies.sampling import GREEDY_SAMPLING, Sampling

SESSION = "direct"


class DirectResult(NamedTuple):
    """What was sampled, in order: a token, its logits' digest and its margin for each sampling step."""

    tokens: tuple[int, ...]
    logits_digests: tuple[str, ...]
    margins: tuple[float, ...]
    steps: tuple[Step, ...]
    """Every step as it was run."""
    logprobs: tuple[LogProbabilities, ...] | None = None
    """For each token; None when they were not asked for."""


def materialized(assignments: Iterable[StageAssignment]) -> tuple[StageExecutor, ...]:
    """Return an executor with its states for each assignment, in order.

    Raises as `make_executor` and `StageExecutor.materialize`.
    """
    executors = tuple(make_executor(assignment) for assignment in assignments)
    for executor in executors:
        executor.materialize(lambda done, total: None)
    return executors


def run_direct(
    executor: StageExecutor,
    prompt_ids: Sequence[int],
    *,
    max_tokens: int,
    stop_ids: Iterable[int] = (),
    chunk_positions: int,
    steps: Sequence[Step] | None = None,
    forced: Sequence[int] | None = None,
    sampling: Sampling = GREEDY_SAMPLING,
    session_positions: int | None = None,
) -> DirectResult:
    """Run one session on an executor that holds the whole chain. As `run_split_direct` with one participant."""
    return run_split_direct(
        (executor,),
        prompt_ids,
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        chunk_positions=chunk_positions,
        steps=steps,
        forced=forced,
        sampling=sampling,
        session_positions=session_positions,
    )


def run_split_direct(
    executors: Sequence[StageExecutor],
    prompt_ids: Sequence[int],
    *,
    max_tokens: int,
    stop_ids: Iterable[int] = (),
    chunk_positions: int,
    steps: Sequence[Step] | None = None,
    forced: Sequence[int] | None = None,
    sampling: Sampling = GREEDY_SAMPLING,
    session_positions: int | None = None,
) -> DirectResult:
    """Run one session over executors that hold the chain in order; boundaries pass as bytes.

    Ends after `max_tokens` tokens or with the first of `stop_ids`, which is part of the result. `forced` are the
    tokens that follow the prompt whatever is sampled. `steps` replace the grid; a step that ends before the
    prompt's end samples nothing, every other one samples once. `sampling` says how, `session_positions` how long the
    session may become (None: as long as the assignment allows). Raises SpecError for an empty prompt, for steps that
    need tokens which nobody knows yet, and for forced tokens with penalties (they look at what was sampled);
    FabricError as the executors do.
    """
    if not prompt_ids:
        raise SpecError("prompt", "no tokens", "at least one token")
    if forced is not None and sampling.is_penalized:
        raise SpecError("sampling", "penalties over forced tokens", "settings that do not look at earlier tokens")
    run = _Run(executors, prompt_ids, forced)
    stops = frozenset(stop_ids)
    opened: list[StageExecutor] = []
    try:
        for executor in executors:
            sampler = make_sampler(sampling, prompt_ids) if executor is executors[-1] else None
            executor.open(SESSION, sampler, session_positions=session_positions)
            opened.append(executor)
        planned = prompt_steps(len(prompt_ids), chunk_positions) if steps is None else tuple(steps)
        for step in planned:
            if run.take(step, stops, max_tokens):
                return run.result()
        while steps is None and not run.take(Step(run.position, 1), stops, max_tokens):
            pass
        return run.result()
    finally:
        for executor in opened:
            executor.close(SESSION)


class _Run:
    """One session on its way through the executors."""

    def __init__(
        self, executors: Sequence[StageExecutor], prompt_ids: Sequence[int], forced: Sequence[int] | None
    ) -> None:
        self._executors = executors
        self._prompt_tokens = len(prompt_ids)
        self._known = [*prompt_ids, *(forced or ())]
        self._is_forced = forced is not None
        self._outputs: list[StepOutput] = []
        self._steps: list[Step] = []
        self.position = 0

    def take(self, step: Step, stops: frozenset[int], max_tokens: int) -> bool:
        """Run one step. Returns whether the session has ended."""
        end = step.start + step.count
        if end > len(self._known):
            raise SpecError("step", (step.start, step.count), f"known tokens; {len(self._known)} are known")
        payload = b"".join(token.to_bytes(4, "little", signed=True) for token in self._known[step.start : end])
        sample = end >= self._prompt_tokens
        output = StepOutput(payload=payload)
        for executor in self._executors:
            if output.payload is None:
                raise FabricError("a participant before the last gave no payload")
            output = executor.step(SESSION, step.start, step.count, output.payload, sample=sample)
        self._steps.append(step)
        self.position = end
        if not sample:
            return False
        if output.token is None:
            raise FabricError("the last participant sampled nothing: it does not hold the head")
        self._outputs.append(output)
        if not self._is_forced:
            self._known.append(output.token)
        return len(self._outputs) >= max_tokens or output.token in stops

    def result(self) -> DirectResult:
        logprobs = [output.logprobs for output in self._outputs]
        return DirectResult(
            tokens=tuple(output.token for output in self._outputs if output.token is not None),
            logits_digests=tuple(output.logits_digest or "" for output in self._outputs),
            margins=tuple(output.margin or 0.0 for output in self._outputs),
            steps=tuple(self._steps),
            logprobs=None if None in logprobs else tuple(item for item in logprobs if item is not None),
        )
