"""A model as a user names it: a known name, a file or a directory. Only headers are read."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from inferswarm.artifacts.manifest import ModelManifest
from inferswarm.artifacts.manifest_files import load_manifest
from inferswarm.errors import SpecError
from inferswarm.planner.problem import PlanningProblem, TransientTerm, Workload
from inferswarm.strategies.chain import Description
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.model import ChainModel
from inferswarm.strategies.text.chat import encode_chat
from inferswarm.strategies.text.source import ModelText
from inferswarm.swarm.manifests import manifest_at
from inferswarm.swarm.opening import TORCH, TRANSFORMERS, open_model
from inferswarm.units import format_bytes

POSITION_QUANTUM = 64
"""Mutable state is planned in whole pages of so many positions."""


class Model:
    """One model, understood from its headers. Raises SpecError, ModelError or UnsupportedModel otherwise."""

    def __init__(
        self,
        name_or_path: str | os.PathLike[str],
        backend: str | None = None,
        fetch: str | None = None,
        manifest: str | os.PathLike[str] | None = None,
    ) -> None:
        """Open a known model (`smollm2-135m`), a GGUF file, a directory of Hugging Face, an address or an `hf://` id.

        `backend` says who shall compute it: `torch` (our own blocks), `transformers` (the host library's), or by
        default the first of them that can; `notes` then say why it is not the first. Of an address (`http(s)://…`)
        headers and texts are fetched, of an `hf://` id the whole model unless `fetch` is `headers`. `manifest` is the
        file of a published manifest, for the digests of its bytes. Raises DocumentError and ArtifactError for one
        that is none, or is about another model.
        """
        self._opened = open_model(name_or_path, backend, fetch)
        self._published = None if manifest is None else load_manifest(Path(manifest))
        if self._published is not None:
            _ = self.manifest  # refused before any work

    @property
    def name(self) -> str:
        """The known name, the file's name without its ending, or the directory's name."""
        return self._opened.name

    @property
    def path(self) -> Path:
        """Where the file or the directory is; of a remote model, where its headers are kept."""
        return self._opened.path

    @property
    def description(self) -> Description:
        """What its blocks compute, or who computes them, with all sizes."""
        return self._opened.description

    @property
    def backend(self) -> str:
        """Who computes it: `torch` or `transformers`."""
        return TORCH if isinstance(self.description, DecoderDescription) else TRANSFORMERS

    @property
    def notes(self) -> tuple[str, ...]:
        """What was seen in the files and changes nothing, one sentence each."""
        return self._opened.notes

    @property
    def opened(self) -> ChainModel:
        """The strategy's own view, also of a hosted model: files, requirement, text."""
        return self._opened

    @property
    def text(self) -> ModelText:
        """Tokenizer, chat template and ends of an answer. Raises ModelError or UnsupportedModel without them."""
        return self._opened.text

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Return the ids that a conversation asks with. Raises SpecError for a model without a chat template."""
        return encode_chat(self.text.codec, self.text.chat, messages).ids

    @cached_property
    def manifest(self) -> ModelManifest:
        """What its files are made of, with the digests that are known. Raises ArtifactError as `manifest_at`."""
        return manifest_at(self.path, self.name, self._opened.object, self._published)

    @property
    def num_weights(self) -> int:
        """How many numbers its tensors hold."""
        return sum(math.prod(tensor.shape) for tensor in self._opened.object.tensors)

    def problem(
        self, workload: Workload, *, chunk_positions: int = 64, scratch: Sequence[TransientTerm] = ()
    ) -> PlanningProblem:
        """State the planning problem for a workload. Raises SpecError when it does not fit the model's context."""
        context = self.description.context_positions
        if workload.positions > context:
            found = f"{workload.prompt_tokens:,} prompt and {workload.output_tokens:,} output tokens"
            raise SpecError("workload", found, f"at most {context:,} together, the context of {self.name}")
        quanta = -(-workload.positions // POSITION_QUANTUM)
        positions = min(quanta * POSITION_QUANTUM, context)
        return self._opened.problem(
            chunk_positions=chunk_positions, max_positions=positions, transients=tuple(scratch)
        )

    def __repr__(self) -> str:
        """One honest line."""
        shape = self.description
        return (
            f"Model({self.name!r}: {shape.architecture}, {shape.num_blocks} blocks, {self.num_weights / 1e6:.1f} M "
            f"weights, file {format_bytes(self._opened.object.length)})"
        )

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        shape = self.description
        rows = (
            ("file", self._opened.object.uri),
            ("architecture", shape.architecture),
            ("blocks", shape.num_blocks),
            ("hidden size", f"{shape.hidden_size:,}"),
            ("heads", shape.num_heads),
            *_described_rows(shape),
            ("computed by", self.backend),
            ("vocabulary", f"{shape.vocabulary_size:,}"),
            ("context", f"{shape.context_positions:,} positions"),
            ("weights", f"{self.num_weights:,}"),
            ("file size", format_bytes(self._opened.object.length)),
        )
        body = "".join(
            f"<tr><th style='text-align:left'>{name}</th>"
            f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
            for name, value in rows
        )
        return f"<table><caption>{html.escape(self.name)}</caption>{body}</table>"


def _described_rows(shape: Description) -> tuple[tuple[str, object], ...]:
    if not isinstance(shape, DecoderDescription):
        return ()
    return (("feed-forward size", f"{shape.feed_forward_size:,}"), ("key-value heads", shape.num_key_value_heads))
