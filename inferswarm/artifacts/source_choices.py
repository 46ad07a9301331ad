"""What is known when sources are chosen, and the choices that come of it, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.inventory import SourceIndex
from inferswarm.artifacts.sources import Source, SourcePolicy
from inferswarm.documents import Digest, Document
from inferswarm.errors import SpecError


class Want(NamedTuple):
    """One artifact that a participant needs on its Node."""

    participant: str
    node_id: str
    artifact: Artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What is known of the sources when they are chosen."""

    index: SourceIndex
    """Who advertises what, the participants' own Nodes included."""
    origin: Source | None
    """None: the origin may not be asked."""
    seconds_per_byte: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(source id, Node id) → what the path from one to the other was measured to take for a byte."""
    assigned_bytes: Mapping[str, int] = field(default_factory=dict)
    """Source id → bytes that it serves already, for other plans."""
    slow: Collection[str] = ()
    """Ids of sources that are slower than they were expected to be."""
    excluded: Collection[tuple[str, Digest]] = ()
    """(source id, artifact id) that may not be used: quarantined."""

    def __post_init__(self) -> None:
        """Refuse a speed that is none. Raises SpecError."""
        for (source, node), seconds in self.seconds_per_byte.items():
            if not 0 < seconds < math.inf:
                raise SpecError("seconds_per_byte", seconds, f"a finite time above 0 from {source} to {node}")


class PassedOver(Document, frozen=True):
    """A source that was not chosen, and why."""

    source_id: str
    reason: str


class Choice(Document, frozen=True, kw_only=True):
    """One artifact of one participant, and the one source that this attempt takes it from."""

    participant: str
    node_id: str
    artifact: Digest
    """The artifact's id."""
    length: int
    source: Source | None
    """None: it is there, verified, and no byte moves."""
    attempt: int
    seconds: float | None
    """When the source is expected to be done with it and all before it; None when the path was not measured."""
    reason: str
    passed_over: tuple[PassedOver, ...]


class SourcingPlan(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.sourcing/1"):
    """The choices of one generation, by participant and artifact, and the pairs that failed in it."""

    generation: int
    policy: SourcePolicy
    choices: tuple[Choice, ...]
    failed: tuple[tuple[str, Digest], ...] = ()
    """(source id, artifact id), in the order of the failures; a Node's own id stands for what it held itself."""

    def bytes_from(self, source_id: str) -> int:
        """Return how many bytes one source serves."""
        return sum(choice.length for choice in self.choices if choice.source and choice.source.id == source_id)
