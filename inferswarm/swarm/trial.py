"""A newcomer proves itself in a scope of its own, before it is a member: checked, and measured as far as it is alone.

What a request costs beside computing is measured with a plan that has authority, and so is a known answer: in the
scope of a serving plan there is no room for either. So the newcomer's agent first joins a Coordinator that is there
for it alone, under the same envelope, and leaves again. The records are about the same Node: nothing in them depends
on the scope. They are taken while the machine serves, and so rather show it slower than faster.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from inferswarm.errors import FabricError
from inferswarm.evidence.currency import Doubt
from inferswarm.evidence.events import HealthEvent, Scope
from inferswarm.evidence.quarantine import quarantines_of
from inferswarm.fabric.client import Client
from inferswarm.fabric.engines.base import Engine, NodeLaunch
from inferswarm.fabric.engines.local import LocalSettings
from inferswarm.planner import PlanningProblem
from inferswarm.resources.network import read_interfaces
from inferswarm.resources.storage import read_disk
from inferswarm.resources.types import Node
from inferswarm.strategies.shape import shape_digest
from inferswarm.swarm.declared import DeclaredNodes
from inferswarm.swarm.ground import Ground, MakeEngine, wait_until_joined
from inferswarm.swarm.health_checks import check_known_answer
from inferswarm.swarm.health_watch import settle_doubts
from inferswarm.swarm.known import currency_of
from inferswarm.swarm.measuring import OnProgress, Prober
from inferswarm.swarm.model import Model
from inferswarm.swarm.targets import by_node
from inferswarm.swarm.tiny_plans import Seat


@contextlib.contextmanager
def scope_of_its_own(
    settings: LocalSettings, make_engine: MakeEngine, launch: NodeLaunch
) -> Iterator[tuple[Client, Engine]]:
    """Start a Coordinator for one Node's agent alone, and end both. Raises what either ended with."""
    directory = Path(tempfile.mkdtemp(prefix=f"inferswarm-{os.getpid()}-"))  # as any swarm without a name has one
    own = msgspec.structs.replace(
        settings,
        scope=f"trial-{secrets.token_hex(4)}",
        ledger=str(directory / "swarm.ledger"),
        token=secrets.token_hex(32),
        port=0,
        remove_directory=str(directory),
        keep_spares=False,
        stores_directory=str(directory / "stores") if settings.stores_directory else "",
    )
    engine = make_engine(own)
    client: Client | None = None
    try:
        client = Client(engine.start_coordinator(), own.token, engine.check)
        engine.start_agent(launch)
        wait_until_joined(client, engine, {launch.name})
        yield client, engine
    finally:
        if client is not None:
            client.close()
        engine.stop()
        shutil.rmtree(directory, ignore_errors=True)


def try_newcomer(
    ground: Ground,
    nodes: DeclaredNodes,
    node: Node,
    model: Model,
    problem: PlanningProblem,
    representation: str,
    on_progress: OnProgress,
) -> None:
    """Check a Node of `nodes` that is no member, and measure what is due of it and of the model there.

    Raises FabricError for a wrong answer, and notes it: then the Node is in quarantine until it gives the right one.
    Raises EnvelopeExceeded for a Node that is too small for an empty stage.
    """
    graph = nodes.graph
    targets = tuple(target for target in nodes.targets(graph) if target.node.id == node.id)
    (group,) = by_node(targets)
    inventory = msgspec.structs.replace(nodes.inventory, interfaces=read_interfaces())
    currency = currency_of(graph, nodes.mechanism, read_disk(model.path), inventory.interfaces)
    shape = shape_digest(model.description)
    with scope_of_its_own(ground.settings, ground.make_engine, nodes.launch(node)) as (client, _):
        on_progress(f"{node.name}: a known answer", 0.0)
        _check(ground, node, client, Seat(node, group.first.unit))

        def measure_once(missing: frozenset[str], doubts: tuple[Doubt, ...], is_first: bool) -> None:
            doubted = currency._replace(doubts=doubts)
            prober = Prober(client, ground.store, inventory, targets, doubted, on_progress)
            prober.measure_nodes(False)
            prober.measure_requests(False)
            prober.measure_disk(model.path, False)
            prober.measure_units(model.description, shape, problem, nodes.graph, False, (representation,))

        settle_doubts(ground.keeper, graph, frozenset(), measure_once)


def _check(ground: Ground, node: Node, client: Client, seat: Seat) -> None:
    scope, at_ns = Scope("node", node.id), ground.keeper.clock()
    is_shut = bool(quarantines_of(ground.keeper.events()).of(scope))
    found = check_known_answer(client, [seat], at_ns)
    if is_shut:
        kind = "integrity-revalidation-passed" if found.passed else "integrity-revalidation-failed"
    else:
        kind = "integrity-checked" if found.passed else "result-mismatch"
    event = HealthEvent(
        kind=kind,  # type: ignore[arg-type]
        implicated=(scope,),
        at_ns=str(at_ns),
        evidence_ids=(found.evidence_id,),
        detail=found.detail,
    )
    ground.keeper.note([event])
    if not found.passed:
        raise FabricError(f"Node {node.name} was tried and does not work: {found.detail}")
