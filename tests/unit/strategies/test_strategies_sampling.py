"""Sampling settings: what is in range, how a person writes them, and that documents survive the way through JSON."""

from __future__ import annotations

import math
from typing import Any

import pytest

from inferswarm.documents import canonical_bytes, read_document
from inferswarm.errors import AdmissionError, SpecError
from inferswarm.strategies.sampling import Sampling, check_stop_strings, choose_sampling

EVERYTHING: dict[str, Any] = {
    "temperature": 0.7,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "presence_penalty": -2.0,
    "frequency_penalty": 2.0,
    "logit_bias": {7: -100.0, 3: 100.0},
    "seed": 2**64 - 1,
    "logprobs": 20,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.01),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.01),
        ("presence_penalty", -2.01),
        ("frequency_penalty", 2.01),
        ("frequency_penalty", math.nan),
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {1: 1.0, "2": 1.0}),
        ("logit_bias", [(1, 1.0)]),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.0),
        ("seed", True),
        ("logprobs", -1),
        ("logprobs", 21),
        ("temprature", 1.0),
    ],
)
def test_what_is_out_of_range_is_refused(field: str, value: object) -> None:
    with pytest.raises(SpecError, match=field):
        choose_sampling(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", ["", "-1", "01", "18446744073709551616", "9" * 10_000, "1.0", "١", "1\n"])
def test_a_seed_is_the_digits_of_a_u64(seed: str) -> None:
    with pytest.raises(ValueError, match="seed"):
        Sampling(temperature=1.0, seed=seed)


def test_an_id_is_biased_once() -> None:
    with pytest.raises(ValueError, match="each token id once"):
        Sampling(logit_bias=((1, 1.0), (1, 2.0)))


def test_the_default_is_greedy_without_anything() -> None:
    plain = choose_sampling()
    assert plain == Sampling()
    assert not plain.is_drawn
    assert not plain.is_penalized
    assert (plain.seed, plain.logprobs, plain.logit_bias) == (None, None, ())


def test_everything_at_its_edges_survives_the_way_through_a_document() -> None:
    chosen = choose_sampling(**EVERYTHING)
    assert read_document(Sampling, canonical_bytes(chosen), "there and back") == chosen
    assert chosen.seed == "18446744073709551615"
    assert chosen.seed_number == 2**64 - 1
    assert chosen.logit_bias == ((3, 100.0), (7, -100.0))


@pytest.mark.parametrize(
    ("arguments", "penalized"),
    [
        ({"repetition_penalty": 1.01}, True),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": -0.1}, True),
        ({"logit_bias": {1: 1.0}, "temperature": 1.0, "seed": 1, "logprobs": 1, "top_k": 1}, False),
    ],
)
def test_only_penalties_look_at_earlier_tokens(arguments: dict[str, Any], penalized: bool) -> None:
    assert choose_sampling(**arguments).is_penalized is penalized


def test_a_missing_seed_is_no_seed() -> None:
    with pytest.raises(SpecError, match="seed"):
        _ = Sampling(temperature=1.0).seed_number
    assert Sampling(temperature=1.0).with_seed(2**64 - 1).seed_number == 2**64 - 1


@pytest.mark.parametrize("stop", [("",), ("a", ""), ("x",) * 17, ("a", "x" * 1025)])
def test_stop_strings_that_cannot_be_are_refused(stop: tuple[str, ...]) -> None:
    with pytest.raises(AdmissionError, match="stop"):
        check_stop_strings(stop)


def test_sixteen_stop_strings_of_a_thousand_characters_are_fine() -> None:
    check_stop_strings(("x" * 1024,) * 16)
