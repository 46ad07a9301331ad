"""What negative controls are tried in: a real origin, two couriers in processes, the derived artifacts of a plan."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from inferswarm.artifacts.byte_ledger import ByteLedger
from inferswarm.artifacts.deriving import derive_artifacts
from inferswarm.artifacts.describing import describe_model
from inferswarm.artifacts.exactness import Need
from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.manifest import ModelManifest, manifest_of
from inferswarm.artifacts.origins.http import HttpOrigin
from inferswarm.artifacts.participant_artifacts import PlanArtifacts
from inferswarm.artifacts.publishing import publish
from inferswarm.artifacts.sources import ORIGIN, Source
from inferswarm.artifacts.store import ContentStore
from inferswarm.artifacts.tickets import Ticket, TicketBooth
from inferswarm.fabric import messages as m
from inferswarm.fabric.courier_process import CourierProcess
from inferswarm.strategies.chain import state_tensors
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.requirement import declare
from tests.models import write_small_llama
from tests.origin_server import Fault, OriginServer, serve_origin
from tests.unit.artifacts.artifacts_support import PLAN, PROVENANCE
from tests.unit.artifacts.store_samples import artifact, sample_bytes

SCOPE, TOKEN = "scope-1", "a token of the tests"
MODEL, LONG = "small.gguf", "long"
LONG_BYTES = sample_bytes(600_000)
NUM_BLOCKS = 7
SPANS = ((0, 2), (2, 7), (7, NUM_BLOCKS + 2))
"""Of the three participants; the middle one's 45 artifacts are tried one by one."""


class Node(NamedTuple):
    """One Node's courier, and where its store is."""

    name: str
    process: CourierProcess
    root: Path

    @property
    def source(self) -> Source:
        return Source(id=f"node-{self.name}", endpoint=self.process.endpoint)


