"""What all origins refuse alike: another object than the one that was described, and ranges outside of it."""

from __future__ import annotations

import msgspec

from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, MALFORMED, SOURCE_UNAVAILABLE
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError


class AbsentObject(ArtifactError):
    """The origin was asked and says that it has no such object. `find_origin` turns it into None."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(SOURCE_UNAVAILABLE, subject, reason)


def check_expected(found: UpstreamObject, expected: UpstreamObject | None, subject: str) -> None:
    """Refuse an object that differs from what was described before; `subject` names it in the refusal.

    Places are not compared: an address is no identity. A version that was described and is not stated any more is a
    difference. Raises ArtifactError `PROVENANCE_IDENTITY_MISMATCH`.
    """
    if expected is None:
        return
    if found.length != expected.length:
        raise ArtifactError(
            IDENTITY_MISMATCH,
            subject,
            f"has {found.length:,} B; the object that was described has {expected.length:,} B",
        )
    if isinstance(expected.version, msgspec.UnsetType) or found.version == expected.version:
        return
    there = "no version" if isinstance(found.version, msgspec.UnsetType) else f"version {found.version}"
    raise ArtifactError(
        IDENTITY_MISMATCH, subject, f"has {there}; the object that was described has version {expected.version}"
    )


def check_inside(wanted: ByteRange, length: int, subject: str) -> None:
    """Refuse a range that leaves an object of `length` bytes. Raises ArtifactError `MALFORMED_ARTIFACT_RECORD`."""
    if wanted.end > length:
        raise ArtifactError(
            MALFORMED, subject, f"the range {wanted.start:,} to {wanted.end:,} leaves the object of {length:,} B"
        )
