"""One request: neighbors in one stream, taken apart as they arrive, hashed, written, published."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, nullcontext
from typing import Final

from inferswarm.artifacts.acquisition.gathering import Gathering
from inferswarm.artifacts.acquisition.job import Job
from inferswarm.artifacts.acquisition.orders import BytesMoved, Limits, OnEvent
from inferswarm.artifacts.acquisition.progress import RateMeter
from inferswarm.artifacts.acquisition.stopping import Stop, Stopped
from inferswarm.artifacts.limiter import BandwidthLimiter
from inferswarm.artifacts.origins.base import Origin
from inferswarm.artifacts.store import ContentStore, Incoming, Proved, Use
from inferswarm.artifacts.taxonomy import INTEGRITY_MISMATCH, SOURCE_UNAVAILABLE, UNVERIFIED_PUBLICATION
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError

_FRUITLESS: Final = 2
"""After so many streams in a row that give no byte, the rest of a request is not asked for either."""


Leave = Callable[[Callable[[], None]], None]
"""Has something done, now or soon. May raise Stopped."""


class Fetcher:
    """What the requests of one acquisition share."""

    def __init__(
        self,
        store: ContentStore,
        limits: Limits,
        stop: Stop,
        meter: RateMeter,
        *,
        use: Use | None,
        limiter: BandwidthLimiter | None,
        on_event: OnEvent | None,
        lock: threading.Lock,
    ) -> None:
        self._store = store
        self._limits = limits
        self._stop = stop
        self._meter = meter
        self._use = use
        self._limiter = limiter
        self._on_event = on_event
        self._lock = lock
        self._naming = Gathering(self._name)
        self.busy: deque[Job] = deque()
        """Jobs whose partial another has."""

    def fetch(self, origin: Origin, jobs: Iterable[Job], leave: Leave) -> None:
        """Fetch jobs of one object in the order of their places; each ends on its own.

        Whole ones may be published behind this call, by whoever `leave` finds. Raises Stopped.
        """
        request = _Request(self, origin, jobs, leave)
        try:
            request.run()
        finally:
            request.batch.clear()

    # What a request needs of it

    @property
    def limits(self) -> Limits:
        """Return the limits."""
        return self._limits

    @property
    def stop(self) -> Stop:
        """Return what ends it early."""
        return self._stop

    def arrived(self, num_bytes: int) -> None:
        """Count bytes that arrived, and wait until more may. Raises Stopped."""
        self._meter.add(num_bytes)
        if self._limiter is not None and not self._limiter.take(num_bytes, self._stop.fence):
            raise Stopped
        self._stop.check()

    def wasted(self, job: Job, place: ByteRange) -> None:
        """Say that bytes of the object arrived that no artifact has."""
        if place.length and self._on_event is not None:
            order = job.order
            shift = order.artifact.range.start - order.place.start
            own = ByteRange(max(place.start + shift, 0), max(place.start + shift, 0) + place.length)
            uri = order.artifact.origin.uri
            with self._lock:
                for kind in ("received", "unrelated"):
                    self._on_event(BytesMoved(kind, None, None, order.source, uri, own, place.length))

    def publish(self, jobs: list[Job]) -> None:
        """Publish whole jobs that are in memory; one that cannot be fails alone. Raises Stopped."""
        for job in jobs:
            job.claim()
        batch = [Incoming(job.buffer or b"", job.sha256, None if job.is_recorded else job.identity) for job in jobs]
        try:
            digests = self._store.publish_batch(batch, self._use)
        except ArtifactError as error:
            for job in jobs:
                job.is_publishing = False
            if len(jobs) == 1:
                self._refuse(jobs[0], error)
            else:
                for job in jobs:
                    self.publish([job])
            return
        for job, sha256 in zip(jobs, digests, strict=True):
            job.is_there(sha256)
            job.is_publishing = False

    def publish_partial(self, job: Job) -> None:
        """Read a whole job that is in a partial back, and publish it, or have it published. Raises Stopped.

        Naming goes through the index, which one thread can have; whoever has it names what others have read back
        meanwhile, and they go on to receive.
        """
        assert job.partial is not None
        job.claim()
        try:
            proved = self._store.prove_partial(
                job.partial, job.sha256, pin=not job.is_recorded, check=self._stop.check
            )
        except ArtifactError as error:
            self._refuse(job, error)
            job.is_publishing = False
            return
        except BaseException:
            job.is_publishing = False
            raise
        self._naming.put((job, proved))

    def _name(self, batch: list[tuple[Job, Proved]]) -> None:
        """Publish whole jobs that were read back; one that cannot be fails alone."""
        try:
            self._store.publish_proved([proved for _, proved in batch], self._use)
        except ArtifactError as error:
            if len(batch) > 1:
                for one in batch:
                    self._name([one])
                return
            self._refuse(batch[0][0], error)
        else:
            for job, proved in batch:
                job.is_there(proved.ready.sha256)
        finally:
            for job, _ in batch:
                job.is_publishing = False

    def _refuse(self, job: Job, error: ArtifactError) -> None:
        if error.code in (INTEGRITY_MISMATCH, UNVERIFIED_PUBLICATION):
            job.throw_away()
        job.fail(error, "source")


class _Request:
    """The jobs of one request that are still to come, and the small ones that wait to be published together."""

    def __init__(self, fetcher: Fetcher, origin: Origin, jobs: Iterable[Job], leave: Leave) -> None:
        self.batch: list[Job] = []
        self._leave = leave
        self._fetcher = fetcher
        self._origin = origin
        self._jobs = deque(jobs)
        self._position = 0

    def run(self) -> None:
        """Ask until no job is left, going on behind one that failed."""
        fruitless = 0
        while self._jobs:
            self._fetcher.stop.check()
            job = self._jobs[0]
            if not self._open(job):
                continue
            before = job.transferred
            try:
                self._stream(job)
                fruitless = 0
            except ArtifactError as error:
                self._fetcher.stop.check()  # a source that was closed under it did not fail
                failed = self._jobs.popleft()
                fruitless = fruitless + 1 if failed is job and job.transferred == before else 0
                failed.fail(error, "source")
                if fruitless >= _FRUITLESS:
                    for rest in self._jobs:
                        rest.fail(error, "source")
                    self._jobs.clear()
        self._flush()

    def _open(self, job: Job) -> bool:
        """Prepare the first job; False when it is off the list, because it failed or another has it."""
        try:
            if job.open(self._fetcher.limits.small_bytes, self._fetcher.stop):
                return True
            self._fetcher.busy.append(job)
        except ArtifactError as error:
            job.fail(error, "store")
        self._jobs.popleft()
        return False

    def _stream(self, first: Job) -> None:
        """Ask once, from the first missing byte to the end of the last job; return when another request is needed."""
        self._finish_whole()
        if not self._jobs or self._jobs[0] is not first:
            return
        self._position = first.left.start
        wanted = ByteRange(self._position, self._jobs[-1].order.place.end)
        pieces = self._origin.stream(wanted)
        # A generator is closed at once, and with it its connection; what else iterates has nothing to close.
        with closing(pieces) if isinstance(pieces, Generator) else nullcontext():
            for piece in pieces:
                wants_more = self._split(piece)
                self._fetcher.arrived(piece.nbytes)
                if not wants_more:
                    return
        if self._position < wanted.end:
            job = self._jobs[0]
            reason = f"gave {self._position - wanted.start:,} of {wanted.length:,} B and no error"
            raise ArtifactError(SOURCE_UNAVAILABLE, job.order.uri, reason)

    def _split(self, piece: memoryview) -> bool:
        """Give each job its bytes of a piece; False when what follows is not wanted from this stream."""
        while piece:
            job = self._jobs[0]
            place = job.order.place
            if self._position < place.start:
                gap = min(piece.nbytes, place.start - self._position)
                self._fetcher.wasted(job, ByteRange(self._position, self._position + gap))
                piece = self._advance(piece, gap)
                continue
            if not self._open(job) or job.left.start != self._position:
                return self._waste(job, piece)
            count = min(piece.nbytes, place.end - self._position)
            try:
                job.write(piece[:count])
            except ArtifactError as error:
                self._jobs.popleft()
                job.fail(error, "store")
                return self._waste(job, piece[count:], count)
            piece = self._advance(piece, count)
            self._finish_whole()
            if not self._jobs:
                return self._waste(job, piece)
        return True

    def _finish_whole(self) -> None:
        """Finish the first jobs of which nothing is missing."""
        while self._jobs and self._jobs[0].is_opened and not self._jobs[0].left.length:
            job = self._jobs.popleft()
            if not job.is_right():
                continue
            if job.partial is not None:
                self._leave(functools.partial(self._fetcher.publish_partial, job))
                continue
            self.batch.append(job)
            limits = self._fetcher.limits
            waiting = sum(len(job.buffer or b"") for job in self.batch)
            if waiting >= limits.batch_bytes or len(self.batch) >= limits.batch_blobs:
                self._flush()

    def _flush(self) -> None:
        batch, self.batch = self.batch, []
        # What is left waits in memory: two for each thread that publishes, and what it is at.
        if sum(len(job.buffer or b"") for job in batch) > self._fetcher.limits.small_bytes // 4:
            self._fetcher.publish(batch)
        elif batch:
            self._leave(functools.partial(self._fetcher.publish, batch))

    def _advance(self, piece: memoryview, count: int) -> memoryview:
        self._position += count
        return piece[count:]

    def _waste(self, job: Job, piece: memoryview, already: int = 0) -> bool:
        start = self._position + already
        self._fetcher.wasted(job, ByteRange(start, start + piece.nbytes))
        return False
