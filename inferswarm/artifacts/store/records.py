"""What a content store says of itself: frozen records, without behavior."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.types import ByteRange
from inferswarm.documents import Digest, Digits, Document, digest

Trust = Literal["always", "first-use", "until-changed"]
"""When a blob is hashed again before its bytes are given out: each time that it is opened; the first time that this
process opens it, and when its file changed since; when its file is not the one that was hashed last, by whichever
process (size, times of content and of inode, inode)."""
UseKind = Literal["required", "replica", "optional"]
"""Why a blob is kept. Only `optional`, and what nobody uses, is ever evicted."""


class Use(NamedTuple):
    """Who keeps a blob, and why. An owner is a name that its user chooses, such as a plan's digest."""

    owner: str
    kind: UseKind


class Blob(Document, frozen=True, kw_only=True):
    """One verified object of a store."""

    sha256: Digest
    length: int
    used_ns: Digits
    """When it was last published or opened, in nanoseconds since 1970; only for the order of eviction."""
    kind: UseKind
    """The strongest of its uses."""
    owners: tuple[str, ...]


class Pin(Document, frozen=True, kw_only=True):
    """What the first fetch of a range from one version of an object gave."""

    uri: str
    version: str
    range: ByteRange
    sha256: Digest
    is_told: bool = False
    """Whether it is what another Node's first fetch gave, under which this one got its bytes."""


class PartialIdentity(Document, frozen=True, kw_only=True):
    """Of what a partial is a prefix. Its digest names the partial's file, so that no other can be continued."""

    uri: str
    version: str | msgspec.UnsetType = msgspec.UNSET
    object_length: int
    range: ByteRange
    length: int
    """Of the whole artifact, in bytes."""
    sha256: Digest | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_bound(self) -> bool:
        """Return whether two fetches of it are known to be of the same bytes, by digest or by version."""
        return not (isinstance(self.version, msgspec.UnsetType) and isinstance(self.sha256, msgspec.UnsetType))

    @property
    def name(self) -> str:
        """Return the hexadecimal digits that name its file."""
        return digest(self).removeprefix("sha256:")


def partial_identity(artifact: Artifact) -> PartialIdentity:
    """Return the identity of an artifact's partial: the same for every source that it may come from."""
    return PartialIdentity(
        uri=artifact.origin.uri,
        version=artifact.origin.version,
        object_length=artifact.origin.length,
        range=artifact.range,
        length=artifact.length,
        sha256=artifact.sha256,
    )


class PartialRecord(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.partial/1"):
    """What lies beside a partial: its identity, and the prefix that is known to be on the disk."""

    identity: PartialIdentity
    marked_bytes: int
    marked_sha256: Digest


class StoreCounts(NamedTuple):
    """Bytes since the store was opened, by what was done with them. Nothing is counted from what lies on the disk."""

    written: int
    hashed: int
    served: int
    discarded: int
    """Of partials and temporary files that were thrown away."""


class Inventory(NamedTuple):
    """Everything that a store holds at one moment, in the order of digests."""

    store: str
    """A number that the store was given at its creation: sequences of different stores do not compare."""
    sequence: int
    """Grows with every publication and removal."""
    blobs: tuple[Blob, ...]

    @property
    def bytes(self) -> int:
        """Return the bytes of all blobs."""
        return sum(blob.length for blob in self.blobs)


class Finding(Document, frozen=True, kw_only=True):
    """What is wrong with one file of a store."""

    path: str
    """Below the root."""
    reason: str


class Verification(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.store-verification/1"):
    """What hashing everything again found. Damaged blobs are in quarantine by then."""

    root: str
    verified: int
    bytes: int
    damaged: tuple[Finding, ...]
    strays: tuple[Finding, ...]
    """Files that no store writes there; left alone."""


class Collection(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.store-collection/1"):
    """What a collection removed, or would."""

    root: str
    blobs: tuple[Digest, ...]
    """In the order of removal: the longest unused first."""
    blob_bytes: int
    partials: int
    partial_bytes: int


class Quarantined(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.store-quarantine/1"):
    """Why a file is in quarantine; lies beside it."""

    sha256: Digest
    """What it was published as."""
    found: str
    """What it is."""
    at_ns: Digits


class EmptyRoot(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.empty-root/1"):
    """Evidence that a root holds no artifact bytes, and that nothing in it leads elsewhere."""

    root: str
    inode: Digits
    directories: int
    files: tuple[str, ...]
    """The store's own index, if there is one; nothing else is allowed."""
