"""Every variation of a description: the fast backend lies on the reference, and cuts change no bit."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from inferswarm.backends import reference as reference_module
from inferswarm.backends import states as states_module
from inferswarm.backends.direct import run_direct, run_split_direct
from inferswarm.backends.torch_backend import executor as executor_module
from inferswarm.backends.torch_backend.cache import SessionView
from inferswarm.strategies.dense.description import BlockKind, DecoderDescription, Rope
from inferswarm.strategies.problem import make_problem
from tests.unit.backends.backends_support import (
    LogitsRecorder,
    assign,
    built,
    chain,
    compare_logits,
    same_bits,
    small_description,
    tokens_payload,
)
from tests.unit.backends.variations import ALL, EVERYTHING, LOCAL, WINDOW, described, kinds

REPRESENTATIONS = pytest.mark.parametrize("representation", ["fp32", "bf16"])
EVERY_VARIATION = pytest.mark.parametrize("name", ALL)
PROMPT = [(17 * index + 3) % 320 for index in range(70)]
CUTS = [(0, 3, 6), (0, 1, 2, 3, 4, 5, 6)]


def logits_of(description, primitive="torch", prompt=PROMPT, chunk=64, forced=None, representation="fp32", tokens=8):
    """A run and the logits of its sampled positions."""
    assignment = assign(description, primitive=primitive, representation=representation)
    recorder = LogitsRecorder(built(assignment))
    return run_direct(recorder, prompt, max_tokens=tokens, chunk_positions=chunk, forced=forced), recorder.rows


def assert_agreement(description, prompt, chunk):
    expected, expected_rows = logits_of(description, "reference", prompt, chunk)
    found, rows = logits_of(description, "torch", prompt, chunk, forced=expected.tokens)
    agreement = compare_logits(expected, expected_rows, found, rows)
    assert agreement.violations == ()
    assert agreement.near_ties == 0
    assert agreement.max_difference < 1e-4


@EVERY_VARIATION
def test_the_fast_backend_agrees_with_the_reference(name):
    assert_agreement(described(name), PROMPT, 64)


@EVERY_VARIATION
@REPRESENTATIONS
def test_a_split_has_the_bits_of_the_whole(name, representation):
    description = described(name)
    run = {"max_tokens": 6, "chunk_positions": 32}
    expected = run_direct(built(assign(description, representation=representation)), PROMPT, **run)
    for cuts in CUTS:
        split = chain(description, cuts, representation=representation)
        assert same_bits(run_split_direct(split, PROMPT, **run), expected)


@EVERY_VARIATION
def test_half_precision_lies_near_the_reference(name):
    expected, expected_rows = logits_of(described(name), "reference", tokens=3)
    _, rows = logits_of(described(name), forced=expected.tokens, representation="bf16", tokens=3)
    deviation = np.std(np.stack(expected_rows))
    assert np.abs(np.stack(rows) - np.stack(expected_rows)).mean() < 0.05 * deviation


@EVERY_VARIATION
@REPRESENTATIONS
def test_states_have_the_bytes_that_the_problem_states(name, representation):
    description = described(name)
    planned = {
        state.id: size.bytes
        for state in make_problem(description).states
        for size in state.sizes
        if size.representation == representation
    }
    executor = executor_module.TorchExecutor(assign(description, representation=representation))
    states = executor.materialize(lambda done, total: None)
    assert {state.state_id: state.bytes for state in states} == planned


# -- windows --

WINDOWED = [
    "window",
    "window of one",
    "window of ragged rows",
    "attention soft cap in a window",
    "Gemma 2",
    "Gemma 3",
]


@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 1])
@pytest.mark.parametrize("chunk", [1, WINDOW - 1, WINDOW, WINDOW + 1, 64])
@pytest.mark.parametrize("name", ["window", "Gemma 3"])
def test_around_the_edge_of_a_window_every_chunking_agrees_with_the_reference(name, length, chunk):
    assert_agreement(described(name), PROMPT[:length], chunk)


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("chunk", [5, 17, 33, 64])
def test_chunks_and_single_steps_agree_in_a_window(name, chunk):
    expected, expected_rows = logits_of(described(name), chunk=1)
    found, rows = logits_of(described(name), chunk=chunk, forced=expected.tokens)
    agreement = compare_logits(expected, expected_rows, found, rows)
    assert agreement.violations == ()
    assert agreement.max_difference < 1e-4


@pytest.mark.parametrize(("changed", "matters"), [(70 - WINDOW - 1, False), (70 - WINDOW, True)])
@pytest.mark.parametrize("primitive", ["torch", "reference"])
@pytest.mark.parametrize("chunk", [1, 64])
def test_a_window_ends_where_it_says(primitive, changed, matters, chunk):
    # with one block, what lies outside its window cannot reach a position by another way
    description = small_description(num_blocks=1, **kinds(LOCAL, pattern=(0,)))
    other = [*PROMPT[:changed], (PROMPT[changed] + 1) % 320, *PROMPT[changed + 1 :]]
    _, before = logits_of(description, primitive, PROMPT, chunk, tokens=1)
    _, after = logits_of(description, primitive, other, chunk, tokens=1)
    if matters:
        assert np.abs(before[0] - after[0]).max() > 1e-2
    else:
        assert np.array_equal(before[0], after[0])


def test_behind_a_long_context_a_windowed_block_reads_its_window_only(monkeypatch):
    lengths = []
    read = SessionView.read

    def watched(view, block, first=0):
        keys, values = read(view, block, first)
        lengths.append((len(keys), len(values)))
        return keys, values

    monkeypatch.setattr(SessionView, "read", watched)
    description = small_description(**kinds(LOCAL, BlockKind(rope=None), pattern=(0, 1, 0, 0)))
    executor = built(assign(description, max_positions=640))
    executor.open("a")
    for start in range(0, 512, 64):
        executor.step("a", start, 64, tokens_payload([5] * 64), sample=False)
    assert lengths[-4:] == [(64 + WINDOW - 1,) * 2, (512, 512), (64 + WINDOW - 1,) * 2, (64 + WINDOW - 1,) * 2]
    executor.step("a", 512, 1, tokens_payload([7]), sample=True)
    assert lengths[-4:] == [(WINDOW, WINDOW), (513, 513), (WINDOW, WINDOW), (WINDOW, WINDOW)]


@REPRESENTATIONS
@pytest.mark.parametrize("name", ["window", "window of ragged rows", "Gemma 3"])
def test_where_pages_lie_changes_no_bit_of_a_window(name, representation):
    results = []
    for free in (None, {0, 2, 4, 6}):
        executor = built(assign(described(name), representation=representation, sessions=3, max_positions=192))
        executor.open("a")
        if free is not None:
            executor.cache.pages._free = set(free)
            executor.cache.pages.num_pages = len(free)
        tokens = [*PROMPT, *PROMPT]
        outputs = [
            executor.step("a", start, 50, tokens_payload(tokens[start : start + 50]), sample=True)
            for start in (0, 50)
        ]
        outputs += [
            executor.step("a", at, 1, tokens_payload(tokens[at : at + 1]), sample=True) for at in range(100, 135)
        ]
        results.append((outputs, executor.cache.pages.first_of_run("a") is None))
    assert [in_pieces for _, in_pieces in results] == [False, True]
    assert results[0][0] == results[1][0]


# -- nothing is ignored --


def with_rope(index, **changes):
    """A change of the rope of one kind."""

    def change(description):
        block_kinds = list(description.block_kinds)
        rope = msgspec.structs.replace(block_kinds[index].rope, **changes)
        block_kinds[index] = msgspec.structs.replace(block_kinds[index], rope=rope)
        return {"block_kinds": tuple(block_kinds)}

    return change


def with_kind(index, **changes):
    """A change of one kind."""

    def change(description):
        block_kinds = list(description.block_kinds)
        block_kinds[index] = msgspec.structs.replace(block_kinds[index], **changes)
        return {"block_kinds": tuple(block_kinds)}

    return change


CHANGES = {
    "block_kinds": {"block_kinds": (BlockKind(rope=None), BlockKind(rope=None))},
    "block_pattern": {"block_pattern": (1, 0, 0, 1)},
    "norm_epsilon": {"norm_epsilon": 1e-1},
    "norm_adds_one": {"norm_adds_one": False},
    "post_norms": {"post_norms": False},
    "query_key_norms": {"query_key_norms": False},
    "activation": {"activation": "silu"},
    "query_key_value_bias": {"query_key_value_bias": False},
    "attention_output_bias": {"attention_output_bias": False},
    "feed_forward_bias": {"feed_forward_bias": False},
    "attention_scale": {"attention_scale": 0.3},
    "attention_soft_cap": {"attention_soft_cap": None},
    "embedding_scale": {"embedding_scale": 1.0},
    "residual_scale": {"residual_scale": 1.0},
    "logit_scale": {"logit_scale": 1.0},
    "logit_soft_cap": {"logit_soft_cap": None},
    "tied_head": {"tied_head": True},
    "Rope.base": with_rope(0, base=300.0),
    "Rope.rotated_size": with_rope(0, rotated_size=8, factors=()),
    "Rope.factors": with_rope(0, factors=()),
    "Rope.long_factors": with_rope(1, long_factors=(3.0,) * 6),
    "Rope.original_positions": with_rope(1, original_positions=256),
    "Rope.magnitude": with_rope(0, magnitude=1.0),
    "BlockKind.rope": with_kind(1, rope=None),
    "BlockKind.window": with_kind(0, window=WINDOW - 1),
}
SIZES = {
    "architecture",
    "vocabulary_size",
    "hidden_size",
    "feed_forward_size",
    "num_blocks",
    "num_heads",
    "num_key_value_heads",
    "head_size",
    "context_positions",
}
"""Fields that are a name, a limit or a shape: a wrong shape cannot be loaded."""


@pytest.mark.parametrize("primitive", ["torch", "reference"])
@pytest.mark.parametrize("field", CHANGES)
def test_no_field_is_ignored(primitive, field):
    description = small_description(**EVERYTHING)
    change = CHANGES[field]
    changed = msgspec.structs.replace(description, **(change(description) if callable(change) else change))
    expected, before = logits_of(description, primitive, PROMPT[:40], tokens=2)
    _, after = logits_of(changed, primitive, PROMPT[:40], tokens=2, forced=expected.tokens)
    assert np.abs(np.stack(after) - np.stack(before)).max() > 1e-3


def test_the_table_of_changes_names_every_field():
    fields = {field.name for field in msgspec.structs.fields(DecoderDescription)} - SIZES
    fields |= {
        f"{part.__name__}.{field.name}" for part in (Rope, BlockKind) for field in msgspec.structs.fields(part)
    }
    assert set(CHANGES) == fields


# -- layouts --


class PairedRows:
    """A source whose heads are stored for turning neighbors: query, key, their biases and their norms."""

    def __init__(self, source, head_size, rotated_size):
        self._source, self._size, self._rotated = source, head_size, rotated_size

    def __getattr__(self, attribute):
        return getattr(self._source, attribute)

    def is_paired(self, name):
        return any(part in name for part in ("attn_q.", "attn_k.", "attn_q_norm.", "attn_k_norm."))

    def stored(self, whole):
        """The rows as such a file has them: first and second members of the turning pairs alternate."""
        heads = whole.reshape(-1, self._size, *whole.shape[1:]).copy()
        half = self._rotated // 2
        first, second = heads[:, :half].copy(), heads[:, half : 2 * half].copy()
        heads[:, 0 : 2 * half : 2], heads[:, 1 : 2 * half : 2] = first, second
        return heads.reshape(whole.shape)

    def rows(self, name, first, end):
        if not self.is_paired(name):
            return self._source.rows(name, first, end)
        shape = self._source._shapes[name]
        if len(shape) == 1:
            return self.stored(self._source.rows(name, 0, 1)[0])[None]
        return self.stored(self._source.rows(name, 0, shape[0]))[first:end]


@pytest.mark.parametrize("primitive", ["torch", "reference"])
@pytest.mark.parametrize("rotated_size", [16, 12])
def test_heads_stored_in_pairs_compute_what_heads_stored_in_halves_do(monkeypatch, primitive, rotated_size):
    block = BlockKind(rope=Rope(base=100.0, rotated_size=rotated_size))
    description = small_description(query_key_value_bias=True, query_key_norms=True, **kinds(block))
    expected, before = logits_of(description, primitive)

    def paired(assignment, shapes, progress):
        return PairedRows(states_module.open_tensors(assignment, shapes, progress), 16, rotated_size)

    for module in (executor_module, reference_module):
        monkeypatch.setattr(module, "open_tensors", paired)
    found, after = logits_of(description, primitive)
    assert found.tokens == expected.tokens
    assert np.array_equal(np.stack(after), np.stack(before))
