"""The real model, split over participants that only exchange bytes, has the bits of the unsplit execution."""

from __future__ import annotations

import gc
import io
import struct
import subprocess
import sys

import pytest
import torch

from inferswarm.backends.direct import run_direct, run_split_direct
from inferswarm.strategies.dense.model import DenseModel
from tests.unit.backends.backends_support import file_chain, real_prompts, same_bits, tokens_payload

WHOLE = (0, 32)
TWO_STAGES = [(0, 16, 32), (0, 1, 32), (0, 9, 32), (0, 31, 32)]
THREE_STAGES = [(0, 11, 22, 32), (0, 1, 31, 32), (0, 5, 29, 32)]
SAMPLE_CUTS = [(0, 16, 32), (0, 1, 23, 32)]
SAMPLE_PROMPTS = ("chat", "65 tokens")
SAMPLE_TOKENS = 16
ALL_TOKENS = 64


@pytest.fixture(scope="module")
def model(smollm2_path):
    return DenseModel.open(smollm2_path)


@pytest.fixture(scope="module")
def prompts(model):
    return real_prompts(model)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
    gc.collect()


def run_all(executors, prompts, max_tokens):
    return {
        name: run_split_direct(executors, ids, max_tokens=max_tokens, chunk_positions=64)
        for name, ids in prompts.items()
    }


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def sampled(request, model, prompts):
    """The unsplit results of the sample, with their representation."""
    torch.set_num_threads(1)
    chosen = {name: prompts[name] for name in SAMPLE_PROMPTS}
    return (
        request.param,
        chosen,
        run_all(file_chain(model, WHOLE, representation=request.param), chosen, SAMPLE_TOKENS),
    )


@pytest.mark.parametrize("cuts", SAMPLE_CUTS)
def test_a_split_has_the_bits_of_the_whole(model, sampled, cuts):
    representation, chosen, expected = sampled
    executors = file_chain(model, cuts, representation=representation)
    results = run_all(executors, chosen, SAMPLE_TOKENS)
    assert [name for name in chosen if not same_bits(results[name], expected[name])] == []
    assert sum(executor.counters().state_bytes_moved_after_materialization for executor in executors) == 0


@pytest.mark.long
def test_a_replay_by_new_executors_has_the_same_bits(model, sampled):
    """The recorded partition, run again by executors that were built anew."""
    representation, chosen, expected = sampled
    (executor,) = file_chain(model, WHOLE, representation=representation)
    for name, ids in chosen.items():
        recorded = expected[name]
        again = run_direct(
            executor, ids, max_tokens=SAMPLE_TOKENS, chunk_positions=64, steps=recorded.steps, forced=recorded.tokens
        )
        assert same_bits(again, recorded)


_STAGE = """
import struct, sys
from inferswarm.strategies.dense.model import DenseModel
from tests.unit.backends.backends_support import file_chain
path, representation, first, end, threads = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
model, spans = DenseModel.open(path), ((first, end, threads),)
(executor,) = file_chain(model, (first, end), representation=representation, threads=spans)
executor.open("a")
while header := sys.stdin.buffer.read(12):
    start, count, size = struct.unpack("<3i", header)
    output = executor.step("a", start, count, sys.stdin.buffer.read(size), sample=True)
    answer = output.payload if output.payload is not None else output.logits_digest.encode()
    sys.stdout.buffer.write(struct.pack("<3i", start, count, len(answer)) + answer)
"""


def in_a_process(model, representation, first, end, threads, frames):
    """What a stage answers to (start, count, payload) frames in a process that only ever knew one thread count."""
    data = b"".join(struct.pack("<3i", start, count, len(payload)) + payload for start, count, payload in frames)
    command = [sys.executable, "-c", _STAGE, str(model.path), representation, str(first), str(end), str(threads)]
    stream = io.BytesIO(subprocess.run(command, input=data, capture_output=True, check=True).stdout)
    answers = []
    while header := stream.read(12):
        start, count, size = struct.unpack("<3i", header)
        answers.append((start, count, stream.read(size)))
    return answers


@pytest.mark.parametrize(
    ("representation", "name", "cut"),
    [
        pytest.param("bf16", "raw", 4, marks=pytest.mark.long),
        pytest.param("fp32", "chat", 12, marks=pytest.mark.slow),
        pytest.param("bf16", "65 tokens", 31, marks=pytest.mark.slow),
    ],
)
def test_switching_threads_in_one_process_has_the_bits_of_processes_with_one_count_each(
    model, prompts, representation, name, cut
):
    ids = prompts[name]
    spans = ((0, cut, 2), (cut, 32, 1))
    whole = run_all(file_chain(model, WHOLE, representation=representation, threads=spans), {"it": ids}, 4)["it"]
    known = [*ids, *whole.tokens]
    frames = [
        (step.start, step.count, tokens_payload(known[step.start : step.start + step.count])) for step in whole.steps
    ]
    boundaries = in_a_process(model, representation, 0, cut, 2, frames)
    answers = in_a_process(model, representation, cut, 32, 1, boundaries)
    sampled = [digest.decode() for start, count, digest in answers if start + count >= len(ids)]
    assert tuple(sampled) == whole.logits_digests


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def everything(request, model, prompts):
    """The unsplit results of every prompt, with their representation."""
    torch.set_num_threads(1)
    (whole,) = file_chain(model, WHOLE, representation=request.param)
    return request.param, run_all((whole,), prompts, ALL_TOKENS)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("cuts", TWO_STAGES + THREE_STAGES)
def test_every_prompt_over_every_cut_has_the_bits_of_the_whole(model, prompts, everything, cuts):
    representation, expected = everything
    assert all(len(result.tokens) == ALL_TOKENS for result in expected.values())
    results = run_all(file_chain(model, cuts, representation=representation), prompts, ALL_TOKENS)
    assert [name for name in prompts if not same_bits(results[name], expected[name])] == []
