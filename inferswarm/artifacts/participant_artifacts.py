"""The exact set of artifacts of each participant of a plan, as documents that chain to the plan's digest."""

from __future__ import annotations

import msgspec

from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.types import ByteRange
from inferswarm.documents import Digest, Document, digest


class ParticipantArtifacts(
    Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.participant-artifacts/1"
):
    """What one participant acquires, and nothing else: first weights in the order of the manifest, then metadata."""

    participant: str
    plan_digest: Digest
    problem_digest: Digest
    manifest_digest: Digest
    artifacts: tuple[Artifact, ...]

    def __post_init__(self) -> None:
        """Refuse the same bytes of an object named twice."""
        super().__post_init__()
        places = {place_of(artifact) for artifact in self.artifacts}
        if len(places) != len(self.artifacts):
            raise ValueError(f"{self.participant}: {len(self.artifacts)} artifacts lie in {len(places)} places")

    @property
    def id(self) -> Digest:
        """Return the digest of this document."""
        return digest(self)

    @property
    def bytes(self) -> int:
        """Return the bytes of all artifacts."""
        return sum(artifact.length for artifact in self.artifacts)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all artifacts that make states."""
        return sum(artifact.length for artifact in self.artifacts if artifact.states)


class PlanArtifacts(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.plan-artifacts/1"):
    """What all participants of a plan acquire. Its digest covers that of the plan and of every participant's set."""

    plan_digest: Digest
    manifest_digest: Digest
    participants: tuple[ParticipantArtifacts, ...]

    def __post_init__(self) -> None:
        """Refuse sets of another plan or manifest, and two of one participant."""
        super().__post_init__()
        for item in self.participants:
            if (item.plan_digest, item.manifest_digest) != (self.plan_digest, self.manifest_digest):
                raise ValueError(f"the set of {item.participant} is of another plan or manifest")
        if len({item.participant for item in self.participants}) != len(self.participants):
            raise ValueError("two sets are of one participant")

    @property
    def id(self) -> Digest:
        """Return the digest of this document."""
        return digest(self)

    def of(self, participant: str) -> ParticipantArtifacts:
        """Return one participant's set. Raises KeyError when the plan has no such participant."""
        found = next((item for item in self.participants if item.participant == participant), None)
        if found is None:
            raise KeyError(participant)
        return found


def place_of(artifact: Artifact) -> tuple[str, ByteRange, str]:
    """Return what tells an artifact from the others of a participant: object, range, transform ("" for none)."""
    transform = artifact.transform
    made = "" if isinstance(transform, msgspec.UnsetType) else digest(transform)
    return (artifact.origin.uri, artifact.range, made)
