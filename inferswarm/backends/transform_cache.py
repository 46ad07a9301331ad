"""Decoded numbers of quantized tensors, kept as results of a transform, so that they need not be decoded again.

Torch-free. `KeptTensors` stands in front of a participant's bytes in its Node's store: where the rows of a tensor
were decoded before, it reads the result (`decoding_identity`); the others it decodes, and keeps what comes of it.

Promises: the states have the bits, and the marks of their sources, that they have without it; a result is used where
everything that decides its bits is equal, and is proved as any blob; failing to keep one fails nothing. A result that
is written to while it is read is an error. Memory takes the rows that are asked for, twice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from inferswarm.artifacts.requirement import check_reads
from inferswarm.artifacts.store import ContentStore
from inferswarm.artifacts.taxonomy import SOURCE_UNAVAILABLE
from inferswarm.artifacts.transforms import Result, ResultIndex, ResultWriter, result_bytes
from inferswarm.artifacts.types import (
    PAIRED_ROWS,
    ByteRange,
    KeptResults,
    ParticipantRequirement,
    StoredBlobs,
)
from inferswarm.backends.decoding_identity import decoding, surroundings
from inferswarm.backends.decoding_transform import decode_result, encode_rows
from inferswarm.backends.dequantize import Rows, num_rows, row_bytes
from inferswarm.errors import ArtifactError, SpecError
from inferswarm.strategies.problem import VALUE_BYTES

if TYPE_CHECKING:
    from inferswarm.backends.states import Shapes, TensorRows

OpenFiles = Callable[[ParticipantRequirement, "Shapes", Callable[[int, int], None]], "TensorRows"]
"""Opens the bytes of a requirement, as `FileTensors` does."""


class KeptCounts(NamedTuple):
    """What was done with results: how many were read, how many were made and kept, and why one was not, if so."""

    read: int
    made: int
    refused: str


class KeptTensors:
    """The tensors of one requirement whose bytes are in a store, read from results where there are some."""

    def __init__(
        self,
        requirement: ParticipantRequirement,
        shapes: Shapes,
        representation: str,
        open_files: OpenFiles,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Look for the results, and open what the others are decoded from.

        `requirement` must name a store and keep results. Raises what `open_files` raises.
        """
        stored = requirement.stored
        assert isinstance(stored, StoredBlobs)
        assert isinstance(stored.results, KeptResults)
        self._requirement = requirement
        self._representation = representation
        self._open_files = open_files
        self._progress = progress
        self._shapes = {name: shape for tensors in shapes.values() for name, shape in tensors.items()}
        self._records = {record.name: record for record in requirement.tensors}
        computed_with = surroundings()
        self._transforms = {
            name: decoding(record, stored, representation, computed_with) for name, record in self._records.items()
        }
        self._store: ContentStore | None = None
        self._index: ResultIndex | None = None
        self._room: int | None = 0
        self._open_store(stored.root, stored.results.quota_bytes)
        self._hits: dict[str, str] = {}
        """The tensors that have a result, each with the mark of its source."""
        self._find()
        self._opened: dict[str, Result] = {}
        self._writers: dict[str, ResultWriter] = {}
        self._next_row = dict.fromkeys(self._records, 0)
        self._num_given = dict.fromkeys(self._records, 0)
        self._ranges: dict[int, list[ByteRange]] = {}
        self._stood_for = 0
        self._num_read = self._num_made = 0
        self._refused = ""
        self._instead: dict[str, TensorRows] = {}
        """What a result was found for that has gone since."""
        try:
            others = self._without(self._hits)
            self._files = open_files(others, {"": self._shapes_of(set(self._shapes) - set(self._hits))}, self._report)
        except BaseException:
            self._close()
            raise

    @property
    def counts(self) -> KeptCounts:
        """What was done with results so far."""
        return KeptCounts(self._num_read, self._num_made, self._refused)

    @property
    def bytes_read(self) -> int:
        """Bytes of the requirement that were read, or that a result was read in place of."""
        others = sum(files.bytes_read for files in self._instead.values())
        return self._files.bytes_read + others + self._stood_for

    def rows(self, name: str, first: int, end: int) -> Rows:
        """Return the rows [first, end) of a tensor. Raises ArtifactError."""
        try:
            values = self._kept_rows(name, first, end) if name in self._hits else None
            if values is None:
                files = self._instead.get(name, self._files)
                values = files.rows(name, first, end)
                self._keep(files, name, first, end, values)
        except BaseException:
            self._close()
            raise
        return values

    def is_paired(self, name: str) -> bool:
        """Return whether a tensor's rows must be reordered."""
        return self._records[name].layout == PAIRED_ROWS

    def finish(self) -> None:
        """Close everything, and compare what was read, or read in place of it, with the requirement.

        Raises ArtifactError.
        """
        try:
            for files in (self._files, *self._instead.values()):
                files.finish()
            check_reads(self._only(self._hits), self._ranges)
        finally:
            self._close()

    def fingerprint(self, name: str) -> str | None:
        """Return the xxh3-128 of a tensor's bytes in the file once all rows were asked for in order, else None."""
        if name not in self._hits:
            return self._instead.get(name, self._files).fingerprint(name)
        return self._hits[name] if self._next_row[name] == num_rows(self._records[name]) else None

    # Finding and reading results

    def _open_store(self, root: str, quota_bytes: int | None) -> None:
        """Open the store; where that fails, opening the bytes themselves says why."""
        if not root:
            return
        with suppress(SpecError, OSError, ArtifactError):
            self._store = ContentStore(root, quota_bytes, create=False, upkeep=False)
            self._index = ResultIndex(self._store)
            self._room = None if quota_bytes is None else quota_bytes - self._index.stored_bytes

    def _find(self) -> None:
        """Find the results of tensors that are as they are expected; the others are for the files to refuse."""
        for name, record in self._records.items():
            if self._shapes.get(name) == record.shape and (result := self._look_up(name)) is not None:
                result.blob.close()
                self._hits[name] = result.record.source_mark

    def _look_up(self, name: str) -> Result | None:
        transform = self._transforms[name]
        if self._index is None or transform is None:
            return None
        try:
            return self._index.open(transform, self._length(name))
        except ArtifactError:  # the store cannot be read: whoever needs bytes of it says so
            return None

    def _kept_rows(self, name: str, first: int, end: int) -> Rows | None:
        """Return rows of a result; None when it has gone since it was found, and the tensor is to be decoded."""
        record = self._records[name]
        result = self._opened.get(name)
        if result is None and (result := self._look_up(name)) is None:
            if self._num_given[name]:
                raise ArtifactError(SOURCE_UNAVAILABLE, name, "its result has gone while it was read")
            del self._hits[name]
            self._instead[name] = self._open_files(self._only([name]), {"": self._shapes_of([name])}, self._report)
            return None
        self._opened[name] = result
        self._num_read += self._num_given[name] == 0
        size = record.shape[-1] * VALUE_BYTES[self._representation]
        data = bytearray((end - first) * size)
        result.blob.read_into(ByteRange(first * size, end * size), data)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(result.blob.fileno(), first * size, len(data), os.POSIX_FADV_DONTNEED)
        self._count_hit(name, first, end)
        return decode_result(data, record.shape[-1], self._representation)

    def _count_hit(self, name: str, first: int, end: int) -> None:
        """Write down the bytes of the file that a result stood for; a tensor that was given whole is closed."""
        record = self._records[name]
        size = row_bytes(record, self._requirement.uri)
        start = record.range.start
        self._ranges.setdefault(record.file, []).append(ByteRange(start + first * size, start + end * size))
        self._stood_for += (end - first) * size
        self._next_row[name] = end if self._next_row[name] == first else -1
        self._num_given[name] += end - first
        if self._num_given[name] >= num_rows(record):
            self._opened.pop(name).blob.close()
        self._progress(self.bytes_read, self._requirement.bytes)

    # Keeping results

    def _keep(self, files: TensorRows, name: str, first: int, end: int, values: Rows) -> None:
        """Write decoded rows into the tensor's result, and publish it with the last; nothing depends on it."""
        if self._transforms[name] is None or self._store is None or self._refused:
            return
        try:
            if first == 0:
                self._begin(self._store, name)
            writer = self._writers.get(name)
            if writer is None:
                return
            if first != self._next_row[name]:  # it is read in another order than it is kept in
                self._writers.pop(name).close()
                return
            writer.write(encode_rows(values, self._representation))
            self._next_row[name] = end
            if end < num_rows(self._records[name]):
                return
            mark = files.fingerprint(name)
            if mark is not None:
                writer.publish(mark)
                self._num_made += 1
            self._writers.pop(name).close()
        except ArtifactError as error:  # quota, full disk, a root that cannot be written: the numbers are right
            self._refused = str(error)
            self._abandon()

    def _begin(self, store: ContentStore, name: str) -> None:
        """Begin a result where there was room for it, when the store was opened, that nothing else has to make."""
        transform = self._transforms[name]
        assert transform is not None
        needed = result_bytes(transform, self._length(name))
        if self._room is not None:
            if needed > self._room:
                self._refused = f"{needed:,} B needed, {max(self._room, 0):,} B free under the quota"
                return
            self._room -= needed
        writer = ResultWriter.begin(store, transform, self._length(name))
        self._next_row[name] = 0
        if writer is not None:
            self._writers[name] = writer

    def _abandon(self) -> None:
        for writer in self._writers.values():
            with suppress(ArtifactError):
                writer.close()
        self._writers.clear()

    # The rest

    def _length(self, name: str) -> int:
        return math.prod(self._records[name].shape) * VALUE_BYTES[self._representation]

    def _report(self, done: int, total: int) -> None:
        """Pass on how much of the whole requirement is done."""
        self._progress(self.bytes_read, self._requirement.bytes)

    def _shapes_of(self, names: Collection[str]) -> Mapping[str, tuple[int, ...]]:
        return {name: shape for name, shape in self._shapes.items() if name in names}

    def _without(self, names: Collection[str]) -> ParticipantRequirement:
        return self._only([name for name in self._records if name not in names])

    def _only(self, names: Collection[str]) -> ParticipantRequirement:
        """Return the requirement of some of the tensors, with the blobs that hold them."""
        stored = self._requirement.stored
        assert isinstance(stored, StoredBlobs)
        tensors = tuple(record for record in self._requirement.tensors if record.name in names)
        places = {stored.holding(record.file, record.range) for record in tensors if record.range.length}
        blobs = tuple(blob for place, blob in enumerate(stored.blobs) if place in places)
        narrowed = msgspec.structs.replace(stored, blobs=blobs)
        return msgspec.structs.replace(self._requirement, tensors=tensors, stored=narrowed)

    def _close(self) -> None:
        """Close what is open; closing twice is harmless."""
        self._abandon()
        for result in self._opened.values():
            result.blob.close()
        self._opened.clear()
        if self._store is not None:
            with suppress(ArtifactError):  # it only orders evictions
                self._store.record_uses()
            self._store.close()
            self._store = None
