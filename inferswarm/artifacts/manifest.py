"""What a model is made of: its files, every stored tensor in them, and the digests of both as far as they are known.

A manifest is made from headers alone (`layout`); a publisher that reads everything adds every digest (`hashed`); the
first that fetched bytes may add theirs (`first-fetch-pinned`, see `pinning`). It never holds bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from inferswarm.artifacts.identity import HashKnownBy, Provenance, UpstreamObject
from inferswarm.artifacts.layout import stored_tensors
from inferswarm.artifacts.taxonomy import (
    IDENTITY_MISMATCH,
    MALFORMED,
)
from inferswarm.artifacts.types import ByteRange, ModelObject
from inferswarm.documents import Digest, Document, digest, read_document
from inferswarm.errors import ArtifactError

CHECKPOINT: Final = "checkpoint"
"""The representation of a model's files as they were published, whatever they encode their numbers in."""
EntryKind = Literal["tensor", "metadata"]


class ManifestEntry(Document, frozen=True, kw_only=True):
    """One thing that can be asked for: a tensor as a file stores it, or a whole file of metadata."""

    file: int
    """Which of the manifest's files."""
    name: str
    """What the file calls the tensor; the name of a metadata file."""
    kind: EntryKind
    range: ByteRange
    sha256: Digest | msgspec.UnsetType = msgspec.UNSET


