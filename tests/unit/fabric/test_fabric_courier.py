"""Couriers in processes of their own: from the origin, from each other under tickets, and after they were killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import httpx
import msgspec
import pytest

from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.inventory import InventoryBook
from inferswarm.artifacts.origins.http import HttpOrigin
from inferswarm.artifacts.sources import ORIGIN, Source
from inferswarm.artifacts.store import ContentStore
from inferswarm.artifacts.store.records import Pin
from inferswarm.artifacts.tickets import Ticket, TicketBooth
from inferswarm.artifacts.transforms import (
    ListedResult,
    ResultIndex,
    ResultWriter,
    artifact_of,
    describe_transform,
    owner_of,
    transform_key,
)
from inferswarm.artifacts.types import ByteRange
from inferswarm.backends.decoding_identity import surroundings
from inferswarm.errors import ArtifactError, EngineError, InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.agent import AgentSpec, courier_of
from inferswarm.fabric.bulk_guard import bulk_bytes
from inferswarm.fabric.courier import blob_uri
from inferswarm.fabric.courier_main import YIELDING
from inferswarm.fabric.courier_process import CourierProcess
from inferswarm.fabric.engines import local
from inferswarm.fabric.engines.base import NodeLaunch
from inferswarm.fabric.engines.local import LocalEngine, LocalSettings
from tests.origin_server import Fault, serve_origin
from tests.unit.artifacts.store_samples import artifact, sample_bytes

WHOLE = sample_bytes(900_000)
SCOPE, TOKEN = "scope-1", "a token of the tests"
EDGES = ((0, 250_000), (250_000, 600_000), (700_000, 700_100))


@pytest.fixture
def server(tmp_path: Path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "model").write_bytes(WHOLE)
    with serve_origin(folder) as running:
        yield running


class Pair(NamedTuple):
    """Two Nodes' couriers, each with an empty store at first."""

    amber: CourierProcess
    birch: CourierProcess

    def source(self, name: str) -> Source:
        return Source(id=f"node-{name}", endpoint=getattr(self, name).endpoint)


@asynccontextmanager
async def two_couriers(tmp_path: Path) -> AsyncIterator[Pair]:
    def courier(name: str) -> CourierProcess:
        root = str(tmp_path / f"store-{name}")
        return CourierProcess(
            m.CourierSetUp(
                node_id=f"node-{name}", address="127.0.0.1", root=root, quota_bytes=None, scope=SCOPE, token=TOKEN
            ),
            name,
        )

    pair = Pair(courier("amber"), courier("birch"))
    try:
        await asyncio.gather(pair.amber.start(), pair.birch.start())
        yield pair
    finally:
        await asyncio.gather(pair.amber.stop(), pair.birch.stop())


def described(server) -> list[Artifact]:
    return [artifact(WHOLE, *edges, uri=server.url("model"), version=None) for edges in EDGES]


async def acquire(
    courier: CourierProcess,
    orders: list[m.AcquisitionOrder],
    on_progress: Callable[[m.Progressed], None] = lambda progress: None,
    **more: object,
) -> m.ArtifactsAcquired:
    fields = {"participant": "stage-0", "owner": "plan-1", "strict": True, "deadline_seconds": 20.0} | more
    command = m.AcquireArtifacts(orders=tuple(orders), **fields)  # type: ignore[arg-type]
    answer = await courier.call(command, on_progress)
    assert isinstance(answer, m.ArtifactsAcquired)
    return answer


def from_origin(server, *artifacts: Artifact) -> list[m.AcquisitionOrder]:
    source = Source(id=ORIGIN, endpoint=server.url("model"))
    return [m.AcquisitionOrder(artifact=item, source=source) for item in artifacts]


def ticket_for(item: Artifact, at: Source, /, **changes: object) -> str:
    assert isinstance(item.sha256, str)
    ticket = Ticket(
        scope=SCOPE,
        artifact=item.sha256,
        participant="stage-1",
        node_id="node-birch",
        source=at,
        attempt=1,
        generation=3,
        expires_at=int(time.time()) + 60,
    )
    return TicketBooth(TOKEN, SCOPE).issue(msgspec.structs.replace(ticket, **changes))


def hows(answer: m.ArtifactsAcquired) -> list[str]:
    return [outcome.how for outcome in answer.outcomes]


