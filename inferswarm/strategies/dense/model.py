"""One dense model as the rest of the package uses it, made from its file's header alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from inferswarm.artifacts.gguf import MetadataValue, read_gguf
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.types import ModelObject, ParticipantRequirement
from inferswarm.errors import ModelError
from inferswarm.planner.problem import Implementation, PlanningProblem, TransientTerm
from inferswarm.strategies.catalog import CATALOG, resolve_model
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.dense.problem import DEFAULT_CHUNK_POSITIONS, TORCH, make_problem
from inferswarm.strategies.dense.reader import describe
from inferswarm.strategies.dense.requirement import derive_requirement
from inferswarm.strategies.text.chat import ChatTemplate
from inferswarm.strategies.text.tokenizer import TextCodec


@dataclass(frozen=True)
class DenseModel:
    """A model's file, description and text. Nothing of its tensors is read."""

    name: str
    """The known name, or the file's name without its ending."""
    path: Path
    object: ModelObject
    description: DecoderDescription
    metadata: Mapping[str, MetadataValue]
    bytes_read: int
    """Bytes of the file that were read to know all this."""

    @classmethod
    def open(cls, name_or_path: str | os.PathLike[str]) -> DenseModel:
        """Read the header of a known model or of the GGUF file at a path.

        Raises SpecError when there is no such model, ModelError or UnsupportedModel when its header cannot be
        used, ArtifactError when the file cannot be read.
        """
        path = resolve_model(name_or_path).absolute()
        with LocalFileOrigin(path) as origin:
            header = read_gguf(origin)
        return cls(
            name=str(name_or_path) if name_or_path in CATALOG else path.stem,
            path=path,
            object=header.model_object(),
            description=describe(header),
            metadata=header.metadata,
            bytes_read=origin.bytes_read,
        )

    def problem(
        self,
        *,
        chunk_positions: int = DEFAULT_CHUNK_POSITIONS,
        max_positions: int | None = None,
        implementations: tuple[Implementation, ...] = TORCH,
        transients: tuple[TransientTerm, ...] = (),
    ) -> PlanningProblem:
        """Return the planning problem; arguments and errors as `make_problem`."""
        return make_problem(
            self.description,
            chunk_positions=chunk_positions,
            max_positions=max_positions,
            implementations=implementations,
            transients=transients,
        )

    def requirement(
        self, problem: PlanningProblem, participant: str, first_unit: int, end_unit: int
    ) -> ParticipantRequirement:
        """Return exactly the bytes that the units [first_unit, end_unit) need; errors as `derive_requirement`."""
        return derive_requirement(self.description, self.object, problem, participant, first_unit, end_unit)

    @cached_property
    def text(self) -> TextCodec:
        """The tokenizer, built on first use. Raises ModelError or UnsupportedModel when it cannot be built."""
        codec = TextCodec.from_metadata(self.metadata, str(self.path))
        if codec.size > self.description.vocabulary_size:
            raise ModelError(
                str(self.path),
                f"the tokenizer has {codec.size:,} tokens and the model {self.description.vocabulary_size:,}",
            )
        return codec

    @cached_property
    def chat(self) -> ChatTemplate:
        """The chat template, compiled on first use. Raises SpecError when the model has none."""
        template = self.metadata.get("tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise ModelError(str(self.path), "tokenizer.chat_template is not text")
        named = self.text.vocabulary.named_ids
        roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        tokens = {variable: self.text.token(named[role]) for variable, role in roles.items() if role in named}
        return ChatTemplate(template, str(self.path), special_tokens=tokens)
