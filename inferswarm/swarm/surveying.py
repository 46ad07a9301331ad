"""Measures the declared Nodes of a running swarm: all of them, or a newcomer beside a plan that serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from inferswarm.errors import EngineError
from inferswarm.evidence.currency import Doubt
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import PlanningProblem
from inferswarm.resources.network import read_interfaces
from inferswarm.resources.storage import read_disk
from inferswarm.resources.types import Node
from inferswarm.strategies.shape import shape_digest
from inferswarm.swarm.ground import Ground
from inferswarm.swarm.known import currency_of
from inferswarm.swarm.measuring import OnProgress, Prober
from inferswarm.swarm.model import Model
from inferswarm.swarm.weighing import room_beside, uses


class Surveyor:
    """Measures on one running swarm."""

    def __init__(self, ground: Ground) -> None:
        """Nothing is measured yet."""
        self._ground = ground

    def measure_once(
        self,
        model: Model | None,
        problem: PlanningProblem | None,
        doubts: tuple[Doubt, ...],
        missing: frozenset[str],
        refresh: bool,
        on_progress: OnProgress,
    ) -> None:
        """Measure what no record tells that holds and is not doubted, on the Nodes that are not missing."""
        prober = self.prober(model, doubts, missing, on_progress)
        try:
            prober.measure_nodes(refresh)
            prober.measure_requests(refresh)
            if model is not None and problem is not None:
                shape = shape_digest(model.description)
                prober.measure_disk(model.path, refresh)
                prober.measure_units(model.description, shape, problem, self._ground.nodes.graph, refresh)
        except EngineError:
            self._ground.engine.check_agents()  # an agent that has ended says better why
            raise

    def measure_paths(
        self, node: Node, plan: ExecutionPlan | None, missing: frozenset[str], on_progress: OnProgress
    ) -> tuple[str, ...]:
        """Measure what is due of a Node and of its paths, while `plan` serves; return why some paths were left out.

        The other end of a path is an empty stage. On a Node of the plan it takes room that the plan leaves; where it
        leaves none, the paths to and from that Node stay unknown: nothing may push a serving stage out.
        """
        graph = self._ground.nodes.graph
        memories = {memory.id: memory for memory in graph.memory_resources}
        reserved = self._ground.nodes.reservations
        limits: dict[str, int] = {}
        left_out: list[str] = []
        for target in self._ground.nodes.targets(graph):
            other = target.node
            if plan is None or other.id == node.id or other.id in missing or not uses(plan, other.id):
                continue
            room = room_beside(plan, memories[target.memory_id])
            base = reserved.nodes[other.name].value if other.name in reserved.nodes else None
            if room and base is not None:
                limits[other.id] = base + room
            else:
                missing |= {other.id}
                left_out.append(f"the paths to and from {other.name} were not measured: its stage leaves no room")
        prober = self.prober(None, (), missing, on_progress, only=frozenset({node.id}), limits=limits)
        prober.measure_nodes(False)
        return tuple(dict.fromkeys(left_out))

    def measure_units(
        self, model: Model, problem: PlanningProblem, representations: Sequence[str], on_progress: OnProgress
    ) -> None:
        """Measure a model's cost classes again, on every Node, in these representations (none: in all of them)."""
        prober = self.prober(model, (), frozenset(), on_progress)
        shape = shape_digest(model.description)
        graph = self._ground.nodes.graph
        prober.measure_units(model.description, shape, problem, graph, True, representations)

    def prober(
        self,
        model: Model | None,
        doubts: tuple[Doubt, ...],
        missing: frozenset[str],
        on_progress: OnProgress,
        *,
        only: frozenset[str] = frozenset(),
        limits: Mapping[str, int] | None = None,
    ) -> Prober:
        """Return what measures the Nodes that are not missing. Raises EngineError when none is there.

        `only` is as for `Prober`; `limits` are bytes that probes may leave their Nodes (ids) with, where less than
        their envelopes.
        """
        nodes = self._ground.nodes
        graph = nodes.graph
        disk = None if model is None else read_disk(model.path)
        inventory = msgspec.structs.replace(nodes.inventory, interfaces=read_interfaces())  # they come and go
        currency = currency_of(graph, nodes.mechanism, disk, inventory.interfaces)._replace(doubts=doubts)
        targets = tuple(
            target._replace(limit_bytes=(limits or {}).get(target.node.id, target.limit_bytes))
            for target in nodes.targets(graph)
            if target.node.id not in missing
        )
        if not targets:
            self._ground.engine.check_agents()
            raise EngineError("Nodes", "none is a member of the swarm now")
        return Prober(self._ground.client, self._ground.store, inventory, targets, currency, on_progress, only)
