"""The tensors of a model as its files store them: what readers cut by rows joined again, what is named twice once."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from inferswarm.artifacts.requirement import coalesce
from inferswarm.artifacts.taxonomy import MALFORMED
from inferswarm.artifacts.types import ByteRange, ModelObject, ParticipantRequirement
from inferswarm.errors import ArtifactError


class StoredTensor(NamedTuple):
    """One tensor in a file; tensors sort by file and range."""

    file: int
    range: ByteRange
    name: str
    """What the file calls it; of several names for one range, the first in the alphabet."""


def stored_tensors(described: ModelObject | ParticipantRequirement) -> tuple[StoredTensor, ...]:
    """Return the stored tensors in the order of their bytes; those without bytes are left out.

    Raises ArtifactError `MALFORMED_ARTIFACT_RECORD` when the parts of one stored tensor leave a hole, or when two
    stored tensors share some of their bytes.
    """
    parts: dict[tuple[int, str], list[ByteRange]] = {}
    for tensor in described.tensors:
        parts.setdefault((tensor.file, tensor.stored_name or tensor.name), []).append(tensor.range)
    names: dict[tuple[int, ByteRange], str] = {}
    for (file, name), ranges in parts.items():
        whole = coalesce(ranges)
        if len(whole) > 1:
            raise ArtifactError(
                MALFORMED, described.files[file].uri, f"the parts of {name} lie in {len(whole)} places, not in one"
            )
        if whole:
            names[file, whole[0]] = min(name, names.get((file, whole[0]), name))
    found = sorted(StoredTensor(file, place, name) for (file, place), name in names.items())
    for before, after in itertools.pairwise(found):
        if before.file == after.file and after.range.start < before.range.end:
            raise ArtifactError(
                MALFORMED,
                described.files[after.file].uri,
                f"{after.name} overlaps {before.name} (at byte {after.range.start:,})",
            )
    return tuple(found)
