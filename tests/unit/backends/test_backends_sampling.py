"""Greedy sampling: the lowest id wins exact ties, digests are of raw bytes, nothing that is no number is sampled."""

from __future__ import annotations

import pytest
import torch
import xxhash

from inferswarm.backends.sampling import GREEDY
from inferswarm.backends.torch_backend.sampling import draw_token
from inferswarm.errors import FabricError


def sample_greedy(logits):
    return draw_token(logits, GREEDY, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("logits", "token", "margin"),
    [
        ([0.0, 3.0, 1.0, 2.5], 1, 0.5),
        ([0.0, 3.0, 1.0, 3.0], 1, 0.0),
        ([3.0, 3.0, 3.0], 0, 0.0),
        ([-2.0, -1.0, -1.5], 1, 0.5),
        ([1.0, 0.0, 4.0], 2, 3.0),
        ([-0.0, 0.0], 0, 0.0),
        ([7.0], 0, 0.0),
    ],
)
def test_the_highest_logit_wins_and_the_lowest_id_breaks_ties(dtype, logits, token, margin):
    sample = sample_greedy(torch.tensor(logits, dtype=dtype))
    assert (sample.drawn.token, sample.drawn.margin) == (token, margin)


def test_a_tie_far_apart_goes_to_the_lowest_id():
    logits = torch.zeros(49152)
    logits[[40000, 123, 49151]] = 5.0
    assert sample_greedy(logits).drawn.token == 123


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_that_are_not_finite_are_refused(value, place, dtype):
    logits = torch.tensor([1.0, 2.0, 3.0, 2.0, 1.0], dtype=dtype)
    logits[place] = value
    with pytest.raises(FabricError, match="not finite"):
        sample_greedy(logits)


def test_the_digest_is_of_the_raw_bytes_of_the_row():
    values = [1.0, 2.0, -3.0]
    for dtype, raw in ((torch.float32, "0000803f0000004000 0040c0"), (torch.bfloat16, "803f004040c0")):
        expected = xxhash.xxh3_128_hexdigest(bytes.fromhex(raw))
        assert sample_greedy(torch.tensor(values, dtype=dtype)).logits_digest == expected


def test_one_changed_bit_changes_the_digest():
    logits = torch.tensor([1.0, 2.0, -3.0])
    before = sample_greedy(logits).logits_digest
    logits.view(torch.int32)[0] ^= 1
    assert sample_greedy(logits).logits_digest != before
