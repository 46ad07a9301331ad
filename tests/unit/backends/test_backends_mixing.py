"""Chains whose parts compute in different representations have the bits of pure parts and conversions between them.

The other side of every comparison is made of executors that know one representation only; what passes between them is
converted in `tests.mixing`, by integer arithmetic on the numbers' bits.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from inferswarm.backends.direct import run_direct, run_split_direct
from inferswarm.backends.registry import make_executor
from inferswarm.backends.sessions import payload_bytes
from inferswarm.backends.torch_backend.device import torch_device
from inferswarm.backends.torch_backend.payloads import Payloads
from inferswarm.backends.transformers_backend.describing import describe_hosted
from inferswarm.errors import SpecError
from tests.hosted import PROMPT as HOSTED_PROMPT
from tests.hosted import hosted_assignment, save_family
from tests.mixing import CONVERSIONS, ORDERS, Converted, carrying, rounded, widened
from tests.unit.backends.backends_support import assign, built, same_bits, small_description
from tests.unit.backends.variations import ALL, described

PROMPT = [(17 * index + 3) % 320 for index in range(41)]
RUN = {"max_tokens": 6, "chunk_positions": 16}
"""A prompt of three chunks, the last one short, and five single steps."""


def mixed_chain(description, cuts, representations, **options):
    """Executors of the units between the cuts, each in its own representation, with payloads in fp32."""
    parts = zip(itertools.pairwise(cuts), representations, strict=True)
    return [built(carrying(assign(description, *edges, representation=name, **options))) for edges, name in parts]


def converted_chain(description, cuts, representations, **options):
    """As `mixed_chain`, of executors that know nothing of payloads in another representation."""
    executors, before = [], None
    for edges, name in zip(itertools.pairwise(cuts), representations, strict=True):
        executor = built(assign(description, *edges, representation=name, **options))
        executors.append(executor if before in (None, name) else Converted(executor, CONVERSIONS[before, name]))
        before = name
    return executors


# -- numbers --


def payloads(representation, payload="fp32"):
    assignment = carrying(assign(small_description(), 1, 3, representation=representation), payload)
    return Payloads(assignment, torch_device("cpu"))


def padded(bits, width):
    """The bytes of numbers, filled up to whole hidden states of 64."""
    return np.concatenate((bits, np.zeros(-len(bits) % 64, dtype=bits.dtype))).astype(f"<u{width}").tobytes()


def test_every_finite_bf16_number_passes_as_fp32_and_back_unchanged():
    every = np.arange(2**16, dtype="<u2")
    data = every[(every & 0x7F80) != 0x7F80].tobytes()
    hidden = payloads("bf16", "bf16").read(len(data) // 128, data)
    carried = payloads("bf16").write(hidden)
    assert carried == widened(data)
    assert payloads("bf16", "bf16").write(payloads("bf16").read(len(carried) // 256, carried)) == data


def test_fp32_numbers_are_rounded_to_the_nearest_bf16_and_halves_to_even():
    chance = np.random.default_rng(5)
    halves = (np.arange(0x3F70, 0x3F90, dtype=np.uint32) << 16) | 0x8000
    edges = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x007FFFFF, 0x7F7F7FFF, 0x7F7FFFFF], dtype=np.uint32)
    drawn = chance.integers(0, 0x7F800000, 20_000, dtype=np.uint32)
    bits = np.concatenate((halves, halves + 1, halves - 1, edges, drawn))
    data = padded(np.concatenate((bits, bits | np.uint32(0x80000000))), 4)
    read = payloads("bf16").read(len(data) // 256, data)
    assert payloads("bf16", "bf16").write(read) == rounded(data)


def test_what_is_no_number_stays_none():
    data = padded(np.array([0x7FC00000, 0x7F800001, 0xFF800000], dtype=np.uint32), 4)
    read = payloads("bf16").read(1, data).float().numpy().reshape(-1)
    assert np.isnan(read[:2]).all()
    assert read[2] == -np.inf


@pytest.mark.parametrize("representation", ["bf16", "fp32"])
def test_a_payload_may_lie_anywhere(representation):
    data = np.random.default_rng(1).standard_normal(64, dtype=np.float32).tobytes()
    shifted = memoryview(b"x" + data)[1:]
    reader = payloads(representation)
    assert reader.write(reader.read(1, shifted)) == reader.write(reader.read(1, data))


# -- chains --


def drawn_cases(name):
    """An order of representations and positions of one and of two cuts, drawn for a variation."""
    chance = random.Random(name)
    cut = chance.randint(1, 5)
    yield (0, cut, 6), chance.choice(ORDERS)
    first, second = sorted(chance.sample(range(1, 6), 2))
    low, high = chance.choice(ORDERS)
    yield (0, first, second, 6), (low, high, low)


def assert_mixed(description, cuts, representations):
    expected = run_split_direct(converted_chain(description, cuts, representations), PROMPT, **RUN)
    found = run_split_direct(mixed_chain(description, cuts, representations), PROMPT, **RUN)
    assert same_bits(found, expected), (cuts, representations)
    return found


@pytest.mark.parametrize("name", ALL)
def test_a_mixed_chain_has_the_bits_of_pure_parts_with_conversions_between(name):
    for cuts, representations in drawn_cases(name):
        assert_mixed(described(name), cuts, representations)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_pair_of_cuts_in_every_order_has_the_bits_of_pure_parts(name):
    description = described(name)
    for cuts in [(cut,) for cut in range(1, 6)] + list(itertools.combinations(range(1, 6), 2)):
        for low, high in ORDERS:
            assert_mixed(description, (0, *cuts, 6), ((low, high), (low, high, low))[len(cuts) - 1])


@pytest.mark.parametrize("representations", ORDERS)
def test_a_mixed_chain_is_no_pure_one(representations):
    description = small_description()
    mixed = assert_mixed(description, (0, 3, 6), representations)
    for representation in ("fp32", "bf16"):
        pure = run_direct(built(assign(description, representation=representation)), PROMPT, **RUN)
        assert not set(pure.logits_digests) & set(mixed.logits_digests)


@pytest.mark.parametrize(("low", "high"), ORDERS)
def test_cuts_among_units_of_one_representation_change_no_bit(low, high):
    description = small_description()
    threads = [(0, 2, 1), (2, 5, 2), (5, 6, 1)]
    expected = run_split_direct(mixed_chain(description, (0, 3, 6), (low, high), threads=threads), PROMPT, **RUN)
    for cuts, representations in [
        ((0, 1, 3, 6), (low, low, high)),
        ((0, 3, 4, 5, 6), (low, high, high, high)),
        ((0, 1, 2, 3, 4, 5, 6), (low,) * 3 + (high,) * 3),
    ]:
        chain = mixed_chain(description, cuts, representations, threads=threads)
        assert same_bits(run_split_direct(chain, PROMPT, **RUN), expected), cuts


def test_a_chain_that_carries_more_than_it_computes_in_has_the_bits_of_the_whole():
    description = small_description()
    whole = run_direct(built(assign(description, representation="bf16")), PROMPT, **RUN)
    assert same_bits(run_split_direct(mixed_chain(description, (0, 2, 4, 6), ["bf16"] * 3), PROMPT, **RUN), whole)


@pytest.mark.parametrize("representations", ORDERS)
def test_a_recorded_partition_is_computed_again_by_its_steps(representations):
    chain = mixed_chain(small_description(), (0, 3, 6), representations)
    answer = run_split_direct(chain, PROMPT, **RUN)
    again = run_split_direct(chain, PROMPT, **RUN, steps=answer.steps, forced=answer.tokens)
    assert same_bits(again, answer)


def test_parts_that_compute_nothing_pass_payloads_of_the_common_width():
    description = small_description()
    alone = run_direct(built(assign(description, primitive="null")), PROMPT, **RUN)
    chain = mixed_chain(description, (0, 3, 6), ("bf16", "fp32"), primitive="null")
    assert same_bits(run_split_direct(chain, PROMPT, **RUN), alone)
    assert payload_bytes(carrying(assign(description, 3, 6, representation="bf16")), 2) == 2 * 64 * 4


# -- hosted models --


@pytest.mark.parametrize(("family", "representations"), [("gemma3_text", ORDERS[0]), ("gpt_neox", ORDERS[1])])
def test_a_mixed_chain_of_a_hosted_model_has_the_bits_of_pure_parts(tmp_path, family, representations):
    description, files = describe_hosted(save_family(family, tmp_path))
    pure, mixed = [], []
    for (first, end), name in zip(((0, 2), (2, 5)), representations, strict=True):
        assignment = hosted_assignment(description, files, first, end, representation=name)
        pure.append(built(assignment))
        mixed.append(built(carrying(assignment)))
    pure[1] = Converted(pure[1], CONVERSIONS[representations])
    found = run_split_direct(mixed, HOSTED_PROMPT, **RUN)
    assert same_bits(found, run_split_direct(pure, HOSTED_PROMPT, **RUN))
    alone = run_direct(built(hosted_assignment(description, files, representation="bf16")), HOSTED_PROMPT, **RUN)
    assert not set(found.logits_digests) & set(alone.logits_digests)


# -- refusals --


@pytest.mark.parametrize(("representation", "payload"), [("fp32", "bf16"), ("bf16", "int8")])
def test_payloads_that_do_not_hold_what_is_computed_are_refused(representation, payload):
    with pytest.raises(SpecError) as refused:
        make_executor(carrying(assign(small_description(), representation=representation), payload))
    assert (refused.value.field, refused.value.found) == ("payload representation", payload)
