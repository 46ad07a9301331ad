"""A model's text, from wherever the model is: a GGUF header, or the text files of a model directory.

`open_text` reads no tensor and no description of the network, so it works for every model whose tokenizer is known,
also for those whose blocks only another library can compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final

from inferswarm.artifacts.gguf import MetadataValue
from inferswarm.artifacts.gguf_files import open_gguf
from inferswarm.errors import ModelError, SpecError
from inferswarm.strategies.text.chat import ChatTemplate
from inferswarm.strategies.text.directory import read_text_files
from inferswarm.strategies.text.tokenizer import TextCodec
from inferswarm.strategies.text.vocabulary import ROLE_OF

DEFAULT_TEMPLATE: Final = "default"
_TEMPLATE_KEY = "tokenizer.chat_template"


@dataclass(frozen=True)
class ModelText:
    """The tokenizer, the chat templates and the ends of an answer of one model."""

    codec: TextCodec
    stop_ids: frozenset[int]
    """Tokens that end an answer, as everything that the model says about itself names them."""
    source: str
    templates: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Chat templates by name; the one that is used is `default`."""
    special_tokens: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What a template may name: `bos_token`, `eos_token`, `unk_token`, `pad_token`."""

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, MetadataValue], source: str) -> ModelText:
        """Build the text of the model behind a GGUF header.

        Raises UnsupportedModel naming a kind of tokenizer or an option that is not built, ModelError for missing
        or contradictory data.
        """
        codec = TextCodec.from_metadata(metadata, source)
        named = codec.vocabulary.named_ids
        return cls(
            codec=codec,
            stop_ids=codec.eos_ids,
            source=source,
            templates=MappingProxyType(_gguf_templates(metadata, source)),
            special_tokens=MappingProxyType(
                {variable: codec.token(named[role]) for variable, role in ROLE_OF.items() if role in named}
            ),
        )

    @classmethod
    def from_directory(cls, path: Path) -> ModelText:
        """Build the text of a model directory as Hugging Face lays it out.

        Takes `tokenizer.json`, or `tokenizer.model` where there is none; `tokenizer_config.json`,
        `special_tokens_map.json`, `generation_config.json`, `config.json` and the chat template's files where they
        are. Raises as `from_gguf`, and SpecError for a path that is not a directory.
        """
        files = read_text_files(path)
        return cls(
            codec=files.codec,
            stop_ids=files.codec.eos_ids | files.stop_ids,
            source=str(path),
            templates=MappingProxyType(dict(files.templates)),
            special_tokens=MappingProxyType(dict(files.special_tokens)),
        )

    @cached_property
    def chat(self) -> ChatTemplate:
        """The chat template, compiled on first use.

        Raises SpecError when the model has none or only named ones, ModelError when it cannot be compiled.
        """
        return self.chat_named(DEFAULT_TEMPLATE)

    def chat_named(self, name: str) -> ChatTemplate:
        """Compile the chat template `name`. Raises SpecError when the model has no such template."""
        if self.templates and name not in self.templates:
            raise SpecError("chat template", name, f"one of {', '.join(sorted(self.templates))}")
        return ChatTemplate(self.templates.get(name), self.source, special_tokens=self.special_tokens)


def open_text(path: Path) -> ModelText:
    """Return the text of a GGUF file or a model directory; only a header or small files are read.

    Raises as `ModelText.from_gguf` and `ModelText.from_directory`, ArtifactError when a file cannot be read.
    """
    if path.is_dir():
        return ModelText.from_directory(path)
    header = open_gguf(path)
    return ModelText.from_gguf(header.metadata, header.source)


def _gguf_templates(metadata: Mapping[str, MetadataValue], source: str) -> dict[str, str]:
    """Return the templates of a header: `tokenizer.chat_template`, and `tokenizer.chat_template.NAME`."""
    templates = {}
    for key, value in metadata.items():
        name = key.removeprefix(_TEMPLATE_KEY)
        if name == key or (name and not name.startswith(".")):
            continue
        if not isinstance(value, str):
            raise ModelError(source, f"{key} is not text")
        templates[name[1:] or DEFAULT_TEMPLATE] = value
    listed = metadata.get(f"{_TEMPLATE_KEY}s", ())
    if not isinstance(listed, tuple) or any(name not in templates for name in listed):
        raise ModelError(source, f"{_TEMPLATE_KEY}s names {listed!r}; there are {sorted(templates)}")
    return templates
