"""Checks of integrity that are really run: a model whose answer is known, through real stages and real frames.

* The null model's answer is a hash of everything that went into it, so one altered byte on the way changes it. It is
  computed here too, without any fabric: Nodes and the paths between them are checked against that.
* A tiny model with random states is computed by an implementation on its own Compute Unit, recorded, and replayed in
  fresh processes: every position must come out bit for bit.

A check needs the swarm to itself: while an epoch has authority, it is refused. It shows what it ran and nothing
wider: an implementation that is wrong in the same way each time reproduces itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from inferswarm.backends.direct import run_direct
from inferswarm.backends.null import NullExecutor
from inferswarm.documents import digest
from inferswarm.errors import FabricError, InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client, status_of
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
FRAME_CODES = frozenset({CHECKSUM_CODE, "MALFORMED_FRAME", "FRAME_TOO_LONG", "PROTOCOL_MISMATCH"})
"""Why a frame is refused for what it is; the Coordinator counts what it refuses clients beside them."""
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
    counted, by the stages and by the Coordinator. Whatever goes wrong once it runs is what it found. Raises
    FabricError when it cannot be run at all.
    """
    plan = tiny_plan(seats, "null", "fp32", WORKLOAD)
    wanted = _answer_without_fabric(plan)
    names = " → ".join(seat.node.name for seat in seats)
    detail = f"the null model over {names}: "
    with realized(client, plan, run_ahead=0):
        try:
            before = _refused_by_coordinator(client)
            record = generate(client, _QUESTION).record
            refused = _refused_by_stages(client) + (_refused_by_coordinator(client) - before)
        except InferSwarmError as error:
            return _checked(False, f"{detail}{type(error).__name__}: {error}", at_ns, plan, ())
    same = (record.tokens, record.logits_digests) == wanted
    codes = ", ".join(f"{count} × {code}" for code, count in sorted(refused.items()))
    detail += f"{NUM_TOKENS} tokens {'as known' if same else 'other than known'}"
    detail += f", {refused.total()} frames refused{f' ({codes})' if codes else ''}"
    return _checked(same and not refused.total(), detail, at_ns, plan, record.logits_digests)


def check_implementation(client: Client, seat: Seat, primitive: str, representation: str, at_ns: int) -> Checked:
    """Compute a tiny model by an implementation on its Compute Unit, and replay it in fresh processes.

    Whatever goes wrong once it runs is what it found. Raises SpecError for a primitive that is not there, FabricError
    when it cannot be run at all.
    """
    plan = tiny_plan((seat,), primitive, representation, WORKLOAD)
    detail = f"a tiny model by {primitive} in {representation} on {seat.node.name}: {NUM_TOKENS} tokens"
    with realized(client, plan, run_ahead=0):
        try:
            record = generate(client, _QUESTION).record
        except InferSwarmError as error:
            return _checked(False, f"{detail}: {type(error).__name__}: {error}", at_ns, plan, ())
    for _ in range(NUM_REPLAYS):
        with realized(client, plan, run_ahead=0):
            try:
                client.ask(m.Replay(session=record.session))
            except InferSwarmError as error:
                said = f"{detail}; replayed in a fresh process: {type(error).__name__}: {error}"
                return _checked(False, said, at_ns, plan, record.logits_digests)
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


def _refused_by_stages(client: Client) -> Counter[str]:
    """Return how many frames the stages of the check have refused, by code: they are new, and did nothing else."""
    answer = client.ask(m.StageReports())
    if not isinstance(answer, m.StageReportList):
        raise FabricError(f"expected stage reports, got {type(answer).__name__}")
    return sum((Counter(dict(report.refusals)) for report in answer.reports), Counter())


def _refused_by_coordinator(client: Client) -> Counter[str]:
    """Return how many frames the Coordinator has refused for what they are, by code, since its ledger began."""
    return Counter({code: count for code, count in status_of(client).refusals if code in FRAME_CODES})
