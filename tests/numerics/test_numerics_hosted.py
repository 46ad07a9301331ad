"""Every family through the transformers backend: equal to the host, equal at every cut, equal to our own blocks."""

from __future__ import annotations

import pytest
import torch

from inferswarm.backends.direct import run_split_direct
from inferswarm.backends.registry import make_executor
from inferswarm.backends.transformers_backend.describing import describe_hosted
from inferswarm.strategies.dense.model import DenseModel
from tests.hosted import FAMILIES, PROMPT, hosted_chain, load_host, run_host, save_family
from tests.matrix_record import CaseName, CaseResult
from tests.unit.backends.backends_support import assign

UNMARKED = ("bloom", "qwen2_moe")
"""A pair that is run each time: blocks that give tuples and slopes instead of rotations; experts, shared and not."""
TOKENS = 12


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def marked(names):
    return [name if name in UNMARKED else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.matrix
@pytest.mark.parametrize("representation", ["fp32", "bf16"])
@pytest.mark.parametrize("family", marked(FAMILIES))
def test_a_family_equals_its_host_whole_and_cut(tmp_path, matrix, family, representation):
    path = save_family(family, tmp_path)
    description, files = describe_hosted(path)
    options = {"representation": representation}

    def generate(*cuts):
        chain = hosted_chain(description, files, *cuts, **options)
        return run_split_direct(chain, PROMPT, max_tokens=TOKENS, chunk_positions=16)

    whole = generate()
    units = range(1, len(description.unit_ids))
    splits = (*((cut,) for cut in units), tuple(units))
    for cuts in splits:
        assert generate(*cuts) == whole, cuts
    tokens, digests = run_host(load_host(path, representation), (*PROMPT, *whole.tokens), whole.steps)
    num_before = len(whole.steps) - TOKENS
    assert whole.tokens == tuple(tokens[num_before:])
    # The host keeps a few numbers of this family in fp32 beside bf16 weights; here a representation is one type.
    same_bits = (family, representation) != ("deepseek_v3", "bf16")
    if same_bits:
        assert whole.logits_digests == tuple(digests[num_before:])
    result = CaseResult(len(PROMPT) + TOKENS - 1, TOKENS, 0, 0.0 if same_bits else None, num_splits=len(splits))
    matrix.add(CaseName(family, "directory", "transformers", representation), result)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
@pytest.mark.parametrize("length", [63, 64, 65, 79, 80, 81])
def test_chunk_and_window_edges_have_no_seams(tmp_path, length, family):
    path = save_family(family, tmp_path)
    description, files = describe_hosted(path)
    prompt = (PROMPT * 3)[:length]
    chain = hosted_chain(description, files, 2, chunk_positions=64)
    results = {run_split_direct(chain, prompt, max_tokens=6, chunk_positions=size).tokens for size in (1, 16, 64)}
    host, ids = load_host(path), list(prompt)
    with torch.inference_mode():
        for _ in range(6):
            ids.append(int(host(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert results == {tuple(ids[length:])}


@pytest.mark.parametrize("family", ["llama", pytest.param("qwen2", marks=pytest.mark.slow)])
def test_our_own_blocks_generate_the_same_tokens(tmp_path, family):
    path = save_family(family, tmp_path)
    described = DenseModel.open(path)
    requirement = described.requirement(described.problem(), "whole", 0, len(described.description.unit_ids))
    own = make_executor(assign(described.description, requirement=requirement, max_positions=128))
    own.materialize(lambda done, total: None)
    hosted = hosted_chain(*describe_hosted(path), 2)
    for prompt in (PROMPT, PROMPT[::-1], PROMPT[:1]):
        ours = run_split_direct((own,), prompt, max_tokens=32, chunk_positions=16)
        theirs = run_split_direct(hosted, prompt, max_tokens=32, chunk_positions=16)
        assert ours.tokens == theirs.tokens
