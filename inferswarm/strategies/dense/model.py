"""One dense model as the rest of the package uses it, made from its files' headers alone, whatever their format."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inferswarm.artifacts.directory import open_directory
from inferswarm.artifacts.gguf_files import open_gguf
from inferswarm.artifacts.types import ModelObject
from inferswarm.errors import ModelError
from inferswarm.strategies.catalog import model_name, resolve_model
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.dense.readers import understand_directory, understand_gguf
from inferswarm.strategies.model import ChainModel
from inferswarm.strategies.text.chat import ChatTemplate
from inferswarm.strategies.text.source import ModelText


@dataclass(frozen=True)
class DenseModel(ChainModel):
    """A model's files, description and text. Of its tensors nothing is read but factors of rotary positions."""

    description: DecoderDescription
    metadata: Mapping[str, Any]
    """What the files say: a GGUF header's metadata, or a directory's configuration."""
    bytes_read: int
    """Bytes of the files that were read to know all this."""
    read_text: Callable[[], ModelText]

    @classmethod
    def open(cls, name_or_path: str | os.PathLike[str]) -> DenseModel:
        """Read the headers of a known model, of a GGUF file (split or not) or of a model directory.

        Raises SpecError when there is no such model, ModelError or UnsupportedModel when its headers cannot be
        used, ArtifactError when a file cannot be read.
        """
        path = resolve_model(name_or_path).absolute()
        read_text: Callable[[], ModelText]
        if path.is_dir():
            directory = open_directory(path)
            understood = understand_directory(directory.configuration, directory.tensors, str(path))
            files, header_bytes = directory.files, directory.bytes_read
            metadata: Mapping[str, Any] = directory.configuration
            read_text = functools.partial(ModelText.from_directory, path)
        else:
            header = open_gguf(path)
            understood = understand_gguf(header)
            files, header_bytes = header.files, header.bytes_read
            metadata = header.metadata
            read_text = functools.partial(ModelText.from_gguf, header.metadata, header.source)
        return cls(
            name=model_name(name_or_path, path),
            path=path,
            object=ModelObject(files=files, tensors=understood.tensors),
            description=understood.description,
            metadata=metadata,
            notes=understood.notes,
            bytes_read=header_bytes + understood.bytes_read,
            read_text=read_text,
        )

    @functools.cached_property
    def text(self) -> ModelText:
        """The tokenizer and what goes with it, built on first use.

        Raises ModelError or UnsupportedModel when it cannot be built or has tokens that the model lacks.
        """
        text = self.read_text()
        if text.codec.size > self.description.vocabulary_size:
            raise ModelError(
                str(self.path),
                f"the tokenizer has {text.codec.size:,} tokens and the model {self.description.vocabulary_size:,}",
            )
        return text

    @property
    def chat(self) -> ChatTemplate:
        """The chat template, compiled on first use. Raises SpecError when the model has none."""
        return self.text.chat
