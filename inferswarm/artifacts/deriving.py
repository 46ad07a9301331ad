"""From a manifest and what each participant of a plan requires to the exact artifacts that each one acquires.

Nothing here knows what a model is: a *declaration* maps each state of a participant to the names of its tensors, and
the strategy gives it. What is derived is checked as if a stranger had sent it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from inferswarm.artifacts.exactness import Need, check_artifacts, guard_participant_exact, states_of_entries
from inferswarm.artifacts.identity import Artifact, RequirementClass
from inferswarm.artifacts.manifest import ManifestEntry, ModelManifest, check_manifest
from inferswarm.artifacts.participant_artifacts import ParticipantArtifacts, PlanArtifacts
from inferswarm.artifacts.requirement import check_requirement
from inferswarm.artifacts.taxonomy import MALFORMED, UNDECLARED
from inferswarm.artifacts.types import ByteRange, ModelObject
from inferswarm.errors import ArtifactError


def derive_artifacts(
    manifest: ModelManifest,
    model_object: ModelObject,
    plan_digest: str,
    needs: Sequence[Need],
    model_states: Collection[str],
    metadata: Collection[str] = (),
) -> PlanArtifacts:
    """Return the artifacts of all participants of a plan.

    `needs` has every participant, because a state that several hold is shared; `model_states` are all states of the
    model, `metadata` the names of the metadata files that every participant reads. Raises ArtifactError as
    `check_manifest`, `check_requirement`, `check_artifacts` and `guard_participant_exact`, and
    `UNDECLARED_REQUIREMENT_ARTIFACT` for a participant that needs a part of a stored tensor.
    """
    check_manifest(manifest, model_object)
    texts = _metadata(manifest, metadata)
    holders = Counter(state for need in needs for state in need.declaration)
    manifest_digest = manifest.id
    sets = []
    for need in needs:
        check_requirement(need.requirement, model_object, need.declaration)
        weights = (
            _artifact(
                manifest, entry, states, "shared" if any(holders[state] > 1 for state in states) else "assigned"
            )
            for entry, states in _needed_entries(manifest, need)
        )
        found = ParticipantArtifacts(
            participant=need.requirement.participant,
            plan_digest=plan_digest,
            problem_digest=need.requirement.problem_digest,
            manifest_digest=manifest_digest,
            artifacts=(*weights, *(_artifact(manifest, entry, (), "metadata") for entry in texts)),
        )
        check_artifacts(found, manifest, plan_digest, need, metadata)
        guard_participant_exact(found, manifest, need.declaration, model_states)
        sets.append(found)
    return PlanArtifacts(plan_digest=plan_digest, manifest_digest=manifest_digest, participants=tuple(sets))


def _artifact(
    manifest: ModelManifest, entry: ManifestEntry, states: tuple[str, ...], requirement_class: RequirementClass
) -> Artifact:
    file = manifest.files[entry.file]
    return Artifact(
        kind="whole_object" if entry.range == ByteRange(0, file.length) else "byte_range",
        length=entry.range.length,
        provenance=manifest.provenance,
        origin=file,
        range=entry.range,
        states=states,
        requirement_class=requirement_class,
        sha256=entry.sha256,
    )


def _needed_entries(manifest: ModelManifest, need: Need) -> list[tuple[ManifestEntry, tuple[str, ...]]]:
    """Return the entries that a participant's tensors are, in their order, with the states that each makes."""
    makes = states_of_entries(need)
    found = [
        (entry, makes.pop((entry.file, entry.range)))
        for entry in manifest.entries
        if (entry.file, entry.range) in makes
    ]
    for file, place in makes:
        where = f"{place.start:,} to {place.end:,} of {manifest.files[file].uri}"
        raise ArtifactError(
            UNDECLARED, need.requirement.participant, f"needs {where}, which is not all of a stored tensor"
        )
    return found


def _metadata(manifest: ModelManifest, names: Collection[str]) -> list[ManifestEntry]:
    found = [entry for entry in manifest.entries if entry.kind == "metadata" and entry.name in names]
    if missing := sorted(set(names) - {entry.name for entry in found}):
        raise ArtifactError(MALFORMED, manifest.provenance.model, f"the manifest has no metadata files {missing}")
    return found
