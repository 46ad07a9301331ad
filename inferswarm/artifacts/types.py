"""Where the bytes are: exact ranges of an object, and the tensors that they hold."""

from __future__ import annotations

from inferswarm.documents import Document


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


class TensorRecord(Document, frozen=True, kw_only=True):
    """One tensor of a model file: where its bytes are and how they encode numbers.

    `shape` is row-major (slowest dimension first), as torch counts; `encoding` is the file format's own name
    (`F32`, `Q4_1`, `Q8_0` …).
    """

    name: str
    encoding: str
    shape: tuple[int, ...]
    range: ByteRange


class ModelObject(Document, frozen=True, kw_only=True):
    """One file that holds model bytes, as its headers describe it."""

    uri: str
    """A local path."""
    length: int
    hash_known_by: str = "layout"
    """`layout`: only the headers were read; no digest of the contents is claimed."""
    tensors: tuple[TensorRecord, ...]


class ParticipantRequirement(
    Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.requirement/1"
):
    """Exactly the bytes that one participant needs of one object, and which states they make."""

    participant: str
    problem_digest: str
    uri: str
    object_length: int
    tensors: tuple[TensorRecord, ...]
    state_ids: tuple[str, ...]

    @property
    def ranges(self) -> tuple[ByteRange, ...]:
        """Return the tensors' ranges in file order."""
        return tuple(sorted(tensor.range for tensor in self.tensors))

    @property
    def bytes(self) -> int:
        """Return how many bytes are needed."""
        return sum(tensor.range.length for tensor in self.tensors)
