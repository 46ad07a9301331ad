"""An inspection as lines: everything in it can be read, nothing is wider than a terminal."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.artifacts.types import ModelFile
from inferswarm.planner.problem import RepresentationBytes
from inferswarm.strategies.dense.description import BlockKind, DecoderDescription, Rope, plain_decoder
from inferswarm.strategies.inspection import EncodingUse, Inspection, Refusal, TextFacts, UnitSize
from inferswarm.views.model_text import inspection_text
from inferswarm.views.text import WIDTH

SIZES = (RepresentationBytes("fp32", 4_000_000), RepresentationBytes("bf16", 2_000_000))


def decoder(**changes) -> DecoderDescription:
    plain = plain_decoder(
        architecture="llama",
        vocabulary_size=32_000,
        hidden_size=256,
        feed_forward_size=1_024,
        num_blocks=4,
        num_heads=4,
        num_key_value_heads=2,
        head_size=64,
        context_positions=4_096,
        rope_base=10_000.0,
        norm_epsilon=1e-5,
        tied_head=False,
    )
    return msgspec.structs.replace(plain, **changes)


def unit(name: str, file_bytes: int = 1_000_000, cost_class: str = "block") -> UnitSize:
    return UnitSize(unit=name, cost_class=cost_class, states=(name,), file_bytes=file_bytes, sizes=SIZES)


def inspection(**changes) -> Inspection:
    whole = Inspection(
        name="example",
        path="/models/example.gguf",
        files=(ModelFile(uri="/models/example.gguf", length=7_000_000),),
        architecture="llama",
        encodings=(EncodingUse(encoding="Q4_1", num_tensors=28, bytes=6_000_000),),
        backend="torch",
        description=decoder(),
        units=(unit("embedding", cost_class="embedding"), unit("block.0"), unit("block.1"), unit("head", 5, "head")),
        kept_bytes_per_position=(RepresentationBytes("fp32", 4_096), RepresentationBytes("bf16", 2_048)),
        text=TextFacts(
            num_tokens=32_000, begins_with="<s>", ends_with=("</s>",), num_special=3, chat_templates=("default",)
        ),
        notes=(),
        refusals=(),
    )
    return msgspec.structs.replace(whole, **changes)


def entries(text: str, name: str) -> list[str]:
    """Return the entries of a name, continued lines joined."""
    found: list[str] = []
    current = ""
    for line in text.split("\n\n")[0].splitlines():
        current = line[:20].strip() or current
        if current == name:
            if line[:20].strip():
                found.append(line[20:])
            else:
                found[-1] += " " + line[20:]
    return found


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("model", "example"),
        ("path", "/models/example.gguf"),
        ("files", "1, 7.00 MB"),
        ("encoding", "Q4_1        28 tensors  6.00 MB"),
        ("computed by", "torch"),
        ("blocks", "4, hidden size 256"),
        ("context", "4,096 positions"),
        ("heads", "4 of 64, 2 for keys and values"),
        ("variations", "none"),
        ("text", "32,000 tokens, 3 special, begins with <s>, ends with </s>; chat template: default"),
    ],
)
def test_what_was_understood_is_named(name, wanted):
    assert entries(inspection_text(inspection()), name) == [wanted]


VARIATIONS = [
    ({"tied_head": True}, "head tied to the embedding"),
    ({"norm_adds_one": True}, "norms add one"),
    ({"post_norms": True}, "norms behind attention and feed-forward"),
    ({"query_key_norms": True}, "norms of query and key"),
    ({"query_key_value_bias": True}, "biases of query, key and value"),
    ({"attention_output_bias": True}, "bias of the attention's output"),
    ({"feed_forward_bias": True}, "biases of the feed-forward"),
    ({"attention_scale": 0.25}, "scores × 0.25"),
    ({"attention_soft_cap": 50.0}, "scores capped at 50.0"),
    ({"embedding_scale": 16.0}, "embedding × 16"),
    ({"residual_scale": 0.5}, "residuals × 0.5"),
    ({"logit_scale": 0.125}, "logits × 0.125"),
    ({"logit_soft_cap": 30.0}, "logits capped at 30.0"),
]


@pytest.mark.parametrize(("change", "words"), VARIATIONS)
def test_every_variation_has_words(change, words):
    assert entries(inspection_text(inspection(description=decoder(**change))), "variations") == [words]


def test_no_field_of_a_description_is_left_without_words():
    """A field that is added to descriptions must be shown too."""
    shown = {field for change, _ in VARIATIONS for field in change}
    elsewhere = {"architecture", "vocabulary_size", "hidden_size", "feed_forward_size", "num_blocks", "num_heads"}
    elsewhere |= {"num_key_value_heads", "head_size", "context_positions", "block_kinds", "block_pattern"}
    elsewhere |= {"activation", "norm_epsilon"}
    assert set(DecoderDescription.__struct_fields__) - shown - elsewhere == set()


def test_each_kind_of_block_says_how_it_sees_positions():
    kinds = (
        BlockKind(rope=Rope(base=10_000.0, rotated_size=64), window=512),
        BlockKind(rope=Rope(base=1_000_000.0, rotated_size=32, factors=(2.0,) * 16)),
        BlockKind(rope=None),
    )
    text = inspection_text(inspection(description=decoder(block_kinds=kinds, block_pattern=(0, 0, 1, 2))))
    assert entries(text, "positions") == [
        "rotary, base 10000, 64 numbers of a head, window of 512 (2 of 4 blocks)",
        "rotary, base 1e+06, 32 numbers of a head, scaled (1 of 4 blocks)",
        "none (1 of 4 blocks)",
    ]


def test_neighbors_of_the_same_sizes_share_a_row():
    units = (*(unit(f"block.{index}") for index in range(3)), unit("block.3", 2), unit("block.4"), unit("block.5"))
    rows = [line[:24].strip() for line in inspection_text(inspection(units=units)).split("\n\n")[1].splitlines()]
    assert rows == ["unit", "block.0 … block.2", "block.3", "block.4 … block.5", "kept for each position"]


def test_the_table_of_units_has_a_column_for_each_representation():
    head, first, *_ = inspection_text(inspection()).split("\n\n")[1].splitlines()
    assert head.split() == ["unit", "class", "in", "files", "fp32", "bf16"]
    assert first.split() == ["embedding", "embedding", "1.00", "MB", "4.00", "MB", "2.00", "MB"]


def test_a_refused_model_shows_what_is_there_and_who_refused_it():
    refusals = (
        Refusal(by="described decoder", reason="m: model_type is 'other'; supported: " + ", ".join(["family"] * 40)),
        Refusal(by="transformers", reason="m: is_encoder_decoder is True; supported: decoders alone"),
    )
    nothing = {"backend": None, "description": None, "units": (), "kept_bytes_per_position": ()}
    text = inspection_text(inspection(**nothing, refusals=refusals, text=None))
    assert entries(text, "computed by") == ["no backend"]
    assert entries(text, "encoding") == ["Q4_1        28 tensors  6.00 MB"]
    assert entries(text, "text") == ["token ids only"]
    shown = entries(text, "refused")
    assert [line.split(":")[0] for line in shown] == ["by described decoder", "by transformers"]
    assert shown[0].count("family") == 40
    assert "unit" not in text


def test_text_without_names_and_templates_says_so():
    facts = TextFacts(num_tokens=97, begins_with=None, ends_with=(), num_special=0, chat_templates=())
    text = inspection_text(inspection(text=facts))
    assert entries(text, "text") == ["97 tokens, 0 special, names no end; no chat template"]


def test_notes_are_shown():
    text = inspection_text(inspection(notes=("One thing.", "Another thing.")))
    assert entries(text, "note") == ["One thing.", "Another thing."]


def test_no_line_is_wider_than_a_terminal():
    long = "word " * 60
    everything = {key: value for change, _ in VARIATIONS for key, value in change.items()}
    text = inspection_text(
        inspection(
            description=decoder(**everything),
            notes=(long,),
            refusals=(Refusal(by="text", reason=long),),
            units=(unit("block.10"), unit("block.11")),
        )
    )
    assert max(map(len, text.splitlines())) <= WIDTH
