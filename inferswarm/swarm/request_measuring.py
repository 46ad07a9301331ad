"""What a request and a token cost on their way through Coordinator and first stage, beside what is computed.

A plan over one participant of the null backend, which computes next to nothing, is realized on a Node and answers
short requests. What remains is the swarm's own work: admission and ledger, frames there and back, commits.
"""

from __future__ import annotations

import time
from typing import Final

from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.documents import digest
from inferswarm.errors import FabricError
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.planner.plan import ExecutionPlan, MemoryAccount, Placement
from inferswarm.planner.problem import Workload
from inferswarm.resources.types import ComputeUnit, Node
from inferswarm.strategies.dense.description import plain_decoder

PROTOCOL: Final = "null-requests/1"
PAUSE_SECONDS: Final = 0.05
"""Before each request: a request comes to a swarm that rests."""
NUM_REQUESTS: Final = 12
NUM_TOKENS: Final = 16
WARM_UP_REQUESTS: Final = 2
_PROMPT: Final = (1,)
_NOTHING: Final = plain_decoder(
    architecture="null",
    vocabulary_size=64,
    hidden_size=64,
    feed_forward_size=64,
    num_blocks=1,
    num_heads=4,
    num_key_value_heads=4,
    head_size=16,
    context_positions=64,
    rope_base=10000.0,
    norm_epsilon=1e-5,
    tied_head=True,
)


def measure_requests(client: Client, node: Node, unit: ComputeUnit) -> tuple[list[float], list[float]]:
    """Return seconds from request to first token, and seconds from token to token, of requests without computing.

    The first list has one entry for each request, the second one for each gap. Raises CommitRefused while an epoch
    serves: two plans never have authority at once.
    """
    plan = _null_plan(node, unit)
    realized = client.ask(m.Realize(plan=plan, assignments=(_assignment(plan),), model_path=None, run_ahead=2))
    if not isinstance(realized, m.Realized):
        raise FabricError(f"expected a realization, got {type(realized).__name__}")
    opening: list[float] = []
    between: list[float] = []
    try:
        for number in range(WARM_UP_REQUESTS + NUM_REQUESTS):
            time.sleep(PAUSE_SECONDS)
            question = m.Generate(token_ids=_PROMPT, max_tokens=NUM_TOKENS, epoch=realized.epoch)
            answer = client.ask(question)
            if not isinstance(answer, m.Generated):
                raise FabricError(f"expected an answer, got {type(answer).__name__}")
            times = answer.record.commit_seconds
            if number >= WARM_UP_REQUESTS:
                opening.append(times[0])
                between.append((times[-1] - times[0]) / (len(times) - 1))
    finally:
        client.ask(m.Retire(epoch=realized.epoch))
    return opening, between


def _null_plan(node: Node, unit: ComputeUnit) -> ExecutionPlan:
    placement = Placement(
        participant="stage-0",
        node_id=node.id,
        node_name=node.name,
        compute_unit_id=unit.id,
        threads=unit.threads,
        first_unit=0,
        end_unit=len(_NOTHING.unit_ids),
        unit_ids=_NOTHING.unit_ids,
        states=(),
        memory=MemoryAccount(memory_id=unit.memory_ids[0], capacity_bytes=None, reserved_bytes=None, terms=()),
    )
    return ExecutionPlan(
        problem_digest="",
        graph_digest="",
        primitive="null",
        representation="fp32",
        workload=Workload(prompt_tokens=len(_PROMPT), output_tokens=NUM_TOKENS),
        chunk_positions=8,
        max_positions=64,
        sessions=1,
        placements=(placement,),
        prediction=None,
    )


def _assignment(plan: ExecutionPlan) -> StageAssignment:
    (placement,) = plan.placements
    return StageAssignment(
        participant=placement.participant,
        plan_digest=digest(plan),
        primitive=plan.primitive,
        representation=plan.representation,
        description=_NOTHING,
        first_unit=0,
        end_unit=placement.end_unit,
        threads=(UnitThreads(0, placement.end_unit, placement.threads),),
        requirement=None,
        max_positions=plan.max_positions,
        sessions=plan.sessions,
        chunk_positions=plan.chunk_positions,
    )
