"""The way of messages between the participants of a plan: measured paths, addresses, endpoints."""

from __future__ import annotations

import msgspec

from inferswarm.backends.base import StageAssignment
from inferswarm.errors import FabricError, RealizationFailed
from inferswarm.fabric import messages as m
from inferswarm.fabric.transport import make_endpoint, parse_endpoint
from inferswarm.planner.plan import Placement

Paths = tuple[m.PathUse | None, ...]


def incoming_paths(placements: tuple[Placement, ...], paths: tuple[m.PathUse, ...]) -> Paths:
    """Return, for each participant, the measured path to it: from the one before, to the first from the last."""
    by_ends = {(path.source_node, path.target_node): path for path in paths}
    before = (placements[-1], *placements[:-1])
    return tuple(by_ends.get((a.node_id, b.node_id)) for a, b in zip(before, placements, strict=True))


def start_of(stage: str, path: m.PathUse | None, assignment: StageAssignment) -> m.StartStage:
    """Return the order to start an empty stage that can be reached over its path."""
    binding = assignment.compute_unit
    cpus = () if isinstance(binding, msgspec.UnsetType) else binding.cpus
    threads = max((item.threads for item in assignment.threads), default=0) if assignment.kind == "cpu" else 0
    return m.StartStage(stage=stage, addresses=() if path is None else (path.target,), cpus=cpus, threads=threads)


def endpoint_over(answer: m.Answer, path: m.PathUse | None, node: str) -> str:
    """Return where a stage is reached over its path. Raises RealizationFailed when it cannot listen there."""
    if not isinstance(answer, m.StageStarted | m.Adopted):
        raise FabricError(f"expected a stage, got {type(answer).__name__}")
    if path is None:
        return answer.endpoint
    endpoint = dict(answer.endpoints).get(path.target)
    if endpoint is None:
        why = dict(answer.unbound).get(path.target, "it was not tried")
        raise RealizationFailed(
            node, f"the plan was priced with messages to {path.target}, where nothing listens: {why}; measure again"
        )
    if "%" not in path.target:
        return endpoint
    address, zone = path.target.partition("%")[0], path.source.partition("%")[2]
    return make_endpoint(f"{address}%{zone}", parse_endpoint(endpoint)[1])  # link-local: as the sender sees it


def connections(endpoints: tuple[str, ...], incoming: Paths, results_endpoint: str) -> tuple[m.Connect, ...]:
    """Return what each participant is told: where the next one and the first one listen, and what to send from."""
    sources = tuple("" if path is None else path.source for path in incoming)
    following = zip((*endpoints[1:], None), (*sources[1:], ""), strict=True)
    return tuple(
        m.Connect(
            next_endpoint=next_endpoint,
            first_endpoint=endpoints[0],
            coordinator_endpoint=results_endpoint,
            next_source=next_source,
            first_source=sources[0],
        )
        for next_endpoint, next_source in following
    )
