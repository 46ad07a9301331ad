"""A model on the terminal: what was understood, bytes for each unit and representation, what was refused."""

from __future__ import annotations

import itertools
import textwrap

from inferswarm.planner.problem import RepresentationBytes
from inferswarm.strategies.chain import Description
from inferswarm.strategies.dense.description import BlockKind, DecoderDescription
from inferswarm.strategies.inspection import FetchedBytes, Inspection, TextFacts, UnitSize
from inferswarm.units import format_bytes
from inferswarm.views.text import WIDTH

_NAME_WIDTH = 20


def inspection_text(inspection: Inspection) -> str:
    """Return an inspection as lines for people."""
    size = sum(file.length for file in inspection.files)
    lines = [
        *_entry("model", inspection.name),
        *_entry("path", inspection.path),
        *_entry("files", f"{len(inspection.files)}, {format_bytes(size)}"),
        *_fetched_lines(inspection.fetched),
        *_entry("architecture", inspection.architecture),
    ]
    for use in inspection.encodings:
        lines += _entry("encoding", f"{use.encoding:8} {use.num_tensors:5} tensors  {format_bytes(use.bytes)}")
    lines += _entry("computed by", inspection.backend or "no backend")
    if inspection.description is not None:
        lines += _description_lines(inspection.description)
    lines += _text_lines(inspection.text)
    for note in inspection.notes:
        lines += _entry("note", note)
    for refusal in inspection.refusals:
        lines += _entry("refused", f"by {refusal.by}: {refusal.reason}")
    if inspection.units:
        lines += ["", *_unit_lines(inspection.units, inspection.kept_bytes_per_position)]
    return "\n".join(lines) + "\n"


def _fetched_lines(fetched: FetchedBytes | None) -> list[str]:
    if fetched is None:
        return []
    return _entry("fetched", f"{fetched.received:,} B of {fetched.of:,} B: texts and headers that were not kept")


def _description_lines(description: Description) -> list[str]:
    lines = [
        *_entry("blocks", f"{description.num_blocks}, hidden size {description.hidden_size:,}"),
        *_entry("vocabulary", f"{description.vocabulary_size:,}"),
        *_entry("context", f"{description.context_positions:,} positions"),
    ]
    if not isinstance(description, DecoderDescription):
        return lines
    heads = (
        f"{description.num_heads} of {description.head_size}, {description.num_key_value_heads} for keys and values"
    )
    lines += _entry("heads", heads)
    lines += _entry("feed-forward", f"{description.feed_forward_size:,}, {description.activation}")
    for index, kind in enumerate(description.block_kinds):
        count = description.block_pattern.count(index)
        lines += _entry("positions", f"{_kind_text(kind)} ({count} of {description.num_blocks} blocks)")
    lines += _entry("variations", ", ".join(_variations(description)) or "none")
    return lines


def _kind_text(kind: BlockKind) -> str:
    rope = kind.rope
    if rope is None:
        text = "none"
    else:
        text = f"rotary, base {rope.base:g}"
        text += f", {rope.rotated_size} numbers of a head"
        text += ", scaled" if rope.factors or rope.long_factors or rope.magnitude != 1.0 else ""
    return text if kind.window is None else f"{text}, window of {kind.window:,}"


def _variations(description: DecoderDescription) -> list[str]:
    """Return in words what this decoder has that a plain one has not."""
    plain_scale = description.head_size**-0.5
    named = (
        ("head tied to the embedding", description.tied_head),
        ("norms add one", description.norm_adds_one),
        ("norms behind attention and feed-forward", description.post_norms),
        ("norms of query and key", description.query_key_norms),
        ("biases of query, key and value", description.query_key_value_bias),
        ("bias of the attention's output", description.attention_output_bias),
        ("biases of the feed-forward", description.feed_forward_bias),
        (f"scores × {description.attention_scale:g}", abs(description.attention_scale - plain_scale) > 1e-9),
        (f"scores capped at {description.attention_soft_cap}", description.attention_soft_cap is not None),
        (f"embedding × {description.embedding_scale:g}", description.embedding_scale != 1.0),
        (f"residuals × {description.residual_scale:g}", description.residual_scale != 1.0),
        (f"logits × {description.logit_scale:g}", description.logit_scale != 1.0),
        (f"logits capped at {description.logit_soft_cap}", description.logit_soft_cap is not None),
    )
    return [words for words, there in named if there]


def _text_lines(text: TextFacts | None) -> list[str]:
    if text is None:
        return _entry("text", "token ids only")
    templates = f"chat template: {', '.join(text.chat_templates)}" if text.chat_templates else "no chat template"
    begins = "" if text.begins_with is None else f", begins with {text.begins_with}"
    ends = f", ends with {', '.join(text.ends_with)}" if text.ends_with else ", names no end"
    return _entry("text", f"{text.num_tokens:,} tokens, {text.num_special} special{begins}{ends}; {templates}")


def _unit_lines(units: tuple[UnitSize, ...], kept: tuple[RepresentationBytes, ...]) -> list[str]:
    """Return a table of units; neighbors of the same sizes share a row."""
    names = [size.representation for size in units[0].sizes]
    heading = f"{'unit':24}  {'class':12}  {'in files':>10}" + "".join(f"  {name:>10}" for name in names)
    lines = [heading]
    for _, group in itertools.groupby(units, key=lambda unit: (unit.cost_class, unit.file_bytes, unit.sizes)):
        same = list(group)
        first = same[0]
        name = first.unit if len(same) == 1 else f"{first.unit} … {same[-1].unit}"
        sizes = "".join(f"  {format_bytes(size.bytes):>10}" for size in first.sizes)
        lines.append(f"{name:24}  {first.cost_class:12}  {format_bytes(first.file_bytes):>10}{sizes}")
    per_position = "".join(f"  {format_bytes(size.bytes):>10}" for size in kept)
    lines.append(f"{'kept for each position':24}  {'':12}  {'':>10}{per_position}")
    return lines


def _entry(name: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=WIDTH,
        initial_indent=f"{name:{_NAME_WIDTH}}",
        subsequent_indent=" " * _NAME_WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [name]
