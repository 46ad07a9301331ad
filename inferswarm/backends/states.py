"""Where a backend takes a participant's numbers from: tensor by tensor, some rows at a time, as fp32. Torch-free.

`FileTensors` reads exactly the ranges of a requirement, in the model's files or in a content store; `RandomTensors`
makes weights up from a seed, for probes and tests that need a shape and no bytes. Rows come in the file's own order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import xxhash

from inferswarm.artifacts.requirement import check_reads
from inferswarm.artifacts.taxonomy import COVERAGE_INCOMPLETE, MALFORMED, UNDECLARED
from inferswarm.artifacts.types import (
    PAIRED_ROWS,
    PLUS_ONE,
    ByteRange,
    KeptResults,
    ParticipantRequirement,
    StoredBlobs,
    TensorRecord,
)
from inferswarm.backends.base import StageAssignment
from inferswarm.backends.dequantize import Rows, decode_rows, row_bytes
from inferswarm.backends.required_bytes import open_required
from inferswarm.backends.transform_cache import KeptTensors
from inferswarm.documents import digest
from inferswarm.errors import ArtifactError
from inferswarm.strategies.chain import Description, state_tensors, unit_states

CHUNK_VALUES = 2**18
"""Numbers that are decoded at once (1 MiB in fp32): with the temporaries of decoding, about 4 MiB of staging."""

_RANDOM_ROWS = 64
"""Random rows are made in groups of this many, so that they do not depend on how they are asked for."""

Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]
"""State id → tensor name → row-major shape."""


def assigned_states(description: Description, first_unit: int, end_unit: int) -> Shapes:
    """Return the states of the units [first_unit, end_unit), each once, in the order in which they are needed."""
    everything = state_tensors(description)
    needed = dict.fromkeys(state for unit in range(first_unit, end_unit) for state in unit_states(description, unit))
    return {state: everything[state] for state in needed}


def rows_at_once(columns: int) -> int:
    """Return how many rows of `columns` numbers are decoded together."""
    return max(1, CHUNK_VALUES // columns)


class TensorRows(Protocol):
    """A source of rows."""

    @property
    def bytes_read(self) -> int:
        """Bytes read from the origin so far."""

    def rows(self, name: str, first: int, end: int) -> Rows:
        """Return the rows [first, end) of a tensor as fp32 [end - first, columns]; a vector is one row."""

    def is_paired(self, name: str) -> bool:
        """Return whether the rows of each head are stored for turning neighbors, so that they must be reordered."""

    def finish(self) -> None:
        """End reading: everything that was required has been read, and nothing else, or ArtifactError."""

    def fingerprint(self, name: str) -> str | None:
        """Return the xxh3-128 of a tensor's bytes, once read; None without bytes, or when they came out of order."""


