"""Checks on what a participant needs and on what was really read. They fail closed: what is not proved is refused.

Nothing here knows what a model is: a *declaration* maps each state's id to the names of the tensors that make it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from inferswarm.artifacts.taxonomy import (
    COVERAGE_INCOMPLETE,
    IDENTITY_MISMATCH,
    MALFORMED,
    UNDECLARED,
    UNPLANNED_READ,
    WHOLE_OBJECT_UNDECLARED,
)
from inferswarm.artifacts.types import ByteRange, ModelObject, ParticipantRequirement
from inferswarm.errors import ArtifactError

Declaration = Mapping[str, tuple[str, ...]]
"""State id → the names of the tensors that make it."""


def coalesce(ranges: Iterable[ByteRange], max_gap_bytes: int = 0) -> tuple[ByteRange, ...]:
    """Join ranges that overlap, touch, or lie at most `max_gap_bytes` apart; sorted, empty ones dropped.

    >>> coalesce([ByteRange(8, 16), ByteRange(0, 8), ByteRange(20, 30)])
    (ByteRange(start=0, end=16), ByteRange(start=20, end=30))
    """
    joined: list[ByteRange] = []
    for part in sorted(part for part in ranges if part.length):
        if joined and part.start <= joined[-1].end + max_gap_bytes:
            joined[-1] = ByteRange(joined[-1].start, max(joined[-1].end, part.end))
        else:
            joined.append(part)
    return tuple(joined)


def check_requirement(
    requirement: ParticipantRequirement, model_object: ModelObject, declaration: Declaration
) -> None:
    """Refuse a requirement that is not exactly what `declaration` needs of `model_object`.

    `declaration` holds the states of this participant and no others. Raises ArtifactError:
    `PROVENANCE_IDENTITY_MISMATCH` when it is about another object, `MALFORMED_ARTIFACT_RECORD` for a tensor named
    twice or not as the object's header has it, `REQUIRED_STATE_COVERAGE_INCOMPLETE` for a state or a tensor that
    is missing, `UNDECLARED_REQUIREMENT_ARTIFACT` for one that no declared state needs.
    """
    who = requirement.participant
    if requirement.files != model_object.files:
        raise ArtifactError(IDENTITY_MISMATCH, who, f"is about {requirement.uri}, not about {model_object.uri}")
    _check_states(requirement, declaration)
    there = {tensor.name: tensor for tensor in model_object.tensors}
    needed = {name for names in declaration.values() for name in names}
    named: set[str] = set()
    for tensor in requirement.tensors:
        if tensor.name in named:
            raise ArtifactError(MALFORMED, who, f"names the tensor {tensor.name} twice")
        named.add(tensor.name)
        if there.get(tensor.name) != tensor:
            raise ArtifactError(MALFORMED, who, f"{tensor.name} is not as the header of {model_object.uri} has it")
        if tensor.name not in needed:
            raise ArtifactError(UNDECLARED, who, f"{tensor.name} belongs to none of its states")
    if missing := needed - named:
        raise ArtifactError(COVERAGE_INCOMPLETE, who, f"lacks the tensors {sorted(missing)}")


def _check_states(requirement: ParticipantRequirement, declaration: Declaration) -> None:
    who = requirement.participant
    if len(set(requirement.state_ids)) != len(requirement.state_ids):
        raise ArtifactError(MALFORMED, who, "names a state twice")
    if missing := set(declaration) - set(requirement.state_ids):
        raise ArtifactError(COVERAGE_INCOMPLETE, who, f"lacks the states {sorted(missing)}")
    if surplus := set(requirement.state_ids) - set(declaration):
        raise ArtifactError(UNDECLARED, who, f"names states that are not its own: {sorted(surplus)}")
    if empty := sorted(state for state, names in declaration.items() if not names):
        raise ArtifactError(COVERAGE_INCOMPLETE, who, f"the states {empty} are made of no bytes")


def refuse_whole_object(requirement: ParticipantRequirement, model_object: ModelObject) -> None:
    """Refuse a requirement of a part that asks for every tensor of the object.

    Raises ArtifactError `UPSTREAM_OBJECT_FULLY_ACQUIRED_WITHOUT_DECLARATION`. Call it only for participants whose
    states are not all of the model's.
    """
    if all(
        coalesce(requirement.ranges(file))
        == coalesce(tensor.range for tensor in model_object.tensors if tensor.file == file)
        for file in range(len(model_object.files))
    ):
        raise ArtifactError(
            WHOLE_OBJECT_UNDECLARED, requirement.participant, f"asks for every tensor of {model_object.uri}"
        )


def check_reads(requirement: ParticipantRequirement, ranges_read: Mapping[int, Iterable[ByteRange]]) -> None:
    """Compare what was read from the files with what was required: exactly the required bytes, each once.

    `ranges_read` holds, for each file that was opened, the log of the origin that materialized the participant's
    states. Raises ArtifactError `STAGING_UNPLANNED_KEY` for a byte outside the requirement or read twice,
    `REQUIRED_STATE_COVERAGE_INCOMPLETE` for one that was not read.
    """
    for file in sorted(set(ranges_read) | {tensor.file for tensor in requirement.tensors}):
        _check_file_reads(requirement.participant, requirement.ranges(file), ranges_read.get(file, ()))


def _check_file_reads(who: str, required: Iterable[ByteRange], ranges_read: Iterable[ByteRange]) -> None:
    read = sorted(part for part in ranges_read if part.length)
    planned = coalesce(required)
    for part in read:
        if not any(whole.start <= part.start and part.end <= whole.end for whole in planned):
            raise ArtifactError(
                UNPLANNED_READ, who, f"read bytes {part.start:,} to {part.end:,}, outside its requirement"
            )
    for before, after in itertools.pairwise(read):
        if after.start < before.end:
            raise ArtifactError(UNPLANNED_READ, who, f"read bytes {after.start:,} to {before.end:,} twice")
    if coalesce(read) != planned:
        needed = sum(part.length for part in planned)
        unread = needed - sum(part.length for part in read)
        raise ArtifactError(COVERAGE_INCOMPLETE, who, f"{unread:,} B of {needed:,} B were not read")
