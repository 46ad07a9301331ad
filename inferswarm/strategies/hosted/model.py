"""One hosted model as the rest of the package uses it: like a described one, with the host's description."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from inferswarm.strategies.hosted.description import HostedDescription
from inferswarm.strategies.model import ChainModel
from inferswarm.strategies.text.source import ModelText, open_text


@dataclass(frozen=True)
class HostedModel(ChainModel):
    """A model's files, the host's description and the text. Nothing of its tensors is read."""

    description: HostedDescription

    @cached_property
    def text(self) -> ModelText:
        """Tokenizer, chat template and ends of an answer, built on first use. Raises as `open_text`."""
        return open_text(self.path)