class World:
    """Holds everything; `refused` and `accepted` are what a control is made of."""

    def __init__(self, folder: Path, server: OriginServer, runner: asyncio.Runner) -> None:
        self.server = server
        self.generation = 1
        self._runner = runner
        path = server.folder / MODEL
        self.model = DenseModel.open(path)
        with HttpOrigin(server.url(MODEL)) as origin:
            described = origin.described
        layout = manifest_of(describe_model(path).object, PROVENANCE, files=[described])
        self.manifest: ModelManifest = publish(layout, lambda file: HttpOrigin(file.uri))
        self.plan = self.derive(self.needs())
        self._unused = iter(self.plan.of("stage-1").artifacts)
        self.amber, self.birch = (self._courier(folder, name) for name in ("amber", "birch"))
        self._runner.run(self._start())

    # -- a plan --

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(state_tensors(self.model.description))

    def needs(self) -> list[Need]:
        """Return what the three participants need, as the strategy says."""
        problem = self.model.problem()
        return [
            Need(
                self.model.requirement(problem, f"stage-{index}", first, end),
                declare(self.model.description, first, end),
            )
            for index, (first, end) in enumerate(SPANS)
        ]

    def derive(self, needs: list[Need]) -> PlanArtifacts:
        return derive_artifacts(self.manifest, self.model.object, PLAN, needs, self.states)

    def next_artifact(self) -> Artifact:
        """Return an artifact of the plan that no Node has yet."""
        return next(self._unused)

    def long_artifact(self, start: int = 0, *, known: bool = True) -> Artifact:
        """Return one that is long enough to lie in a partial."""
        with HttpOrigin(self.server.url(LONG)) as origin:
            version = origin.described.version
        assert isinstance(version, str)
        uri = self.server.url(LONG)
        return artifact(LONG_BYTES, start, start + 500_000, uri=uri, version=version, pinned=known)

    # -- couriers --

    def call(self, node: Node, command: m.CourierCommand) -> m.Answer:
        return self._runner.run(node.process.call(command))

    def inventory(self, node: Node) -> m.InventoryReported:
        answer = self.call(node, m.ReportInventory())
        assert isinstance(answer, m.InventoryReported)
        return answer

    def held(self, node: Node) -> frozenset[str]:
        return frozenset(self.inventory(node).inventory.lengths)

    def served(self, node: Node) -> m.ServedReported:
        answer = self.call(node, m.ReportServed())
        assert isinstance(answer, m.ServedReported)
        return answer

    def freeze(self) -> None:
        """Begin a new generation on both Nodes."""
        self.generation += 1
        for node in (self.amber, self.birch):
            self.call(node, m.FreezeArtifacts(generation=self.generation))

    def acquire(self, node: Node, *orders: m.AcquisitionOrder, **more: object) -> m.ArtifactsAcquired:
        fields = {"participant": "stage-1", "owner": "plan-1", "strict": True, "deadline_seconds": 20.0} | more
        answer = self.call(node, m.AcquireArtifacts(orders=orders, **fields))  # type: ignore[arg-type]
        assert isinstance(answer, m.ArtifactsAcquired)
        ByteLedger(answer.events).check_conservation()
        return answer

    def blob(self, node: Node, item: Artifact) -> Path:
        """Return the file of a published content."""
        assert isinstance(item.sha256, str)
        digits = item.sha256.removeprefix("sha256:")
        return node.root / "blobs" / "sha256" / digits[:2] / digits[2:]

    def alter(self, node: Node, item: Artifact) -> None:
        """Write to a published file behind its store's back."""
        path = self.blob(node, item)
        path.chmod(0o600)
        with path.open("r+b") as file:
            file.write(b"other")

    def store(self, node: Node) -> ContentStore:
        """Open a Node's store beside its courier."""
        return ContentStore(node.root)

    # -- orders --

    def from_origin(self, item: Artifact) -> m.AcquisitionOrder:
        return m.AcquisitionOrder(artifact=item, source=Source(id=ORIGIN, endpoint=item.origin.uri))

    def ticket(self, item: Artifact, at: Source | None = None, /) -> Ticket:
        """Return what a Coordinator would sign for birch to get it from a peer (amber)."""
        assert isinstance(item.sha256, str)
        return Ticket(
            scope=SCOPE,
            artifact=item.sha256,
            participant="stage-1",
            node_id=self.birch.source.id,
            source=self.amber.source if at is None else at,
            attempt=1,
            generation=self.generation,
            expires_at=int(time.time()) + 60,
        )

    def from_peer(self, item: Artifact, at: Source | None = None, /, **changes: object) -> m.AcquisitionOrder:
        """Return the order that a Coordinator gives for a peer (amber), its ticket changed as a control asks."""
        right = self.ticket(item, at)
        ticket = TicketBooth(TOKEN, SCOPE).issue(msgspec.structs.replace(right, **changes))  # type: ignore[arg-type]
        return m.AcquisitionOrder(artifact=item, source=right.source, ticket=ticket)

    def lying_peer(self, item: Artifact, contents: bytes, *faults: Fault) -> Source:
        """Return a peer that answers for one content as it likes; it asks for no ticket."""
        assert isinstance(item.sha256, str)
        path = f"v1/artifacts/{item.sha256.removeprefix('sha256:')}"
        file = self.server.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(contents)
        self.server.inject(path, *faults)
        return Source(id="node-oak", endpoint=self.server.address)

    def bytes_of(self, item: Artifact) -> bytes:
        return (self.server.folder / MODEL).read_bytes()[item.range.start : item.range.end]

    # -- what happened --

    def refused(
        self,
        order: m.AcquisitionOrder,
        code: str,
        side: str = "source",
        moved: int = 0,
        **more: object,
    ) -> m.ArtifactsAcquired:
        """Have birch try an order that must fail with a code, after so many bytes, and publish nothing."""
        before = self.held(self.birch)
        answer = self.acquire(self.birch, order, **more)
        (outcome,) = answer.outcomes
        assert (outcome.how, outcome.side, outcome.code) == ("failed", side, code), outcome
        received = sum(event.bytes for event in answer.events if event.kind == "received")
        assert (received, outcome.transferred_bytes) == (moved, moved)
        assert self.held(self.birch) <= before
        return answer

    def accepted(self, order: m.AcquisitionOrder, how: str = "acquired", **more: object) -> m.ArtifactsAcquired:
        """Have birch try an order that must succeed: what was refused was refused for the one thing altered."""
        answer = self.acquire(self.birch, order, **more)
        (outcome,) = answer.outcomes
        assert outcome.how == how, outcome
        assert outcome.sha256 in self.held(self.birch)
        return answer

    def given_to_amber(self, item: Artifact) -> Artifact:
        """Have amber hold it."""
        (outcome,) = self.acquire(self.amber, self.from_origin(item)).outcomes
        assert outcome.how == "acquired"
        return item

    @contextmanager
    def fault(self, path: str, *faults: Fault) -> Iterator[None]:
        """Let the origin misbehave for a while."""
        self.server.inject(path, *faults)
        try:
            yield
        finally:
            self.server.inject(path)

    def run(self, work: Callable[[], object]) -> None:
        """Await something on the couriers' loop."""
        self._runner.run(work())  # type: ignore[arg-type]

    # -- beginning and end --

    def _courier(self, folder: Path, name: str) -> Node:
        root = folder / f"store-{name}"
        set_up = m.CourierSetUp(
            node_id=f"node-{name}", address="127.0.0.1", root=str(root), quota_bytes=None, scope=SCOPE, token=TOKEN
        )
        return Node(name, CourierProcess(set_up, name), root)

    async def _start(self) -> None:
        await asyncio.gather(self.amber.process.start(), self.birch.process.start())

    async def stop(self) -> None:
        await asyncio.gather(self.amber.process.stop(), self.birch.process.stop())


@contextmanager
def open_world(folder: Path) -> Iterator[World]:
    """Write the model, serve it, start both couriers; end them."""
    served = folder / "served"
    served.mkdir()
    write_small_llama(served / MODEL, num_blocks=NUM_BLOCKS, hidden=32, ffn=64, vocab=300)
    (served / LONG).write_bytes(LONG_BYTES)
    with serve_origin(served) as server, asyncio.Runner() as runner:
        world = World(folder, server, runner)
        try:
            yield world
        finally:
            runner.run(world.stop())
