"""From a Hugging Face configuration to what its model computes, or a refusal that names the field.

Takes configurations of causal language models over text, as transformers writes them today (`rope_parameters`,
`layer_types`) and as it wrote them before (`rope_theta`, `rope_scaling`, `sliding_window_pattern`). Every field is
used, known to change nothing, or refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from inferswarm.errors import ModelError, UnsupportedModel
from inferswarm.strategies.dense.description import DecoderDescription
from inferswarm.strategies.dense.readers.configuration_rope import read_rope, read_window_rope
from inferswarm.strategies.dense.readers.configuration_table import (
    CONFIGURATIONS,
    HARMLESS,
    INERT,
    Configuration,
)
from inferswarm.strategies.dense.readers.families import Parts, describe_family
from inferswarm.strategies.dense.readers.fields import Fields

ELSEWHERE: Final = "the transformers backend may compute such a model from its directory"
_WINDOW, _FULL = "sliding_attention", "full_attention"


def configuration_entry(configuration: Mapping[str, Any], source: str) -> Configuration:
    """Return the family's entry. Raises UnsupportedModel for a `model_type` or a class that is not read."""
    fields = Fields(source, configuration)
    kind = fields.text("model_type")
    if kind == "gemma3":
        raise UnsupportedModel(
            source, "model_type", kind, f"gemma3_text; this one takes text and images: {ELSEWHERE}"
        )
    if kind not in CONFIGURATIONS:
        raise UnsupportedModel(source, "model_type", kind, f"{', '.join(CONFIGURATIONS)}; {ELSEWHERE}")
    entry = CONFIGURATIONS[kind]
    classes = fields.raw("architectures")
    if classes is not None and classes != [entry.model_class]:
        raise UnsupportedModel(source, "architectures", classes, f"[{entry.model_class!r}]")
    return entry


def describe_configuration(
    configuration: Mapping[str, Any], source: str, notes: list[str], most_blocks: int
) -> DecoderDescription:
    """Return what the model of a configuration computes, adding to `notes` what changes nothing.

    `most_blocks` bounds the number of blocks that the configuration may claim. Raises UnsupportedModel naming the
    first field that is understood and not supported, ModelError for fields that are missing or contradict each other.
    """
    entry = configuration_entry(configuration, source)
    fields = Fields(source, configuration, defaults=entry.defaults)
    fields.mark("model_type")
    parts = _parts(fields, entry, notes, most_blocks)
    _note_inert(configuration, notes)
    fields.refuse_unread(INERT, HARMLESS, f"{entry.family.architecture} without this field; {ELSEWHERE}")
    return describe_family(entry.family, parts, source)


