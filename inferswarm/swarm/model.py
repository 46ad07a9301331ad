"""A model as a user names it: a known name or a file. Only its header is read."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path

from inferswarm.errors import SpecError
from inferswarm.planner.problem import PlanningProblem, TransientTerm, Workload
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.units import format_bytes

POSITION_QUANTUM = 64
"""Mutable state is planned in whole pages of so many positions."""


class Model:
    """One model, understood from its header. Raises SpecError, ModelError or UnsupportedModel otherwise."""

    def __init__(self, name_or_path: str | os.PathLike[str]) -> None:
        """Open a known model (`smollm2-135m`) or a GGUF file."""
        self._dense = DenseModel.open(name_or_path)

    @property
    def name(self) -> str:
        """The name that the file gives itself."""
        return self._dense.name

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._dense.path

    @property
    def description(self) -> DecoderDescription:
        """What its blocks compute."""
        return self._dense.description

    @property
    def dense(self) -> DenseModel:
        """The strategy's own view: requirement, text, chat template."""
        return self._dense

    @property
    def num_weights(self) -> int:
        """How many numbers its tensors hold."""
        total = 0
        for tensor in self._dense.object.tensors:
            count = 1
            for size in tensor.shape:
                count *= size
            total += count
        return total

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
        return self._dense.problem(
            chunk_positions=chunk_positions, max_positions=positions, transients=tuple(scratch)
        )

    def __repr__(self) -> str:
        """One honest line."""
        shape = self.description
        return (
            f"Model({self.name!r}: {shape.architecture}, {shape.num_blocks} blocks, {self.num_weights / 1e6:.1f} M "
            f"weights, file {format_bytes(self._dense.object.length)})"
        )

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        shape = self.description
        rows = (
            ("file", str(self.path)),
            ("architecture", shape.architecture),
            ("blocks", shape.num_blocks),
            ("hidden / feed-forward", f"{shape.hidden_size} / {shape.feed_forward_size}"),
            ("heads / key-value heads", f"{shape.num_heads} / {shape.num_key_value_heads}"),
            ("vocabulary", f"{shape.vocabulary_size:,}"),
            ("context", f"{shape.context_positions:,} positions"),
            ("weights", f"{self.num_weights:,}"),
            ("file size", format_bytes(self._dense.object.length)),
        )
        body = "".join(
            f"<tr><th style='text-align:left'>{name}</th>"
            f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
            for name, value in rows
        )
        return f"<table><caption>{html.escape(self.name)}</caption>{body}</table>"
