"""The closed list of reasons for which bytes are refused: the only codes that an `ArtifactError` carries.

A reader of an error can act on its code without parsing words; a code that is not listed here does not exist.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

ReasonCode = Literal[
    "MALFORMED_ARTIFACT_RECORD",
    "PROVENANCE_IDENTITY_MISMATCH",
    "REQUIRED_STATE_COVERAGE_INCOMPLETE",
    "UNDECLARED_REQUIREMENT_ARTIFACT",
    "SOURCE_UNAUTHORIZED",
    "SOURCE_OBJECT_UNAVAILABLE",
    "INTEGRITY_DIGEST_MISMATCH",
    "UNVERIFIED_OBJECT_PUBLICATION_REFUSED",
    "UNVERIFIED_SOURCE_READ_REFUSED",
    "PARTIAL_STATE_IDENTITY_MISMATCH",
    "CACHE_OBJECT_TAMPERED",
    "RECONCILIATION_MISMATCH",
    "UPSTREAM_OBJECT_FULLY_ACQUIRED_WITHOUT_DECLARATION",
    "STAGING_UNPLANNED_KEY",
    "EXECUTION_IDENTITY_MISMATCH",
]

MALFORMED: Final = "MALFORMED_ARTIFACT_RECORD"
"""A record contradicts itself: a range outside its object, a name twice, a size that its shape does not give."""
IDENTITY_MISMATCH: Final = "PROVENANCE_IDENTITY_MISMATCH"
"""The object is not the one that was described: other length, changed since it was opened, other problem."""
COVERAGE_INCOMPLETE: Final = "REQUIRED_STATE_COVERAGE_INCOMPLETE"
"""A declared state lacks bytes."""
UNDECLARED: Final = "UNDECLARED_REQUIREMENT_ARTIFACT"
"""Bytes are asked for that no declared state needs."""
SOURCE_UNAVAILABLE: Final = "SOURCE_OBJECT_UNAVAILABLE"
"""The object cannot be opened, or ends before the bytes that were asked for."""
INTEGRITY_MISMATCH: Final = "INTEGRITY_DIGEST_MISMATCH"
"""Bytes do not have the digest that was recorded for them."""
WHOLE_OBJECT_UNDECLARED: Final = "UPSTREAM_OBJECT_FULLY_ACQUIRED_WITHOUT_DECLARATION"
"""A participant with a part of the model would need, or has read, all of it."""
UNPLANNED_READ: Final = "STAGING_UNPLANNED_KEY"
"""Bytes were read that the participant's requirement does not contain."""
UNAUTHORIZED: Final = "SOURCE_UNAUTHORIZED"
"""Nobody allowed this participant to take this artifact from this source now, or the source is not a known one."""
UNVERIFIED_PUBLICATION: Final = "UNVERIFIED_OBJECT_PUBLICATION_REFUSED"
"""Bytes were to be kept or offered under a digest that was not computed from them."""
UNVERIFIED_READ: Final = "UNVERIFIED_SOURCE_READ_REFUSED"
"""Bytes were asked for whose digest is not known well enough: an unfinished transfer, or a policy that wants more."""
PARTIAL_MISMATCH: Final = "PARTIAL_STATE_IDENTITY_MISMATCH"
"""The beginning of a transfer that was kept belongs to other bytes."""
CACHE_TAMPERED: Final = "CACHE_OBJECT_TAMPERED"
"""Bytes that were kept as verified do not have their digest when they are read again."""
RECONCILIATION_MISMATCH: Final = "RECONCILIATION_MISMATCH"
"""Two accounts of the same thing differ: a ledger and a log, two inventories, a sum and its parts."""
EXECUTION_IDENTITY_MISMATCH: Final = "EXECUTION_IDENTITY_MISMATCH"
"""What executes is not what the artifacts were made for."""

REASON_CODES: Final[frozenset[str]] = frozenset(get_args(ReasonCode))
"""All codes, for checks."""
