"""What a request and a token cost on their way through Coordinator and first stage, beside what is computed.

A plan over one participant of the null backend, which computes next to nothing, is realized on a Node and answers
short requests. What remains is the swarm's own work: admission and ledger, frames there and back, commits.
"""

from __future__ import annotations

import time
from typing import Final

from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.planner.problem import Workload
from inferswarm.resources.types import ComputeUnit, Node
from inferswarm.swarm.tiny_plans import Seat, generate, realized, tiny_plan

PROTOCOL: Final = "null-requests/1"
PAUSE_SECONDS: Final = 0.05
"""Before each request: a request comes to a swarm that rests."""
NUM_REQUESTS: Final = 12
NUM_TOKENS: Final = 16
WARM_UP_REQUESTS: Final = 2
_PROMPT: Final = (1,)


def measure_requests(client: Client, node: Node, unit: ComputeUnit) -> tuple[list[float], list[float]]:
    """Return seconds from request to first token, and seconds from token to token, of requests without computing.

    The first list has one entry for each request, the second one for each gap. Raises CommitRefused while an epoch
    serves: two plans never have authority at once.
    """
    workload = Workload(prompt_tokens=len(_PROMPT), output_tokens=NUM_TOKENS)
    plan = tiny_plan((Seat(node, unit),), "null", "fp32", workload)
    opening: list[float] = []
    between: list[float] = []
    with realized(client, plan, run_ahead=2) as serving:
        question = m.Generate(token_ids=_PROMPT, max_tokens=NUM_TOKENS, epoch=serving.epoch)
        for number in range(WARM_UP_REQUESTS + NUM_REQUESTS):
            time.sleep(PAUSE_SECONDS)
            times = generate(client, question).record.commit_seconds
            if number >= WARM_UP_REQUESTS:
                opening.append(times[0])
                between.append((times[-1] - times[0]) / (len(times) - 1))
    return opening, between