class FileTensors:
    """The tensors of one requirement, read from the model's files or from the store that it names."""

    def __init__(
        self,
        requirement: ParticipantRequirement,
        shapes: Shapes,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Open what holds the bytes.

        Raises ArtifactError as `open_required`, or when the requirement's tensors are not exactly those of `shapes`;
        UnsupportedModel, naming the tensor, for an unexpected encoding.
        """
        expected = {name: shape for tensors in shapes.values() for name, shape in tensors.items()}
        self._records = {record.name: record for record in requirement.tensors}
        _check_records(requirement, self._records, expected)
        self._row_bytes = {name: row_bytes(record, requirement.uri) for name, record in self._records.items()}
        self._requirement = requirement
        self._progress = progress
        self._hashes = {name: xxhash.xxh3_128() for name in self._records}
        self._next_row = dict.fromkeys(self._records, 0)
        self._bytes = open_required(requirement)

    @property
    def bytes_read(self) -> int:
        """Bytes read so far."""
        return self._bytes.bytes_read

    def rows(self, name: str, first: int, end: int) -> Rows:
        """Read and decode the rows [first, end) of a tensor. Raises ArtifactError."""
        record, size = self._records[name], self._row_bytes[name]
        start = record.range.start
        data = bytearray((end - first) * size)
        self._bytes.read_into(record.file, ByteRange(start + first * size, start + end * size), data)
        self._progress(self.bytes_read, self._requirement.bytes)
        if self._next_row[name] == first:
            self._hashes[name].update(data)
            self._next_row[name] = end
        else:
            self._next_row[name] = -1
        values = decode_rows(record, data)
        return values - np.float32(1) if record.layout == PLUS_ONE else values

    def is_paired(self, name: str) -> bool:
        """Return whether a tensor's rows must be reordered."""
        return self._records[name].layout == PAIRED_ROWS

    def finish(self) -> None:
        """Close what was opened and compare what was read with the requirement. Raises ArtifactError."""
        self._bytes.close()
        check_reads(self._requirement, self._bytes.ranges_read)

    def fingerprint(self, name: str) -> str | None:
        """Return the xxh3-128 of a tensor's bytes once all of them were read in order, else None."""
        whole = self._next_row[name] == math.prod(self._records[name].shape[:-1])
        return self._hashes[name].hexdigest() if whole else None


def _check_records(
    requirement: ParticipantRequirement,
    records: Mapping[str, TensorRecord],
    expected: Mapping[str, tuple[int, ...]],
) -> None:
    who = requirement.participant
    if missing := sorted(set(expected) - set(records)):
        raise ArtifactError(COVERAGE_INCOMPLETE, who, f"the requirement lacks the tensors {missing}")
    if surplus := sorted(set(records) - set(expected)):
        raise ArtifactError(UNDECLARED, who, f"the requirement holds tensors of no assigned unit: {surplus}")
    for name, shape in expected.items():
        if records[name].shape != shape:
            raise ArtifactError(MALFORMED, who, f"{name} has the shape {records[name].shape}, needed {shape}")


class RandomTensors:
    """Weights from a seed: matrices uniform with variance 1 / columns, the token table with 1 / 4, norms near 1.

    Biases lie near 0.
    """

    bytes_read = 0

    def __init__(self, shapes: Shapes, seed: int = 0) -> None:
        self._shapes = {name: shape for tensors in shapes.values() for name, shape in tensors.items()}
        self._seed = seed

    def rows(self, name: str, first: int, end: int) -> Rows:
        """Return the rows [first, end): the same numbers however they are asked for."""
        shape = self._shapes[name]
        columns, total = shape[-1], math.prod(shape[:-1])
        groups = [
            self._group(name, index, min(_RANDOM_ROWS, total - index * _RANDOM_ROWS), columns)
            for index in range(first // _RANDOM_ROWS, -(-end // _RANDOM_ROWS))
        ]
        skipped = first // _RANDOM_ROWS * _RANDOM_ROWS
        values = np.concatenate(groups)[first - skipped : end - skipped]
        if name.endswith(".bias"):
            return 0.2 * values
        if len(shape) == 1:
            return 1.0 + 0.1 * values
        deviation = 0.5 if name.startswith("token_embd") else 1.0 / math.sqrt(columns)
        return values * np.float32(math.sqrt(12.0) * deviation)

    def _group(self, name: str, index: int, rows: int, columns: int) -> Rows:
        key = hashlib.sha256(f"{self._seed}/{name}/{index}".encode()).digest()
        generator = np.random.Generator(np.random.SFC64(int.from_bytes(key[:16], "little")))
        return generator.random((rows, columns), dtype=np.float32) - np.float32(0.5)

    def is_paired(self, name: str) -> bool:
        """Return False: there is no file whose layout could differ."""
        return False

    def finish(self) -> None:
        """Do nothing: nothing was opened."""

    def fingerprint(self, name: str) -> None:
        """Return None: there are no bytes to tell apart."""


def open_tensors(assignment: StageAssignment, shapes: Shapes, progress: Callable[[int, int], None]) -> TensorRows:
    """Return the assignment's source of numbers: its requirement's bytes, or random ones when it has none.

    Where the requirement's store keeps results, what was decoded before is read from there.
    """
    requirement = assignment.requirement
    if requirement is None:
        return RandomTensors(shapes)
    if isinstance(requirement.stored, StoredBlobs) and isinstance(requirement.stored.results, KeptResults):
        return KeptTensors(requirement, shapes, assignment.representation, FileTensors, progress)
    return FileTensors(requirement, shapes, progress)


def source_digests(source: TensorRows, shapes: Shapes) -> dict[str, str | None]:
    """Return for each state a digest of the bytes that it was read from, None where a part of them is not known.

    It tells models of one shape apart, whatever representation they are materialized in and wherever they are cut. It
    is made of xxh3 and shields from mistakes, not from somebody who wants two models to look alike.
    """
    digests: dict[str, str | None] = {}
    for state, tensors in shapes.items():
        parts = [(name, source.fingerprint(name)) for name in tensors]
        digests[state] = None if any(mark is None for _, mark in parts) else digest(parts)
    return digests
