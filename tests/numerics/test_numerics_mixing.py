"""The real model, cut into parts of unlike representations, has the bits of pure parts with conversions between."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch

from inferswarm.backends.direct import run_split_direct
from inferswarm.strategies.dense.model import DenseModel
from tests.mixing import CONVERSIONS, ORDERS, Converted, carrying
from tests.unit.backends.backends_support import assign, built, real_prompts, same_bits

CASES = [
    ((0, 1, 32), ORDERS[0], "raw"),
    ((0, 1, 32), ORDERS[1], "64 tokens"),
    ((0, 16, 32), ORDERS[0], "131 tokens"),
    ((0, 16, 32), ORDERS[1], "several scripts"),
    ((0, 31, 32), ORDERS[0], "65 tokens"),
    ((0, 31, 32), ORDERS[1], "one token"),
    ((0, 1, 31, 32), ("fp32", "bf16", "fp32"), "code"),
    ((0, 7, 20, 32), ("bf16", "fp32", "bf16"), "chat of three turns"),
    ((0, 5, 29, 32), ("fp32", "bf16", "fp32"), "130 tokens"),
]
"""Every position of a cut with every order, every prompt with some of them."""


@pytest.fixture(scope="module")
def model(smollm2_path):
    return DenseModel.open(smollm2_path)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
    gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize(("cuts", "representations", "name"), CASES, ids=str)
def test_a_mixed_chain_of_the_real_model_has_the_bits_of_pure_parts(model, cuts, representations, name):
    problem, prompt = model.problem(), real_prompts(model)[name]
    results = []
    for mixes in (True, False):
        executors, before = [], None
        for (first, end), representation in zip(itertools.pairwise(cuts), representations, strict=True):
            requirement = model.requirement(problem, f"stage-{first}-{end}", first, end)
            part = assign(model.description, first, end, representation=representation, requirement=requirement)
            executor = built(carrying(part) if mixes else part)
            if not mixes and before is not None:
                executor = Converted(executor, CONVERSIONS[before, representation])
            executors.append(executor)
            before = representation
        results.append(run_split_direct(executors, prompt, max_tokens=24, chunk_positions=64))
    assert same_bits(*results)
    assert len(results[0].tokens) == 24
