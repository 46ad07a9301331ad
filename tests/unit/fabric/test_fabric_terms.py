"""What OPEN and RESULT frames carry of a session's sampling, and who makes a sampler of it."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from inferswarm.backends.base import StepOutput
from inferswarm.backends.sampling import make_sampler
from inferswarm.fabric.frames import FrameKind as K
from inferswarm.fabric.frames import encode
from inferswarm.fabric.terms import ResultBody, SessionTerms
from inferswarm.strategies.sampling import choose_sampling
from tests.unit.fabric.stage_ring import PlainExecutor, Single


def make(index: int, num_stages: int = 2) -> tuple[Single, PlainExecutor]:
    executor = PlainExecutor(is_last=index == num_stages - 1)
    return Single(executor, index, num_stages), executor


def test_a_result_holds_the_log_probabilities_that_the_executor_gave() -> None:
    stage, executor = make(0, 1)
    stage.open(prompt=3, max_tokens=1)
    executor.output = StepOutput(token=7, logits_digest="d", margin=0.5, logprobs=((7, -0.25), (3, -1.5)))
    stage.send(K.INPUT, position=0, count=3, sample=True, payload=bytes(12))
    body = msgspec.msgpack.decode(stage.results.frames[-1].payload, type=ResultBody)
    assert body.logprobs == ((7, -0.25), (3, -1.5))


def test_the_terms_reach_the_last_stage_and_only_it_makes_a_sampler() -> None:
    sampling = choose_sampling(temperature=0.5, repetition_penalty=2.0, seed=2**64 - 1, logit_bias={4: 1.0})
    first, early = make(0)
    terms = SessionTerms(2, 5, 99, (), 1, sampling, (1, 2, 3))
    first.send(K.OPEN, payload=msgspec.msgpack.encode(terms))
    (passed,) = first.following.frames
    assert msgspec.msgpack.decode(passed.payload, type=SessionTerms) == terms
    last, late = make(1)
    last.handle(encode(passed.header, passed.payload))
    assert early.samplers == {"1": None}
    sampler, direct = late.samplers["1"], make_sampler(sampling, (1, 2, 3), 2)
    assert sampler is not None
    logits = np.linspace(0, 3, 12, dtype=np.float32)
    for position in range(3, 20):
        assert sampler.draw(logits, position) == direct.draw(logits, position)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": -1.0},
        {"temperature": 1.0, "seed": "18446744073709551616"},
        {"top_p": 0.0},
        {"logit_bias": [[1, 101.0]]},
        {"warmth": 1.0},
    ],
)
def test_terms_with_settings_that_cannot_be_open_nothing(sampling: dict[str, object]) -> None:
    stage, executor = make(1)
    stage.send(K.OPEN, payload=msgspec.msgpack.encode([3, 5, 99, [], 1, sampling]))
    assert stage.path.refusals == {"MALFORMED_PAYLOAD": 1}
    assert executor.lengths == {}


def test_drawing_without_a_seed_is_a_fault_and_opens_nothing() -> None:
    stage, executor = make(1)
    stage.send(K.OPEN, payload=msgspec.msgpack.encode([3, 5, 99, [], 1, {"temperature": 1.0}]))
    assert stage.results.kinds() == [K.FAULT]
    assert executor.lengths == {}


@pytest.mark.parametrize(
    ("margin", "logprobs", "usable"),
    [
        (0.5, None, True),
        (0.5, ((1, -0.1), (2, -3.0)), True),
        (math.nan, None, False),
        (math.inf, None, False),
        (0.5, ((1, -0.1), (2, -math.inf)), False),
        (0.5, ((1, math.nan),), False),
    ],
)
def test_a_result_without_numbers_is_not_usable(
    margin: float, logprobs: tuple[tuple[int, float], ...] | None, usable: bool
) -> None:
    sent = msgspec.msgpack.encode(ResultBody(1, "d", margin, logprobs))
    assert (msgspec.msgpack.decode(sent, type=ResultBody).first_unusable() is None) is usable