def run(test: Callable[[], object]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_bytes_come_from_the_origin_once_and_then_from_a_peer_under_its_ticket(server, tmp_path) -> None:
    async def test() -> None:
        async with two_couriers(tmp_path) as pair:
            items = described(server)
            first = await acquire(pair.amber, from_origin(server, *items))
            assert hows(first) == ["acquired"] * 3
            server.clear()
            source = pair.source("amber")
            orders = [
                m.AcquisitionOrder(artifact=item, source=source, ticket=ticket_for(item, source)) for item in items
            ]
            await pair.amber.call(m.FreezeArtifacts(generation=3))
            second = await acquire(pair.birch, orders, participant="stage-1")
            assert hows(second) == ["acquired"] * 3
            assert {outcome.source for outcome in second.outcomes} == {"node-amber"}
            assert server.log == []
            served = await pair.amber.call(m.ReportServed())
            assert isinstance(served, m.ServedReported)
            given = {line.object: line.bytes for line in served.lines}  # no look before: the length is known
            assert given == {item.sha256: item.length for item in items}
            received = sum(event.bytes for event in second.events if event.kind == "received")
            assert received == sum(item.length for item in items)
            assert hows(await acquire(pair.birch, orders, participant="stage-1")) == ["cache-hit"] * 3
            reported = await pair.birch.call(m.ReportInventory())
            assert isinstance(reported, m.InventoryReported)
            book = InventoryBook(TOKEN, [pair.source("birch")])
            book.accept(reported.inventory, reported.receipt)
            assert set(reported.inventory.lengths) == {item.sha256 for item in items}
            anew = [msgspec.structs.replace(order, fetches_anew=True) for order in orders]
            assert hows(await acquire(pair.birch, anew, participant="stage-1")) == ["acquired"] * 3

    run(test)


def test_a_courier_says_of_the_objects_that_it_is_asked_about_what_its_own_first_fetches_gave(
    server, tmp_path
) -> None:
    with HttpOrigin(server.url("model")) as origin:
        version = origin.described.version
    assert isinstance(version, str)
    item = artifact(WHOLE, *EDGES[0], uri=server.url("model"), version=version, pinned=False)

    async def test() -> None:
        async with two_couriers(tmp_path) as pair:
            answer = await acquire(pair.amber, from_origin(server, item), strict=False)
            assert [outcome.hash_known_by for outcome in answer.outcomes] == ["first-fetch-pinned"]
            pins = []
            for asked in ((), ((item.origin.uri, "another version"),), ((item.origin.uri, version),)):
                reported = await pair.amber.call(m.ReportInventory(pins_of=asked))
                assert isinstance(reported, m.InventoryReported)
                assert bulk_bytes(reported) == 0
                pins.append(reported.pins)
            pin = Pin(uri=item.origin.uri, version=version, range=item.range, sha256=answer.outcomes[0].sha256)
            assert pins == [(), (), (pin,)]

            # A peer gets it under that digest, and says so to whoever asks: not as a first fetch of its own.
            await pair.amber.call(m.FreezeArtifacts(generation=3))
            source, known = pair.source("amber"), msgspec.structs.replace(item, sha256=pin.sha256)
            for is_pinned in (False, True):
                order = m.AcquisitionOrder(
                    artifact=known, source=source, ticket=ticket_for(known, source), is_pinned=is_pinned
                )
                assert (await acquire(pair.birch, [order], participant="stage-1")).outcomes[0].sha256 == pin.sha256
                told = await pair.birch.call(m.ReportInventory(pins_of=((item.origin.uri, version),)))
                assert isinstance(told, m.InventoryReported)
                assert told.pins == ((msgspec.structs.replace(pin, is_told=True),) if is_pinned else ())

    run(test)


def test_a_result_comes_from_a_peer_under_its_ticket_and_is_listed_only_if_it_is_one(server, tmp_path) -> None:
    """Mutation: list whatever came under the key that was said, or keep it as something that a plan needs."""
    source, values, root = described(server)[0], sample_bytes(40_000), tmp_path / "store-birch"
    made = describe_transform("double", "1", source.sha256, {"machine": "any"})
    other = describe_transform("double", "2", source.sha256, {"machine": "any"})
    with ContentStore(tmp_path / "store-amber") as store, closing(ResultWriter.begin(store, made, 40_000)) as writer:
        length = writer.length
        writer.write(values)
        sha256 = writer.publish("0" * 32)

    async def test() -> None:
        async with two_couriers(tmp_path) as pair:
            reported = await pair.amber.call(m.ReportResults())
            assert isinstance(reported, m.ResultsReported)
            assert reported.results == (ListedResult(key=transform_key(made), sha256=sha256, length=length),)
            assert (dict(reported.surroundings), reported.room_bytes) == (surroundings(), None)
            await pair.amber.call(m.FreezeArtifacts(generation=3))
            at = pair.source("amber")
            for transform, how, owners in ((other, "failed", ()), (made, "acquired", (owner_of(made),))):
                item = artifact_of(source, transform, sha256, length)
                order = m.AcquisitionOrder(artifact=item, source=at, ticket=ticket_for(item, at))
                answer = await acquire(pair.birch, [order], participant="stage-1", are_results=True)
                assert hows(answer) == [how]
                with ContentStore(root, create=False) as store:
                    assert [blob.owners for blob in store.inventory().blobs] == [owners]
                    result = ResultIndex(store).open(made, 40_000)
                    if result is None:
                        assert answer.outcomes[0].code == "PROVENANCE_IDENTITY_MISMATCH"
                        assert store.collect().blobs == (sha256,)  # nobody needs it
                        continue
                    with result.blob as blob:
                        assert blob.read(ByteRange(0, 40_000)) == values

    run(test)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"participant": "stage-2"}, "participant"),
        ({"node_id": "node-oak"}, "node"),
        ({"generation": 2}, "generation"),
        ({"expires_at": 1}, "expired"),
        ({"artifact": "sha256:" + "0" * 64}, "artifact"),
        ({"source": Source(id="node-oak", endpoint="http://127.0.0.1:1")}, "source"),
    ],
)
def test_a_ticket_for_something_else_moves_no_byte(server, tmp_path, changes, kind) -> None:
    async def test() -> None:
        async with two_couriers(tmp_path) as pair:
            (item, *_) = described(server)
            await acquire(pair.amber, from_origin(server, item))
            await pair.amber.call(m.FreezeArtifacts(generation=3))
            source = pair.source("amber")
            order = m.AcquisitionOrder(artifact=item, source=source, ticket=ticket_for(item, source, **changes))
            answer = await acquire(pair.birch, [order], participant="stage-1")
            (outcome,) = answer.outcomes
            assert (outcome.how, outcome.side, outcome.code) == ("failed", "source", "SOURCE_UNAUTHORIZED")
            assert outcome.transferred_bytes == 0
            served = await pair.amber.call(m.ReportServed())
            assert isinstance(served, m.ServedReported)
            assert served.lines == ()
            assert {refused.kind for refused in served.refused} == {kind}

    run(test)


