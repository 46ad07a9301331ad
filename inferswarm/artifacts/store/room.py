"""Room in a store: what its quota and its disk can still take, and which blobs make room. Never a required one."""

from __future__ import annotations

import errno
import os
from typing import Final

from inferswarm.artifacts.store.index import Index
from inferswarm.artifacts.store.layout import Layout, free_bytes, refusal
from inferswarm.artifacts.store.partials import held_bytes, partial_bytes, remove_stale
from inferswarm.artifacts.store.records import Collection, PartialIdentity
from inferswarm.artifacts.taxonomy import SOURCE_UNAVAILABLE
from inferswarm.errors import StoreRefused

_NS: Final = 10**9


class Room:
    """The room of one store. `quota_bytes` bounds blobs and partials together; None: the disk alone does."""

    def __init__(self, layout: Layout, index: Index, quota_bytes: int | None) -> None:
        self._layout = layout
        self._index = index
        self._quota_bytes = quota_bytes

    def victims(self, new: int, staged: int, spared: set[str]) -> tuple[str, ...]:
        """Return the optional blobs that must go for so many new bytes, `staged` of which lie in partials already.

        The longest unused come first. Raises StoreRefused, with the numbers, when all of them are not enough.
        """
        if self._quota_bytes is None:
            return ()
        kept = self._index.total_bytes()
        waiting = partial_bytes(self._layout) - staged
        room = self._quota_bytes - kept - waiting
        evictable = [item for item in self._index.evictable() if item[0] not in spared]
        victims: list[str] = []
        for sha256, length in evictable:
            if room >= new:
                break
            victims.append(sha256)
            room += length
        if room < new:
            bound = kept - sum(length for _, length in evictable)
            raise StoreRefused(
                SOURCE_UNAVAILABLE,
                str(self._layout.root),
                f"{new:,} B needed, at most {max(room, 0):,} B free under the quota of {self._quota_bytes:,} B with "
                f"everything optional evicted: {bound:,} B are required or replicas, {waiting:,} B partials",
                new,
                max(room, 0),
            )
        return tuple(victims)

    def make(self, identity: PartialIdentity) -> None:
        """Make room for an artifact before its first byte moves. Raises StoreRefused."""
        held = held_bytes(self._layout, identity)
        if self._quota_bytes is not None:  # else nothing has to go, and nobody waits for who has the index
            with self._index.writing():
                victims = self.victims(identity.length, held, set())
                for sha256 in victims:
                    self._index.drop(sha256)
            self.unlink(victims)
        missing = identity.length - held
        free = free_bytes(self._layout.root)
        if free is not None and missing > free:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise refusal(self._layout.root, full, f"{identity.uri} cannot be fetched", missing)

    def unlink(self, digests: tuple[str, ...]) -> None:
        """Remove the files of blobs that are off the list: whoever has one open keeps it. Raises StoreRefused."""
        try:
            for sha256 in digests:
                self._layout.blob(sha256).unlink(missing_ok=True)
        except OSError as error:
            raise refusal(self._layout.root, error, "a blob cannot be evicted") from error

    def collect(
        self, wanted_bytes: int | None, now_ns: int, partials_older_than: float, *, remove: bool
    ) -> Collection:
        """Remove old partials and optional blobs; see `ContentStore.collect`. Raises StoreRefused."""
        try:
            old_ns = now_ns - round(partials_older_than * _NS)
            num_partials, staged = remove_stale(self._layout, old_ns, remove=remove)
        except OSError as error:
            raise refusal(self._layout.root, error, "partials cannot be collected") from error
        victims: list[str] = []
        length = 0
        with self._index.writing():
            for sha256, size in self._index.evictable():
                if wanted_bytes is not None and length + staged >= wanted_bytes:
                    break
                victims.append(sha256)
                length += size
                if remove:
                    self._index.drop(sha256)
        if remove:
            self.unlink(tuple(victims))
        return Collection(
            root=str(self._layout.root),
            blobs=tuple(victims),
            blob_bytes=length,
            partials=num_partials,
            partial_bytes=staged,
        )
