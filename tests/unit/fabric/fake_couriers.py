"""Nodes with couriers in memory, that hold contents, check tickets, and misbehave where they are told to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import msgspec

from inferswarm.artifacts.byte_ledger import ByteClass, LedgerEvent
from inferswarm.artifacts.deriving import derive_artifacts
from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.inventory import Held, Inventory, receipt_of
from inferswarm.artifacts.manifest import ModelManifest
from inferswarm.artifacts.sources import ORIGIN, Source
from inferswarm.artifacts.store.records import Pin
from inferswarm.artifacts.tickets import Expected, TicketBooth
from inferswarm.artifacts.transforms import ListedResult
from inferswarm.artifacts.types import ByteRange
from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.documents import digest, digest_bytes
from inferswarm.errors import ArtifactError, EngineError, InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.acquiring import Acquirer
from inferswarm.fabric.ledger import Ledger
from inferswarm.fabric.transfer_records import Place, TransferRecord, pin_place, read_transfers
from inferswarm.planner.plan import ExecutionPlan, MemoryAccount, Placement
from inferswarm.planner.problem import Workload
from tests.unit.artifacts.artifacts_support import SPANS, Rig

SCOPE, TOKEN = "scope", "a token of the tests"
SURROUNDINGS = (("gguf", "1"), ("numpy", "2"))
"""What every Node here says that decoding depends on."""


class Lie(NamedTuple):
    """How attempts from a source end on one Node, or on all."""

    source: str
    code: str
    side: str = "source"
    node: str = ""
    content: str = ""
    """Only of this content."""


class FakeNode:
    """One Node's store and generation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = Source(f"id-{name}", f"http://{name}:1")
        self.held: dict[str, int] = {}
        self.pins: dict[Place, str] = {}
        self.told: dict[Place, str] = {}
        self.results: tuple[ListedResult, ...] = ()
        self.room: int | None = None
        self.sequence = 0
        self.generation = 0
        self.released: list[str] = []

    def keep(self, sha256: str, length: int) -> None:
        """Hold a content from now on."""
        self.held[sha256] = length
        self.sequence += 1


