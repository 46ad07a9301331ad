"""Where the bytes are: exact ranges of an object, and the tensors that they hold."""

from __future__ import annotations

import bisect
import itertools
import os

import msgspec

from inferswarm.documents import Digest, Document


class ByteRange(Document, frozen=True, order=True):
    """Bytes `start` (included) to `end` (excluded) of an object."""

    start: int
    end: int

    def __post_init__(self) -> None:
        """Refuse a range that runs backwards or starts before the object."""
        super().__post_init__()
        if not 0 <= self.start <= self.end:
            raise ValueError(f"no byte range: {self.start} to {self.end}")

    @property
    def length(self) -> int:
        """Return the number of bytes."""
        return self.end - self.start


class ModelFile(Document, frozen=True, kw_only=True):
    """One file that holds model bytes: a local path, and how long it is."""

    uri: str
    length: int


PLAIN = "plain"
PAIRED_ROWS = "paired-rows"
PLUS_ONE = "plus-one"
LAYOUTS = (PLAIN, PAIRED_ROWS, PLUS_ONE)
"""How a file stores a tensor: as it is; the rows of each head ordered for turning neighbors instead of halves; with
1 added to every number."""


class TensorRecord(Document, frozen=True, kw_only=True):
    """One tensor of a model: where its bytes are and how they encode numbers.

    `shape` is row-major (slowest dimension first), as torch counts; `encoding` is the format's own name (`F32`,
    `Q4_1`, `Q8_0` …). A reader may rename a tensor and cut a fused one by rows: `stored_name` is then the name in the
    file.
    """

    name: str
    encoding: str
    shape: tuple[int, ...]
    range: ByteRange
    file: int = 0
    """Which of the model's files holds the range."""
    stored_name: str | None = None
    layout: str = PLAIN

    def __post_init__(self) -> None:
        """Refuse a layout that nobody knows and a file before the first."""
        super().__post_init__()
        if self.layout not in LAYOUTS:
            raise ValueError(f"{self.name}: layout {self.layout!r} is not one of {', '.join(LAYOUTS)}")
        if self.file < 0:
            raise ValueError(f"{self.name}: file {self.file}")


class ModelObject(Document, frozen=True, kw_only=True):
    """The files that hold a model's bytes, as their headers describe them."""

    files: tuple[ModelFile, ...]
    hash_known_by: str = "layout"
    """`layout`: only the headers were read; no digest of the contents is claimed."""
    tensors: tuple[TensorRecord, ...]

    def __post_init__(self) -> None:
        """Refuse tensors that lie in no file, or beyond the end of theirs."""
        super().__post_init__()
        _check_places(self.files, self.tensors)

    @property
    def uri(self) -> str:
        """Return the path of the first file, which stands for the model in messages."""
        return self.files[0].uri

    @property
    def length(self) -> int:
        """Return the bytes of all files."""
        return sum(file.length for file in self.files)


class StoredBlob(Document, frozen=True):
    """The bytes `range` of one of a model's files, kept in a content store under their digest."""

    file: int
    range: ByteRange
    sha256: Digest


class KeptResults(Document, frozen=True, kw_only=True):
    """That what is made of a store's blobs is kept in it, too, and read instead of being made again."""

    quota_bytes: int | None
    """Of the whole store. Results are kept where there is room, and nothing has to go for them."""