def _parts(fields: Fields, entry: Configuration, notes: list[str], most_blocks: int) -> Parts:
    field, needed = entry.activation
    fields.check(field, (needed,))
    if field != "hidden_act" and fields.check("hidden_act", (needed,)) is not None:
        notes.append(f"hidden_act repeats {field}.")
    hidden, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    num_key_value_heads = fields.size("num_key_value_heads", num_heads)
    fields.refuse_remainder("num_attention_heads", num_heads, "num_key_value_heads", num_key_value_heads)
    if not fields.has("head_dim"):
        fields.refuse_remainder("hidden_size", hidden, "num_attention_heads", num_heads)
    head = fields.size("head_dim", hidden // num_heads or 1)
    num_blocks = fields.size("num_hidden_layers")
    if num_blocks > most_blocks:
        raise ModelError(
            fields.source, f"num_hidden_layers is {num_blocks:,}; the files have tensors of {most_blocks:,} blocks"
        )
    context = fields.size("max_position_embeddings")
    rope = read_rope(fields, entry, head, context, notes)
    window_rope = read_window_rope(fields, entry, head, context, notes) if entry.window_rope else rope
    window, windowed = _windows(fields, entry, num_blocks, notes)
    bias = entry.query_key_value_bias
    attention_bias = fields.flag("attention_bias", False) if bias is None else False
    soft_caps = {key: fields.positive(key) if fields.has(key) else None for key in entry.soft_caps}
    scales = _scales(fields, entry)
    scalar = fields.positive("query_pre_attn_scalar") if entry.scalar else float(head)
    return Parts(
        vocabulary_size=fields.size("vocab_size"),
        hidden_size=hidden,
        feed_forward_size=fields.size("intermediate_size"),
        num_heads=num_heads,
        num_key_value_heads=num_key_value_heads,
        head_size=head,
        context_positions=context,
        windowed=windowed,
        window=window,
        rope=rope,
        window_rope=window_rope,
        norm_epsilon=fields.positive("rms_norm_eps"),
        query_key_value_bias=attention_bias if bias is None else bias,
        attention_output_bias=attention_bias,
        feed_forward_bias=fields.flag("mlp_bias", False) if entry.feed_forward_bias is None else False,
        attention_scale=scales.get("attention_multiplier", 1.0 / math.sqrt(scalar)),
        attention_soft_cap=soft_caps.get("attn_logit_softcapping"),
        embedding_scale=scales.get("embedding_multiplier", 1.0),
        residual_scale=scales.get("residual_multiplier", 1.0),
        logit_scale=1.0 / scales.get("logits_scaling", 1.0),
        logit_soft_cap=soft_caps.get("final_logit_softcapping"),
        tied_head=fields.flag("tie_word_embeddings"),
    )


def _scales(fields: Fields, entry: Configuration) -> dict[str, float]:
    if not entry.scales:
        return {}
    names = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
    return {name: fields.positive(name, 1.0) for name in names}


def _windows(
    fields: Fields, entry: Configuration, num_blocks: int, notes: list[str]
) -> tuple[int | None, tuple[bool, ...]]:
    """Return the window, and which blocks see no more than it."""
    if entry.windows == "none":
        fields.check("sliding_window", (), "null")
        return None, (False,) * num_blocks
    window = fields.size("sliding_window") if fields.has("sliding_window") else None
    fields.mark("sliding_window")
    if entry.windows == "every":
        return window, (window is not None,) * num_blocks
    if entry.layers == "late":
        used = fields.flag("use_sliding_window", False)
        first = fields.size("max_window_layers", least=0)
        if not used:
            notes.append("use_sliding_window is false: sliding_window and max_window_layers change nothing.")
        window = window if used else None
        windowed = tuple(window is not None and index >= first for index in range(num_blocks))
        rule = "max_window_layers" if used else ""
    else:
        rule = "sliding_window_pattern"
        period = _period(fields, entry, rule)
        windowed = tuple(bool((index + 1) % period) for index in range(num_blocks))
    listed = fields.raw("layer_types")
    if listed is not None:
        derived, windowed = windowed, _listed(fields, listed, num_blocks)
        if fields.states(rule) and derived != windowed:
            raise ModelError(fields.source, f"layer_types and {rule} contradict each other")
        if fields.states(f"_{rule}") and derived != windowed:
            notes.append(f"layer_types goes before _{rule}, which changes nothing.")
    if window is None and any(windowed):
        raise ModelError(fields.source, f"layer_types names {_WINDOW} and sliding_window states no window")
    return window, windowed


def _period(fields: Fields, entry: Configuration, rule: str) -> int:
    """Return every which block sees everything, by the rule that holds where `layer_types` is absent.

    There, only what transformers reads may say another one than the family's own.
    """
    period = fields.size(rule, entry.period)
    saved = fields.size(f"_{rule}", period)
    if fields.has("layer_types"):
        return period if fields.states(rule) else saved
    own = period if entry.states_period else entry.period
    for key, value in ((rule, period), (f"_{rule}", saved)):
        if value != own:
            raise UnsupportedModel(fields.source, key, value, f"{own} where layer_types is absent")
    return period


def _listed(fields: Fields, listed: Any, num_blocks: int) -> tuple[bool, ...]:
    if not isinstance(listed, list) or len(listed) != num_blocks:
        raise ModelError(fields.source, f"layer_types holds not one entry for each of {num_blocks} blocks")
    for kind in listed:
        if kind not in (_WINDOW, _FULL):
            raise UnsupportedModel(fields.source, "layer_types", kind, f"{_FULL}, {_WINDOW}; {ELSEWHERE}")
    return tuple(kind == _WINDOW for kind in listed)


def _note_inert(configuration: Mapping[str, Any], notes: list[str]) -> None:
    if configuration.get("auto_map") is not None:
        notes.append("auto_map names code that comes with the model; it is not run.")
    if configuration.get("cache_implementation") is not None:
        notes.append("cache_implementation says how a library keeps sessions; it changes nothing.")
