"""The text files of a model directory as Hugging Face lays it out: tokenizer, settings, templates, ends.

What several files say about one thing: a token's role is taken from `tokenizer_config.json`, then
`special_tokens_map.json`, then `config.json`; the ends of an answer are those of all files together; of chat
templates the `.jinja` files come before the ones inside `tokenizer_config.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inferswarm.artifacts.directory import is_there, read_object
from inferswarm.artifacts.origin import read_whole
from inferswarm.errors import ModelError, SpecError, UnsupportedModel
from inferswarm.strategies.text.sentencepiece_file import SentencePieceFile, read_sentencepiece
from inferswarm.strategies.text.tokenizer import TextCodec
from inferswarm.strategies.text.tokenizer_json import read_tokenizer_json
from inferswarm.strategies.text.vocabulary import CONTROL, ROLE_OF, USER_DEFINED

MAX_SETTINGS_BYTES: Final = 16 * 2**20
"""A settings file or template that is longer is refused."""
_TEMPLATE_NAMES = (*ROLE_OF, "sep_token", "cls_token", "mask_token")
_OTHER_TOKENIZERS = ("tekken.json", "vocab.json", "vocab.txt", "tokenizer.tiktoken")


@dataclass(frozen=True, slots=True)
class TextFiles:
    """What the files say."""

    codec: TextCodec
    stop_ids: frozenset[int]
    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]


def read_text_files(path: Path) -> TextFiles:
    """Read the text files of a directory.

    Raises SpecError for a path that is not a directory, UnsupportedModel naming a tokenizer or an option that is
    not built, ModelError for missing or contradictory data, ArtifactError for a file that cannot be read.
    """
    if not path.is_dir():
        raise SpecError("model", str(path), "a model directory")
    settings = _settings(path)
    config = _read_object(path / "config.json")
    names = {name: value for name in _TEMPLATE_NAMES if (value := _token_name(settings, name, path)) is not None}
    generation = _read_object(path / "generation_config.json")
    stated = _stated_ends(generation) + _stated_ends(config)
    codec = _codec(path, settings, config, names, [index for index in stated if isinstance(index, int)])
    for variable, role in ROLE_OF.items():
        if variable not in names and role in codec.vocabulary.named_ids:
            names[variable] = codec.token(codec.vocabulary.named_ids[role])
    stop_ids = _stop_ids(path / "generation_config.json", generation, codec)
    stop_ids |= _stop_ids(path / "config.json", config, codec)
    return TextFiles(codec=codec, stop_ids=stop_ids, templates=_templates(path, settings), special_tokens=names)


def _codec(
    path: Path, settings: Mapping[str, Any], config: Mapping[str, Any], names: Mapping[str, str], ends: list[int]
) -> TextCodec:
    """Build the tokenizer of whichever file there is."""
    if settings.get("add_eos_token"):
        raise UnsupportedModel(str(path), "add_eos_token", settings["add_eos_token"], "False")
    add_bos = settings.get("add_bos_token")
    if add_bos is not None and not isinstance(add_bos, bool):
        raise ModelError(str(path), f"add_bos_token is {add_bos!r}, needed true or false")
    explicit = "add_bos_token" in settings
    if (path / "tokenizer.json").is_file():
        file = read_tokenizer_json(path / "tokenizer.json")
        named_ids = _named_ids(path, file.tokens, config, names)
        if not explicit and file.first_token is not None:
            named_ids["bos"] = file.tokens.index(file.first_token)
        wanted = bool(add_bos) if explicit else file.first_token is not None
        return TextCodec(*file.build(named_ids, add_bos=wanted and "bos" in named_ids, ends=ends))
    if (path / "tokenizer.model").is_file():
        pieces = read_sentencepiece(path / "tokenizer.model")
        _add_tokens(path, settings, names, pieces)
        pieces.named_ids |= _named_ids(path, tuple(pieces.pieces), config, names)
        has_bos = 0 <= pieces.named_ids["bos"] < len(pieces.pieces)
        wanted = bool(add_bos) if explicit else pieces.merges_by_score
        return TextCodec(*pieces.build(add_bos=has_bos and wanted, ends=ends))
    others = [name for name in _OTHER_TOKENIZERS if (path / name).is_file()]
    if others:
        raise UnsupportedModel(str(path), "tokenizer", others, "tokenizer.json, tokenizer.model")
    raise ModelError(str(path), "there is neither tokenizer.json nor tokenizer.model")


def _named_ids(
    path: Path, tokens: tuple[str, ...], config: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, int]:
    """Return the ids of the roles; `bos` and `eos` must be tokens when they are named."""
    positions = {token: index for index, token in enumerate(tokens)}
    named = {}
    for variable, role in ROLE_OF.items():
        name = names.get(variable)
        if name is None:
            index = config.get(f"{variable}_id")
            if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(tokens):
                named[role] = index
        elif name in positions:
            named[role] = positions[name]
        elif role in ("bos", "eos"):
            raise ModelError(str(path), f"{variable} {name!r} is not a token")
    return named


def _add_tokens(path: Path, settings: Mapping[str, Any], names: Mapping[str, str], pieces: SentencePieceFile) -> None:
    """Add to a SentencePiece file's pieces the tokens that only the settings know."""
    found: dict[int, tuple[str, bool]] = {}
    more = settings.get("additional_special_tokens") or []
    special = {*names.values(), *(_content(token) for token in more)}
    for name, index in _read_object(path / "added_tokens.json").items():
        found[_token_id(index, path)] = name, name in special
    for index, token in (settings.get("added_tokens_decoder") or {}).items():
        content = _content(token)
        if not isinstance(content, str) or not isinstance(token, dict):
            raise ModelError(str(path), f"the added token {index} has no text")
        found[_token_id(index, path)] = content, bool(token.get("special"))
    for index in sorted(found):
        name, is_special = found[index]
        kind = CONTROL if is_special else USER_DEFINED
        if not 0 <= index <= len(pieces.pieces):
            raise ModelError(
                str(path), f"the added token {name!r} has the id {index}; the next is {len(pieces.pieces)}"
            )
        if index == len(pieces.pieces):
            pieces.pieces.append(name)
            pieces.scores.append(0.0)
            pieces.kinds.append(kind)
        elif pieces.pieces[index] == name:
            pieces.kinds[index] = kind
        else:
            raise ModelError(str(path), f"token {index} is {pieces.pieces[index]!r} and {name!r}")


