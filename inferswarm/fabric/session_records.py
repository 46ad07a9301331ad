"""What the ledger holds of a session, as clients see it, and the partition that a plan computes a session with."""

from __future__ import annotations

import secrets

import msgspec

from inferswarm.backends.base import UnitThreads
from inferswarm.backends.partition import Partition, Step, kernels_by_unit, merge_threads, mixture_name
from inferswarm.backends.representing import plan_representations
from inferswarm.documents import read_document
from inferswarm.fabric import messages as m
from inferswarm.fabric.authority import SessionState
from inferswarm.fabric.ledger import Ledger, SessionRow
from inferswarm.fabric.running import RunningPlan
from inferswarm.planner.plan import ExecutionPlan


def session_record(ledger: Ledger, number: int) -> m.SessionRecord:
    """Return what the ledger holds of a session. Raises SpecError when there is none with that number."""
    row = ledger.session(number)
    commits = ledger.commits(number)
    return m.SessionRecord(
        session=row.number,
        epoch=row.epoch,
        state=row.state,
        reason=row.reason,
        prompt_ids=row.prompt,
        tokens=tuple(commit.token for commit in commits),
        logits_digests=tuple(commit.logits_digest for commit in commits),
        margins=tuple(commit.margin for commit in commits),
        commit_seconds=tuple((commit.at_ns - row.at_ns) / 1e9 for commit in commits),
        partition=row.partition.decode(),
        replay_of=row.replay_of,
        max_tokens=row.max_tokens,
        sampling=row.sampling,
        stop=row.stop_strings,
        matched_stop=row.matched,
        logprobs=None if row.sampling.logprobs is None else tuple(commit.logprobs or () for commit in commits),
        model=row.model,
    )


def recorded_partition(row: SessionRow) -> Partition:
    """Return the partition that the ledger has of a session. Raises DocumentError when it cannot be read."""
    return read_document(Partition, row.partition, f"partition of session {row.number}")


def recorded_grid(row: SessionRow, recorded: Partition) -> tuple[Step, ...]:
    """Return the steps in which a session's prompt was computed."""
    return tuple(step for step in recorded.steps if step.start < len(row.prompt))


def partition_of(running: RunningPlan, session_positions: int, steps: tuple[Step, ...]) -> Partition:
    """Return how a plan in force computes a session in the given steps."""
    kernel = kernels_by_unit(
        (item.first_unit, item.end_unit, stage.kernel)
        for item, stage in zip(running.plan.placements, running.stages, strict=True)
    )
    return planned_partition(running.plan, kernel, session_positions, steps)


def planned_partition(plan: ExecutionPlan, kernel: str, session_positions: int, steps: tuple[Step, ...]) -> Partition:
    """Return how a plan would compute a session in the given steps, if its stages have that `kernel`."""
    representations = plan_representations(plan)
    return Partition(
        primitive=plan.primitive,
        representation=mixture_name(representations),
        representations=representations if len(representations) > 1 else msgspec.UNSET,
        kernel=kernel,
        threads=merge_threads(
            tuple(UnitThreads(item.first_unit, item.end_unit, item.threads) for item in plan.placements)
        ),
        session_positions=session_positions,
        steps=steps,
    )


def wanted_session(
    question: m.Generate, prompt: tuple[int, ...], running: RunningPlan, stop_ids: tuple[int, ...]
) -> SessionRow:
    """Return the row of a session that is asked for: it has no number, no partition and no time yet.

    Where tokens are drawn and no seed was given, one is chosen; `stop_ids` are the model's own end tokens.
    """
    sampling = question.sampling
    if sampling.is_drawn and sampling.seed is None:
        sampling = sampling.with_seed(secrets.randbits(64))
    max_tokens = question.max_tokens
    if max_tokens is None:
        max_tokens = max(1, running.plan.max_positions - len(prompt))
    return SessionRow(
        number=0,
        epoch=0,
        state=SessionState.OPEN.value,
        reason="",
        prompt=prompt,
        max_tokens=max_tokens,
        stop=() if question.ignore_stop else stop_ids,
        partition=b"",
        replay_of=0,
        at_ns=0,
        sampling=sampling,
        stop_strings=question.stop,
    )