def test_what_is_said_to_be_there_and_is_not_comes_from_nowhere(server, tmp_path) -> None:
    async def test() -> None:
        async with two_couriers(tmp_path) as pair:
            (item, *_) = described(server)
            (outcome,) = (await acquire(pair.amber, [m.AcquisitionOrder(artifact=item, source=None)])).outcomes
            assert (outcome.how, outcome.side, outcome.code) == ("failed", "order", "SOURCE_UNAUTHORIZED")
            assert server.log == []

    run(test)


def test_a_peer_whose_blob_was_altered_gives_nothing_and_forgets_it(server, tmp_path) -> None:
    async def test() -> None:
        async with two_couriers(tmp_path) as pair:
            (item, *_) = described(server)
            await acquire(pair.amber, from_origin(server, item))
            assert isinstance(item.sha256, str)
            name = item.sha256.removeprefix("sha256:")
            (blob,) = (path for path in (tmp_path / "store-amber").rglob("*") if path.name in (name, name[2:]))
            blob.chmod(0o600)
            with blob.open("r+b") as file:
                file.write(b"other")
            source = pair.source("amber")
            order = m.AcquisitionOrder(artifact=item, source=source, ticket=ticket_for(item, source))
            (outcome,) = (await acquire(pair.birch, [order], participant="stage-1")).outcomes
            assert (outcome.how, outcome.side, outcome.transferred_bytes) == ("failed", "source", 0)
            reported = await pair.amber.call(m.ReportInventory())
            assert isinstance(reported, m.InventoryReported)
            assert reported.inventory.held == ()

    run(test)


def test_a_courier_that_was_killed_comes_back_at_its_port_and_goes_on_where_it_was(server, tmp_path) -> None:
    async def test() -> None:
        async with two_couriers(tmp_path) as pair:
            item = artifact(WHOLE, 0, len(WHOLE), uri=server.url("model"), version=None)
            endpoint = pair.amber.endpoint
            server.inject("model", Fault(bytes_per_second=300_000, times=None))
            begun = asyncio.Event()

            def on_progress(progress: m.Progressed) -> None:
                if progress.done > 0:
                    begun.set()

            slow = asyncio.ensure_future(acquire(pair.amber, from_origin(server, item), on_progress))
            await begun.wait()
            (pid,) = pair.amber.pids
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(EngineError, match="SIGKILL"):
                await slow
            server.inject("model")
            server.clear()
            answer = await acquire(pair.amber, from_origin(server, item))
            assert hows(answer) == ["acquired"]
            assert pair.amber.endpoint == endpoint
            resumed = sum(event.bytes for event in answer.events if event.kind == "resumed_prefix")
            assert 0 < resumed < len(WHOLE)
            moved = answer.outcomes[0].transferred_bytes
            assert resumed + moved == len(WHOLE)

    run(test)