class FakeCouriers:
    """Stands in for the membership: what it is asked it does at once, in memory."""

    def __init__(self, rig: Rig, *names: str) -> None:
        self.whole = rig.path.read_bytes()
        self.nodes = {f"id-{name}": FakeNode(name) for name in names}
        self.without_store: set[str] = set()
        self.silent: set[str] = set()
        """Names of Nodes that do not answer."""
        self.slow: dict[str, float] = {}
        """Name of a Node → seconds that an acquisition takes there."""
        self.gone: set[str] = set()
        self.lies: list[Lie] = []
        self.asked: list[tuple[str, str, int]] = []
        """(Node, source, bytes) of every artifact that moved."""
        self.changes: dict[str, object] = {}
        """Fields of the next answers that are others."""
        self._booth = TicketBooth(TOKEN, SCOPE)

    # -- as Membership --

    def links(self) -> tuple[SimpleNamespace, ...]:
        """All members."""
        return tuple(self._link(node) for node in self.nodes.values() if node.name not in self.gone)

    def link(self, node_id: str) -> SimpleNamespace | None:
        """One member."""
        return next((link for link in self.links() if link.join.node_id == node_id), None)

    def name_of(self, node_id: str) -> str:
        """A Node's name."""
        return self.nodes[node_id].name if node_id in self.nodes else node_id

    async def call(self, node_id: str, command: m.OnCourier, on_progress: object = None) -> m.Answer:
        """Ask a courier."""
        node = self.nodes[node_id]
        if node.name in self.gone:
            raise EngineError(f"Node {node.name!r}", "is no member any more")
        if node.name in self.silent:
            await asyncio.sleep(3600)
        await asyncio.sleep(0)
        match command.command:
            case m.FreezeArtifacts():
                node.generation = command.command.generation
                return m.Done()
            case m.ReportInventory():
                held = tuple(Held(sha256=key, length=node.held[key], role="required") for key in sorted(node.held))
                inventory = Inventory(node=node.source, store="store", sequence=node.sequence, held=held)
                pins = tuple(
                    Pin(uri=uri, version=version, range=ByteRange(start, end), sha256=sha256, is_told=is_told)
                    for known, is_told in ((node.pins, False), (node.told, True))
                    for (uri, version, start, end), sha256 in known.items()
                    if (uri, version) in command.command.pins_of
                )
                return m.InventoryReported(inventory=inventory, receipt=receipt_of(inventory, TOKEN), pins=pins)
            case m.ReportResults():
                return m.ResultsReported(results=node.results, surroundings=SURROUNDINGS, room_bytes=node.room)
            case m.ReleaseArtifacts():
                node.released.append(command.command.owner)
                return m.Done()
            case m.AcquireArtifacts():
                await asyncio.sleep(self.slow.get(node.name, 0))
                return self._acquire(node, command.command)
            case _:
                raise AssertionError(command)

    def _link(self, node: FakeNode) -> SimpleNamespace:
        courier = "" if node.name in self.without_store else node.source.endpoint
        return SimpleNamespace(join=SimpleNamespace(node_id=node.source.id, name=node.name, courier=courier))

    # -- acquiring --

    def _acquire(self, node: FakeNode, command: m.AcquireArtifacts) -> m.ArtifactsAcquired:
        outcomes: list[m.AcquisitionOutcome] = []
        events: list[LedgerEvent] = []
        for order in command.orders:
            outcomes.append(self._one(node, command, order, events))
        answer = m.ArtifactsAcquired(outcomes=tuple(outcomes), events=tuple(events), seconds=0.1)
        return msgspec.structs.replace(answer, **self.changes)

    def _one(
        self, node: FakeNode, command: m.AcquireArtifacts, order: m.AcquisitionOrder, events: list[LedgerEvent]
    ) -> m.AcquisitionOutcome:
        item, place = order.artifact, order.artifact.range
        sha256 = digest_bytes(self.whole[place.start : place.end])
        if command.are_results:
            assert isinstance(item.sha256, str)
            sha256 = item.sha256

        def event(kind: ByteClass, source: str = "") -> None:
            events.append(event_of(command.participant, kind, item, source))

        def outcome(how: str, source: str = "", **failure: str) -> m.AcquisitionOutcome:
            return m.AcquisitionOutcome(
                artifact=item.id,
                sha256=sha256 if how in ("acquired", "cache-hit") else None,
                how=how,
                hash_known_by="record" if isinstance(item.sha256, str) else "first-fetch-pinned",
                source=source,
                length=item.length,
                transferred_bytes=0,
                seconds=0.1,
                **failure,
            )

        if command.strict and not isinstance(item.sha256, str):
            return outcome("failed", side="order", code="UNVERIFIED_SOURCE_READ_REFUSED", reason="it has no digest")
        if order.is_pinned and (said := pin_place(item)) is not None:
            node.told.setdefault(said, sha256)
        if isinstance(item.sha256, str) and item.sha256 in node.held and not order.fetches_anew:
            event("cache_hit")
            return outcome("cache-hit")
        if order.source is None:
            return outcome("failed", side="order", code="SOURCE_UNAUTHORIZED", reason="it is not in the store")
        source = order.source.id
        for lie in self.lies:
            if lie.source == self.name_of(source) and lie.node in ("", node.name) and lie.content in ("", sha256):
                if lie.code == "INTEGRITY_DIGEST_MISMATCH":
                    event("received", source)
                    event("integrity_failure", source)
                return outcome("failed", source, side=lie.side, code=lie.code, reason="as told")
        if source != ORIGIN:
            self._check_ticket(node, command, order, sha256)
        event("received", source)
        event("acquired", source)
        node.keep(sha256, item.length)
        if not isinstance(item.sha256, str) and (pinned := pin_place(item)) is not None:
            node.pins[pinned] = sha256
        self.asked.append((node.name, self.name_of(source), item.length))
        return outcome("acquired", source)

    def _check_ticket(
        self, node: FakeNode, command: m.AcquireArtifacts, order: m.AcquisitionOrder, sha256: str
    ) -> None:
        assert order.source is not None
        peer = self.nodes[order.source.id]
        assert sha256 in peer.held, "a peer is asked for what it said it holds"
        expected = Expected(sha256, command.participant, node.source.id, peer.source, peer.generation, time.time())
        self._booth.check(order.ticket, expected)


