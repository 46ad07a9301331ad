"""A small model on disk, its manifest, and the artifacts of a plan over it, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from inferswarm.artifacts.deriving import derive_artifacts
from inferswarm.artifacts.describing import describe_model
from inferswarm.artifacts.exactness import Need
from inferswarm.artifacts.identity import Artifact, Provenance, UpstreamObject
from inferswarm.artifacts.manifest import CHECKPOINT, ModelManifest, manifest_of
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.participant_artifacts import PlanArtifacts
from inferswarm.artifacts.publishing import publish
from inferswarm.artifacts.types import ByteRange, ModelFile, ModelObject, ParticipantRequirement, TensorRecord
from inferswarm.documents import digest_bytes
from inferswarm.strategies.chain import state_tensors
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.requirement import declare
from tests.models import write_small_llama

PROVENANCE = Provenance(model="small", revision="r1", representation=CHECKPOINT)
PLAN = "sha256:" + "a" * 64
PROBLEM = "sha256:" + "b" * 64


class Rig(NamedTuple):
    """A model of four blocks in one GGUF file, hashed."""

    path: Path
    model: DenseModel
    layout: ModelManifest
    manifest: ModelManifest

    @property
    def states(self) -> tuple[str, ...]:
        """All states of the model."""
        return tuple(state_tensors(self.model.description))

    def needs(self, spans: Sequence[tuple[int, int]]) -> list[Need]:
        """What participants with these units need: stage-0, stage-1 …"""
        problem = self.model.problem()
        return [
            Need(
                self.model.requirement(problem, f"stage-{index}", first, end),
                declare(self.model.description, first, end),
            )
            for index, (first, end) in enumerate(spans)
        ]

    def derive(self, spans: Sequence[tuple[int, int]], plan_digest: str = PLAN) -> PlanArtifacts:
        """The artifacts of a plan with these spans."""
        return derive_artifacts(self.manifest, self.model.object, plan_digest, self.needs(spans), self.states)


SPANS = ((0, 2), (2, 4), (4, 6))
"""Embedding and a block; two blocks; a block and the head."""


def make_rig(folder: Path, *, tied: bool = True) -> Rig:
    """Write the model and read it."""
    path = write_small_llama(folder / "small.gguf", num_blocks=4, hidden=32, ffn=64, vocab=300, tied=tied)
    described = describe_model(path)
    layout = manifest_of(described.object, PROVENANCE, files=described.files, metadata=described.metadata)
    return Rig(path, DenseModel.open(path), layout, publish(layout, open_local))


def open_local(file: UpstreamObject) -> LocalFileOrigin:
    """Open the file that an object names."""
    return LocalFileOrigin(file.uri)


def tensor(name: str, start: int, end: int, file: int = 0, stored_name: str | None = None) -> TensorRecord:
    """A record of bytes whose numbers do not matter."""
    return TensorRecord(
        name=name,
        encoding="I8",
        shape=(end - start,),
        range=ByteRange(start, end),
        file=file,
        stored_name=stored_name,
    )


def object_of(*tensors: TensorRecord, lengths: Sequence[int] = (100,)) -> ModelObject:
    """A model in files of these lengths: /0, /1 …"""
    files = tuple(ModelFile(uri=f"/{index}", length=length) for index, length in enumerate(lengths))
    return ModelObject(files=files, tensors=tensors)


def requirement_of(
    model_object: ModelObject, names: Sequence[str], states: Sequence[str], participant: str = "stage-0"
) -> ParticipantRequirement:
    """What one participant needs, by the names of its tensors."""
    return ParticipantRequirement(
        participant=participant,
        problem_digest=PROBLEM,
        files=model_object.files,
        tensors=tuple(record for record in model_object.tensors if record.name in names),
        state_ids=tuple(states),
    )


def artifact(content: str, length: int = 10, *, known: bool = True, states: tuple[str, ...] = ("s",)) -> Artifact:
    """An artifact whose bytes are named by a word; two words are two places and two contents."""
    start = int.from_bytes(content.encode()[:3], "big")
    more = {"sha256": digest_bytes(content.encode())} if known else {}
    return Artifact(
        kind="byte_range",
        length=length,
        provenance=PROVENANCE,
        origin=UpstreamObject(uri="/0", length=2**32),
        range=ByteRange(start, start + length),
        states=states,
        requirement_class="assigned",
        **more,
    )
