"""Checks of integrity that are really run: a model whose answer is known, through real stages and real frames.

* The null model's answer is a hash of everything that went into it, so one altered byte on the way changes it. It is
  computed here too, without any fabric: Nodes and the paths between them are checked against that.
* A tiny model with random states is computed by an implementation on its own Compute Unit, recorded, and replayed in
  fresh processes: every position must come out bit for bit.

A check needs the swarm to itself: while an epoch has authority, it is refused. It shows what it ran and nothing
wider: an implementation that is wrong in the same way each time reproduces itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.backends.direct import run_direct
from inferswarm.backends.null import NullExecutor
from inferswarm.documents import digest
from inferswarm.errors import FabricError, ReplayDiverged
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.planner.plan import ExecutionPlan, MemoryAccount, Placement
from inferswarm.planner.problem import Workload
from inferswarm.resources.types import ComputeUnit, Node
from inferswarm.strategies.dense.description import plain_decoder
from inferswarm.swarm.health_events import CHECKSUM_CODE, evidence_of

PROMPT = tuple(range(1, 21))
NUM_TOKENS = 24
CHUNK_POSITIONS = 16
MAX_POSITIONS = 64
NUM_REPLAYS = 2
"""Of an implementation's answer, each in fresh processes."""
_TINY = plain_decoder(
    architecture="known-answer",
    vocabulary_size=251,
    hidden_size=64,
    feed_forward_size=128,
    num_blocks=4,
    num_heads=4,
    num_key_value_heads=2,
    head_size=16,
    context_positions=MAX_POSITIONS,
    rope_base=10000.0,
    norm_epsilon=1e-5,
    tied_head=True,
)


class Checked(NamedTuple):
    """What a check found; `evidence_id` stands for what was run and what came out."""

    passed: bool
    detail: str
    evidence_id: str


class Seat(NamedTuple):
    """One participant of a check: a Compute Unit and its Node."""

    node: Node
    unit: ComputeUnit


def check_known_answer(client: Client, seats: Sequence[Seat], at_ns: int) -> Checked:
    """Run the null model over these Compute Units in their order and compare with what it must answer.

    Every path between one and the next, and back from the last to the first, is passed by frames whose checksums are
    counted. Raises FabricError when it cannot be run at all.
    """
    plan = _plan(seats, "null", "fp32")
    wanted = _answer_without_fabric(plan)
    with _realized(client, plan):
        given = _generate(client)
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
    plan = _plan((seat,), primitive, representation)
    with _realized(client, plan):
        record = _generate(client).record
    detail = f"a tiny model by {primitive} in {representation} on {seat.node.name}: {NUM_TOKENS} tokens"
    try:
        for _ in range(NUM_REPLAYS):
            with _realized(client, plan):
                client.ask(m.Replay(session=record.session))
    except ReplayDiverged as error:
        return _checked(False, f"{detail}; replayed in a fresh process: {error}", at_ns, plan, record.logits_digests)
    detail += f", bit for bit the same in {NUM_REPLAYS} fresh processes"
    return _checked(True, detail, at_ns, plan, record.logits_digests)


def _checked(passed: bool, detail: str, at_ns: int, plan: ExecutionPlan, digests: Sequence[str]) -> Checked:
    evidence = evidence_of(kind="known-answer", plan=digest(plan), answer=digest(list(digests)), at_ns=at_ns)
    return Checked(passed, detail, evidence)


def _plan(seats: Sequence[Seat], primitive: str, representation: str) -> ExecutionPlan:
    """Return a plan of one participant on each seat. It states no memory: what it needs is next to nothing."""
    count, units = len(seats), _TINY.unit_ids
    edges = [len(units) * index // count for index in range(count + 1)]
    nothing = MemoryAccount(memory_id="known-answer", capacity_bytes=1, reserved_bytes=0, terms=())
    return ExecutionPlan(
        problem_digest="known-answer",
        graph_digest="known-answer",
        primitive=primitive,
        representation=representation,
        workload=Workload(prompt_tokens=len(PROMPT), output_tokens=NUM_TOKENS),
        chunk_positions=CHUNK_POSITIONS,
        max_positions=MAX_POSITIONS,
        sessions=1,
        placements=tuple(
            Placement(
                participant=f"stage-{index}",
                node_id=seat.node.id,
                node_name=seat.node.name,
                compute_unit_id=seat.unit.id,
                threads=seat.unit.threads,
                first_unit=edges[index],
                end_unit=edges[index + 1],
                unit_ids=units[edges[index] : edges[index + 1]],
                states=(),
                memory=nothing,
            )
            for index, seat in enumerate(seats)
        ),
        prediction=None,
    )


def _assignments(plan: ExecutionPlan) -> tuple[StageAssignment, ...]:
    plan_digest = digest(plan)
    return tuple(
        StageAssignment(
            participant=item.participant,
            plan_digest=plan_digest,
            primitive=plan.primitive,
            representation=plan.representation,
            description=_TINY,
            first_unit=item.first_unit,
            end_unit=item.end_unit,
            threads=(UnitThreads(item.first_unit, item.end_unit, item.threads),),
            requirement=None,
            max_positions=plan.max_positions,
            sessions=plan.sessions,
            chunk_positions=plan.chunk_positions,
        )
        for item in plan.placements
    )


def _answer_without_fabric(plan: ExecutionPlan) -> tuple[tuple[int, ...], tuple[str, ...]]:
    (whole,) = _assignments(_unsplit(plan))
    executor = NullExecutor(whole)
    executor.materialize(lambda done, total: None)
    result = run_direct(executor, PROMPT, max_tokens=NUM_TOKENS, chunk_positions=CHUNK_POSITIONS)
    return result.tokens, result.logits_digests


def _unsplit(plan: ExecutionPlan) -> ExecutionPlan:
    first = plan.placements[0]
    whole = msgspec.structs.replace(first, first_unit=0, end_unit=len(_TINY.unit_ids), unit_ids=_TINY.unit_ids)
    return msgspec.structs.replace(plan, placements=(whole,))


@contextlib.contextmanager
def _realized(client: Client, plan: ExecutionPlan) -> Iterator[m.Realized]:
    question = m.Realize(plan=plan, assignments=_assignments(plan), model_path=None, run_ahead=0)
    answer = client.ask(question)
    if not isinstance(answer, m.Realized):
        raise FabricError(f"expected a realization, got {type(answer).__name__}")
    try:
        yield answer
    finally:
        client.ask(m.Retire(epoch=answer.epoch))


def _generate(client: Client) -> m.Generated:
    answer = client.ask(m.Generate(token_ids=PROMPT, max_tokens=NUM_TOKENS, ignore_stop=True))
    if not isinstance(answer, m.Generated):
        raise FabricError(f"expected an answer, got {type(answer).__name__}")
    return answer


def _checksum_refusals(client: Client) -> int:
    answer = client.ask(m.StageReports())
    if not isinstance(answer, m.StageReportList):
        raise FabricError(f"expected stage reports, got {type(answer).__name__}")
    return sum(dict(report.refusals).get(CHECKSUM_CODE, 0) for report in answer.reports)
