"""The reference backend: plain, uncached, and in agreement with the fast one."""

from __future__ import annotations

import numpy as np
import pytest

from inferswarm.backends.direct import run_direct, run_split_direct
from inferswarm.errors import FabricError, SpecError
from inferswarm.strategies.dense.model import DenseModel
from tests.models import write_small_llama
from tests.unit.backends.backends_support import (
    LogitsRecorder,
    assign,
    built,
    chain,
    file_chain,
    small_description,
    tokens_payload,
)

PROMPT = [(17 * index + 3) % 320 for index in range(70)]


def distance(description, **options):
    """Tokens of both backends and the largest difference of their logits."""
    fast, plain = (LogitsRecorder(built(assign(description, primitive=name))) for name in ("torch", "reference"))
    expected = run_direct(plain, PROMPT, max_tokens=12, chunk_positions=64)
    found = run_direct(fast, PROMPT, max_tokens=12, chunk_positions=64, forced=expected.tokens)
    return (
        expected.tokens,
        found.tokens,
        max(float(np.abs(a - b).max()) for a, b in zip(fast.rows, plain.rows, strict=True)),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_head": False},
        {"num_key_value_heads": 1},
        {"num_key_value_heads": 4, "head_size": 20},
        {"rope_base": 100.0, "norm_epsilon": 0.5},
    ],
)
def test_the_fast_backend_agrees_with_the_reference(changes):
    expected, found, largest = distance(small_description(**changes))
    assert found == expected
    assert largest < 1e-4


@pytest.mark.parametrize("encoding", ["Q4_1", "Q8_0", "F16", "BF16", "Q4_0", "Q5_1"])
def test_both_read_the_same_numbers_from_every_encoding(tmp_path, encoding):
    model = DenseModel.open(write_small_llama(tmp_path / "small.gguf", encoding=encoding, num_blocks=2))
    results = []
    for primitive in ("torch", "reference"):
        (executor,) = file_chain(model, (0, 4), primitive=primitive)
        results.append(run_direct(executor, PROMPT[:40], max_tokens=8, chunk_positions=64).tokens)
    assert results[0] == results[1]


def test_a_split_gives_the_tokens_of_the_whole():
    description = small_description()
    expected = run_direct(built(assign(description, primitive="reference")), PROMPT, max_tokens=6, chunk_positions=64)
    split = chain(description, (0, 2, 5, 6), primitive="reference")
    assert run_split_direct(split, PROMPT, max_tokens=6, chunk_positions=64).tokens == expected.tokens


def test_it_has_fp32_only():
    with pytest.raises(SpecError, match="fp32, the reference's only one"):
        built(assign(small_description(), primitive="reference", representation="bf16"))


def test_it_refuses_what_every_backend_refuses():
    executor = built(assign(small_description(), primitive="reference"))
    executor.open("a")
    executor.step("a", 0, 3, tokens_payload([1, 2, 3]), sample=False)
    with pytest.raises(FabricError, match="does not continue it"):
        executor.step("a", 2, 1, tokens_payload([1]), sample=False)
    with pytest.raises(FabricError, match="cannot be cut to 4"):
        executor.truncate("a", 4)
    executor.truncate("a", 2)
    assert executor.length("a") == 2
    with pytest.raises(FabricError, match="sessions are taken"):
        executor.open("b")
    executor.close("a")
    with pytest.raises(FabricError, match="not open"):
        executor.close("a")
