"""What an artifact is: immutable bytes that are named by their digest, and where such bytes come from.

A path, a URL and a file's name are places, never identities. An artifact's content is identified by the sha256 of its
exact bytes; its record says in addition of which object they are a range, which states they make, and how they were
made where somebody made them. The digest of the record, without itself, is the artifact's id.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inferswarm.artifacts.types import ByteRange
from inferswarm.documents import Digest, Document, digest

ArtifactKind = Literal["byte_range", "whole_object", "transform"]
RequirementClass = Literal["assigned", "shared", "metadata"]
"""A state of the participant alone, one that several participants hold, and what is needed to read the others."""
HashKnownBy = Literal["layout", "hashed", "first-fetch-pinned"]
"""How the digest of bytes is known: not at all (headers only); a publisher read all of them; the first that fetched
them from this version of the object said so."""


class UpstreamObject(Document, frozen=True, kw_only=True):
    """One object as its publisher keeps it: a file, a shard of a repository, what a URL gives."""

    uri: str
    """Where it was described: a path, `http(s)://…`, `hf://owner/name@commit/file`, any scheme of fsspec."""
    length: int
    version: str | msgspec.UnsetType = msgspec.UNSET
    """What tells it from another object under the same name, with the kind in front: `etag:…`, `commit:…`,
    `modified:…`. UNSET when the origin says nothing of it."""
    sha256: Digest | msgspec.UnsetType = msgspec.UNSET
    """The digest of the whole object, where a publisher read it."""

    def __post_init__(self) -> None:
        """Refuse an object of negative length."""
        super().__post_init__()
        if self.length < 0:
            raise ValueError(f"{self.uri}: a length of {self.length}")


class Provenance(Document, frozen=True, kw_only=True):
    """Of which model, of which revision of it, in which representation."""

    model: str
    revision: str
    representation: str


class Transform(Document, frozen=True, kw_only=True):
    """How bytes were made from others: which procedure in which version, under which conditions they are usable."""

    id: str
    version: str
    source: Digest
    """The content that it was made from."""
    context: tuple[tuple[str, str], ...]
    """What must be equal where the result is used (backend and its version, data type, instruction set …), sorted."""

    def __post_init__(self) -> None:
        """Refuse a transform without a name or a version (rule 23), and conditions that are repeated or unsorted."""
        super().__post_init__()
        if not self.id or not self.version:
            raise ValueError("a transform needs an id and a version")
        names = [name for name, _ in self.context]
        if names != sorted(set(names)):
            raise ValueError(f"the conditions of {self.id} must be sorted by name, each once: {names}")


class Artifact(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.artifact/1"):
    """The record of one artifact: what its bytes are and where they come from; never the bytes."""

    kind: ArtifactKind
    length: int
    provenance: Provenance
    origin: UpstreamObject
    range: ByteRange
    """The bytes of the origin; of a transform, those that it was made from."""
    states: tuple[str, ...]
    """The states that they make, or make a part of; empty for metadata."""
    requirement_class: RequirementClass
    sha256: Digest | msgspec.UnsetType = msgspec.UNSET
    """The digest of the content. UNSET until somebody fetched it (`first-fetch-pinned`)."""
    transform: Transform | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        """Refuse a record that contradicts itself."""
        super().__post_init__()
        what = f"{self.origin.uri} {self.range.start:,} to {self.range.end:,}"
        if self.range.end > self.origin.length:
            raise ValueError(f"{what} leaves the object of {self.origin.length:,} B")
        if (self.kind == "transform") != isinstance(self.transform, Transform):
            raise ValueError(f"{what}: a transform, and nothing else, says how it was made")
        if self.kind == "transform" and isinstance(self.sha256, msgspec.UnsetType):
            raise ValueError(f"{what}: the digest of a transform's result is known when it is made")
        if self.kind != "transform" and self.length != self.range.length:
            raise ValueError(f"{what} spans {self.range.length:,} B, the artifact has {self.length:,} B")
        if self.kind == "whole_object" and self.range != ByteRange(0, self.origin.length):
            raise ValueError(f"{what} is not the whole object of {self.origin.length:,} B")
        if bool(self.states) == (self.requirement_class == "metadata"):
            raise ValueError(f"{what}: metadata makes no state, everything else does: {self.states}")

    @property
    def id(self) -> Digest:
        """Return the digest of this record: another place, version or state is another artifact."""
        return digest(self)