def _token_id(index: Any, path: Path) -> int:
    """Return an added token's id; some files write it as text."""
    if isinstance(index, bool) or not str(index).isdecimal():
        raise ModelError(str(path), f"an added token has the id {index!r}")
    return int(index)


def _templates(path: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name, `default` among them."""
    templates: dict[str, str] = {}
    stored = settings.get("chat_template")
    if isinstance(stored, list):
        for entry in stored:
            if not isinstance(entry, dict) or {type(entry.get(key)) for key in ("name", "template")} != {str}:
                raise ModelError(str(path), "chat_template holds something that is not a named template")
            templates[entry["name"]] = entry["template"]
    elif isinstance(stored, str):
        templates["default"] = stored
    elif stored is not None:
        raise ModelError(str(path), "chat_template is neither text nor a list of named templates")
    legacy = _read_object(path / "chat_template.json").get("chat_template")
    if isinstance(legacy, str):
        templates["default"] = legacy
    if (path / "chat_template.jinja").is_file():
        templates["default"] = _read_text(path / "chat_template.jinja")
    for extra in sorted((path / "additional_chat_templates").glob("*.jinja")):
        templates[extra.stem] = _read_text(extra)
    return templates


def _stop_ids(path: Path, stated: Mapping[str, Any], codec: TextCodec) -> frozenset[int]:
    """Return the ends of an answer that a settings file names: one id or several."""
    found: set[int] = set()
    for index in _stated_ends(stated):
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < codec.size:
            raise ModelError(str(path), f"eos_token_id holds {index!r}; there are {codec.size:,} tokens")
        found.add(index)
    return frozenset(found)


def _stated_ends(stated: Mapping[str, Any]) -> list[Any]:
    """Return what a settings file holds as `eos_token_id`, inner settings included, as it is."""
    inner = stated.get("text_config")
    found: list[Any] = []
    for part in (stated, inner if isinstance(inner, dict) else {}):
        value = part.get("eos_token_id")
        found += value if isinstance(value, list) else [] if value is None else [value]
    return found


def _settings(path: Path) -> dict[str, Any]:
    """Return `tokenizer_config.json` over `special_tokens_map.json`."""
    mapped = _read_object(path / "special_tokens_map.json")
    settings = _read_object(path / "tokenizer_config.json")
    return mapped | {key: value for key, value in settings.items() if value is not None or key not in mapped}


def _token_name(settings: Mapping[str, Any], name: str, path: Path) -> str | None:
    value = _content(settings.get(name))
    if value is not None and not isinstance(value, str):
        raise ModelError(str(path), f"{name} is {value!r}, needed a token")
    return value or None


def _content(token: Any) -> Any:
    """Return a token's text, whether it is stored as text or as an object with its options."""
    return token.get("content") if isinstance(token, dict) else token


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; a file that is not there is an empty one."""
    return read_object(path, MAX_SETTINGS_BYTES)[0] if is_there(path) else {}


def _read_text(path: Path) -> str:
    try:
        return read_whole(path, MAX_SETTINGS_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ModelError(str(path), "not UTF-8") from error
