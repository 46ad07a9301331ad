"""A Node's courier: keeps its artifact store, acquires what is ordered, and serves peers. A process of its own.

It is a child of the agent, so that moving bytes never delays a lease, and inside the Node's envelope. It obeys its
agent alone; what it fetches, from whom and for whom the Coordinator decides.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import msgspec
import uvicorn

from inferswarm.artifacts.acquiring import acquire
from inferswarm.artifacts.acquisition import orders as o
from inferswarm.artifacts.byte_ledger import LedgerEvent, event_of
from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.inventory import inventory_of, receipt_of
from inferswarm.artifacts.limiter import BandwidthLimiter
from inferswarm.artifacts.origins.base import Origin
from inferswarm.artifacts.origins.http import HttpOrigin
from inferswarm.artifacts.origins.http_client import Credentials, HttpClient, HttpSettings
from inferswarm.artifacts.origins.opening import open_origin
from inferswarm.artifacts.sources import ORIGIN, Source
from inferswarm.artifacts.store import ContentStore, PartialIdentity, Use, partial_identity
from inferswarm.artifacts.taxonomy import UNAUTHORIZED
from inferswarm.artifacts.tickets import TicketBooth
from inferswarm.artifacts.transforms import ResultIndex, adopt_result
from inferswarm.backends.decoding_identity import surroundings
from inferswarm.errors import ArtifactError, FabricError, InferSwarmError, StoreRefused
from inferswarm.fabric import messages as m
from inferswarm.fabric.channel import Channel
from inferswarm.fabric.courier_http import BLOB_PATH, NODE_HEADER, PARTICIPANT_HEADER, BlobServer
from inferswarm.fabric.faults import to_fault

PEER_SETTINGS = HttpSettings(
    connect_seconds=3.0, silence_seconds=10.0, attempts=2, deadline_seconds=30.0, max_redirects=0
)
"""How patient a courier is with peers: another source is sooner asked than one that does not answer waited for. A
redirect is not followed: the bytes would come from somebody whom nobody authorized."""
LIMITS = o.Limits(connections=4, batch_bytes=2 * 2**20, publishing=6)
"""What acquiring takes of the Node's memory beside the courier's own: at most 16 MiB (see `Limits`)."""
MOST_PINS = 65_536
"""So many pins go with an inventory: at some 300 B each, a third of what one message may be (`channel`)."""
MOST_RESULTS = 65_536
"""So many results go with a report: at some 200 B each, a quarter of what one message may be (`channel`)."""
NOWHERE = ""
"""The source of an order for what is said to be in the store."""


class Courier:
    """The state of a courier process. `run` returns when its agent has gone."""

    def __init__(self, channel: Channel[m.CourierCall], set_up: m.CourierSetUp) -> None:
        """Open the store, listen, and greet the agent. Raises what opening the store raises; OSError for the port."""
        self._channel = channel
        self._set_up = set_up
        self._store = ContentStore(Path(set_up.root), set_up.quota_bytes)
        rate = set_up.bytes_per_second
        self._into, self._out_of = BandwidthLimiter(rate), BandwidthLimiter(rate)
        self._server = BlobServer(self._store, TicketBooth(set_up.token, set_up.scope), self._out_of)
        self._under_way: dict[str, list[threading.Event]] = {}
        """Owner → what ends each acquisition that is made for it."""
        self._changed = threading.Condition()
        self._listener = _listen(set_up.address, set_up.port)
        host, port = self._listener.getsockname()[:2]
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._source = Source(id=set_up.node_id, endpoint=f"http://{where}")
        self._server.at(self._source)
        self._origins, self._peers = HttpClient(), HttpClient(PEER_SETTINGS)
        config = uvicorn.Config(self._server.app(), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        self._http = uvicorn.Server(config)
        threading.Thread(target=self._http.run, args=([self._listener],), name="serving", daemon=True).start()
        channel.send(m.CourierHello(pid=os.getpid(), endpoint=self._source.endpoint))

    def run(self) -> None:
        """Take commands, each in a thread of its own, until the agent closes the channel."""
        while (call := self._channel.receive()) is not None:
            threading.Thread(target=self._answer, args=(call,), name=f"call-{call.request}", daemon=True).start()
        self._cancel(None)  # and nobody waits: what comes of it has nobody to be told to
        self._http.should_exit = True
        self._store.close()

    def _answer(self, call: m.CourierCall) -> None:
        try:
            answer = self._execute(call)
        except InferSwarmError as error:
            self._channel.send(m.Failed(request=call.request, fault=to_fault(error)))
        except OSError as error:
            fault = to_fault(FabricError(f"courier of {self._set_up.node_id}: {error}"))
            self._channel.send(m.Failed(request=call.request, fault=fault))
        else:
            self._channel.send(m.Answered(request=call.request, answer=answer))

    def _execute(self, call: m.CourierCall) -> m.Answer:
        match call.command:
            case m.ReportInventory():
                inventory = inventory_of(self._source, self._store.inventory())
                receipt, wanted = receipt_of(inventory, self._set_up.token), set(call.command.pins_of)
                pins = (pin for pin in self._store.pins() if (pin.uri, pin.version) in wanted) if wanted else ()
                return m.InventoryReported(inventory=inventory, receipt=receipt, pins=tuple(islice(pins, MOST_PINS)))
            case m.FreezeArtifacts():
                self._server.freeze(call.command.generation)
                return m.Done()
            case m.LimitTransfers():
                for limiter in (self._into, self._out_of):
                    limiter.set_rate(call.command.bytes_per_second)
                return m.Done()
            case m.AcquireArtifacts():
                return self._acquire(call.command, call.request)
            case m.ReleaseArtifacts():
                self._release(call.command.owner)
                return m.Done()
            case m.ReportServed():
                return self._server.report()
            case m.ReportResults():
                return self._results()

    def _results(self) -> m.ResultsReported:
        index, quota = ResultIndex(self._store), self._set_up.quota_bytes
        return m.ResultsReported(
            results=tuple(islice(index.listed(), MOST_RESULTS)),
            surroundings=tuple(sorted(surroundings().items())),
            room_bytes=None if quota is None else max(0, quota - index.stored_bytes),
        )

    # -- acquiring --

    @contextmanager
    def _until_released(self, owner: str) -> Iterator[threading.Event]:
        """Give what ends an acquisition for an owner, for as long as that is under way."""
        cancelled = threading.Event()
        with self._changed:
            self._under_way.setdefault(owner, []).append(cancelled)
        try:
            yield cancelled
        finally:
            with self._changed:
                self._under_way[owner].remove(cancelled)
                self._changed.notify_all()

    def _release(self, owner: str) -> None:
        """End what is acquired for an owner, then let its contents go: what comes late would be kept again."""
        self._cancel(owner)
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way.get(owner))
        self._store.release(owner)

    def _cancel(self, owner: str | None) -> None:
        """End what is being acquired for an owner; None: for all. What has come is kept as far as it is good."""
        with self._changed:
            owners = list(self._under_way) if owner is None else [owner]
            for name in owners:
                for cancelled in self._under_way.get(name, ()):
                    cancelled.set()

    def _acquire(self, command: m.AcquireArtifacts, request: int) -> m.ArtifactsAcquired:
        events: list[LedgerEvent] = []
        tampered: list[tuple[str, str]] = []
        sources = _Sources(command, self._set_up.node_id, self._origins, self._peers)

        def on_event(event: o.BytesMoved | o.StateChanged | o.Tampered) -> None:
            if isinstance(event, o.BytesMoved):
                events.append(event_of(command.participant, event, time.time_ns()))
            elif isinstance(event, o.Tampered):
                tampered.append((event.sha256, event.reason))

        def on_progress(progress: o.Progress) -> None:
            self._channel.send(
                m.Progressed(request=request, done=progress.done_bytes, total=progress.total_bytes, note="bytes")
            )

        with self._until_released(command.owner) as cancelled:
            acquired = acquire(
                [sources.order(item) for item in command.orders],
                self._store,
                sources.open,
                use=Use(command.owner, "optional" if command.are_results else "required"),
                strict=command.strict,
                authorize=sources.authorize,
                limits=LIMITS,
                limiter=self._into,
                cancelled=cancelled,
                deadline=time.monotonic() + command.deadline_seconds,
                on_event=on_event,
                on_progress=on_progress,
            )
            outcomes = acquired.outcomes
            if command.are_results:
                outcomes = tuple(map(self._adopted, command.orders, outcomes))
                self._store.release(command.owner, [item.sha256 for item in outcomes if item.sha256 is not None])
        with suppress(StoreRefused):  # the bytes are there; what is lost is that others need not fetch them first
            self._store.pin_told(_told(command.orders, outcomes))
        return m.ArtifactsAcquired(
            outcomes=tuple(map(_outcome, outcomes)),
            events=tuple(events),
            seconds=acquired.seconds,
            versions=tuple(_versions(acquired.traffic)),
            tampered=tuple(tampered),
        )

    def _adopted(self, order: m.AcquisitionOrder, outcome: o.Outcome) -> o.Outcome:
        """List a result that has come under its key; one that is none counts as not having come."""
        if outcome.state != "VERIFIED_AVAILABLE":
            return outcome
        try:
            adopt_result(self._store, order.artifact)
        except ArtifactError as error:
            side: o.Side = "store" if isinstance(error, StoreRefused) else "source"
            failure = o.Failure(side, error.code, f"{error.subject}: {error.reason}")
            return outcome._replace(state="MISSING", how="failed", failure=failure)
        return outcome


class _Sources:
    """The sources of one command: what each order says of its own, and who asks."""

    def __init__(self, command: m.AcquireArtifacts, node_id: str, origins: HttpClient, peers: HttpClient) -> None:
        self._participant = command.participant
        self._node_id = node_id
        self._origins, self._peers = origins, peers
        self._tickets: dict[str, tuple[str, int]] = {}

    def order(self, item: m.AcquisitionOrder) -> o.Order:
        if item.source is None:
            return o.Order(item.artifact, NOWHERE, item.artifact.origin.uri, item.artifact.range)
        if item.source.id == ORIGIN:
            return o.Order.from_origin(item.artifact)._replace(fetches_anew=item.fetches_anew)
        uri = blob_uri(item.source, item.artifact)
        self._tickets[uri] = item.ticket, item.artifact.length
        return o.Order.from_peer(item.artifact, item.source.id, uri)._replace(fetches_anew=item.fetches_anew)

    @staticmethod
    def authorize(order: o.Order) -> None:
        if order.source == NOWHERE:
            reason = "is not in the store, as was said, and may come from nowhere else"
            raise ArtifactError(UNAUTHORIZED, order.artifact.id, reason)

    def open(self, source: str, uri: str) -> Origin:
        if source == ORIGIN:
            return open_origin(uri, client=self._origins)
        ticket, length = self._tickets[uri]
        headers = {
            "authorization": f"Bearer {ticket}",
            PARTICIPANT_HEADER: self._participant,
            NODE_HEADER: self._node_id,
        }
        credentials = Credentials(headers, "its ticket was refused")
        return HttpOrigin(uri, client=self._peers, credentials=credentials, known_length=length)


def blob_uri(source: Source, artifact: Artifact) -> str:
    """Return where a peer serves an artifact. Raises ArtifactError for one whose digest nobody knows."""
    if isinstance(artifact.sha256, msgspec.UnsetType):
        raise ArtifactError(UNAUTHORIZED, artifact.id, f"has no digest to ask {source.id} for")
    return f"{source.endpoint}{BLOB_PATH}{artifact.sha256.removeprefix('sha256:')}"


def _outcome(found: o.Outcome) -> m.AcquisitionOutcome:
    failure = found.failure or o.Failure("order", "", "")
    return m.AcquisitionOutcome(
        artifact=found.artifact,
        sha256=found.sha256,
        how=found.how,
        hash_known_by=found.hash_known_by,
        source=found.source,
        length=found.length,
        transferred_bytes=found.transferred_bytes,
        seconds=found.seconds,
        side="" if found.failure is None else failure.side,
        code=failure.code,
        reason=failure.reason,
    )


def _told(
    orders: Iterable[m.AcquisitionOrder], outcomes: Iterable[o.Outcome]
) -> Iterable[tuple[PartialIdentity, str]]:
    """Return what is there under digests that others' first fetches found."""
    for item, outcome in zip(orders, outcomes, strict=True):
        if item.is_pinned and outcome.state == "VERIFIED_AVAILABLE" and outcome.sha256 is not None:
            yield partial_identity(item.artifact), outcome.sha256


def _versions(traffic: Iterable[o.SourceTraffic]) -> Iterable[tuple[str, str]]:
    for seen in traffic:
        if seen.source == ORIGIN and isinstance(seen.seen.version, str):
            yield seen.uri, seen.seen.version


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(128)
    return listener
