"""The torch backend against two independent decoders on the same weights: Hugging Face's Llama and our reference."""

from __future__ import annotations

import math
import warnings

import gguf
import numpy as np
import pytest
import torch

from inferswarm.backends.direct import run_direct
from inferswarm.strategies.dense.model import DenseModel
from tests.checkpoints import BLOCK_NAMES
from tests.unit.backends.backends_support import LogitsRecorder, compare_logits, file_chain, real_prompts

pytestmark = pytest.mark.long

TOKENS = 64
PROMPTS = (
    "chat",
    "130 tokens",
    "raw",
    "code",
    "one token",
    "chat of three turns",
    "several scripts",
    "64 tokens",
    "65 tokens",
    "131 tokens",
)


@pytest.fixture(scope="module")
def model(smollm2_path):
    return DenseModel.open(smollm2_path)


@pytest.fixture
def record(request, record_testsuite_property):
    """Keep a measured number under the test's name, for whoever asks for a report."""
    return lambda name, value: record_testsuite_property(f"{request.node.name}: {name}", value)


@pytest.fixture(scope="module")
def executor(model):
    torch.set_num_threads(1)
    (whole,) = file_chain(model, (0, 32))
    return LogitsRecorder(whole)


def dequantized(path, heads_of):
    """Every tensor by Hugging Face's name; rows of query and key from neighboring pairs to halves."""
    states = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = values.reshape(tuple(int(size) for size in reversed(tensor.shape)))
        if tensor.name == "token_embd.weight":
            name = "model.embed_tokens.weight"
        elif tensor.name == "output_norm.weight":
            name = "model.norm.weight"
        else:
            _, index, part, _ = tensor.name.split(".")
            name = f"model.layers.{index}.{BLOCK_NAMES[part]}.weight"
            if part in heads_of:
                rows, columns = values.shape
                halves = rows // heads_of[part] // 2
                values = values.reshape(heads_of[part], halves, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        states[name] = torch.from_numpy(np.array(values, dtype=np.float32, order="C"))
    return states


@pytest.fixture(scope="module")
def huggingface(model):
    """Hugging Face's Llama of the model's sizes with the file's own numbers, in fp32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM
    sizes = model.description
    config = LlamaConfig(
        vocab_size=sizes.vocabulary_size,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.feed_forward_size,
        num_hidden_layers=sizes.num_blocks,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        head_dim=sizes.head_size,
        max_position_embeddings=sizes.context_positions,
        rms_norm_eps=sizes.norm_epsilon,
        rope_theta=sizes.block_kinds[0].rope.base,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.block_kinds[0].rope.base},
        tie_word_embeddings=sizes.tied_head,
        attn_implementation="eager",
        dtype="float32",
    )
    with torch.device("meta"):
        theirs = LlamaForCausalLM(config)
    theirs = theirs.to_empty(device="cpu").float().eval()
    states = dequantized(model.path, {"attn_q": sizes.num_heads, "attn_k": sizes.num_key_value_heads})
    missing, unexpected = theirs.load_state_dict(states, strict=False)
    assert (set(missing), set(unexpected)) == ({"lm_head.weight"}, set())
    theirs.tie_weights()
    rotary = theirs.model.rotary_emb
    exponents = torch.arange(0, sizes.head_size, 2, dtype=torch.int64).float() / sizes.head_size
    # buffers made on the meta device hold nothing: what the library itself computes is put in their place
    rotary.inv_freq = 1.0 / (sizes.block_kinds[0].rope.base ** exponents)
    assert rotary.attention_scaling == 1.0
    return theirs


@torch.inference_mode()
def their_answer(theirs, prompt, max_tokens):
    """Greedy tokens, their margins and the logits of each position."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what they will rename next
        answer = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    rows = [logits[0].numpy() for logits in answer.logits]
    ordered = [np.partition(row, (-2, -1))[-2:] for row in rows]
    tokens = tuple(answer.sequences[0, len(prompt) :].tolist())
    assert tokens == tuple(int(row.argmax()) for row in rows)
    return tokens, tuple(float(best - second) for second, best in ordered), rows


def agree(executor, huggingface, prompt, record):
    tokens, margins, their_rows = their_answer(huggingface, prompt, TOKENS)
    executor.rows = []
    ours = run_direct(executor, prompt, max_tokens=TOKENS, chunk_positions=64, forced=tokens[:-1])
    theirs = ours._replace(tokens=tokens, margins=margins)
    agreement = compare_logits(theirs, their_rows, ours, executor.rows)
    record("max_abs_logit_difference", agreement.max_difference)
    assert ours.tokens == tokens
    assert agreement.max_difference < 1e-3
    assert math.isfinite(agreement.max_difference)


@pytest.mark.parametrize("name", PROMPTS[:2])
def test_tokens_equal_those_of_hugging_face(model, executor, huggingface, name, record):
    agree(executor, huggingface, real_prompts(model)[name], record)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMPTS[2:])
def test_tokens_equal_those_of_hugging_face_on_every_prompt(model, executor, huggingface, name, record):
    agree(executor, huggingface, real_prompts(model)[name], record)


def test_tokens_equal_those_of_the_reference_backend(model, executor, record):
    prompt = real_prompts(model)["chat"]
    (reference,) = file_chain(model, (0, 32), primitive="reference")
    plain = LogitsRecorder(reference)
    expected = run_direct(plain, prompt, max_tokens=6, chunk_positions=64)
    executor.rows = []
    found = run_direct(executor, prompt, max_tokens=6, chunk_positions=64)
    agreement = compare_logits(expected, plain.rows, found, executor.rows)
    record("max_abs_logit_difference", agreement.max_difference)
    assert found.tokens == expected.tokens
    assert agreement.max_difference < 1e-3
