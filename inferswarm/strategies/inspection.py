"""What was understood of a model, in numbers, and what was refused: a document for people and programs."""

from __future__ import annotations

from inferswarm.artifacts.types import ModelFile, TensorRecord
from inferswarm.documents import Document
from inferswarm.planner.problem import PlanningProblem, RepresentationBytes, bytes_in
from inferswarm.strategies.chain import Description, state_tensors, unit_states
from inferswarm.strategies.text.source import ModelText


class EncodingUse(Document, frozen=True, kw_only=True):
    """One encoding of the files: how many tensors have it, and how many bytes they take."""

    encoding: str
    num_tensors: int
    bytes: int


class UnitSize(Document, frozen=True, kw_only=True):
    """One unit of the chain: what it takes in the files and in each representation.

    A state that several units share (a tied token table) counts in each of them.
    """

    unit: str
    cost_class: str
    states: tuple[str, ...]
    file_bytes: int
    sizes: tuple[RepresentationBytes, ...]


class TextFacts(Document, frozen=True, kw_only=True):
    """What a model's text side is made of."""

    num_tokens: int
    begins_with: str | None
    """The token that begins a text, if the model names one."""
    ends_with: tuple[str, ...]
    """The tokens that end an answer."""
    num_special: int
    chat_templates: tuple[str, ...]


class Refusal(Document, frozen=True, kw_only=True):
    """Who cannot take the model, or its text, and why."""

    by: str
    reason: str


class FetchedBytes(Document, frozen=True, kw_only=True):
    """What looking at a remote model brought here, now, of all bytes of its files."""

    received: int
    of: int


class Inspection(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.inspection/1"):
    """One model. `description` is None when no backend can compute it."""

    name: str
    path: str
    """Of a remote model its address."""
    files: tuple[ModelFile, ...]
    architecture: str
    """As the files name it."""
    encodings: tuple[EncodingUse, ...]
    backend: str | None
    """Who would compute it."""
    description: Description | None
    units: tuple[UnitSize, ...]
    kept_bytes_per_position: tuple[RepresentationBytes, ...]
    """Keys and values of all blocks together, for each position of a session."""
    text: TextFacts | None
    notes: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    fetched: FetchedBytes | None = None
    """None for files of this computer, and where all of a model was fetched."""


def count_encodings(tensors: tuple[TensorRecord, ...]) -> tuple[EncodingUse, ...]:
    """Return the encodings of the tensors as they lie in the files, the one with the most bytes first."""
    found: dict[str, list[int]] = {}
    for tensor in tensors:
        found.setdefault(tensor.encoding, []).append(tensor.range.length)
    uses = (
        EncodingUse(encoding=name, num_tensors=len(lengths), bytes=sum(lengths)) for name, lengths in found.items()
    )
    return tuple(sorted(uses, key=lambda use: (-use.bytes, use.encoding)))


def size_units(
    description: Description, tensors: tuple[TensorRecord, ...], problem: PlanningProblem
) -> tuple[UnitSize, ...]:
    """Return every unit's bytes; `tensors` carry the names of the description's states."""
    lengths: dict[str, int] = {}
    for tensor in tensors:
        lengths[tensor.name] = lengths.get(tensor.name, 0) + tensor.range.length
    in_file = {state: sum(lengths[name] for name in names) for state, names in state_tensors(description).items()}
    sizes = {state.id: state.sizes for state in problem.states}
    names = tuple(size.representation for size in problem.states[0].sizes)
    return tuple(
        UnitSize(
            unit=unit.id,
            cost_class=unit.cost_class,
            states=unit_states(description, index),
            file_bytes=sum(in_file[state] for state in unit_states(description, index)),
            sizes=tuple(
                RepresentationBytes(name, sum(bytes_in(sizes[state], name) for state in unit.states))
                for name in names
            ),
        )
        for index, unit in enumerate(problem.units)
    )


def sum_kept_bytes(problem: PlanningProblem) -> tuple[RepresentationBytes, ...]:
    """Return the mutable bytes of a whole chain for each position, in each representation."""
    names = tuple(size.representation for size in problem.states[0].sizes)
    return tuple(
        RepresentationBytes(
            name,
            sum(
                bytes_in(unit.mutable_bytes_per_position, name)
                for unit in problem.units
                if unit.mutable_bytes_per_position
            ),
        )
        for name in names
    )


def describe_text(text: ModelText) -> TextFacts:
    """Return the facts about a model's text."""
    codec = text.codec
    return TextFacts(
        num_tokens=codec.size,
        begins_with=None if codec.bos_id is None else codec.token(codec.bos_id),
        ends_with=tuple(codec.token(index) for index in sorted(text.stop_ids) if index < codec.size),
        num_special=len(codec.special_names()),
        chat_templates=tuple(sorted(text.templates)),
    )
