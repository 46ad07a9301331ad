"""The manifest of an opened model: a published one, at the places that the model has here, or by its headers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from inferswarm.artifacts.describing import describe_model
from inferswarm.artifacts.identity import Provenance, UpstreamObject
from inferswarm.artifacts.manifest import CHECKPOINT, ModelManifest, check_manifest, manifest_of
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH
from inferswarm.artifacts.types import ModelObject
from inferswarm.errors import ArtifactError

UNPUBLISHED: Final = "not published"
"""The revision of a model whose publisher names none and of which nobody has read everything."""


def manifest_at(path: Path, name: str, model_object: ModelObject, given: ModelManifest | None) -> ModelManifest:
    """Return the manifest of a model whose headers are at a path: the `given` one, or what the headers say.

    A given one is about the bytes, wherever they lie: its files get the places that the model was opened from. Raises
    ArtifactError `PROVENANCE_IDENTITY_MISMATCH` for the manifest of another model, or of another version of a file.
    """
    described = describe_model(path)
    if given is None:
        provenance = Provenance(model=name, revision=described.commit or UNPUBLISHED, representation=CHECKPOINT)
        return manifest_of(described.object, provenance, files=described.files, metadata=described.metadata)
    check_manifest(given, model_object)
    num_weights = len(described.files)
    pairs = zip(given.files[:num_weights], described.files, strict=True)
    return replace(given, files=(*(_placed(*pair) for pair in pairs), *given.files[num_weights:]))


def _placed(published: UpstreamObject, opened: UpstreamObject) -> UpstreamObject:
    known = msgspec.UNSET not in (published.version, opened.version)
    if published.uri == opened.uri and known and published.version != opened.version:
        reason = f"is version {opened.version}, published was {published.version}"
        raise ArtifactError(IDENTITY_MISMATCH, opened.uri, reason)
    return replace(opened, sha256=published.sha256)