def event_of(participant: str, kind: ByteClass, item: Artifact, source: str = "") -> LedgerEvent:
    return LedgerEvent(
        kind=kind,
        participant=participant,
        source=source,
        artifact=item.id,
        content=item.sha256,
        object=item.origin.uri,
        range=ByteRange(item.range.start, item.range.start + item.length),
        bytes=item.length,
        at_ns=str(time.time_ns()),
    )


class Bed:
    """A model's plans over fake Nodes, and the Coordinator's side of acquiring them."""

    def __init__(self, rig: Rig, folder: Path, *names: str) -> None:
        self.rig = rig
        self.path = folder / "here.ledger"
        self.ledger = Ledger(self.path)
        self.couriers = FakeCouriers(rig, *names)
        self.acquirer = Acquirer(SCOPE, TOKEN, self.couriers, self.ledger)  # type: ignore[arg-type]
        self.progress: list[m.Progressed] = []
        self._numbers = iter(range(1, 1000))

    def order(
        self,
        nodes: Sequence[str],
        spans: Sequence[tuple[int, int]] = SPANS,
        manifest: ModelManifest | None = None,
        **rules: object,
    ) -> m.Fallback:
        """The order for a plan over these Nodes; of a manifest without digests by default."""
        units = self.rig.model.description.unit_ids
        account = MemoryAccount(memory_id="m", capacity_bytes=1, reserved_bytes=0, terms=())
        placements = tuple(
            Placement(
                participant=f"stage-{index}",
                node_id=f"id-{name}",
                node_name=name,
                compute_unit_id=f"cpu-{name}",
                threads=1,
                first_unit=first,
                end_unit=end,
                unit_ids=units[first:end],
                states=(),
                memory=account,
            )
            for index, (name, (first, end)) in enumerate(zip(nodes, spans, strict=True))
        )
        plan = ExecutionPlan(
            problem_digest="p",
            graph_digest="g",
            primitive="null",
            representation="fp32",
            workload=Workload(),
            chunk_positions=8,
            max_positions=64,
            sessions=2,
            placements=placements,
            prediction=None,
        )
        needs = self.rig.needs(spans)
        assignments = tuple(
            StageAssignment(
                participant=placement.participant,
                plan_digest=digest(plan),
                primitive="null",
                representation="fp32",
                description=self.rig.model.description,
                first_unit=placement.first_unit,
                end_unit=placement.end_unit,
                threads=(UnitThreads(placement.first_unit, placement.end_unit, 1),),
                requirement=need.requirement,
                max_positions=64,
                sessions=2,
                chunk_positions=8,
            )
            for placement, need in zip(placements, needs, strict=True)
        )
        manifest = manifest or self.rig.layout
        artifacts = derive_artifacts(manifest, self.rig.model.object, digest(plan), needs, self.rig.states)
        needed = m.NeededArtifacts(plan=artifacts, files=(manifest.files[0].uri,), **rules)  # type: ignore[arg-type]
        return m.Fallback(plan=plan, assignments=assignments, run_ahead=2, artifacts=needed)

    async def acquire(self, order: m.Fallback, adopted: Sequence[str] = ()) -> tuple[StageAssignment, ...]:
        """Acquire for a new realization, and let its stages make their states."""
        name = f"realization-{next(self._numbers)}"
        told = await self.acquirer.acquire(order, name, adopted, self.progress.append)
        made = []
        for item in told:
            if item.participant not in adopted and item.requirement is not None:
                size = item.requirement.bytes
                made.append(
                    (
                        item.participant,
                        m.Materialized(states=(), kernel="", source_bytes=size, required_bytes=size, seconds=0.1),
                    )
                )
        self.acquirer.materialized(name, made)
        self.acquirer.serves(name)
        return told

    async def refusal(self, order: m.Fallback) -> InferSwarmError:
        """Acquire what cannot be had."""
        try:
            await self.acquire(order)
        except InferSwarmError as error:
            return error
        raise AssertionError("nothing was refused")

    @property
    def records(self) -> tuple[TransferRecord, ...]:
        """What is recorded."""
        return read_transfers(self.path)


def is_artifact_error(error: InferSwarmError, code: str) -> bool:
    return isinstance(error, ArtifactError) and error.code == code
