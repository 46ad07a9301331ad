"""Checks that a participant's artifacts are exactly what it requires, wherever their document comes from.

Promises, each by refusal: every required byte is in exactly one artifact; every declared state is covered; an
artifact makes states of its participant and no others, and holds no byte that they do not need; a participant with a
part of the model never acquires all of its weights.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.layout import stored_tensors
from inferswarm.artifacts.manifest import ManifestEntry, ModelManifest
from inferswarm.artifacts.participant_artifacts import ParticipantArtifacts
from inferswarm.artifacts.requirement import Declaration, coalesce
from inferswarm.artifacts.taxonomy import (
    COVERAGE_INCOMPLETE,
    EXECUTION_IDENTITY_MISMATCH,
    IDENTITY_MISMATCH,
    MALFORMED,
    UNDECLARED,
    WHOLE_OBJECT_UNDECLARED,
)
from inferswarm.artifacts.types import ByteRange, ParticipantRequirement
from inferswarm.errors import ArtifactError


class Need(NamedTuple):
    """What one participant of a plan requires: its tensors, and which of its states each of them makes."""

    requirement: ParticipantRequirement
    declaration: Declaration


def check_artifacts(
    found: ParticipantArtifacts,
    manifest: ModelManifest,
    plan_digest: str,
    need: Need,
    metadata: Collection[str] = (),
) -> None:
    """Refuse a participant's set that is not exactly what it requires.

    `metadata` names the metadata files that it reads. Raises ArtifactError: `PROVENANCE_IDENTITY_MISMATCH` for
    another plan, problem, manifest, model, object or digest, `MALFORMED_ARTIFACT_RECORD` for a record that is no
    entry of the manifest, `REQUIRED_STATE_COVERAGE_INCOMPLETE` for bytes or states that nothing covers,
    `UNDECLARED_REQUIREMENT_ARTIFACT` for an artifact, or a state of one, that the participant has not.
    """
    who = found.participant
    chain = (plan_digest, need.requirement.problem_digest, manifest.id, need.requirement.participant)
    if (found.plan_digest, found.problem_digest, found.manifest_digest, who) != chain:
        raise ArtifactError(IDENTITY_MISMATCH, who, "is for another plan, problem, manifest or participant")
    entries = {(manifest.files[entry.file].uri, entry.range): entry for entry in manifest.entries}
    makes = states_of_entries(need)
    covered: set[tuple[int, ByteRange]] = set()
    texts: set[str] = set()
    for artifact in found.artifacts:
        entry = entries.get((artifact.origin.uri, artifact.range))
        if entry is None or artifact.kind == "transform":
            place = f"{artifact.kind} {artifact.range.start:,} to {artifact.range.end:,} of {artifact.origin.uri}"
            raise ArtifactError(MALFORMED, who, f"{place} is no entry of the manifest")
        _check_identity(who, artifact, entry, manifest)
        if entry.kind == "metadata":
            if entry.name not in metadata or artifact.states:
                raise ArtifactError(UNDECLARED, who, f"does not read the metadata file {entry.name}")
            texts.add(entry.name)
            continue
        _check_states(who, artifact, entry, makes.get((entry.file, entry.range), ()))
        covered.add((entry.file, entry.range))
    if missing := sorted(set(makes) - covered):
        file, bare_range = missing[0]
        where = f"{bare_range.start:,} to {bare_range.end:,} of {need.requirement.files[file].uri}"
        raise ArtifactError(
            COVERAGE_INCOMPLETE, who, f"no artifact covers {where} ({len(missing):,} of {len(makes):,} ranges)"
        )
    made = {state for artifact in found.artifacts for state in artifact.states}
    if bare := sorted(set(need.declaration) - made):
        raise ArtifactError(COVERAGE_INCOMPLETE, who, f"no artifact covers the states {bare}")
    if lacking := sorted(set(metadata) - texts):
        raise ArtifactError(COVERAGE_INCOMPLETE, who, f"lacks the metadata files {lacking}")


def guard_participant_exact(
    found: ParticipantArtifacts, manifest: ModelManifest, states: Iterable[str], model_states: Collection[str]
) -> None:
    """Refuse a participant that holds a part of the model's states and would acquire all bytes of its weights.

    Raises ArtifactError: `UPSTREAM_OBJECT_FULLY_ACQUIRED_WITHOUT_DECLARATION`, and `UNDECLARED_REQUIREMENT_ARTIFACT`
    for states that the model does not have.
    """
    own, every = set(states), set(model_states)
    if foreign := sorted(own - every):
        raise ArtifactError(UNDECLARED, found.participant, f"the model has no states {foreign}")
    if own < every and found.weight_bytes >= manifest.weight_bytes:
        raise ArtifactError(
            WHOLE_OBJECT_UNDECLARED,
            found.participant,
            f"would acquire {found.weight_bytes:,} B of {manifest.weight_bytes:,} B of weights for {len(own)} of "
            f"{len(every)} states",
        )


def check_execution(
    found: ParticipantArtifacts, plan_digest: str, requirement: ParticipantRequirement, files: Sequence[str]
) -> None:
    """Refuse to execute something else than a participant's artifacts were made for.

    `requirement` is what its stage executes; `files` says for each of its files where the artifacts describe it.
    Raises ArtifactError `EXECUTION_IDENTITY_MISMATCH` for another participant, plan or problem, for other states,
    and for artifacts that are not exactly the bytes that the stage reads.
    """
    who = requirement.participant
    executed = (who, plan_digest, requirement.problem_digest)
    for name, needed, made_for in zip(
        ("participant", "plan", "problem"),
        executed,
        (found.participant, found.plan_digest, found.problem_digest),
        strict=True,
    ):
        if needed != made_for:
            raise ArtifactError(
                EXECUTION_IDENTITY_MISMATCH, who, f"executes {name} {needed}; its artifacts were made for {made_for}"
            )
    weights = [artifact for artifact in found.artifacts if artifact.states]
    made = {state for artifact in weights for state in artifact.states}
    if differing := sorted(made ^ set(requirement.state_ids)):
        raise ArtifactError(
            EXECUTION_IDENTITY_MISMATCH, who, f"executes other states than its artifacts make: {differing}"
        )
    if len(files) != len(requirement.files):
        reason = f"executes a model of {len(requirement.files)} files; its artifacts are of {len(files)}"
        raise ArtifactError(EXECUTION_IDENTITY_MISMATCH, who, reason)
    for file, uri in enumerate(files):
        there = coalesce(artifact.range for artifact in weights if artifact.origin.uri == uri)
        if there != coalesce(requirement.ranges(file)):
            raise ArtifactError(EXECUTION_IDENTITY_MISMATCH, who, f"reads other bytes of {uri} than it acquires")


def states_of_entries(need: Need) -> dict[tuple[int, ByteRange], tuple[str, ...]]:
    """Return for each stored tensor that is needed, by file and range, the states that it makes, sorted."""
    makers: dict[str, list[str]] = {}
    for state, names in need.declaration.items():
        for name in names:
            makers.setdefault(name, []).append(state)
    stored = stored_tensors(need.requirement)
    starts = [(tensor.file, tensor.range.start) for tensor in stored]
    makes: list[set[str]] = [set() for _ in stored]
    for tensor in need.requirement.tensors:
        if tensor.range.length:
            place = bisect.bisect_right(starts, (tensor.file, tensor.range.start)) - 1
            makes[place].update(makers.get(tensor.name, ()))
    return {(tensor.file, tensor.range): tuple(sorted(made)) for tensor, made in zip(stored, makes, strict=True)}


def _check_identity(who: str, artifact: Artifact, entry: ManifestEntry, manifest: ModelManifest) -> None:
    if artifact.provenance != manifest.provenance or artifact.origin != manifest.files[entry.file]:
        raise ArtifactError(IDENTITY_MISMATCH, who, f"{entry.name} is of another model, revision, object or version")
    if artifact.sha256 != entry.sha256:
        raise ArtifactError(
            IDENTITY_MISMATCH, who, f"{entry.name} has the digest {artifact.sha256}, in the manifest {entry.sha256}"
        )


def _check_states(who: str, artifact: Artifact, entry: ManifestEntry, needed: tuple[str, ...]) -> None:
    """Refuse an artifact unless it makes exactly the participant's states that its bytes are needed for."""
    if surplus := sorted(set(artifact.states) - set(needed)):
        raise ArtifactError(UNDECLARED, who, f"{entry.name} makes none of its states {surplus}")
    if lacking := sorted(set(needed) - set(artifact.states)):
        raise ArtifactError(COVERAGE_INCOMPLETE, who, f"{entry.name} is not said to make the states {lacking}")
