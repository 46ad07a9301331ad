"""Makes a Node hold a set of artifacts: what is there already, and the rest from the one source each is ordered from.

What is promised: an artifact counts as there only when its bytes were hashed and published; nobody is asked for bytes
that are in the store; each failure ends its own attempt, is named with artifact and source, and is not followed by
another source, which the caller chooses; the beginning of what was interrupted is kept and bound to its identity,
what was altered is thrown away; memory does not grow with the artifacts. What comes without a digest is pinned by
what arrived first, which only says that everybody has the same bytes, not that they are the publisher's.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from inferswarm.artifacts.acquisition.coalescing import Piece, coalesce, request_size
from inferswarm.artifacts.acquisition.fetching import Fetcher, Leave
from inferswarm.artifacts.acquisition.job import Job
from inferswarm.artifacts.acquisition.orders import (
    Acquired,
    Authorize,
    Limits,
    OnEvent,
    OnProgress,
    OpenSource,
    Order,
    SourceTraffic,
)
from inferswarm.artifacts.acquisition.pool import Pool
from inferswarm.artifacts.acquisition.progress import RateMeter
from inferswarm.artifacts.acquisition.stopping import Stop, Stopped
from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.limiter import BandwidthLimiter
from inferswarm.artifacts.origins.base import Origin
from inferswarm.artifacts.origins.checking import check_expected, check_inside
from inferswarm.artifacts.sources import ORIGIN
from inferswarm.artifacts.store import ContentStore, Use
from inferswarm.artifacts.taxonomy import CACHE_TAMPERED, MALFORMED, SOURCE_UNAVAILABLE, UNAUTHORIZED, UNVERIFIED_READ
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, SpecError, StoreRefused

_PROGRESS_SECONDS: Final = 0.5
_BUSY_SECONDS: Final = 0.05
"""How often a partial that another process writes is looked at again."""


def acquire(
    orders: Sequence[Order],
    store: ContentStore,
    open_source: OpenSource,
    *,
    use: Use | None = None,
    strict: bool = False,
    authorize: Authorize | None = None,
    limits: Limits | None = None,
    limiter: BandwidthLimiter | None = None,
    cancelled: threading.Event | None = None,
    deadline: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_event: OnEvent | None = None,
    on_progress: OnProgress | None = None,
) -> Acquired:
    """Acquire what is ordered, and return what became of each order, in their order.

    `use` is recorded with what is published and what was there. `strict` refuses artifacts whose records say no
    digest. `deadline` is a moment of `clock`. A cancellation or the deadline ends it within a second: threads that
    hang in a source are left behind, and cannot write any more; what they were publishing at that moment may be there
    a little later. Failures are in the outcomes; raised are only SpecError for limits that are none, and what
    `on_event` or `on_progress` raise.
    """
    for name, value in (limits or Limits())._asdict().items():
        if value < (0 if name in ("gap_bytes", "small_bytes") else 1):
            raise SpecError(name, value, "a limit of something")
    acquisition = _Acquisition(store, open_source, limits or Limits(), Stop(cancelled, deadline, clock), use)
    acquisition.strict, acquisition.authorize = strict, authorize
    acquisition.on_event, acquisition.on_progress = on_event, on_progress
    return acquisition.run(orders, limiter)


class _Opened:
    """One object of a source, opened when the first of its requests begins and closed after the last."""

    def __init__(self, source: str, uri: str, open_source: OpenSource, stop: Stop) -> None:
        self.source = source
        self.uri = uri
        self.num_requests = 0
        """That have not ended yet."""
        self._origin: Origin | None = None
        self._error: ArtifactError | None = None
        self._open_source = open_source
        self._stop = stop
        self._mutex = threading.Lock()
        self._bytes_read = 0
        self._seen: UpstreamObject | None = None

    def get(self) -> Origin:
        """Return the opened object. Raises ArtifactError, the same for each who asks, and Stopped."""
        with self._mutex:
            if self._error is not None:
                raise self._error
            if self._origin is None:
                origin = self._open()
                if self._stop.reason is not None:
                    origin.close()  # nobody waits any longer, and nobody else would
                    raise Stopped
                self._origin, self._seen = origin, origin.described
            return self._origin

    def end_request(self) -> None:
        """Close it after the last."""
        with self._mutex:
            self.num_requests -= 1
            if self.num_requests == 0 and self._origin is not None:
                self._origin.close()
                self._bytes_read += self._origin.bytes_read
                self._origin = None

    def wake(self) -> None:
        """Close it under whoever reads: their reads end with an error."""
        if (origin := self._origin) is not None:
            origin.close()

    def traffic(self) -> SourceTraffic | None:
        """Return what it gave; None when it was never opened."""
        if self._seen is None:
            return None
        origin = self._origin
        now = 0 if origin is None else origin.bytes_read
        return SourceTraffic(self.source, self.uri, self._bytes_read + now, self._seen)

    def _open(self) -> Origin:
        try:
            return self._open_source(self.source, self.uri)
        except ArtifactError as error:
            self._error = error
            raise
        except SpecError as error:  # the name came with the order: it is the source that is wrong
            self._error = ArtifactError(SOURCE_UNAVAILABLE, self.uri, str(error))
            raise self._error from error


class _Acquisition:
    """One call of `acquire`."""

    strict: bool = False
    authorize: Authorize | None = None
    on_event: OnEvent | None = None
    on_progress: OnProgress | None = None

    def __init__(
        self, store: ContentStore, open_source: OpenSource, limits: Limits, stop: Stop, use: Use | None
    ) -> None:
        self._store = store
        self._open_source = open_source
        self._limits = limits
        self._stop = stop
        self._use = use
        self._meter = RateMeter()
        self._jobs: list[Job] = []
        self._opened: dict[tuple[str, str], _Opened] = {}
        self._told = time.monotonic()

    def run(self, orders: Sequence[Order], limiter: BandwidthLimiter | None) -> Acquired:
        """Do it."""
        began = time.monotonic()
        lock = threading.Lock()
        self._jobs = [Job(order, self._store, self.on_event, lock) for order in orders]
        fetcher = Fetcher(
            self._store,
            self._limits,
            self._stop,
            self._meter,
            use=self._use,
            limiter=limiter,
            on_event=self.on_event,
            lock=lock,
        )
        try:
            self._run(fetcher)
        finally:
            reason = self._stop.reason or "cancelled"
            self._close()
            for job in self._jobs:
                job.give_up(reason)
        self._tell()
        traffic = tuple(seen for opened in self._opened.values() if (seen := opened.traffic()) is not None)
        return Acquired(tuple(job.outcome() for job in self._jobs), traffic, time.monotonic() - began)

    def _run(self, fetcher: Fetcher) -> None:
        waiting = [job for job in self._jobs if self._is_well_formed(job)]
        self._hold(waiting)
        while waiting and self._stop.reason is None:
            Pool(self._stop, self._limits.connections, self._limits.connections).run(
                [("", functools.partial(self._look, job)) for job in waiting], self._tick, self._close
            )
            missing = [job for job in waiting if not job.is_over]
            # Two orders for the same bytes: the second finds what the first brought, or is an attempt of its own.
            firsts = {job.key: job for job in reversed(missing)}
            self._fetch(fetcher, [job for job in missing if firsts[job.key] is job and self._is_authorized(job)])
            waiting = [job for job in missing if not job.is_over]
            if fetcher.busy:
                fetcher.busy.clear()
                self._stop.fence.wait(_BUSY_SECONDS)
                self._tick()

    def _hold(self, jobs: Iterable[Job]) -> None:
        """Record the use of everything whose digest is known, before it is looked for: nobody evicts it then."""
        if self._use is not None and not self._store.read_only:
            known = [job.sha256 or self._store.pinned(job.identity) for job in jobs]
            self._store.hold(self._use.owner, [sha256 for sha256 in known if sha256 is not None], self._use.kind)

    def _is_well_formed(self, job: Job) -> bool:
        order, artifact = job.order, job.order.artifact
        code, reason = MALFORMED, None
        if order.place.length != artifact.length:
            reason = f"the place of {order.place.length:,} B cannot give {artifact.length:,} B"
        elif order.source == ORIGIN and artifact.kind == "transform":
            code, reason = UNAUTHORIZED, "the result of a transform is at no origin"
        elif order.source != ORIGIN and not job.is_recorded:
            code, reason = UNVERIFIED_READ, f"without a digest it comes from the origin, not from {order.source}"
        elif self.strict and not job.is_recorded:
            code, reason = UNVERIFIED_READ, "its record says no digest, and the policy is strict"
        if reason is not None:
            job.fail(ArtifactError(code, job.id, f"{artifact.origin.uri}: {reason}"), "order")
        return reason is None

    def _look(self, job: Job) -> None:
        """Find an artifact in the store, verified as its policy says; anew is fetched all the same."""
        try:
            sha256 = job.sha256 or self._store.pinned(job.identity)
            if sha256 is None:
                return
            with self._store.open_verified(sha256, self._stop.check) as blob:
                length = blob.length
            if length != job.order.artifact.length:
                reason = f"has {length:,} B, and the artifact {job.order.artifact.length:,} B"
                raise ArtifactError(MALFORMED, sha256, reason)
            if not job.order.fetches_anew:
                job.was_there(sha256)
        except ArtifactError as error:
            if error.code == CACHE_TAMPERED:
                job.was_tampered(error)
            elif isinstance(error, StoreRefused) or error.code != SOURCE_UNAVAILABLE:
                job.fail(error, "order")

    def _is_authorized(self, job: Job) -> bool:
        if job.is_authorized:
            return True
        try:
            if self.authorize is not None:
                self.authorize(job.order)
        except ArtifactError as error:
            job.fail(error, "order")
            return False
        job.enter("AUTHORIZED")
        return True

    def _fetch(self, fetcher: Fetcher, jobs: Sequence[Job]) -> None:
        """Fetch from all sources at once; return when each job is over, or busy elsewhere."""
        objects: dict[tuple[str, str], list[Job]] = {}
        for job in jobs:
            objects.setdefault((job.order.source, job.order.uri), []).append(job)
        tasks: list[tuple[str, Callable[[], None]]] = []
        pool = Pool(
            self._stop, self._limits.connections, self._limits.connections_per_source, self._limits.publishing
        )
        totals = {source: 0 for source, _ in objects}
        for (source, _), members in objects.items():
            totals[source] += sum(job.identity.length for job in members)
        for (source, uri), members in objects.items():
            opened = self._opened.setdefault((source, uri), _Opened(source, uri, self._open_source, self._stop))
            most = request_size(totals[source], self._limits.connections_per_source, self._limits.request_bytes)
            for request in coalesce(
                (self._piece(number, job) for number, job in enumerate(members)), most, self._limits.gap_bytes
            ):
                chosen = [members[piece.number] for piece in request]
                opened.num_requests += 1
                tasks.append((source, functools.partial(self._request, fetcher, opened, chosen, pool.leave)))
        pool.run(tasks, self._tick, self._close)

    def _piece(self, number: int, job: Job) -> Piece:
        place = job.order.place
        held = min(self._store.held_bytes(job.identity), place.length)
        return Piece(number, ByteRange(place.start + held, place.end), is_continued=held > 0)

    def _request(self, fetcher: Fetcher, opened: _Opened, jobs: Sequence[Job], leave: Leave) -> None:
        self._stop.check()
        try:
            origin = opened.get()
            fetcher.fetch(origin, [job for job in jobs if self._is_as_described(job, origin)], leave)
        except ArtifactError as error:  # of opening: what comes later is a job's own
            self._stop.check()
            for job in jobs:
                job.fail(error, "source")
        finally:
            opened.end_request()

    def _is_as_described(self, job: Job, origin: Origin) -> bool:
        try:
            if job.order.is_of_upstream:
                check_expected(origin.described, job.order.artifact.origin, job.order.uri)
            check_inside(job.order.place, origin.length, job.order.uri)
        except ArtifactError as error:
            job.fail(error, "source")
            return False
        return True

    def _tick(self) -> None:
        if time.monotonic() - self._told >= _PROGRESS_SECONDS:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        if self.on_progress is not None:
            total = sum(job.order.artifact.length for job in self._jobs)
            self.on_progress(self._meter.progress(sum(job.held for job in self._jobs), total))

    def _close(self) -> None:
        """Close what is open; reads under way end with an error, which is nobody's failure by then."""
        for opened in self._opened.values():
            opened.wake()
