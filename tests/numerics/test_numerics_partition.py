"""fp32 over other partitions: the tokens stay the same, and how far the logits move is measured.

Tokens may differ only at near-ties, where the reference's margin is below twice the largest difference of any logit;
on these prompts none does.
"""

from __future__ import annotations

import pytest
import torch

from inferswarm.backends.direct import run_direct
from inferswarm.backends.partition import Step
from inferswarm.strategies.dense.model import DenseModel
from tests.unit.backends.backends_support import LogitsRecorder, compare_logits, file_chain, real_prompts, same_bits

pytestmark = pytest.mark.long

CHUNKS = (1, 32, 33, 63, 64, 65, 127, 128, 129, 512)
"""512 is one-shot here, 1 is incremental; the others leave remainders of all kinds, 1 to 3 among them."""
MAX_DIFFERENCE = 1e-3


@pytest.fixture(scope="module")
def model(smollm2_path):
    return DenseModel.open(smollm2_path)


@pytest.fixture(scope="module")
def prompts(model):
    return real_prompts(model)


@pytest.fixture
def record(request, record_testsuite_property):
    """Keep a measured number under the test's name, for whoever asks for a report."""
    return lambda name, value: record_testsuite_property(f"{request.node.name}: {name}", value)


@pytest.fixture(scope="module")
def executor(model):
    torch.set_num_threads(1)
    (whole,) = file_chain(model, (0, 32), chunk_positions=512, max_positions=512)
    return LogitsRecorder(whole)


def run(executor, prompt, tokens, **options):
    executor.rows = []
    return run_direct(executor, prompt, max_tokens=tokens, **options), executor.rows


def replayed_in_chunks(prompt, generated, size):
    """Steps over prompt and answer in chunks, as a replay that does not follow the record would take them."""
    total = len(prompt) + generated - 1
    return tuple(Step(start, min(size, total - start)) for start in range(0, total, size))


def check_partitions(executor, prompt, tokens, chunks, record):
    reference, reference_rows = run(executor, prompt, tokens, chunk_positions=64)
    largest, near_ties, same = 0.0, 0, 0
    for size in chunks:
        result, rows = run(executor, prompt, tokens, chunk_positions=size, forced=reference.tokens[:-1])
        agreement = compare_logits(reference, reference_rows, result, rows)
        assert agreement.violations == (), f"chunks of {size}"
        largest, near_ties = max(largest, agreement.max_difference), near_ties + agreement.near_ties
        same += same_bits(result, reference)
    record("max_abs_logit_difference", largest)
    record("near_ties", near_ties)
    record("partitions_with_equal_bits", f"{same} of {len(chunks)}")
    assert near_ties == 0
    assert largest < MAX_DIFFERENCE
    return reference


@pytest.mark.parametrize("name", ["chat", "130 tokens"])
def test_tokens_are_the_same_over_chunk_sizes(executor, prompts, name, record):
    check_partitions(executor, prompts[name], 8, (1, 33, 65, 127, 512), record)


def test_a_replay_in_other_chunks_continues_with_the_same_tokens(executor, prompts, record):
    prompt = prompts["65 tokens"]
    reference, rows = run(executor, prompt, 12, chunk_positions=64)
    for size in (64, 7):
        steps = replayed_in_chunks(prompt, 12, size)
        replay, replayed_rows = run(
            executor, prompt, 12, chunk_positions=64, steps=steps, forced=reference.tokens[:-1]
        )
        ends = [
            step.start + step.count - len(prompt) for step in replay.steps if step.start + step.count >= len(prompt)
        ]
        assert replay.tokens == tuple(reference.tokens[end] for end in ends)
        largest = max(float(abs(a - rows[end]).max()) for a, end in zip(replayed_rows, ends, strict=True))
        record(f"max_abs_logit_difference_in_chunks_of_{size}", largest)
        assert largest < MAX_DIFFERENCE


def test_the_recorded_partition_has_the_same_bits(executor, prompts):
    prompt = prompts["65 tokens"]
    reference, _ = run(executor, prompt, 12, chunk_positions=64)
    again, _ = run(executor, prompt, 12, chunk_positions=64, steps=reference.steps, forced=reference.tokens)
    assert same_bits(reference, again)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name",
    [
        "raw",
        "code",
        "one token",
        "chat",
        "chat of three turns",
        "several scripts",
        "64 tokens",
        "65 tokens",
        "130 tokens",
        "131 tokens",
    ],
)
def test_tokens_are_the_same_over_every_chunk_size(executor, prompts, name, record):
    reference = check_partitions(executor, prompts[name], 48, CHUNKS, record)
    assert len(reference.tokens) == 48
