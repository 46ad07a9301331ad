"""Health that acts, with real processes: what happens is noted, shuts what it concerns, and is checked again."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Iterator

import pytest

from inferswarm.documents import digest
from inferswarm.errors import ArtifactError, CommitRefused, InfeasiblePlan, ReplayDiverged, SpecError
from inferswarm.evidence.events import HealthEvent, Scope
from inferswarm.fabric import messages as m
from inferswarm.fabric.frames import Address, FrameKind, encode, plan_prefix
from inferswarm.fabric.transport import Outbox
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.resources.types import Envelope
from inferswarm.swarm import Model, Swarm
from inferswarm.swarm.health_checks import PROMPT, WORKLOAD
from inferswarm.swarm.service import Service
from inferswarm.swarm.tiny_plans import Seat, assignments_of, tiny_plan
from tests.integration.null_swarm import listening_ports
from tests.unit.fabric.processes import wait_until

NODES = (
    Envelope(name="birch", threads=1, memory_bytes=800 * 10**6),
    Envelope(name="oak", threads=1, memory_bytes=800 * 10**6),
)
LEASE_SECONDS = 1.0


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with Swarm.local(NODES, state=tmp_path_factory.mktemp("state"), lease_seconds=LEASE_SECONDS) as swarm:
        yield swarm


def seats(swarm: Swarm) -> tuple[Seat, ...]:
    graph = swarm.graph.document
    units = {unit.node_id: unit for unit in graph.compute_units}
    return tuple(Seat(node, units[node.id]) for node in sorted(graph.nodes, key=lambda node: node.name))


def serve(swarm: Swarm, *chosen: Seat) -> tuple[Service, ExecutionPlan]:
    """Realize the null model over these seats, as a service of the swarm."""
    plan = tiny_plan(chosen, "null", "fp32", WORKLOAD)
    client = swarm._connected()
    question = m.Realize(plan=plan, assignments=assignments_of(plan), model_path=None, run_ahead=0)
    realized = client.ask(question)
    assert isinstance(realized, m.Realized)
    swarm._watched().runs(plan, realized.epoch)
    return Service(client, plan, realized, swarm.status().pid, swarm._watched().observe), plan


def force(swarm: Swarm) -> ExecutionPlan:
    return swarm.force(Model("smollm2-135m"), ["birch", "oak"], cuts=[15])


@pytest.mark.rule(34)
def test_a_corrupt_frame_shuts_its_path_for_plans_until_a_known_answer_came_over_it(swarm: Swarm) -> None:
    """A real frame with a flipped byte shuts one direction between two Nodes; a check that is really run opens it.

    Mutation: let `Swarm.force` pass no health, or `HealthWatch.check` note a pass without running anything.
    """
    birch, oak = seats(swarm)
    force(swarm)
    service, plan = serve(swarm, birch, oak)
    address = Address(swarm.status().scope, service.epoch, service.realized.realization, plan_prefix(digest(plan)))
    head, payload, checksum = encode(address.header(FrameKind.BOUNDARY, 1, position=0, count=1), bytes(64))
    outbox = Outbox(f"tcp://127.0.0.1:{max(listening_ports(service.realized.pids[1]))}")
    outbox.send((head, bytes([1]) + bytes(payload)[1:], checksum))
    outbox.close()
    path = Scope("path", f"{birch.node.id}->{oak.node.id}")
    assert wait_until(lambda: bool(swarm.health.document.quarantines), 5.0)
    assert [item.scope for item in swarm.health.document.quarantines] == [path]
    with pytest.raises(CommitRefused, match="retire it first"):
        swarm.revalidate(path)  # a check needs the swarm to itself
    service.close()
    with pytest.raises(InfeasiblePlan, match="birch → oak"):
        force(swarm)
    assert swarm.revalidate(path).integrity.state == "trusted"
    assert swarm.health.document.quarantines == ()
    force(swarm)


@pytest.mark.rule(34)
def test_a_replay_that_diverges_shuts_the_implementations_that_took_part(swarm: Swarm) -> None:
    """One position that differs shuts that implementation on that Compute Unit; a check of another opens nothing.

    Mutation: let `health_events._diverged` name the Compute Unit alone, or `check` clear whatever it was asked about.
    """
    birch, oak = seats(swarm)
    service, _ = serve(swarm, birch)
    answer = swarm._connected().ask(m.Generate(token_ids=PROMPT, max_tokens=8, ignore_stop=True))
    assert isinstance(answer, m.Generated)
    service.replay(answer.record.session)
    assert swarm.health.document.quarantines == ()
    assert swarm._temporary is not None
    with sqlite3.connect(swarm._temporary / "swarm.ledger") as ledger:  # as if the stage had computed something else
        ledger.execute(
            "UPDATE commits SET logits_digest='0' WHERE session=? AND position=?",
            (answer.record.session, len(PROMPT) + 3),
        )
    ledger.close()
    with pytest.raises(ReplayDiverged):
        service.replay(answer.record.session)
    service.close()
    scope = Scope("implementation", f"null/fp32@{birch.unit.id}")
    assert [item.scope for item in swarm.health.document.quarantines] == [scope]
    assert swarm.revalidate(Scope("implementation", f"null/fp32@{oak.unit.id}")).integrity.state == "unknown"
    assert [item.scope for item in swarm.health.document.quarantines] == [scope]
    assert swarm.revalidate(scope).integrity.state == "trusted"
    assert swarm.health.document.quarantines == ()


@pytest.mark.rule(35)
def test_a_stage_that_was_killed_says_nothing_of_its_node_and_nothing_of_integrity(swarm: Swarm) -> None:
    """Its Node has it back before the client notices, stays in the plans, and nothing is in quarantine.

    Mutation: let `health_events._lost` say anything of integrity, or note a Node as unavailable whose stage was lost.
    """
    birch, _ = seats(swarm)
    service, _ = serve(swarm, birch)
    (pid,) = service.realized.pids
    os.kill(pid, signal.SIGSTOP)  # so that the request is still open when it is killed
    threading.Timer(0.4, os.kill, (pid, signal.SIGKILL)).start()
    answer = swarm._connected().ask(m.Generate(token_ids=PROMPT, max_tokens=8, ignore_stop=True))
    assert isinstance(answer, m.Generated)
    assert swarm.status().epoch == service.epoch + 1
    assert swarm.health.of(Scope("node", birch.node.id)).availability.state == "available"
    assert swarm.health.document.quarantines == ()
    force(swarm)
    service.close()


@pytest.mark.rule(33)
def test_a_node_that_is_away_is_in_no_plan_and_never_suspect(swarm: Swarm) -> None:
    """A stopped agent's Node is unavailable, and available again only when it has answered; integrity is untouched.

    Mutation: let `observe_members` write `joined` for a Node that is back and was away.
    """
    _, oak = seats(swarm)
    scope = Scope("node", oak.node.id)
    (pid,) = [node.pid for node in swarm.status().nodes if node.name == "oak"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert wait_until(lambda: swarm.health.of(scope).availability.state == "unavailable", 10.0)
        with pytest.raises(InfeasiblePlan, match="unavailable"):
            force(swarm)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: swarm.health.of(scope).availability.state == "available", 15.0)
    health = swarm.health.of(scope)
    assert health.availability.detail.startswith("its agent answers")
    assert health.integrity.state == "unknown"
    force(swarm)


def test_altered_bytes_are_not_realized_until_the_whole_file_was_read_and_is_as_recorded(swarm: Swarm) -> None:
    model = Model("smollm2-135m")
    scope = Scope("artifact-at-source", str(model.path))
    swarm._keeper.note(
        [
            HealthEvent(
                kind="digest-mismatch",
                implicated=(scope,),
                at_ns=str(swarm._keeper.clock()),
                evidence_ids=("seen",),
                detail="other bytes",
            )
        ]
    )
    plan = force(swarm)
    with pytest.raises(ArtifactError, match="is in quarantine"):
        swarm.realize(plan)
    with pytest.raises(SpecError, match="its digest is recorded"):
        swarm.revalidate(scope)  # of which model is not said
    assert [item.scope for item in swarm.health.document.quarantines] == [scope]
    assert swarm.revalidate(scope, model).integrity.state == "trusted"
