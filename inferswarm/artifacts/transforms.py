"""Results of transforms as artifacts: where one may be used, what it says of itself, how it is kept and found.

A result lies in a Node's store as any blob, under the digest of its own bytes: the content, behind it a record of
what it was made from, by which procedure and under which conditions, and last the length of that record in 8 bytes.
Its key is the digest of source, procedure and conditions; the store's uses say which blob was made under which key.
They are a hint. What decides is the record inside the bytes: a blob without the right one, the source itself above
all, is no result, and counts as a miss. Every result is optional: it may go at any time, and is made again.

Not promised: that a result which came from a peer holds what the procedure would have made. Its digest shows that the
bytes are those that the peer made; who adopts one believes whoever said so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from inferswarm.artifacts.identity import Artifact, Transform
from inferswarm.artifacts.store import ContentStore, Partial, PartialIdentity, Use, VerifiedBlob
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, MALFORMED, UNVERIFIED_READ
from inferswarm.artifacts.types import ByteRange
from inferswarm.documents import Digest, Document, canonical_bytes, digest, read_document
from inferswarm.errors import ArtifactError, DocumentError, StoreRefused

RECORD_LIMIT_BYTES: Final = 2**16
"""A record longer than this is no record; one of decoding has about a kilobyte."""
_LENGTH_BYTES: Final = 8
_NO_MARK: Final = "0" * 32
RESULT_OWNER: Final = "transform:"
"""How the owners begin under which stores list results."""


class TransformResult(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.transform-result/1"):
    """What stands behind a result's content, inside the same blob."""

    transform: Transform
    length: int
    """Of the content before it, in bytes."""
    source_mark: str
    """What the maker found the source's bytes to be while it read them, for those who do not read them again: the
    hexadecimal xxh3-128 of the part that it was made from."""

    def __post_init__(self) -> None:
        """Refuse a result that would be usable everywhere (rule 86), and a negative length."""
        super().__post_init__()
        if not self.transform.context or not all(value for _, value in self.transform.context):
            raise ValueError(f"{self.transform.id} says not under which conditions its result may be used")
        if self.length < 0:
            raise ValueError(f"the result of {self.transform.id} has a length of {self.length}")


class Result(NamedTuple):
    """One opened result: the content is the first `length` bytes of the blob. Whoever has it closes the blob."""

    blob: VerifiedBlob
    record: TransformResult


def describe_transform(procedure: str, version: str, source: str, conditions: Mapping[str, str]) -> Transform:
    """Return how bytes were made, or are to be, with the conditions in order.

    Raises ArtifactError `MALFORMED_ARTIFACT_RECORD` without a procedure, a version, a digest of the source or a
    condition, and for a condition without a value.
    """
    try:
        made = Transform(id=procedure, version=version, source=source, context=tuple(sorted(conditions.items())))
        TransformResult(transform=made, length=0, source_mark="")
        return msgspec.convert(msgspec.to_builtins(made), Transform)  # its types, too: the source is a digest
    except (ValueError, msgspec.ValidationError) as error:
        raise ArtifactError(MALFORMED, procedure or "a transform without a name", str(error)) from error


def transform_key(transform: Transform) -> Digest:
    """Return what results are looked up by: another procedure, version, source or condition is another key."""
    return digest(transform)


def owner_of(transform: Transform) -> str:
    """Return the owner under whose name a store keeps the results of a transform."""
    return RESULT_OWNER + transform_key(transform)


class ListedResult(Document, frozen=True, kw_only=True):
    """Under which key a store lists a blob as the result of a transform."""

    key: Digest
    sha256: Digest
    length: int
    """Of the whole blob."""


class ResultIndex:
    """Which results a store lists, as it was when this was made."""

    def __init__(self, store: ContentStore) -> None:
        """List them. Raises StoreRefused."""
        self._store = store
        self._listed: dict[str, list[str]] = {}
        self._lengths: dict[str, int] = {}
        found = store.inventory()
        self.stored_bytes = found.bytes
        """Of all blobs of the store."""
        for blob in found.blobs:
            for owner in blob.owners:
                if owner.startswith(RESULT_OWNER):
                    self._listed.setdefault(owner, []).append(blob.sha256)
                    self._lengths[blob.sha256] = blob.length

    def listed(self) -> tuple[ListedResult, ...]:
        """Return what is listed, unread; keys under which there are several blobs are left out, as for `open`."""
        return tuple(
            ListedResult(key=owner.removeprefix(RESULT_OWNER), sha256=found[0], length=self._lengths[found[0]])
            for owner, found in self._listed.items()
            if len(found) == 1
        )

    def open(self, transform: Transform, length: int) -> Result | None:
        """Return the result of a transform with so many bytes of content, proved as the store's policy says.

        None is a miss: nothing is listed or there, what is there was altered (it is in quarantine then), or is
        another thing than the list says (it is taken off the list). Two results under one key are a miss as well: the
        procedure does not do what its version says. Raises StoreRefused when the store cannot be read.
        """
        owner = owner_of(transform)
        listed = self._listed.get(owner, ())
        if len(listed) != 1:
            return None
        (sha256,) = listed
        try:
            blob = self._store.open_verified(sha256)
        except StoreRefused:
            raise
        except ArtifactError:
            return None
        try:
            record = read_result(blob, transform)
            if record.length != length:
                raise ArtifactError(IDENTITY_MISMATCH, sha256, f"has {record.length:,} B, needed {length:,} B")
        except ArtifactError:
            blob.close()
            self._store.release(owner, [sha256])
            del self._listed[owner]
            return None
        return Result(blob, record)