def test_what_nobody_needs_any_more_is_not_acquired_to_its_end(server, tmp_path) -> None:
    async def test() -> None:
        async with two_couriers(tmp_path) as pair:
            item = artifact(WHOLE, 0, len(WHOLE), uri=server.url("model"), version=None)
            server.inject("model", Fault(bytes_per_second=100_000))
            begun = asyncio.Event()

            def on_progress(progress: m.Progressed) -> None:
                if progress.done > 0:
                    begun.set()

            slow = asyncio.ensure_future(acquire(pair.amber, from_origin(server, item), on_progress))
            await begun.wait()
            await pair.amber.call(m.ReleaseArtifacts(owner="another-plan"))
            assert not slow.done()
            await pair.amber.call(m.ReleaseArtifacts(owner="plan-1"))
            assert hows(await slow) == ["cancelled"]
            server.inject("model")
            again = await acquire(pair.amber, from_origin(server, item))
            assert hows(again) == ["acquired"]
            assert again.outcomes[0].transferred_bytes < len(WHOLE)

    run(test)


def test_a_courier_yields_to_what_computes(tmp_path) -> None:
    async def test() -> None:
        async with two_couriers(tmp_path) as pair:
            (pid,) = pair.amber.pids
            assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + YIELDING)

    run(test)


def test_a_courier_says_why_it_does_not_run(tmp_path) -> None:
    async def test() -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
        set_up = m.CourierSetUp(
            node_id="n", address="127.0.0.1", root=str(tmp_path / "link"), quota_bytes=None, scope=SCOPE, token=TOKEN
        )
        courier = CourierProcess(set_up, "amber")
        with pytest.raises(ArtifactError, match="link"):
            await courier.start()
        await courier.stop()
        with pytest.raises(InferSwarmError, match="stopped"):
            await courier.call(m.ReportInventory())

    run(test)


def test_only_names_that_are_digests_lead_anywhere(server, tmp_path) -> None:
    async def test() -> None:
        async with two_couriers(tmp_path) as pair:
            (item, *_) = described(server)
            await acquire(pair.amber, from_origin(server, item))
            source = pair.source("amber")
            headers = {"authorization": f"Bearer {ticket_for(item, source)}"}
            for name in ("..%2F..%2Fetc%2Fpasswd", "index", "A" * 64, "0" * 63):
                found = httpx.get(f"{source.endpoint}/v1/artifacts/{name}", headers=headers)
                assert found.status_code == 404
            whole = httpx.get(blob_uri(source, item))
            assert whole.status_code == 403
            assert "no ticket" in whole.text

    run(test)


def test_a_limit_keeps_bytes_back(server, tmp_path) -> None:
    """One that is set later, and the one that an agent was started with: each bounds what comes and what goes."""
    item = artifact(WHOLE, 0, len(WHOLE), uri=server.url("model"), version=None)
    limited = courier_of(specification_of(tmp_path, transfer_bytes_per_second=600_000.0))
    assert limited is not None

    async def test() -> None:
        async with two_couriers(tmp_path) as pair:
            await asyncio.gather(limited.start(), pair.amber.call(m.LimitTransfers(bytes_per_second=600_000)))
            try:
                couriers = (pair.amber, limited)
                answers = await asyncio.gather(*(acquire(each, from_origin(server, item)) for each in couriers))
                source = Source(id="node-oak", endpoint=limited.endpoint)
                await limited.call(m.FreezeArtifacts(generation=3))
                order = m.AcquisitionOrder(artifact=item, source=source, ticket=ticket_for(item, source))
                given = await acquire(pair.birch, [order], participant="stage-1")
            finally:
                await limited.stop()
        for answer in (*answers, given):
            assert hows(answer) == ["acquired"]
            assert answer.seconds > 1.0  # 900 kB, of which 150 kB at once: at least 1.25 s by the bucket itself

    run(test)


def specification_of(tmp_path, **settings: object) -> AgentSpec:
    """What a local engine tells the agent of a Node, which it does not start."""
    told: list[bytes] = []

    def child(role: str, module: str, specification: bytes, *_: object) -> SimpleNamespace:
        told.append(specification)
        return SimpleNamespace(process=SimpleNamespace(pid=0), launch=None)

    where = {"ledger": str(tmp_path / "ledger"), "stores_directory": str(tmp_path / "stores")}
    engine = LocalEngine(LocalSettings(scope=SCOPE, token=TOKEN, **where, **settings))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "Child", child)
        engine.start_agent(NodeLaunch("node-oak", "oak", None))
    return msgspec.json.decode(told[0], type=AgentSpec)
