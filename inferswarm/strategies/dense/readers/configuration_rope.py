"""Rotary positions as Hugging Face configurations state them, in their present and their earlier form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from inferswarm.errors import ModelError, UnsupportedModel
from inferswarm.strategies.dense.description import Rope
from inferswarm.strategies.dense.readers.configuration_table import Configuration
from inferswarm.strategies.dense.readers.fields import Fields
from inferswarm.strategies.dense.rope_scaling import (
    BETA_FAST,
    BETA_SLOW,
    linear_rope,
    llama3_rope,
    longrope_magnitude,
    longrope_note,
    longrope_rope,
    yarn_magnitude,
    yarn_rope,
)

_FULL, _WINDOW = "full_attention", "sliding_attention"
_NOW, _BEFORE = "rope_parameters", "rope_scaling"
_ORIGINAL: Final = "original_max_position_embeddings"
KINDS: Final = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def read_rope(fields: Fields, entry: Configuration, head: int, context: int, notes: list[str]) -> Rope:
    """Return the rope of blocks that see everything.

    Raises UnsupportedModel naming a scaling or a field of one that is not supported, ModelError for one that is
    missing or impossible.
    """
    section = _section(fields, entry, _FULL)
    if section is None:
        base = fields.positive("rope_theta")
        _original(fields, fields, entry, "default", context, notes)
        return Rope(base=base, rotated_size=_rotated(fields, fields, entry, head))
    base = _base(fields, section, "rope_theta")
    rope = _scaled(fields, section, entry, base, _rotated(fields, section, entry, head), context, notes)
    section.refuse_unread((), {"partial_rotary_factor": (1.0, 1)}, "scalings without this field")
    return rope


def read_window_rope(fields: Fields, entry: Configuration, head: int, context: int, notes: list[str]) -> Rope:
    """Return the rope of blocks with a window, where those have their own. Raises as `read_rope`."""
    section = _section(fields, entry, _WINDOW)
    if section is None:
        return Rope(base=fields.positive("rope_local_base_freq"), rotated_size=head)
    base = _base(fields, section, "rope_local_base_freq")
    rope = _scaled(fields, section, entry, base, head, context, notes)
    section.refuse_unread((), {"partial_rotary_factor": (1.0, 1)}, "scalings without this field")
    return rope


def _base(fields: Fields, section: Fields, key: str) -> float:
    """Return the base that a section states, or the field `key` beside it; both may be there when they agree."""
    beside = fields.positive(key)
    base = section.positive("rope_theta", beside)
    if fields.states(key) and base != beside:
        raise UnsupportedModel(fields.source, key, beside, f"that of {section.name('rope_theta')}, {base:g}")
    return base


def _section(fields: Fields, entry: Configuration, kind: str) -> Fields | None:
    """Return the fields of the scaling for one kind of block; None where nothing is scaled."""
    if fields.has(_NOW) and fields.has(_BEFORE):
        raise UnsupportedModel(fields.source, _BEFORE, "an object", f"one of {_NOW} and {_BEFORE}")
    if fields.has(_BEFORE):
        return fields.section(_BEFORE) if kind == _FULL else None
    if not fields.has(_NOW):
        return None
    section = fields.section(_NOW)
    value = fields.raw(_NOW)
    nested = [key for key in value if isinstance(value[key], Mapping)]
    if not entry.window_rope:
        if nested:
            raise UnsupportedModel(fields.source, section.name(nested[0]), "an object", "one rope for all blocks")
        return section
    if unknown := sorted(set(value) - {_FULL, _WINDOW}):
        raise UnsupportedModel(fields.source, section.name(unknown[0]), value[unknown[0]], f"{_FULL}, {_WINDOW}")
    return section.section(kind) if section.has(kind) else None


def _rotated(fields: Fields, section: Fields, entry: Configuration, head: int) -> int:
    share = 1.0
    if entry.family.partial_rotary:
        outside = fields.positive("partial_rotary_factor", 1.0)
        share = section.positive("partial_rotary_factor", outside)
    rotated = int(head * share)
    if not 2 <= rotated <= head or rotated % 2:
        raise ModelError(
            fields.source,
            f"{rotated} numbers of a head of {head} would turn: needed an even number of them, from 2 on",
        )
    return rotated


def _scaled(
    fields: Fields, section: Fields, entry: Configuration, base: float, rotated: int, context: int, notes: list[str]
) -> Rope:
    kind = _kind(section, entry)
    original = _original(fields, section, entry, kind, context, notes)
    try:
        if kind == "default":
            return Rope(base=base, rotated_size=rotated)
        if kind == "dynamic":
            section.positive("factor")
            notes.append(f"A dynamic scaling acts beyond {context:,} positions, where no session goes.")
            return Rope(base=base, rotated_size=rotated)
        if kind == "linear":
            return linear_rope(base, rotated, section.positive("factor"))
        if kind == "llama3":
            return llama3_rope(
                base,
                rotated,
                factor=section.positive("factor"),
                low=section.positive("low_freq_factor"),
                high=section.positive("high_freq_factor"),
                original_positions=original,
            )
        if kind == "yarn":
            return _yarn(section, base, rotated, original, context, nested=entry.window_rope)
        factor = section.positive("factor", context / original)
        if original < context:
            notes.append(longrope_note(original))
        return longrope_rope(
            base,
            rotated,
            short=section.numbers("short_factor", rotated // 2),
            long=section.numbers("long_factor", rotated // 2),
            original_positions=original,
            magnitude=section.positive("attention_factor", longrope_magnitude(factor, original)),
        )
    except ValueError as error:
        raise ModelError(fields.source, f"{section.name('rope_type')} {kind}: {error}") from error


def _yarn(section: Fields, base: float, rotated: int, original: int, context: int, *, nested: bool) -> Rope:
    # transformers takes a truncate that is null for false, and does not see one in a rope of some blocks only.
    factor = section.positive("factor", context / original)
    truncate = section.flag("truncate", not section.holds("truncate"))
    if nested and not truncate:
        raise UnsupportedModel(section.source, section.name("truncate"), truncate, "true in a rope of some blocks")
    weights = [section.optional(key) for key in ("mscale", "mscale_all_dim")]
    magnitude = yarn_magnitude(factor)
    if weights[0] is not None and weights[1] is not None:
        magnitude = yarn_magnitude(factor, weights[0]) / yarn_magnitude(factor, weights[1])
    return yarn_rope(
        base,
        rotated,
        factor=factor,
        original_positions=original,
        magnitude=section.positive("attention_factor", magnitude),
        beta_fast=section.optional("beta_fast") or BETA_FAST,
        beta_slow=section.optional("beta_slow") or BETA_SLOW,
        truncate=truncate,
    )


def _kind(section: Fields, entry: Configuration) -> str:
    """Return the scaling's name; `type` is the field's earlier name."""
    named = {key: section.text(key) for key in ("rope_type", "type") if section.has(key)}
    found = next(iter(named.values()), "default")
    if len(set(named.values())) > 1:
        raise ModelError(section.source, f"{section.name('rope_type')} and {section.name('type')} differ: {named}")
    kind = entry.normalized_rope_types.get(found, found)
    if kind not in KINDS:
        raise UnsupportedModel(section.source, section.name(next(iter(named))), found, ", ".join(KINDS))
    return kind


def _original(
    fields: Fields, section: Fields, entry: Configuration, kind: str, context: int, notes: list[str]
) -> int:
    """Return how many positions the model was trained on before it was scaled.

    A field beside the scaling goes before one in it, as in transformers.
    """
    inside = section.size(_ORIGINAL, context)
    beside = fields.size(_ORIGINAL, entry.original_positions) if fields.has(_ORIGINAL) else entry.original_positions
    fields.mark(_ORIGINAL)
    if kind in ("default", "linear", "dynamic") and (fields.has(_ORIGINAL) or section.has(_ORIGINAL)):
        notes.append(f"{_ORIGINAL} changes nothing without a scaling that uses it.")
    return inside if beside is None else beside
