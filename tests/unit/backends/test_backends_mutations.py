"""A comparison is worth what it notices: each deliberate defect must turn the equality red.

The comparison under test is the one that every claim of equality uses (tokens and digests of raw logits), and for
the reference the tokens and the distance of the logits.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inferswarm.backends import states as states_module
from inferswarm.backends.direct import run_direct, run_split_direct
from inferswarm.backends.torch_backend import executor as executor_module
from tests.unit.backends.backends_support import LogitsRecorder, assign, built, chain, same_bits, small_description

DESCRIPTION = small_description()
PROMPT = [(29 * index + 7) % 320 for index in range(100)]
REPRESENTATIONS = pytest.mark.parametrize("representation", ["fp32", "bf16"])
RUN = {"max_tokens": 12, "chunk_positions": 64}


class EditedRows:
    """A source of rows with one tensor altered."""

    def __init__(self, source, name, edit):
        self._source, self._name, self._edit = source, name, edit

    def __getattr__(self, attribute):
        return getattr(self._source, attribute)

    def rows(self, name, first, end):
        values = self._source.rows(name, first, end)
        return self._edit(values.copy()) if name == self._name else values


def zeroed(values):
    values[:] = 0
    return values


def swapped_heads(values):
    size = DESCRIPTION.head_size
    values[: 2 * size] = np.concatenate((values[size : 2 * size], values[:size]))
    return values


def one_changed_weight(values):
    values[3, 5] += 0.05
    return values


STATE_DEFECTS = {
    "a zeroed block": [("blk.2.attn_output.weight", zeroed), ("blk.2.ffn_down.weight", zeroed)],
    "a swapped query head": [("blk.1.attn_q.weight", swapped_heads)],
    "a swapped key head": [("blk.1.attn_k.weight", swapped_heads)],
    "one changed weight": [("blk.3.ffn_up.weight", one_changed_weight)],
    "a forgotten norm": [("blk.0.ffn_norm.weight", lambda values: np.ones_like(values))],
}


def with_defect(monkeypatch, edits, build):
    """Executors built from a source in which `edits` were made."""

    def edited(assignment, shapes, progress):
        source = states_module.open_tensors(assignment, shapes, progress)
        for name, edit in edits:
            source = EditedRows(source, name, edit)
        return source

    with monkeypatch.context() as patch:
        patch.setattr(executor_module, "open_tensors", edited)
        return build()


def shift_later_positions(executor):
    """Rotate every chunk but the first as if it began one position later."""
    (table,) = executor._surroundings.tables
    at = table.at
    table.at = lambda start, count: at(start + (start > 0), count)


def shift_all_positions(executor):
    """Rotate everything one position too far: relative distances stay right, and only bits can tell."""
    (table,) = executor._surroundings.tables
    at = table.at
    table.at = lambda start, count: at(start + 1, count)


def drop_carry_over(executor):
    """Forget what the first chunk left in the cache."""
    step = executor.step

    def forgetful(session, start, count, payload, *, sample):
        output = step(session, start, count, payload, sample=sample)
        if start == 0:
            with torch.inference_mode():
                for pool in (*executor.cache.keys, *executor.cache.values):
                    pool[:count] = 0
        return output

    executor.step = forgetful


def see_the_future(executor):
    """Let every position of a chunk see the whole chunk."""
    extend = executor._extend

    def blind(session, start, count):
        context = extend(session, start, count)
        (kind,) = context.kinds
        if kind.mask is None:
            return context
        return context._replace(kinds=(kind._replace(mask=torch.zeros_like(kind.mask)),))

    executor._extend = blind


def skip_a_block(executor):
    executor._spans[0].blocks.pop()


def swap_blocks(executor):
    blocks = executor._spans[0].blocks
    blocks[0], blocks[1] = blocks[1], blocks[0]


RUNNING_DEFECTS = [
    shift_later_positions,
    shift_all_positions,
    drop_carry_over,
    see_the_future,
    skip_a_block,
    swap_blocks,
]


@REPRESENTATIONS
@pytest.mark.parametrize("defect", STATE_DEFECTS)
def test_a_defect_of_states_turns_the_equality_red(monkeypatch, representation, defect):
    whole = built(assign(DESCRIPTION, representation=representation))
    expected = run_direct(whole, PROMPT, **RUN)
    cuts = (0, 2, 4, 6)
    wrong = with_defect(
        monkeypatch, STATE_DEFECTS[defect], lambda: chain(DESCRIPTION, cuts, representation=representation)
    )
    assert not same_bits(run_split_direct(wrong, PROMPT, **RUN), expected)
    right = chain(DESCRIPTION, cuts, representation=representation)
    assert same_bits(run_split_direct(right, PROMPT, **RUN), expected)


@REPRESENTATIONS
@pytest.mark.parametrize("defect", RUNNING_DEFECTS)
def test_a_defect_in_running_turns_the_equality_red(representation, defect):
    expected = run_direct(built(assign(DESCRIPTION, representation=representation)), PROMPT, **RUN)
    first, middle, last = chain(DESCRIPTION, (0, 1, 4, 6), representation=representation)
    defect(middle)
    assert not same_bits(run_split_direct((first, middle, last), PROMPT, **RUN), expected)


@pytest.mark.parametrize("bit", [0, 7, 17 * 64 * 4 * 8 + 30])
def test_one_flipped_bit_of_a_boundary_turns_the_equality_red(bit):
    expected = run_direct(built(assign(DESCRIPTION)), PROMPT, **RUN)
    first, last = chain(DESCRIPTION, (0, 3, 6))
    step = last.step

    def corrupted(session, start, count, payload, *, sample):
        if start == 0:
            payload = bytearray(payload)
            payload[bit // 8] ^= 1 << (bit % 8)
        return step(session, start, count, bytes(payload), sample=sample)

    last.step = corrupted
    assert not same_bits(run_split_direct((first, last), PROMPT, **RUN), expected)


@pytest.mark.parametrize("defect", STATE_DEFECTS)
def test_the_reference_notices_defects_of_states(monkeypatch, defect):
    plain = LogitsRecorder(built(assign(DESCRIPTION, primitive="reference")))
    expected = run_direct(plain, PROMPT, **RUN)
    (wrong,) = with_defect(monkeypatch, STATE_DEFECTS[defect], lambda: chain(DESCRIPTION, (0, 6)))
    recorder = LogitsRecorder(wrong)
    run_direct(recorder, PROMPT, **RUN, forced=expected.tokens)
    assert max(np.abs(a - b).max() for a, b in zip(recorder.rows, plain.rows, strict=True)) > 1e-3


@pytest.mark.parametrize("defect", [item for item in RUNNING_DEFECTS if item is not shift_all_positions])
def test_the_reference_notices_defects_in_running(defect):
    plain = LogitsRecorder(built(assign(DESCRIPTION, primitive="reference")))
    expected = run_direct(plain, PROMPT, **RUN)
    wrong = built(assign(DESCRIPTION))
    defect(wrong)
    recorder = LogitsRecorder(wrong)
    run_direct(recorder, PROMPT, **RUN, forced=expected.tokens)
    assert max(np.abs(a - b).max() for a, b in zip(recorder.rows, plain.rows, strict=True)) > 1e-3
