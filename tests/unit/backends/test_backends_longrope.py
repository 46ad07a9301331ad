"""Models with two sets of rotary factors: each session turns by the one that its own longest length asks for."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.backends.direct import run_direct
from inferswarm.strategies.dense.description import BlockKind, Rope
from tests.unit.backends.backends_support import assign, built, small_description

ORIGINAL = 48
LONG = tuple(2.0 + index for index in range(8))
PROMPT = tuple(range(5, 25))
ROPE = Rope(base=10000.0, rotated_size=16, long_factors=LONG, original_positions=ORIGINAL)


def described(rope):
    return msgspec.structs.replace(small_description(), block_kinds=(BlockKind(rope=rope),))


def digests(rope, primitive, session_positions):
    executor = built(assign(described(rope), primitive=primitive, max_positions=96))
    result = run_direct(executor, PROMPT, max_tokens=6, chunk_positions=64, session_positions=session_positions)
    return result.logits_digests


@pytest.mark.parametrize("primitive", ["torch", "reference"])
@pytest.mark.parametrize(
    ("session_positions", "alike"),
    [
        (ORIGINAL, Rope(base=10000.0, rotated_size=16)),
        (ORIGINAL + 1, Rope(base=10000.0, rotated_size=16, factors=LONG)),
        (None, Rope(base=10000.0, rotated_size=16, factors=LONG)),
    ],
    ids=["within", "beyond", "unsaid"],
)
def test_the_factors_are_those_of_the_session_not_of_the_plan(primitive, session_positions, alike):
    assert digests(ROPE, primitive, session_positions) == digests(alike, primitive, session_positions)


def test_sessions_of_both_lengths_live_in_one_executor():
    executor = built(assign(described(ROPE), max_positions=96, sessions=2))
    found = []
    for session, positions in (("short", ORIGINAL), ("long", 96)):
        executor.open(session, session_positions=positions)
        payload = b"".join(token.to_bytes(4, "little") for token in PROMPT)
        found.append(executor.step(session, 0, len(PROMPT), payload, sample=True).logits_digest)
    assert found[0] == digests(ROPE, "torch", ORIGINAL)[0] != found[1] == digests(ROPE, "torch", 96)[0]
