"""A model of many files is planned over three Nodes and comes to each in part, and what all logs say of it agrees.

Also: a Node dies in the middle of an acquisition. Everything is a process of its own; the model's tensors are holes
with a mark (`tests.sharded`), and the origin's log is what went over its sockets.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from inferswarm.artifacts.byte_ledger import LedgerEvent
from inferswarm.artifacts.ledger_checks import check_zeros
from inferswarm.artifacts.sources import ORIGIN
from inferswarm.artifacts.store import ContentStore
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.planner import Workload
from inferswarm.resources import Envelope
from inferswarm.resources.types import observed
from inferswarm.swarm import Model, Swarm
from inferswarm.swarm.reservations import Reservations
from inferswarm.swarm.transfers_view import Transfers
from tests.as_measured import paths_at, priced
from tests.bench.couriers import peak_bytes
from tests.origin_server import Fault, OriginServer, serve_origin
from tests.sharded import Shape, write_sharded
from tests.unit.fabric.processes import wait_until

pytestmark = pytest.mark.long

NODES = ("amber", "birch", "cedar")
SHAPE = Shape(layers=7, hidden=512, ffn=2048, vocab=8192, files=4)
"""67 MB in four files."""
WORKLOAD = Workload(prompt_tokens=8, output_tokens=8)
MEMORY_BYTES = 900_000_000
ROOM_BYTES = 65_000_000
"""What each Node has for stages and 17 MB on its courier's way: a third of the model takes 44 MB, a half 52."""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[OriginServer]:
    folder = tmp_path_factory.mktemp("origin")
    for name in ("first", "second"):
        write_sharded(folder / name, SHAPE)
    with pytest.MonkeyPatch.context() as patch, serve_origin(folder) as running:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield running


@pytest.fixture
def swarm(server, tmp_path) -> Iterator[Swarm]:
    nodes = [Envelope(name=name, threads=1, memory_bytes=MEMORY_BYTES) for name in NODES]
    with Swarm.local(nodes, name="scale", state=tmp_path / "state", stores=True) as running:
        yield running


def couriers(swarm: Swarm) -> dict[str, psutil.Process]:
    """The couriers' processes, by Node."""
    return {
        node.name: child
        for node in swarm.status().nodes
        for child in psutil.Process(node.pid).children()
        if "fabric.courier_main" in " ".join(child.cmdline())
    }


def stored(swarm: Swarm, node: str) -> list[Path]:
    root = swarm.store.directory.parent / "stores" / node / "blobs"
    return [path for path in root.rglob("*") if path.is_file()]


def coverage(ranges: Iterable[ByteRange]) -> dict[int, int]:
    """How the number of times that a byte is in the ranges changes from place to place: equal, so are all counts."""
    changes: Counter[int] = Counter()
    for place in ranges:
        changes[place.start] += 1
        changes[place.end] -= 1
    return {place: count for place, count in sorted(changes.items()) if count}


def received(transfers: Transfers) -> list[tuple[str, LedgerEvent]]:
    """What came from somewhere, with the id of the Node that it came to."""
    found = []
    for record in transfers.records:
        node_of = {participant: node_id for participant, node_id, _ in record.nodes}
        found += [(node_of[event.participant], event) for event in record.events if event.kind == "received"]
    return found


def check_against_the_origin(server: OriginServer, transfers: Transfers) -> None:
    """Every byte of every file left the origin as often as the ledger says that it came, and no other one did."""
    sent: dict[str, list[ByteRange]] = {}
    for request in server.log:
        assert request.range is not None, request
        assert request.bytes_sent == request.range.length, request
        if request.bytes_sent > 1:  # a look at an object's length and version takes one byte
            sent.setdefault(server.url(request.path), []).append(request.range)
    came: dict[str, list[ByteRange]] = {}
    for _, event in received(transfers):
        if event.source == ORIGIN:
            came.setdefault(str(event.object), []).append(event.range)  # type: ignore[arg-type]
    assert {name: coverage(places) for name, places in came.items()} == {
        name: coverage(places) for name, places in sent.items()
    }
    total = sum(place.length for places in sent.values() for place in places)
    became = sum(transfers.total(kind, source=ORIGIN) for kind in ("acquired", "resume_transfer"))
    assert transfers.total("received", source=ORIGIN) == became == total


def check_against_the_peers(swarm: Swarm, transfers: Transfers) -> None:
    """Each peer logged, for each Node and each content, exactly the bytes that this Node's courier has from it."""
    came: Counter[tuple[str, str, str]] = Counter()
    for node_id, event in received(transfers):
        if event.source != ORIGIN:
            came[event.source, node_id, str(event.content)] += event.bytes
    gave: Counter[tuple[str, str, str]] = Counter()
    for line in swarm.served():
        assert line.complete, line
        gave[line.source, line.taker, line.object] += line.bytes
    assert came == gave