def read_result(blob: VerifiedBlob, transform: Transform) -> TransformResult:
    """Return the record of a blob that is the result of a transform.

    Raises ArtifactError: `UNVERIFIED_SOURCE_READ_REFUSED` for a blob that is no result, such as the source;
    `PROVENANCE_IDENTITY_MISMATCH` for the result of another transform; as `VerifiedBlob.read_into`.
    """
    end = blob.length - _LENGTH_BYTES
    size = int.from_bytes(blob.read(ByteRange(end, blob.length)), "little") if end > 0 else 0
    if not 0 < size <= min(end, RECORD_LIMIT_BYTES):
        raise ArtifactError(UNVERIFIED_READ, blob.sha256, f"has {blob.length:,} B that do not end as a result does")
    try:
        record = read_document(TransformResult, blob.read(ByteRange(end - size, end)), f"the end of {blob.sha256}")
    except DocumentError as error:
        raise ArtifactError(UNVERIFIED_READ, blob.sha256, f"is no result of {transform.id}: {error}") from error
    if record.length != end - size:
        reason = f"has {end - size:,} B of content, its record says {record.length:,} B"
        raise ArtifactError(UNVERIFIED_READ, blob.sha256, reason)
    if record.transform != transform:
        raise ArtifactError(IDENTITY_MISMATCH, blob.sha256, f"is of {record.transform}, needed {transform}")
    return record


def result_bytes(transform: Transform, length: int) -> int:
    """Return how long the blob of a result is whose content has `length` bytes."""
    return length + len(_ending(TransformResult(transform=transform, length=length, source_mark=_NO_MARK)))


class ResultWriter:
    """One result on its way into a store: its content in order, then its record. Close it, published or not."""

    def __init__(self, partial: Partial, store: ContentStore, record: TransformResult) -> None:
        self._partial = partial
        self._store = store
        self._record = record

    @classmethod
    def begin(cls, store: ContentStore, transform: Transform, length: int) -> ResultWriter | None:
        """Begin one; None while somebody else writes the same. Raises StoreRefused without room for it."""
        record = TransformResult(transform=transform, length=length, source_mark=_NO_MARK)
        whole = length + len(_ending(record))
        # Neither version nor digest: what a process that died has left is not gone on with, but begun anew.
        identity = PartialIdentity(
            uri=owner_of(transform), object_length=whole, range=ByteRange(0, whole), length=whole
        )
        partial = store.partial(identity)
        return None if partial is None else cls(partial, store, record)

    @property
    def length(self) -> int:
        """Return the bytes of the whole blob."""
        return self._partial.identity.length

    def write(self, piece: memoryview | bytes) -> None:
        """Add content. Raises StoreRefused; ArtifactError for more than was announced."""
        self._partial.write(piece)

    def publish(self, source_mark: str) -> str:
        """Write the record, publish the blob as an optional one, and return its digest.

        `source_mark` has 32 characters. Raises ArtifactError as `ContentStore.publish_partial`.
        """
        record = msgspec.structs.replace(self._record, source_mark=source_mark)
        self._partial.write(_ending(record))
        return self._store.publish_partial(self._partial, use=Use(owner_of(record.transform), "optional"))

    def close(self) -> None:
        """Throw away what was not published; harmless after `publish`. Raises StoreRefused."""
        if self._partial.descriptor >= 0:
            self._store.discard_partial(self._partial)


def artifact_of(source: Artifact, transform: Transform, sha256: str, length: int) -> Artifact:
    """Return the record under which others may get a result's blob of `length` bytes: by its digest, from peers.

    Raises ArtifactError `PROVENANCE_IDENTITY_MISMATCH` when `source` is not what it was made from, or the digest is
    that of the source.
    """
    if source.kind == "transform" or source.sha256 != transform.source:
        reason = f"{transform.id} was made from {transform.source}, not from {source.sha256}"
        raise ArtifactError(IDENTITY_MISMATCH, sha256, reason)
    if sha256 == transform.source:
        raise ArtifactError(IDENTITY_MISMATCH, sha256, f"is the source of {transform.id}, not its result")
    return msgspec.structs.replace(source, kind="transform", length=length, sha256=sha256, transform=transform)


def adopt_result(store: ContentStore, artifact: Artifact) -> None:
    """List a result that came from a peer, so that it is found under its key.

    Raises ArtifactError: `MALFORMED_ARTIFACT_RECORD` for an artifact of another kind, as `read_result` when the blob
    is another thing than the artifact says, as `ContentStore.open_verified` when it is not there.
    """
    transform = artifact.transform
    if isinstance(transform, msgspec.UnsetType) or isinstance(artifact.sha256, msgspec.UnsetType):
        raise ArtifactError(MALFORMED, artifact.id, f"is a {artifact.kind}, not the result of a transform")
    with store.open_verified(artifact.sha256) as blob:
        read_result(blob, transform)
    store.hold(owner_of(transform), [artifact.sha256], "optional")


def _ending(record: TransformResult) -> bytes:
    written = canonical_bytes(record)
    return written + len(written).to_bytes(_LENGTH_BYTES, "little")
