"""Plans of a tiny model over named Compute Units, realized for a while: what a swarm checks and times itself with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.documents import digest
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.fabric.expecting import expect
from inferswarm.planner.plan import ExecutionPlan, MemoryAccount, Placement
from inferswarm.planner.problem import Workload
from inferswarm.resources.types import ComputeUnit, Node
from inferswarm.strategies.dense.description import plain_decoder

CHUNK_POSITIONS = 16
MAX_POSITIONS = 64
TINY = plain_decoder(
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


class Seat(NamedTuple):
    """One participant: a Compute Unit and its Node."""

    node: Node
    unit: ComputeUnit


def tiny_plan(seats: Sequence[Seat], primitive: str, representation: str, workload: Workload) -> ExecutionPlan:
    """Return a plan of one participant on each seat. It states no memory: what it needs is next to nothing."""
    count, units = len(seats), TINY.unit_ids
    edges = [len(units) * index // count for index in range(count + 1)]
    nothing = MemoryAccount(memory_id="known-answer", capacity_bytes=1, reserved_bytes=0, terms=())
    return ExecutionPlan(
        problem_digest="known-answer",
        graph_digest="known-answer",
        primitive=primitive,
        representation=representation,
        workload=workload,
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


def assignments_of(plan: ExecutionPlan) -> tuple[StageAssignment, ...]:
    """Return what each participant of a tiny plan is told; its states are random, and read from nowhere."""
    plan_digest = digest(plan)
    return tuple(
        StageAssignment(
            participant=item.participant,
            plan_digest=plan_digest,
            primitive=plan.primitive,
            representation=plan.representation,
            description=TINY,
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


@contextlib.contextmanager
def realized(client: Client, plan: ExecutionPlan, run_ahead: int) -> Iterator[m.Realized]:
    """Give a tiny plan authority, and take it away again. Raises CommitRefused while another one has it."""
    question = m.Realize(plan=plan, assignments=assignments_of(plan), model_path=None, run_ahead=run_ahead)
    answer = expect(m.Realized, client.ask(question), "a realization")
    try:
        yield answer
    finally:
        client.ask(m.Retire(epoch=answer.epoch))


def generate(client: Client, question: m.Generate) -> m.Generated:
    """Ask for an answer. Raises what went wrong instead."""
    return expect(m.Generated, client.ask(question), "an answer")
