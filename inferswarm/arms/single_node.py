"""One Node alone: what the gates say of it, and what happens when nobody listens to them."""

from __future__ import annotations

from typing import NamedTuple

from inferswarm.campaigns.arm import Arm
from inferswarm.errors import EnvelopeExceeded
from inferswarm.planner.problem import Workload
from inferswarm.swarm import Model, Swarm
from inferswarm.swarm.service import NodeMemory


class Forced(NamedTuple):
    """What came of a plan for one Node that does not fit."""

    node: str
    representation: str
    stopped: bool
    """Whether the enforced limit stopped it; anything else that ends it is an error of the arm."""
    said: str


def force_alone(arm: Arm, swarm: Swarm, model: Model, workload: Workload, node: str, representation: str) -> Forced:
    """Realize the plan over one Node alone in spite of its account, under the Node's enforced limit.

    Series: `forced-needed-bytes` and `forced-available-bytes` of the plan's own account, `forced-ran` (1 where it
    ran, which it must not) and `processes-stopped` (how often the mechanism stopped a process, at least 1).
    """
    key = f"{node} {representation}"
    plan = swarm.force(model, (node,), representation=representation, workload=workload)
    account = plan.placements[0].memory
    arm.sample("forced-needed-bytes", account.needed_bytes, "B", key=key)
    if account.available_bytes is not None:
        arm.sample("forced-available-bytes", account.available_bytes, "B", key=key)
    before = memory_of(swarm, node)
    try:
        with swarm.realize(plan, model):
            found = Forced(node, representation, False, "it ran, which it must not")
    except EnvelopeExceeded as error:
        found = Forced(node, representation, error.node == node, str(error))
    after = memory_of(swarm, node)
    arm.sample("forced-ran", 0 if found.stopped else 1, "plans", key=key)
    arm.sample("processes-stopped", after.report.overflows - before.report.overflows, "processes", key=key)
    return found


def memory_of(swarm: Swarm, node: str) -> NodeMemory:
    """Return the memory of one Node's processes. Raises StopIteration for a Node that is no member."""
    return next(memory for memory in swarm.node_memory() if memory.node_name == node)