def test_a_model_in_four_files_is_planned_over_three_nodes_and_every_log_agrees(swarm, server, monkeypatch) -> None:
    free = MEMORY_BYTES - ROOM_BYTES
    reserved = Reservations(dict.fromkeys(NODES, observed(free, "as if measured")), {}, 0)
    monkeypatch.setattr("inferswarm.swarm.declared.reservations_of", lambda *_: reserved)
    node_ids = [node.id for node in swarm.graph.document.nodes]
    monkeypatch.setattr("inferswarm.swarm.planned.measured_paths", lambda *_: paths_at(node_ids, 1e-6))
    monkeypatch.setattr("inferswarm.swarm.planned.economics_of", partial(priced, None))

    server.clear()
    model = Model(server.url("first/"))
    plan = swarm.plan(model, WORKLOAD, measure=False).plan
    assert plan is not None
    assert len(plan.placements) == 3
    shards = [file for file in model.manifest.files if file.uri.endswith(".safetensors")]
    assert len(shards) == SHAPE.files
    assert server.bytes_sent() < SHAPE.num_bytes / 500  # headers, configuration and tokenizer
    server.clear()

    idle = {name: peak_bytes(process.pid) for name, process in couriers(swarm).items()}
    with swarm.realize(plan, model):
        moved = swarm.transfers()
        check_zeros(moved.zeros())
        check_against_the_origin(server, moved)  # so neither Coordinator nor façade had a byte of it
        for name, process in couriers(swarm).items():
            files = [path.stat().st_size for path in stored(swarm, name)]
            ratio = peak_bytes(process.pid) / idle[name]
            print(f"{name}: {sum(files):,} B in {len(files)} blobs, at most {ratio:.2f} of the idle courier's memory")
            assert sum(files) == moved.total("received", node=name) < 0.75 * SHAPE.num_bytes
            assert ratio < 1.5
        state = swarm.store.directory.parent
        longest = max(path.stat().st_size for path in state.rglob("*") if path.is_file())
        assert longest < min(file.length for file in shards)  # nowhere is a whole file of it

        # Another cut: what moved on lies on other Nodes, and comes from them.
        start, first = moved.generation, {item.node_name: item for item in plan.placements}
    names = [item.node_name for item in plan.placements]
    cuts = tuple(item.first_unit + 1 for item in plan.placements[1:])
    other = swarm.force(model, names[::-1], cuts=cuts, workload=WORKLOAD)
    assert {item.node_name: item for item in other.placements} != first
    server.clear()
    with swarm.realize(other, model):
        since = swarm.transfers().since(start)
        assert server.bytes_sent() == since.total("received", source=ORIGIN) == 0
        assert since.total("received") == since.total("acquired") > 0
        check_against_the_peers(swarm, swarm.transfers())
        check_zeros(since.zeros())


def kept(root: Path) -> tuple[int, int]:
    """How many bytes lie in a store's blobs and in its partials."""
    blobs = [path for path in (root / "blobs").rglob("*") if path.is_file()]
    partials = list((root / "partials").glob("*.part"))
    return sum(path.stat().st_size for path in blobs), sum(path.stat().st_size for path in partials)


def verify(root: Path) -> None:
    """Everything that a store lists is what it says, and nothing lies about that nobody knows of."""
    with ContentStore(root, create=False) as store:
        report = store.verify()
        assert (report.damaged, report.strays) == ((), ()), report
        assert list((root / "staging").iterdir()) == []


def has_received(swarm: Swarm, node: str, num_bytes: int) -> bool:
    return swarm.transfers().total("received", node=node) == num_bytes


def wait_for_its_end(swarm: Swarm, node: m.NodeStatus, root: Path) -> None:
    """Return when a Node acquires nothing any more for whoever it kept something for."""
    with ContentStore(root, create=False, upkeep=False) as store:
        owners = {owner for blob in store.inventory().blobs for owner in blob.owners}
    for owner in owners:
        command = m.OnCourier(command=m.ReleaseArtifacts(owner=owner))
        swarm._connected().ask(m.OnNode(node_id=node.node_id, command=command))


def test_a_node_that_dies_while_it_acquires_fails_the_realization_and_what_came_is_kept(swarm, server) -> None:
    model = Model(server.url("second/"))
    first = swarm.force(model, NODES, cuts=(3, 6), workload=WORKLOAD)
    stores = swarm.store.directory.parent / "stores"
    pid_of = {node.name: node.pid for node in swarm.status().nodes}
    dying = couriers(swarm)["birch"]
    shards = [path.name for path in (server.folder / "second").glob("*.safetensors")]
    for shard in shards:
        server.inject(f"second/{shard}", Fault(bytes_per_second=600_000.0))
    server.clear()
    failed: list[BaseException] = []

    def realize() -> None:
        try:
            swarm.realize(first, model).close()
        except InferSwarmError as error:
            failed.append(error)

    asking = threading.Thread(target=realize)
    asking.start()
    # Everybody has published something, and is at something else.
    assert wait_until(lambda: all(all(kept(stores / name)) for name in NODES), 30.0)
    os.kill(pid_of["birch"], signal.SIGKILL)
    asking.join(60.0)
    assert not asking.is_alive()
    assert len(failed) == 1, failed
    assert "birch" in str(failed[0]), failed
    assert wait_until(lambda: not dying.is_running(), 10.0)
    assert wait_until(lambda: [node.name for node in swarm.status().nodes] == ["amber", "cedar"], 20.0)
    for shard in shards:
        server.inject(f"second/{shard}")
    for name in NODES:
        verify(stores / name)

    for node in swarm.status().nodes:
        wait_for_its_end(swarm, node, stores / node.name)

    # The two that are left go on from what they have, with a cut by which each needs that and more.
    before = {name: kept(stores / name) for name in ("amber", "cedar")}
    for name, (blobs, partials) in before.items():  # what came in vain is counted all the same
        assert wait_until(partial(has_received, swarm, name, blobs + partials), 20.0), (name, blobs, partials)
    second = swarm.force(model, ["amber", "cedar"], cuts=(5,), workload=WORKLOAD)
    start = swarm.transfers().generation
    server.clear()
    with swarm.realize(second, model):
        since = swarm.transfers().since(start)
        check_zeros(since.zeros())
        check_against_the_origin(server, since)
        for name, (blobs, partials) in before.items():
            there = since.total("cache_hit", node=name)
            resumed = since.total("resumed_prefix", node=name)
            print(f"{name}: {there:,} B were there, {resumed:,} of {partials:,} B of beginnings went on")
            assert there == blobs > 0
            assert 0 < resumed <= partials
            assert since.total("received", node=name) == since.total("required", node=name) - there - resumed
