"""What a sampler draws: exact small cases, the random numbers, the distribution, and what may not matter."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from inferswarm.backends.candidates import candidates_of, most_likely
from inferswarm.backends.direct import run_split_direct
from inferswarm.backends.philox import philox, uniform
from inferswarm.backends.sampling import GREEDY, make_sampler
from inferswarm.errors import FabricError, SpecError
from inferswarm.strategies.sampling import Sampling, choose_sampling
from tests.unit.backends.sampling_definition import at, distribution

F32 = np.float32


def row(*logits: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(logits, F32)


# -- random numbers --


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(counter: Any, key: Any, words: Any) -> None:
    assert philox(counter, key) == words


def test_a_uniform_number_is_53_bits_of_the_first_two_words() -> None:
    assert uniform(0, 0) == (0x6627E8D5E169C58D >> 11) / 2**53
    seed, position = 0x299F31D0A4093822, 0x85A308D3243F6A88
    first, second, _, _ = philox((0x243F6A88, 0x85A308D3, 0, 0), (0xA4093822, 0x299F31D0))
    assert uniform(seed, position) == (first << 32 | second) // 2**11 / 2**53


def test_uniform_numbers_are_uniform_over_positions_and_over_seeds() -> None:
    for numbers in ([uniform(5, index) for index in range(20_000)], [uniform(index, 5) for index in range(20_000)]):
        assert all(0 <= number < 1 for number in numbers)
        assert stats.kstest(numbers, "uniform").pvalue > 1e-3
        neighbors = stats.pearsonr(numbers[:-1], numbers[1:])
        assert neighbors.pvalue > 1e-3


# -- exact small cases --

EVEN = row(*np.log([0.1, 0.2, 0.3, 0.4]))


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 2}, [2, 3]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.39}, [3]),
        ({"top_p": 0.41}, [2, 3]),
        ({"top_p": 0.69}, [2, 3]),
        ({"top_p": 0.71}, [1, 2, 3]),
        ({"min_p": 0.24}, [0, 1, 2, 3]),
        ({"min_p": 0.26}, [1, 2, 3]),
        ({"min_p": 1.0}, [3]),
        ({"top_k": 3, "top_p": 0.75}, [2, 3]),  # 0.4 + 0.3 of 0.9: 0.78
        ({"top_k": 3, "top_p": 0.79}, [1, 2, 3]),
        ({"temperature": 0.5, "top_p": 0.8}, [2, 3]),  # 16 + 9 of 30
        ({"temperature": 2.0, "top_p": 0.8}, [1, 2, 3]),
        ({"temperature": 0.5, "min_p": 0.3}, [2, 3]),  # 9 / 16, 4 / 16
        ({"temperature": 2.0, "min_p": 0.55}, [1, 2, 3]),  # square roots
    ],
)
def test_each_filter_keeps_exactly_these(arguments: dict[str, Any], kept: list[int]) -> None:
    sampling = choose_sampling(**{"temperature": 1.0, "seed": 1, **arguments})
    candidates = candidates_of(EVEN, sampling)
    ids = list(range(4)) if candidates.ids is None else candidates.ids.tolist()
    assert ids == kept


@pytest.mark.parametrize(
    ("fraction", "token"), [(0.0, 0), (0.0999, 0), (0.1001, 1), (0.2999, 1), (0.3001, 2), (0.5999, 2), (0.6001, 3)]
)
def test_the_inverse_goes_through_the_ids_in_order(fraction: float, token: int) -> None:
    assert candidates_of(EVEN, choose_sampling(temperature=1.0, seed=1)).at(fraction) == token


def test_a_fraction_on_the_border_of_two_tokens_belongs_to_the_second() -> None:
    candidates = candidates_of(row(0, 0, 0, 0), choose_sampling(temperature=1.0, seed=1))
    assert [candidates.at(fraction) for fraction in (0.0, 0.25, 0.5, 0.75)] == [0, 1, 2, 3]


def test_the_largest_fraction_draws_the_last_token_that_has_a_weight() -> None:
    candidates = candidates_of(row(0, 0, -1e4), choose_sampling(temperature=1.0, seed=1))
    assert candidates.at(1 - 2**-53) == 1
    for size in range(1, 200):
        even = candidates_of(np.linspace(0, 3, size, dtype=F32), choose_sampling(temperature=1.0, seed=1))
        assert even.at(1 - 2**-53) == size - 1


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [({"top_k": 2}, [0, 1]), ({"top_k": 3}, [0, 1, 3]), ({"top_p": 0.45}, [0, 1]), ({"top_p": 0.2}, [0])],
)
def test_the_lowest_ids_win_ties_at_a_boundary(arguments: dict[str, Any], kept: list[int]) -> None:
    candidates = candidates_of(row(1, 1, -9, 1, 1), choose_sampling(temperature=1.0, seed=1, **arguments))
    assert candidates.ids is not None
    assert candidates.ids.tolist() == kept


@pytest.mark.parametrize(
    ("arguments", "history", "prompt_tokens", "token"),
    [
        ({"logit_bias": {1: 0.5}}, (), 0, 1),
        ({"logit_bias": {1: 0.5, 2: 0.5}}, (), 0, 1),  # a tie: 3.0 and 3.0 against 2.5
        ({"logit_bias": {0: -100.0}}, (), 0, 1),
        ({"repetition_penalty": 2.0}, (0,), 1, 1),  # 2.5 / 2 against 2.5, the lower id
        ({"repetition_penalty": 0.5}, (3,), 1, 0),  # -1 * 0.5 is still below
        ({"repetition_penalty": 0.5}, (2,), 1, 2),  # 2.5 / 0.5
        ({"presence_penalty": 1.0}, (0,), 1, 0),  # the prompt does not count
        ({"presence_penalty": 1.0}, (0,), 0, 1),  # an answer does
        ({"frequency_penalty": 0.2}, (0, 0), 1, 1),
        ({"frequency_penalty": 0.2}, (1, 0, 2, 2), 1, 1),  # the prompt's 1 does not count
        ({"presence_penalty": -1.0}, (9, 3), 1, 0),  # -1 + 1 does not suffice
        ({"presence_penalty": -1.0, "logit_bias": {3: 3.0}}, (9, 3), 1, 3),
    ],
)
def test_greedy_takes_the_best_after_penalties_and_biases(
    arguments: dict[str, Any], history: tuple[int, ...], prompt_tokens: int, token: int
) -> None:
    logits = row(2.5, 2.5, 2.5, -1, *[-9] * 6)
    sampler = make_sampler(choose_sampling(**arguments), history, prompt_tokens)
    assert sampler.draw(logits, len(history)).token == token


def test_negative_logits_are_multiplied_by_the_repetition_penalty() -> None:
    logits = row(-1.0, -1.5)
    assert make_sampler(choose_sampling(repetition_penalty=1.4), (0,)).draw(logits, 1).token == 0
    assert make_sampler(choose_sampling(repetition_penalty=1.6), (0,)).draw(logits, 1).token == 1


def test_an_id_that_comes_twice_is_penalized_once_for_repetition() -> None:
    logits = row(4.0, 1.5)
    assert make_sampler(choose_sampling(repetition_penalty=2.0), (0, 0, 0)).draw(logits, 3).token == 0


# Each of these changes when two neighboring operations change places.
@pytest.mark.parametrize(
    ("arguments", "logits", "history", "allowed"),
    [
        # the repetition penalty, then presence: 4 / 2 - 2 = 0 < 0.5; otherwise (4 - 2) / 2 = 1
        ({"repetition_penalty": 2.0, "presence_penalty": 2.0}, (4.0, 0.5), (9, 0), {1}),
        # frequency, then biases, which no penalty touches: 4 / 2 + 3 = 5 > 4.5; otherwise 7 / 2
        ({"repetition_penalty": 2.0, "logit_bias": {0: 3.0}}, (4.0, 4.5), (9, 0), {0}),
        # a penalty keeps its sign by the raw logit: -1 * 2 + 5 = 3 > 2.2; otherwise (-1 + 5) / 2
        ({"repetition_penalty": 2.0, "logit_bias": {0: 5.0}}, (-1.0, 2.2), (9, 0), {0}),
        # biases, then temperature: otherwise the bias would count four times as much
        ({"logit_bias": {1: 1.0}, "temperature": 4.0, "top_k": 1}, (1.5, 0.0), (), {0}),
        # biases, then top-k
        ({"logit_bias": {2: 5.0}, "temperature": 1.0, "top_k": 1}, (3.0, 2.0, 1.0), (), {2}),
        # penalties, then top-k
        ({"presence_penalty": 2.0, "temperature": 1.0, "top_k": 1}, (3.0, 2.0, 1.0), (9, 0), {1}),
    ],
)
def test_the_order_of_operations_decides(
    arguments: dict[str, Any], logits: tuple[float, ...], history: tuple[int, ...], allowed: set[int]
) -> None:
    padded = row(*logits, *[-50.0] * (10 - len(logits)))
    drawn = set()
    for seed in range(50):
        sampler = make_sampler(choose_sampling(**{"seed": seed, **arguments}), history, min(1, len(history)))
        drawn.add(sampler.draw(padded, len(history)).token)
    assert drawn == allowed


def test_temperature_comes_before_top_p_and_min_p() -> None:
    logits = row(*np.log([0.5, 0.3, 0.2]))
    hot = {"temperature": 10.0, "seed": 1}  # about 0.35, 0.33, 0.32
    assert len(candidates_of(logits, choose_sampling(top_p=0.79, **hot)).weights) == 3
    assert len(candidates_of(logits, choose_sampling(min_p=0.5, **hot)).weights) == 3


def test_top_p_counts_what_top_k_left_and_min_p_comes_last() -> None:
    logits = row(*np.log([0.4, 0.2, 0.2, 0.1, 0.1]))
    both = candidates_of(logits, choose_sampling(temperature=1.0, seed=1, top_k=2, top_p=0.66))
    assert both.ids is not None
    assert both.ids.tolist() == [0]  # 0.4 of 0.6; of everything it would be 0.4
    last = candidates_of(logits, choose_sampling(temperature=1.0, seed=1, top_p=0.45, min_p=0.3))
    assert last.ids is not None
    assert last.ids.tolist() == [0, 1]  # with min-p first, 0.4 of 0.8 would reach 0.45 alone


# -- the distribution --

SKEWED = np.random.default_rng(11).normal(0, 1.5, 40).astype(F32)
NUM_DRAWS = 20_000


@pytest.mark.parametrize(
    "arguments",
    [
        {"temperature": 1.0},
        {"temperature": 0.4},
        {"temperature": 3.0},
        {"temperature": 1.0, "top_k": 7},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.0, "logit_bias": {3: 4.0, 5: -2.0}},
        {"temperature": 1.0, "repetition_penalty": 1.7},
        {"temperature": 1.0, "presence_penalty": 1.0, "frequency_penalty": 0.5},
        {
            "temperature": 1.3,
            "top_k": 25,
            "top_p": 0.9,
            "min_p": 0.02,
            "repetition_penalty": 1.2,
            "presence_penalty": 0.4,
            "frequency_penalty": -0.3,
            "logit_bias": {1: 1.0},
        },
    ],
    ids=lambda arguments: "+".join(arguments),
)
def test_draws_follow_the_definition(arguments: dict[str, Any]) -> None:
    prompt, answer = (1, 2, 3, 3), (5, 5, 8, 1)
    sampling = choose_sampling(seed=2024, **arguments)
    expected = distribution(SKEWED.tolist(), sampling, prompt, answer)
    fraction = uniform(2024, 8)
    sampler = make_sampler(sampling, (*prompt, *answer), len(prompt))
    assert sampler.draw(SKEWED, 8).token == at(expected, fraction)
    drawn = _draw_many(sampling, (*prompt, *answer), len(prompt))
    assert set(drawn) <= set(expected)
    likely = [token for token, probability in expected.items() if probability * NUM_DRAWS >= 5]
    rest = NUM_DRAWS - sum(drawn[token] for token in likely)
    observed = [drawn[token] for token in likely] + ([rest] if len(likely) < len(expected) else [])
    wanted = [expected[token] * NUM_DRAWS for token in likely]
    wanted += [NUM_DRAWS - sum(wanted)] if len(likely) < len(expected) else []
    assert stats.chisquare(observed, wanted, sum_check=False).pvalue > 1e-3


def _draw_many(sampling: Sampling, history: tuple[int, ...], prompt_tokens: int) -> Counter[int]:
    """Draw at one position with many seeds when history counts, at many positions with one seed otherwise."""
    if not sampling.is_penalized:
        sampler = make_sampler(sampling)
        return Counter(sampler.draw(SKEWED, position).token for position in range(NUM_DRAWS))
    return Counter(
        make_sampler(sampling.with_seed(seed), history, prompt_tokens).draw(SKEWED, len(history)).token
        for seed in range(NUM_DRAWS)
    )


# -- properties --

LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40)
ARGUMENTS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-300, 1e-3, 0.3, 1.0, 2.5, 1e6]),
        "top_k": st.integers(0, 45),
        "top_p": st.one_of(st.just(1.0), st.floats(1e-6, 1.0)),
        "min_p": st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
        "repetition_penalty": st.sampled_from([1.0, 0.5, 1.3, 1e-300, 1e300]),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(st.integers(0, 0), st.floats(-100, 100)),
        "seed": st.integers(0, 2**64 - 1),
    }
)


@settings(max_examples=300, deadline=None)
@given(LOGITS, ARGUMENTS, st.data())
def test_a_token_is_one_that_the_definition_allows(
    logits: list[float], arguments: dict[str, Any], data: st.DataObject
) -> None:
    sampling = choose_sampling(**arguments)
    token = st.integers(0, len(logits) - 1)
    prompt, answer = data.draw(st.lists(token, max_size=5)), data.draw(st.lists(token, max_size=5))
    values = np.array(logits, F32)
    history = (*prompt, *answer)
    drawn = make_sampler(sampling, history, len(prompt)).draw(values, len(history)).token
    if sampling.top_p == 1 and 1e-200 < sampling.repetition_penalty < 1e200:
        assert drawn in distribution(values.tolist(), sampling, prompt, answer)
    again = make_sampler(sampling, history, len(prompt)).draw(values.copy(), len(history)).token
    assert drawn == again


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([-1.0, 0.0, -0.0, 0.5, 2.0]), min_size=1, max_size=60), st.integers(1, 70))
def test_the_most_likely_are_those_of_a_full_sort(logits: list[float], count: int) -> None:
    expected = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:count]
    assert most_likely(np.array(logits, F32), count).tolist() == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-12, 12, width=32), min_size=1, max_size=60), st.floats(1e-9, 1, exclude_max=True))
def test_the_nucleus_is_the_shortest_prefix_of_the_ranking(logits: list[float], top_p: float) -> None:
    sampling = choose_sampling(temperature=1.0, seed=0, top_p=top_p)
    candidates = candidates_of(np.array(logits, F32), sampling)
    assert candidates.ids is not None
    count = len(candidates.ids)
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    assert candidates.ids.tolist() == sorted(ranked[:count])
    weights = [math.exp(logits[token] - logits[ranked[0]]) for token in ranked]
    total = math.fsum(weights)
    assert math.fsum(weights[:count]) >= top_p * total * (1 - 1e-12)
    assert math.fsum(weights[: count - 1]) <= top_p * total * (1 + 1e-12)


def test_other_seeds_and_other_positions_give_other_tokens() -> None:
    flat = np.zeros(100_000, F32)
    by_seed = {make_sampler(choose_sampling(temperature=1.0, seed=seed)).draw(flat, 3).token for seed in range(100)}
    sampler = make_sampler(choose_sampling(temperature=1.0, seed=2**64 - 1))
    by_position = {sampler.draw(flat, position).token for position in range(100)}
    assert min(len(by_seed), len(by_position)) > 95


def test_equal_logits_are_drawn_equally_at_any_temperature() -> None:
    for temperature in (1e-308, 1.0, 1e308):
        sampler = make_sampler(choose_sampling(temperature=temperature, seed=4))
        drawn = Counter(sampler.draw(row(1, 1, 1, 1), position).token for position in range(2000))
        assert stats.chisquare(list(drawn.values())).pvalue > 1e-3
        assert set(drawn) == {0, 1, 2, 3}


# -- history --


def many_rows(num_rows: int) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    return list(np.random.default_rng(3).normal(0, 1, (num_rows, 12)).astype(F32))


PENALIZED = choose_sampling(
    temperature=0.8, seed=77, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.7
)


def test_what_was_drawn_counts_from_then_on() -> None:
    sampler = make_sampler(choose_sampling(frequency_penalty=1.0), (4, 5))
    tokens = [sampler.draw(row(3.0, 2.5, -9, -9, -9, -9), position).token for position in range(2, 6)]
    assert tokens == [0, 1, 0, 1]
    sampler = make_sampler(choose_sampling(repetition_penalty=2.0), (4, 5))
    assert [sampler.draw(row(3.0, 2.5, 2.0, -9, -9, -9), position).token for position in range(2, 5)] == [0, 1, 2]


@pytest.mark.parametrize("cut", range(2, 12))
def test_a_position_drawn_again_forgets_what_came_after(cut: int) -> None:
    rows = many_rows(12)
    whole = make_sampler(PENALIZED, (1, 2))
    tokens = [whole.draw(rows[position], position).token for position in range(2, 12)]
    again = [whole.draw(rows[position], position).token for position in range(cut, 12)]
    assert again == tokens[cut - 2 :]


@pytest.mark.parametrize("known", range(2, 12))
def test_a_sampler_made_after_a_loss_goes_on_as_the_lost_one(known: int) -> None:
    rows = many_rows(12)
    whole = make_sampler(PENALIZED, (1, 2))
    tokens = [whole.draw(rows[position], position).token for position in range(2, 12)]
    resumed = make_sampler(PENALIZED, (1, 2, *tokens[: known - 2]), 2)
    assert [resumed.draw(rows[position], position).token for position in range(known, 12)] == tokens[known - 2 :]
    early = make_sampler(PENALIZED, (1, 2, *tokens), 2)
    assert [early.draw(rows[position], position).token for position in range(known, 12)] == tokens[known - 2 :]


def test_penalties_without_all_earlier_tokens_are_refused() -> None:
    sampler = make_sampler(PENALIZED, (1, 2))
    with pytest.raises(FabricError, match="position 3"):
        sampler.draw(many_rows(1)[0], 3)


def test_without_penalties_no_history_is_needed() -> None:
    sampler = make_sampler(choose_sampling(temperature=1.0, seed=1, logit_bias={1: 1.0}))
    assert sampler.draw(row(1, 2, 3), 1000).token in range(3)


# -- what is reported and refused --


def test_margins_are_of_the_raw_row_whatever_is_drawn() -> None:
    logits = row(3.0, 1.0, 2.5)
    for arguments in ({}, {"logit_bias": {1: 50.0}}, {"temperature": 5.0, "seed": 3}, {"logprobs": 1}):
        assert make_sampler(choose_sampling(**arguments)).draw(logits, 0).margin == 0.5  # type: ignore[arg-type]


def test_log_probabilities_are_of_the_raw_row_with_the_drawn_token_first() -> None:
    probabilities = [0.1, 0.2, 0.2, 0.5]
    sampler = make_sampler(choose_sampling(temperature=0.1, seed=3, top_k=1, logit_bias={0: 90.0}, logprobs=3))
    drawn = sampler.draw(row(*(math.log(value) + 7 for value in probabilities)), 0)
    assert drawn.logprobs is not None
    assert [token for token, _ in drawn.logprobs] == [0, 3, 1, 2]  # a tie is ordered by id
    for token, value in drawn.logprobs:
        assert math.exp(value) == pytest.approx(probabilities[token], rel=1e-6)


@pytest.mark.parametrize(("count", "ids"), [(0, [2]), (1, [2, 2]), (20, [2, 2, 0, 1])])
def test_so_many_log_probabilities_are_reported(count: int, ids: list[int]) -> None:
    drawn = make_sampler(choose_sampling(logprobs=count)).draw(row(1, 0, 2), 0)
    assert drawn.logprobs is not None
    assert [token for token, _ in drawn.logprobs] == ids


def test_none_are_reported_when_none_were_asked_for() -> None:
    assert make_sampler(choose_sampling(temperature=1.0, seed=1)).draw(row(1, 0, 2), 0).logprobs is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"temperature": 1.0, "seed": 1, "top_k": 2},
        {"logit_bias": {0: -100.0, 4: -100.0}},
        {"repetition_penalty": 2.0},
        {"logprobs": 3},
    ],
)
def test_a_row_that_is_not_finite_is_refused_whatever_is_asked(
    arguments: dict[str, Any], place: int, value: float
) -> None:
    logits = row(1, 2, 3, 2, 1)
    logits[place] = value
    with pytest.raises(FabricError, match="not finite"):
        make_sampler(choose_sampling(**arguments), (0,)).draw(logits, 1)


@pytest.mark.parametrize(
    ("arguments", "history"), [({"logit_bias": {5: 1.0}}, ()), ({"repetition_penalty": 2.0}, (5,))]
)
def test_an_id_outside_the_row_is_refused(arguments: dict[str, Any], history: tuple[int, ...]) -> None:
    with pytest.raises(FabricError, match="token 5"):
        make_sampler(choose_sampling(**arguments), history).draw(row(1, 2, 3), len(history))


def test_drawing_without_a_seed_is_refused_when_the_sampler_is_made() -> None:
    with pytest.raises(SpecError, match="seed"):
        make_sampler(Sampling(temperature=1.0))


def test_forced_tokens_and_penalties_do_not_go_together() -> None:
    with pytest.raises(SpecError, match="forced"):
        run_split_direct((), (1, 2), max_tokens=1, chunk_positions=8, forced=(3,), sampling=PENALIZED)


def test_what_is_greedy_and_plain_shares_one_sampler() -> None:
    assert make_sampler(Sampling(seed="7", top_k=3, top_p=0.5, min_p=0.5)) is GREEDY
    assert make_sampler(Sampling(logprobs=0)) is not GREEDY


def test_the_row_itself_is_never_changed() -> None:
    logits = row(1, 2, 3, -4)
    kept = logits.copy()
    sampler = make_sampler(
        choose_sampling(temperature=1.0, seed=1, repetition_penalty=2.0, logit_bias={1: 2.0}), (0, 3)
    )
    sampler.draw(logits, 2)
    assert np.array_equal(logits, kept)


def test_a_large_vocabulary_is_drawn_from_in_milliseconds() -> None:
    logits = np.random.default_rng(5).normal(0, 3, 262_144).astype(F32)
    for arguments, limit in (({}, 0.02), ({"temperature": 1.0, "seed": 1, "top_k": 40, "top_p": 0.95}, 0.03)):
        sampler = make_sampler(choose_sampling(**arguments))  # type: ignore[arg-type]
        seconds = []
        for position in range(10):
            started = time.perf_counter()
            sampler.draw(logits, position)
            seconds.append(time.perf_counter() - started)
        assert min(seconds) < limit
