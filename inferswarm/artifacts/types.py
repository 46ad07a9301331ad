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

    def __post_init__(self) -> None:
        """Refuse tensors that lie in no file, or beyond the end of theirs."""
        super().__post_init__()
        _check_places(self.files, self.tensors)

    @property
    def uri(self) -> str:
        """Return the path of the first file, which stands for the model in messages."""
        return self.files[0].uri

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
