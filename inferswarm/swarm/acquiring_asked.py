"""Asks a running swarm what the Nodes of another plan would have to acquire, and how long earlier ones took."""

from __future__ import annotations

from typing import Final

from inferswarm.errors import ArtifactError, FabricError
from inferswarm.fabric import messages as m
from inferswarm.fabric.acquiring_orders import digests_told, unknown_places_of, with_known_digests
from inferswarm.fabric.transfer_records import known_digests, read_transfers
from inferswarm.planner import ExecutionPlan
from inferswarm.resources.types import ResourceGraph
from inferswarm.swarm.acquiring_estimates import (
    AcquiringEstimate,
    acquired_seconds,
    estimate_acquiring,
    limited,
    link_speeds,
    unknown_acquiring,
)
from inferswarm.swarm.ground import Ground
from inferswarm.swarm.model import Model
from inferswarm.swarm.planned import PlannedHere

ANSWER_SECONDS: Final = 10.0
"""For a Node to say what it holds; one that is silent is taken to hold nothing."""


class AcquiringAsked:
    """Asks couriers through the swarm's client, and reads its ledger. Changes nothing."""

    def __init__(self, ground: Ground, planned: PlannedHere) -> None:
        """Use a swarm's processes and what was planned for it."""
        self._ground = ground
        self._planned = planned

    def estimate(self, plan: ExecutionPlan, model: Model, graph: ResourceGraph) -> AcquiringEstimate | None:
        """Return what a plan's Nodes would have to acquire; None in a swarm without stores, where nobody does."""
        if not self._ground.has_stores:
            return None
        records, names = read_transfers(self._ground.ledger), {node.id: node.name for node in graph.nodes}
        try:
            needed = self._planned.needed(plan, model, graph)
            known = {} if needed.strict else known_digests(records)
            artifacts = with_known_digests(needed.plan, known)
            places = set() if needed.strict else unknown_places_of(artifacts)
            answers = self._ask(tuple(sorted({(uri, version) for uri, version, _, _ in places})))
            pins = {node_id: answer.pins for node_id, answer in answers.items()}
            told = digests_told(places, pins, lambda node_id: names.get(node_id, node_id))
        except ArtifactError as error:
            return unknown_acquiring(str(error))
        return estimate_acquiring(
            with_known_digests(artifacts, told),
            {item.participant: item.node_id for item in plan.placements},
            [answer.inventory for answer in answers.values()],
            limited(
                link_speeds(self._planned.paths(graph), records), self._ground.settings.transfer_bytes_per_second
            ),
            names,
            needed.source_policy,
        )

    def took(self, realization: str) -> float | None:
        """Return for how many seconds a realization acquired; None where it acquired nothing."""
        if not self._ground.has_stores:
            return None
        found = (item for item in read_transfers(self._ground.ledger) if item.realization == realization)
        return next(map(acquired_seconds, found), None)

    def _ask(self, objects: tuple[tuple[str, str], ...]) -> dict[str, m.InventoryReported]:
        """Return, by Node id, what each holds, and what it knows of the digests of objects."""
        command = m.OnCourier(command=m.ReportInventory(pins_of=objects))
        found = {}
        for node in self._ground.status().nodes:
            question = m.OnNode(node_id=node.node_id, command=command)
            try:
                answer = self._ground.client.ask(question, timeout_seconds=ANSWER_SECONDS)
            except FabricError:
                continue  # it has gone, has no store, or is silent
            if isinstance(answer, m.InventoryReported):
                found[node.node_id] = answer
        return found