class StoredBlobs(Document, frozen=True):
    """Where a participant's bytes are on its Node: the content store at `root`, an absolute path, and its blobs.

    The root is empty until the Node says where its store is: nobody else knows. Nothing is read before.
    Blobs are in the order of files and ranges; those of one file do not overlap.
    """

    root: str
    blobs: tuple[StoredBlob, ...]
    results: KeptResults | msgspec.UnsetType = msgspec.UNSET
    """Left out, and not written: states are made of the blobs each time, and nothing is kept. As the root, it is for
    the Node to say."""

    def __post_init__(self) -> None:
        """Refuse a root that is no absolute path, and blobs out of order or with bytes in common."""
        super().__post_init__()
        if self.root and not os.path.isabs(self.root):
            raise ValueError(f"the store's root {self.root!r} is no absolute path")
        for before, after in itertools.pairwise(self.blobs):
            if (after.file, after.range.start) < (before.file, before.range.end):
                places = " and ".join(f"{blob.range.start:,} to {blob.range.end:,}" for blob in (before, after))
                raise ValueError(f"blobs of file {after.file} are out of order or overlap: {places}")

    def holding(self, file: int, wanted: ByteRange) -> int | None:
        """Return the place in `blobs` of the one that all bytes of a range lie in; None when there is none."""
        place = bisect.bisect_right(self.blobs, (file, wanted.start), key=_start_of) - 1
        if place < 0 or self.blobs[place].file != file or wanted.end > self.blobs[place].range.end:
            return None
        return place


class ParticipantRequirement(
    Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.requirement/2"
):
    """Exactly the bytes that one participant needs of one model, and which states they make."""

    participant: str
    problem_digest: str
    files: tuple[ModelFile, ...]
    """All files of the model: records name them by place. Those without a required tensor are not opened."""
    tensors: tuple[TensorRecord, ...]
    state_ids: tuple[str, ...]
    stored: StoredBlobs | msgspec.UnsetType = msgspec.UNSET
    """Where the participant's Node keeps exactly these bytes: they are read from there and from nowhere else. Left
    out, and not written: they are read from the files."""

    def __post_init__(self) -> None:
        """Refuse tensors that lie in no file, or beyond the end of theirs, and blobs that do not hold just them."""
        super().__post_init__()
        _check_places(self.files, self.tensors)
        if isinstance(self.stored, StoredBlobs):
            _check_stored(self.files, self.tensors, self.stored)

    @property
    def uri(self) -> str:
        """Return the path of the first file, which stands for the model in messages."""
        return self.files[0].uri

    @property
    def wherever_stored(self) -> ParticipantRequirement:
        """Return the same requirement without where its bytes are kept: what two Nodes can have in common."""
        return msgspec.structs.replace(self, stored=msgspec.UNSET)

    def ranges(self, file: int) -> tuple[ByteRange, ...]:
        """Return the ranges in one file, in order."""
        return tuple(sorted(tensor.range for tensor in self.tensors if tensor.file == file))

    @property
    def bytes(self) -> int:
        """Return how many bytes are needed."""
        return sum(tensor.range.length for tensor in self.tensors)


def _check_places(files: tuple[ModelFile, ...], tensors: tuple[TensorRecord, ...]) -> None:
    if not files:
        raise ValueError("a model without files")
    for tensor in tensors:
        if tensor.file >= len(files) or tensor.range.end > files[tensor.file].length:
            raise ValueError(f"{tensor.name} lies outside the {len(files)} files of its model")


def _start_of(blob: StoredBlob) -> tuple[int, int]:
    return (blob.file, blob.range.start)


def _check_stored(files: tuple[ModelFile, ...], tensors: tuple[TensorRecord, ...], stored: StoredBlobs) -> None:
    used: set[int] = set()
    for tensor in tensors:
        if not tensor.range.length:
            continue
        place = stored.holding(tensor.file, tensor.range)
        if place is None:
            where = f"{tensor.range.start:,} to {tensor.range.end:,} of file {tensor.file}"
            raise ValueError(f"{tensor.name}: no stored blob holds its bytes {where}")
        used.add(place)
    for place, blob in enumerate(stored.blobs):
        where = f"{blob.sha256}, {blob.range.start:,} to {blob.range.end:,} of file {blob.file}"
        if place not in used:
            raise ValueError(f"the stored blob {where}, holds nothing that is required")
        if blob.range.end > files[blob.file].length:
            raise ValueError(f"the stored blob {where}, reaches beyond the end of its file")
