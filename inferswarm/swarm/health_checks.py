"""Checks of integrity that are really run: a model whose answer is known, through real stages and real frames.

* The null model's answer is a hash of everything that went into it, so one altered byte on the way changes it. It is
  computed here too, without any fabric: Nodes and the paths between them are checked against that.
* A tiny model with random states is computed by an implementation on its own Compute Unit, recorded, and replayed in
  fresh processes: every position must come out bit for bit.

A check needs the swarm to itself: while an epoch has authority, it is refused. It shows what it ran and nothing
wider: an implementation that is wrong in the same way each time reproduces itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from inferswarm.backends.direct import run_direct
from inferswarm.backends.null import NullExecutor
from inferswarm.documents import digest
from inferswarm.errors import FabricError, ReplayDiverged
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import Workload
from inferswarm.swarm.health_events import CHECKSUM_CODE, evidence_of
from inferswarm.swarm.tiny_plans import (
    CHUNK_POSITIONS,
    TINY,
    Seat,
    assignments_of,
    generate,
    realized,
    tiny_plan,
)

PROMPT = tuple(range(1, 21))
NUM_TOKENS = 24
NUM_REPLAYS = 2
"""Of an implementation's answer, each in fresh processes."""
WORKLOAD = Workload(prompt_tokens=len(PROMPT), output_tokens=NUM_TOKENS)
_QUESTION = m.Generate(token_ids=PROMPT, max_tokens=NUM_TOKENS, ignore_stop=True)


class Checked(NamedTuple):
    """What a check found; `evidence_id` stands for what was run and what came out."""

    passed: bool
    detail: str
    evidence_id: str


def check_known_answer(client: Client, seats: Sequence[Seat], at_ns: int) -> Checked:
    """Run the null model over these Compute Units in their order and compare with what it must answer.

    Every path between one and the next, and back from the last to the first, is passed by frames whose checksums are
    counted. Raises FabricError when it cannot be run at all.
    """
    plan = tiny_plan(seats, "null", "fp32", WORKLOAD)
    wanted = _answer_without_fabric(plan)
    with realized(client, plan, run_ahead=0):
        given = generate(client, _QUESTION)
        refusals = _checksum_refusals(client)
    same = (given.record.tokens, given.record.logits_digests) == wanted
    names = " → ".join(seat.node.name for seat in seats)
    detail = f"the null model over {names}: {NUM_TOKENS} tokens {'as known' if same else 'other than known'}"
    detail += f", {refusals} frames refused for their checksum"
    return _checked(same and refusals == 0, detail, at_ns, plan, given.record.logits_digests)


def check_implementation(client: Client, seat: Seat, primitive: str, representation: str, at_ns: int) -> Checked:
    """Compute a tiny model by an implementation on its Compute Unit, and replay it in fresh processes.

    Raises SpecError for a primitive that is not there, FabricError when it cannot be run at all.
    """
    plan = tiny_plan((seat,), primitive, representation, WORKLOAD)
    with realized(client, plan, run_ahead=0):
        record = generate(client, _QUESTION).record
    detail = f"a tiny model by {primitive} in {representation} on {seat.node.name}: {NUM_TOKENS} tokens"
    try:
        for _ in range(NUM_REPLAYS):
            with realized(client, plan, run_ahead=0):
                client.ask(m.Replay(session=record.session))
    except ReplayDiverged as error:
        return _checked(False, f"{detail}; replayed in a fresh process: {error}", at_ns, plan, record.logits_digests)
    detail += f", bit for bit the same in {NUM_REPLAYS} fresh processes"
    return _checked(True, detail, at_ns, plan, record.logits_digests)


def _checked(passed: bool, detail: str, at_ns: int, plan: ExecutionPlan, digests: Sequence[str]) -> Checked:
    evidence = evidence_of(kind="known-answer", plan=digest(plan), answer=digest(list(digests)), at_ns=at_ns)
    return Checked(passed, detail, evidence)


def _answer_without_fabric(plan: ExecutionPlan) -> tuple[tuple[int, ...], tuple[str, ...]]:
    (whole,) = assignments_of(_unsplit(plan))
    executor = NullExecutor(whole)
    executor.materialize(lambda done, total: None)
    result = run_direct(executor, PROMPT, max_tokens=NUM_TOKENS, chunk_positions=CHUNK_POSITIONS)
    return result.tokens, result.logits_digests


def _unsplit(plan: ExecutionPlan) -> ExecutionPlan:
    first = plan.placements[0]
    whole = msgspec.structs.replace(first, first_unit=0, end_unit=len(TINY.unit_ids), unit_ids=TINY.unit_ids)
    return msgspec.structs.replace(plan, placements=(whole,))


def _checksum_refusals(client: Client) -> int:
    answer = client.ask(m.StageReports())
    if not isinstance(answer, m.StageReportList):
        raise FabricError(f"expected stage reports, got {type(answer).__name__}")
    return sum(dict(report.refusals).get(CHECKSUM_CODE, 0) for report in answer.reports)
