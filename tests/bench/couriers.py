"""Couriers of a benchmark: processes with stores of their own, without a swarm, and the orders that they obey."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
from msgspec.structs import replace

from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.sources import ORIGIN, Source
from inferswarm.artifacts.tickets import Ticket, TicketBooth
from inferswarm.fabric import messages as m
from inferswarm.fabric.courier_process import CourierProcess
from tests.bench.file_server import Ports

SCOPE, TOKEN = "bench", "a token of the benchmark"
Result = TypeVar("Result")


def peak_bytes(pid: int) -> int:
    """Return VmHWM of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"no VmHWM of {pid}")


class Loop:
    """An event loop in a thread of its own, which all couriers live on."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class Courier:
    """One courier with an empty store."""

    def __init__(self, loop: Loop, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        self._loop = loop
        set_up = m.CourierSetUp(
            node_id=name, address="127.0.0.1", root=str(root), quota_bytes=None, scope=SCOPE, token=TOKEN
        )
        self._process = CourierProcess(set_up, name)
        loop.run(self._process.start())

    @property
    def pid(self) -> int:
        (pid,) = self._process.pids
        return pid

    @property
    def cpu_seconds(self) -> float:
        used = psutil.Process(self.pid).cpu_times()
        return float(used.user + used.system)

    @property
    def source(self) -> Source:
        return Source(id=self.name, endpoint=self._process.endpoint)

    def call(self, command: m.CourierCommand) -> m.Answer:
        return self._loop.run(self._process.call(command))

    def acquire(self, orders: Sequence[m.AcquisitionOrder], deadline_seconds: float = 600.0) -> m.ArtifactsAcquired:
        answer = self.call(
            m.AcquireArtifacts(
                participant="stage-0",
                owner="bench",
                orders=tuple(orders),
                strict=False,
                deadline_seconds=deadline_seconds,
            )
        )
        assert isinstance(answer, m.ArtifactsAcquired)
        return answer

    def close(self) -> None:
        self._loop.run(self._process.stop())


@contextlib.contextmanager
def courier(loop: Loop, folder: Path, name: str) -> Iterator[Courier]:
    """Run a courier over an empty store, and remove that in the end."""
    root = Path(tempfile.mkdtemp(dir=folder)) / "store"
    running = Courier(loop, root, name)
    try:
        yield running
    finally:
        running.close()
        shutil.rmtree(root.parent)


def from_origin(artifacts: Sequence[Artifact]) -> list[m.AcquisitionOrder]:
    """Order artifacts from where they were described."""
    return [m.AcquisitionOrder(artifact=item, source=Source(ORIGIN, item.origin.uri)) for item in artifacts]


def at(artifacts: Sequence[Artifact], ports: Ports) -> list[Artifact]:
    """Return the same artifacts as another server has them, whose addresses and versions are the same files'."""
    return [
        replace(item, origin=replace(item.origin, uri=ports.url(item.origin.uri.split("/", 3)[3])))
        for item in artifacts
    ]


def from_peer(artifacts: Sequence[Artifact], source: Source, node_id: str) -> list[m.AcquisitionOrder]:
    """Order artifacts from a courier that has them, each under its ticket."""
    booth, orders = TicketBooth(TOKEN, SCOPE), []
    for item in artifacts:
        assert isinstance(item.sha256, str)
        ticket = Ticket(
            scope=SCOPE,
            artifact=item.sha256,
            participant="stage-0",
            node_id=node_id,
            source=source,
            attempt=1,
            generation=0,
            expires_at=int(time.time()) + 600,
        )
        orders.append(m.AcquisitionOrder(artifact=item, source=source, ticket=booth.issue(ticket)))
    return orders
