"""Gemma-3-270M, real weights: our fp32 tokens against transformers', committed and computed side by side.

Base weights without a chat template, used as test data only.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from inferswarm.backends.direct import run_direct, run_split_direct
from inferswarm.strategies.catalog import resolve_model
from inferswarm.strategies.dense.model import DenseModel
from tests.matrix_record import GEMMA, CaseName, CaseResult
from tests.unit.backends.backends_support import LogitsRecorder, file_chain, same_bits

GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "golden" / "gemma3_tokens.json").read_text())["answers"]
TOLERANCE = 5e-3
"""Of a logit: they lie around 20, and 18 blocks of fp32 sums separate ours from transformers'."""
CHUNK, POSITIONS = 64, 640
TEXTS = (
    *(answer["text"] for answer in GOLDEN),
    "Přelož do češtiny: „naïve café“ — 日本語もどうぞ 🙂",
    "1, 2, 3, 4, 5, 6,",
    "The river ran over the moss and under the roots of the old trees. " * 40,
)
"""The last one is longer than the window of 512 positions."""


@pytest.fixture(scope="module")
def model():
    return DenseModel.open(resolve_model(GEMMA))


@pytest.fixture(scope="module")
def whole(model):
    torch.set_num_threads(1)
    (executor,) = file_chain(model, (0, 20), max_positions=POSITIONS)
    yield executor
    del executor
    gc.collect()


def check(whole, answer, num_tokens):
    run = run_direct(whole, answer["prompt"], max_tokens=num_tokens, chunk_positions=CHUNK)
    assert list(run.tokens) == answer["tokens"][:num_tokens]
    assert np.abs(np.subtract(run.margins, answer["margins"][:num_tokens])).max() < 2 * TOLERANCE


def test_tokens_are_those_of_transformers(whole):
    """Every margin of the record is far larger than what rounding can move."""
    assert min(margin for answer in GOLDEN for margin in answer["margins"]) > 2 * TOLERANCE
    check(whole, GOLDEN[0], 8)


@pytest.mark.slow
@pytest.mark.parametrize("answer", GOLDEN, ids=range(len(GOLDEN)))
def test_every_recorded_token_is_that_of_transformers(whole, answer):
    check(whole, answer, len(answer["tokens"]))


@pytest.mark.slow
@pytest.mark.matrix
def test_a_split_has_the_bits_of_the_whole(model, whole, matrix):
    prompt = GOLDEN[0]["prompt"]
    expected = run_direct(whole, prompt, max_tokens=4, chunk_positions=CHUNK)
    parts = file_chain(model, (0, 7, 20), max_positions=POSITIONS)
    assert same_bits(run_split_direct(parts, prompt, max_tokens=4, chunk_positions=CHUNK), expected)
    matrix.add(CaseName(GEMMA, "gguf", "torch", "split"), CaseResult(len(prompt) + 3, 0, 0, None, num_splits=1))


@pytest.fixture(scope="module")
def transformers_model():
    from tests.golden import make_gemma3_tokens

    return make_gemma3_tokens.load(resolve_model(GEMMA))


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_tokens_and_logits_agree_with_transformers_side_by_side(model, whole, transformers_model, matrix, text):
    prompt = model.text.codec.encode(text)[: POSITIONS - 24]
    recorder = LogitsRecorder(whole)
    run = run_direct(recorder, prompt, max_tokens=24, chunk_positions=CHUNK)
    with torch.inference_mode():
        known = torch.tensor([[*prompt, *run.tokens[:-1]]])
        logits = transformers_model(known, use_cache=False).logits[0, len(prompt) - 1 :].float()
    difference = np.abs(np.stack(recorder.rows) - logits.numpy()).max()
    assert difference < TOLERANCE
    best = logits.topk(2)
    near = (best.values[:, 0] - best.values[:, 1] < 2 * difference).numpy()
    differing = np.array(run.tokens) != best.indices[:, 0].numpy()
    assert not (differing & ~near).any()
    result = CaseResult(len(prompt) + 23, 24, int((differing & near).sum()), float(difference), num_splits=0)
    matrix.add(CaseName(GEMMA, "gguf", "torch", f"text {TEXTS.index(text)}"), result)
