"""What a participant still has to acquire: what it requires without what its Node holds verified."""

from __future__ import annotations

from typing import Annotated

import msgspec

from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.inventory import Inventory
from inferswarm.artifacts.participant_artifacts import ParticipantArtifacts
from inferswarm.documents import Digest, Document, digest


class Delta(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.artifact-delta/1"):
    """The artifacts of one participant that its Node lacked, bound to when that was so."""

    participant: str
    node_id: str
    generation: Annotated[int, msgspec.Meta(ge=0)]
    """Which freeze of the plan's artifacts it belongs to."""
    required_digest: Digest
    """Of the participant's set of artifacts."""
    inventory_sequence: int
    inventory_digest: Digest
    missing: tuple[Digest, ...]
    """Ids of the artifacts to acquire; of several with one content, the first."""
    held: tuple[Digest, ...]
    """Ids of those whose content the Node holds verified, or will hold when one of `missing` is there."""
    missing_bytes: int
    held_bytes: int


def delta_of(required: ParticipantArtifacts, inventory: Inventory, generation: int) -> Delta:
    """Return what a participant has to acquire. An artifact whose digest is not known is missing."""
    lengths = inventory.lengths
    coming: dict[str, int] = {}
    missing: list[Artifact] = []
    held: list[Artifact] = []
    for artifact in required.artifacts:
        sha256 = artifact.sha256
        if isinstance(sha256, msgspec.UnsetType):
            missing.append(artifact)
        elif artifact.length in (lengths.get(sha256), coming.get(sha256)):
            held.append(artifact)
        else:
            missing.append(artifact)
            coming[sha256] = artifact.length
    return Delta(
        participant=required.participant,
        node_id=inventory.node.id,
        generation=generation,
        required_digest=required.id,
        inventory_sequence=inventory.sequence,
        inventory_digest=digest(inventory),
        missing=tuple(artifact.id for artifact in missing),
        held=tuple(artifact.id for artifact in held),
        missing_bytes=sum(artifact.length for artifact in missing),
        held_bytes=sum(artifact.length for artifact in held),
    )