class ModelManifest(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.manifest/1"):
    """The files of one revision of a model, and what is in them.

    The files of weights come first, in the model's order, then those of metadata. Entries are sorted by file and
    range, and share no byte.
    """

    provenance: Provenance
    files: tuple[UpstreamObject, ...]
    hash_known_by: HashKnownBy
    entries: tuple[ManifestEntry, ...]

    def __post_init__(self) -> None:
        """Refuse entries outside their file, out of order, overlapping or of one name, and digests not as said."""
        super().__post_init__()
        if not self.files or not self.entries:
            raise ValueError(f"{self.provenance.model}: a manifest of {len(self.files)} files without entries")
        if len({file.uri for file in self.files}) != len(self.files):
            raise ValueError("two files have one place")
        for entry in self.entries:
            self._check_place(entry)
        for before, after in itertools.pairwise(self.entries):
            if (after.file, after.range.start) < (before.file, before.range.end):
                raise ValueError(f"{after.name} lies before the end of {before.name}, which is listed before it")
        if len({entry.name for entry in self.entries}) != len(self.entries):
            raise ValueError("two entries have one name")
        self._check_digests()

    @property
    def id(self) -> Digest:
        """Return the digest of the whole manifest."""
        return digest(self)

    @property
    def bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(file.length for file in self.files)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all stored tensors."""
        return sum(entry.range.length for entry in self.entries if entry.kind == "tensor")

    def of_file(self, file: int) -> tuple[ManifestEntry, ...]:
        """Return the entries in one file, in order."""
        return tuple(entry for entry in self.entries if entry.file == file)

    def _check_place(self, entry: ManifestEntry) -> None:
        if not 0 <= entry.file < len(self.files):
            raise ValueError(f"{entry.name} lies in file {entry.file} of {len(self.files)}")
        file = self.files[entry.file]
        if not entry.range.length or entry.range.end > file.length:
            place = f"{entry.range.start:,} to {entry.range.end:,} of {file.uri}"
            raise ValueError(f"{entry.name} is {place}, which has {file.length:,} B")
        if entry.kind == "metadata" and entry.range != ByteRange(0, file.length):
            raise ValueError(f"{entry.name} is metadata and not the whole of {file.uri}")
        if entry.range == ByteRange(0, file.length) and differ(entry.sha256, file.sha256):
            raise ValueError(f"{entry.name} is all of {file.uri}, and their digests differ")

    def _check_digests(self) -> None:
        digests = [entry.sha256 for entry in self.entries] + [file.sha256 for file in self.files]
        known = [not isinstance(item, msgspec.UnsetType) for item in digests]
        if self.hash_known_by == "layout" and any(known):
            raise ValueError("a layout knows no digest")
        if self.hash_known_by == "hashed" and not all(known):
            raise ValueError(f"hashed, and {known.count(False):,} of {len(known):,} digests are missing")
        if self.hash_known_by == "first-fetch-pinned" and not any(known):
            raise ValueError("pinned, and no digest is there")


def manifest_of(
    model_object: ModelObject,
    provenance: Provenance,
    *,
    files: Sequence[UpstreamObject] | None = None,
    metadata: Iterable[UpstreamObject] = (),
) -> ModelManifest:
    """Return the `layout` manifest of a model whose headers were read.

    Tensors that a reader cut from one stored tensor, or named twice, are one entry. `files` says more of the model's
    files (their versions), one for one; `metadata` are whole small files, which are named by the end of their path.
    Raises ArtifactError `MALFORMED_ARTIFACT_RECORD` for tensors that overlap, `PROVENANCE_IDENTITY_MISMATCH` for
    files of other lengths.
    """
    described = tuple(UpstreamObject(uri=file.uri, length=file.length) for file in model_object.files)
    if files is not None:
        if [file.length for file in files] != [file.length for file in described]:
            raise ArtifactError(
                IDENTITY_MISMATCH, model_object.uri, "the files described are not those of the headers"
            )
        described = tuple(replace(file, sha256=msgspec.UNSET) for file in files)
    entries = [
        ManifestEntry(file=stored.file, name=stored.name, kind="tensor", range=stored.range)
        for stored in stored_tensors(model_object)
    ]
    texts = tuple(replace(file, sha256=msgspec.UNSET) for file in metadata if file.length)
    entries += [
        ManifestEntry(file=index, name=_name(file), kind="metadata", range=ByteRange(0, file.length))
        for index, file in enumerate(texts, start=len(described))
    ]
    try:
        return ModelManifest(
            provenance=provenance, files=(*described, *texts), hash_known_by="layout", entries=tuple(entries)
        )
    except ValueError as error:
        raise ArtifactError(MALFORMED, model_object.uri, f"has no manifest: {error}") from error


def read_manifest(data: bytes | str, source: str) -> ModelManifest:
    """Read a manifest strictly. Raises DocumentError naming `source` and what is wrong."""
    return read_document(ModelManifest, data, source)


def check_manifest(manifest: ModelManifest, model_object: ModelObject) -> None:
    """Refuse a manifest that is not about a model whose headers were read.

    Files must agree in number and length, and every stored tensor must be an entry of exactly its range; the two
    sorted lists are walked together once. A manifest may hold more (metadata files, tensors that a strategy leaves
    out), and places may differ: a path is not an identity. Raises ArtifactError `PROVENANCE_IDENTITY_MISMATCH`.
    """
    lengths = [file.length for file in model_object.files]
    if [file.length for file in manifest.files[: len(lengths)]] != lengths:
        raise ArtifactError(IDENTITY_MISMATCH, model_object.uri, "its files are not as long as the manifest says")
    entries: Iterator[ManifestEntry] = iter(manifest.entries)
    for stored in stored_tensors(model_object):
        wanted = (stored.file, stored.range)
        entry = next((entry for entry in entries if (entry.file, entry.range) >= wanted), None)
        if entry is None or (entry.file, entry.range) != wanted:
            raise ArtifactError(
                IDENTITY_MISMATCH,
                model_object.files[stored.file].uri,
                f"the manifest has no entry for {stored.name}, {stored.range.start:,} to {stored.range.end:,}",
            )


def differ(one: str | msgspec.UnsetType, other: str | msgspec.UnsetType) -> bool:
    """Return whether two digests are known and not the same."""
    return one != other and not isinstance(one, msgspec.UnsetType) and not isinstance(other, msgspec.UnsetType)


def _name(file: UpstreamObject) -> str:
    return file.uri.rstrip("/").rsplit("/", 1)[-1]
