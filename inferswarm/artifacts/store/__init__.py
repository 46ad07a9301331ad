"""The content store of a Node: verified bytes under their digests, partials that can be resumed, uses, pins."""

from inferswarm.artifacts.store.content import ContentStore, Proved
from inferswarm.artifacts.store.layout import prove_empty_root
from inferswarm.artifacts.store.partials import Discarded, Partial
from inferswarm.artifacts.store.publication import Incoming
from inferswarm.artifacts.store.reading import VerifiedBlob
from inferswarm.artifacts.store.records import (
    Blob,
    Collection,
    EmptyRoot,
    Inventory,
    PartialIdentity,
    Pin,
    StoreCounts,
    Trust,
    Use,
    UseKind,
    Verification,
    partial_identity,
)

__all__ = [
    "Blob",
    "Collection",
    "ContentStore",
    "Discarded",
    "EmptyRoot",
    "Incoming",
    "Inventory",
    "Partial",
    "PartialIdentity",
    "Pin",
    "Proved",
    "StoreCounts",
    "Trust",
    "Use",
    "UseKind",
    "Verification",
    "VerifiedBlob",
    "partial_identity",
    "prove_empty_root",
]
