"""Digests that nobody published, said by the first who fetched the bytes; and the policy that refuses them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec.structs import replace

from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.manifest import ModelManifest, differ
from inferswarm.artifacts.store.records import Pin
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, INTEGRITY_MISMATCH, UNDECLARED, UNVERIFIED_READ
from inferswarm.errors import ArtifactError

HashPolicy = Literal["strict", "pinning"]
"""`strict`: only digests that a publisher computed count. `pinning`: those of a first fetch as well."""


def with_pins(manifest: ModelManifest, pins: Iterable[Pin]) -> ModelManifest:
    """Return the manifest with the digests that first fetches found, labelled `first-fetch-pinned`.

    A pin is of one version of an object, which a manifest that knows none takes over. A hashed manifest stays as it
    is; the pins must confirm its digests. Raises ArtifactError:
    `INTEGRITY_DIGEST_MISMATCH` when a digest contradicts one that is known or another pin,
    `PROVENANCE_IDENTITY_MISMATCH` for a pin of another object or version, `UNDECLARED_REQUIREMENT_ARTIFACT` for
    bytes that are no entry.
    """
    files, entries = list(manifest.files), list(manifest.entries)
    places = {(entry.file, entry.range): index for index, entry in enumerate(entries)}
    names = {file.uri: index for index, file in enumerate(files)}
    pinned = False
    for pin in pins:
        file = names.get(pin.uri)
        if file is None:
            raise ArtifactError(IDENTITY_MISMATCH, pin.uri, f"is no file of {manifest.provenance.model}")
        files[file] = _with_version(files[file], pin.version)
        place = places.get((file, pin.range))
        if place is None:
            raise ArtifactError(UNDECLARED, pin.uri, f"bytes {pin.range.start:,} to {pin.range.end:,} are no entry")
        if differ(entries[place].sha256, pin.sha256):
            raise ArtifactError(
                INTEGRITY_MISMATCH,
                entries[place].name,
                f"a fetch found {pin.sha256}, known is {entries[place].sha256}",
            )
        entries[place] = replace(entries[place], sha256=pin.sha256)
        pinned = True
    if manifest.hash_known_by == "hashed" or not pinned:
        return manifest
    return replace(manifest, files=tuple(files), entries=tuple(entries), hash_known_by="first-fetch-pinned")


def check_policy(manifest: ModelManifest, policy: HashPolicy) -> None:
    """Refuse a manifest whose digests are not known well enough.

    Raises ArtifactError `UNVERIFIED_SOURCE_READ_REFUSED`: `strict` takes `hashed` and nothing else.
    """
    if policy == "strict" and manifest.hash_known_by != "hashed":
        raise ArtifactError(
            UNVERIFIED_READ,
            manifest.provenance.model,
            f"its digests are known by {manifest.hash_known_by!r}; the policy 'strict' needs 'hashed': publish it",
        )


def _with_version(file: UpstreamObject, seen: str) -> UpstreamObject:
    if file.version != seen and not isinstance(file.version, msgspec.UnsetType):
        raise ArtifactError(IDENTITY_MISMATCH, file.uri, f"is version {file.version}, fetched was {seen}")
    return replace(file, version=seen)
