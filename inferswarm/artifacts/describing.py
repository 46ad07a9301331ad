"""What a model's manifest is made from: its files of weights and of metadata, and the tensors, by headers alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from inferswarm.artifacts.directory import INDEX, is_there, open_directory
from inferswarm.artifacts.gguf_files import open_gguf
from inferswarm.artifacts.headers import open_file
from inferswarm.artifacts.hub import TEXT_FILES, parse_hub_id
from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.origins.opening import HUB_SCHEME
from inferswarm.artifacts.types import ModelObject


class DescribedModel(NamedTuple):
    """A model's files and tensors as the files have them, whoever may compute it."""

    object: ModelObject
    files: tuple[UpstreamObject, ...]
    """The files of weights, in the object's order, with their versions."""
    metadata: tuple[UpstreamObject, ...]
    """Configuration and texts that lie beside them. A GGUF file holds these itself, in front of its tensors."""

    @property
    def commit(self) -> str | None:
        """Return the commit of a hub's repository that all files are of, None for other files."""
        hub_files = [file.uri for file in self.files if file.uri.startswith(f"{HUB_SCHEME}://")]
        commits = {parse_hub_id(uri, any_file=True).commit for uri in hub_files}
        return commits.pop() if len(hub_files) == len(self.files) and len(commits) == 1 else None


def describe_model(path: str | os.PathLike[str]) -> DescribedModel:
    """Read the headers of a GGUF file, with all its parts, or of a model directory, here or kept of a remote model.

    Raises as `open_gguf` and `open_directory`.
    """
    path = Path(path).absolute()
    if not path.is_dir():
        header = open_gguf(path)
        return DescribedModel(header.model_object(), header.objects, ())
    directory = open_directory(path)
    # The index says where tensors are, which the manifest does too.
    names = [name for name in TEXT_FILES if name != INDEX and is_there(path / name)]
    return DescribedModel(
        directory.model_object(), directory.objects, tuple(map(_describe, map(path.joinpath, names)))
    )


def _describe(path: Path) -> UpstreamObject:
    with open_file(path) as origin:
        return origin.described
