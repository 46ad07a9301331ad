"""Sampling and stop strings over real processes: any route, any window, again and again, the same tokens."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inferswarm.backends.direct import DirectResult, run_direct
from inferswarm.backends.registry import make_executor
from inferswarm.errors import AdmissionError
from inferswarm.fabric import messages as m
from inferswarm.strategies.sampling import Sampling, choose_sampling
from tests.integration.null_swarm import NODE_NAMES, NUM_UNITS, NullSwarm, assign, expected, null_plan

PROMPT = (5, 900, 17, 17, 333, 2, 41, 77, 640, 12, 900)
NUM_TOKENS = 40
SAMPLINGS = {
    "temperature": choose_sampling(temperature=0.9, seed=2**64 - 1),
    "filters": choose_sampling(temperature=1.5, top_k=200, top_p=0.9, min_p=0.02, seed=7),
    "everything": choose_sampling(
        temperature=1.1,
        top_k=300,
        top_p=0.97,
        min_p=0.001,
        repetition_penalty=1.3,
        presence_penalty=0.6,
        frequency_penalty=0.4,
        logit_bias={12: 3.0, 900: -100.0},
        seed=123,
        logprobs=3,
    ),
    "greedy with penalties": choose_sampling(repetition_penalty=1.5, frequency_penalty=0.5, logprobs=0),
}


@dataclasses.dataclass
class Shown:
    """What a client is told while an answer is made."""

    texts: list[str] = dataclasses.field(default_factory=list)
    logprobs: list[Any] = dataclasses.field(default_factory=list)

    def __call__(self, event: object) -> None:
        if isinstance(event, m.TokenCommitted):
            self.texts.append(event.text)
            self.logprobs.append(event.logprobs)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NullSwarm]:
    with NullSwarm(tmp_path_factory.mktemp("swarm"), NODE_NAMES) as swarm:
        yield swarm


def torch_plan(nodes: tuple[str, ...]) -> Any:
    return null_plan(nodes, primitive="torch", max_positions=128)


@cache
def unsplit(sampling: Sampling) -> DirectResult:
    """Return what the torch backend answers in this process, without any fabric."""
    plan = torch_plan(("alone",))
    executor = make_executor(assign(plan, "alone", 0, NUM_UNITS))
    executor.materialize(lambda done, total: None)
    return run_direct(
        executor, PROMPT, max_tokens=NUM_TOKENS, chunk_positions=plan.chunk_positions, sampling=sampling
    )


@pytest.fixture(scope="module", params=[(1, 0), (2, 2), (3, 5)], ids=["1 stage", "2 stages", "3 stages"])
def route(swarm: NullSwarm, request: pytest.FixtureRequest) -> Iterator[NullSwarm]:
    num_stages, run_ahead = request.param
    swarm.realize(run_ahead=run_ahead, plan=torch_plan(NODE_NAMES[:num_stages]))
    yield swarm
    swarm.ask(m.Retire())


def assert_same(record: m.SessionRecord, result: DirectResult) -> None:
    assert record.tokens == result.tokens
    assert record.logits_digests == result.logits_digests
    assert record.margins == result.margins
    assert record.logprobs == result.logprobs


# -- sampled answers --


def test_the_samplings_that_are_compared_give_unlike_answers() -> None:
    answers = [unsplit(sampling).tokens for sampling in SAMPLINGS.values()]
    assert len(set(answers)) == len(answers)
    assert all(len(set(tokens)) >= 8 for tokens in answers)
    assert 900 not in unsplit(SAMPLINGS["everything"]).tokens


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_every_route_samples_what_one_process_does_and_replays_it(route: NullSwarm, sampling: Sampling) -> None:
    shown = Shown()
    answer = route.generate(PROMPT, NUM_TOKENS, shown, sampling=sampling)
    assert_same(answer.record, unsplit(sampling))
    assert answer.record.sampling == sampling
    wanted = answer.record.logprobs
    assert shown.logprobs == list((None,) * NUM_TOKENS if wanted is None else wanted)
    again = route.ask(m.Replay(session=answer.record.session))
    assert isinstance(again, m.Generated)
    assert_same(again.record, unsplit(sampling))
    assert again.record.replay_of == answer.record.session
    assert again.record.sampling == sampling


def test_a_seed_that_nobody_gave_is_chosen_and_recorded(route: NullSwarm) -> None:
    asked = choose_sampling(temperature=2.0)
    answers = [route.generate(PROMPT, 20, sampling=asked).record for _ in range(3)]
    seeds = {answer.sampling.seed for answer in answers}
    assert None not in seeds
    assert len(seeds) == 3
    assert len({answer.tokens for answer in answers}) > 1  # two seeds may draw the same
    for answer in answers:
        kept = route.record(answer.session)
        assert kept.sampling == asked.with_seed(kept.sampling.seed_number)
        assert route.generate(PROMPT, 20, sampling=kept.sampling).record.tokens == answer.tokens


def test_greedy_answers_have_no_seed(route: NullSwarm) -> None:
    assert route.generate(PROMPT, 3).record.sampling == Sampling()


def test_sessions_at_once_do_not_disturb_each_other(route: NullSwarm) -> None:
    chosen = (SAMPLINGS["everything"], SAMPLINGS["greedy with penalties"])
    records: dict[int, m.SessionRecord] = {}

    def ask(index: int) -> None:
        records[index] = route.generate(PROMPT, NUM_TOKENS, sampling=chosen[index]).record

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    for index, sampling in enumerate(chosen):
        assert_same(records[index], unsplit(sampling))


# -- refusals --


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"token_ids": (5, 1000)}, "token id 1000"),
        ({"token_ids": (2**31 - 1, 5)}, "token id 2147483647"),
        ({"sampling": choose_sampling(logit_bias={1000: 1.0})}, "logit_bias"),
        ({"stop": ("",)}, "not empty"),
        ({"stop": ("x",) * 17}, "at most 16"),
        ({"stop": ("x",)}, "without a tokenizer"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(route: NullSwarm, fields: dict[str, Any], what: str) -> None:
    before = route.generate(PROMPT, 1).record.session
    reports = route.stage_reports()
    with pytest.raises(AdmissionError, match=what):
        route.ask(m.Generate(**{"token_ids": PROMPT, "max_tokens": 5, **fields}))
    assert [report.positions for report in route.stage_reports()] == [report.positions for report in reports]
    assert route.generate(PROMPT, 1).record.session == before + 1


# -- stop strings --


@pytest.fixture(scope="module", params=[0, 2, 50])
def told(
    tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path, request: pytest.FixtureRequest
) -> Iterator[NullSwarm]:
    """The null backend over three Nodes, with a real tokenizer."""
    with NullSwarm(tmp_path_factory.mktemp("told"), NODE_NAMES) as told:
        told.realize(run_ahead=request.param, text_of=smollm2_path)
        yield told


def plain_texts(told: NullSwarm, num_tokens: int) -> list[str]:
    """Return the text that each token adds to an answer without stop strings."""
    shown = Shown()
    answer = told.generate(PROMPT, num_tokens, shown, ignore_stop=True)
    assert answer.text == "".join(shown.texts)
    assert answer.record.matched_stop is None
    return shown.texts


def place_in(texts: list[str], first: int) -> tuple[int, str]:
    """Return an index from `first` on whose text and the one after it are at least two characters of text each."""
    found = (index for index, pair in enumerate(pairwise(texts)) if index >= first and min(map(len, pair)) >= 2)
    index = next(found)
    return index, texts[index][-1] + texts[index + 1][0]


@pytest.mark.parametrize("first", [0, 30])
def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it(told: NullSwarm, first: int) -> None:
    texts = plain_texts(told, 200)
    _, stop = place_in(texts, first)
    before = "".join(texts).index(stop)
    completed = next(count for count in range(200) if stop in "".join(texts[:count]))
    refused = told.refusals()
    shown = Shown()
    answer = told.generate(PROMPT, 200, shown, ignore_stop=True, stop=("never in any text", stop))
    assert answer.text == "".join(shown.texts) == "".join(texts)[:before]
    assert (answer.finish_reason, answer.record.matched_stop) == ("stop", stop)
    assert answer.record.tokens == expected(PROMPT, completed).tokens
    assert (answer.record.state, answer.record.reason) == ("COMPLETED", "stop")
    assert answer.record.stop == ("never in any text", stop)
    kept = told.record(answer.record.session)
    assert (kept.tokens, kept.matched_stop) == (answer.record.tokens, stop)
    again = told.ask(m.Replay(session=answer.record.session))
    assert isinstance(again, m.Generated)
    assert (again.text, again.record.tokens, again.record.matched_stop) == (answer.text, kept.tokens, stop)
    shorter = told.ask(m.Replay(session=answer.record.session, max_tokens=completed - 1))
    assert isinstance(shorter, m.Generated)
    assert (shorter.finish_reason, shorter.record.matched_stop) == ("length", None)
    assert shorter.record.tokens == kept.tokens[:-1]
    assert told.refusals() == refused
    for report in told.stage_reports():
        assert report.refusals == ()
        assert report.state_bytes_moved == 0


def test_what_could_have_become_a_stop_string_is_shown_at_the_end(told: NullSwarm) -> None:
    texts = plain_texts(told, 12)
    whole = "".join(texts)
    shown = Shown()
    answer = told.generate(PROMPT, 12, shown, ignore_stop=True, stop=(whole[-3:] + "\u2603",))
    assert answer.text == "".join(shown.texts) == whole
    assert (answer.finish_reason, answer.record.matched_stop) == ("length", None)


def test_many_answers_that_stop_leave_room_and_order(told: NullSwarm) -> None:
    texts = plain_texts(told, 200)
    _, stop = place_in(texts, 3)
    for _ in range(20):
        answer = told.generate(PROMPT, 200, ignore_stop=True, stop=(stop,))
        assert answer.record.matched_stop == stop
    assert told.generate(PROMPT, 30, ignore_stop=True).record.tokens == expected(PROMPT, 30).tokens
    assert all(report.refusals == () for report in told.stage_reports())


def test_a_replay_needs_the_tokenizer_for_recorded_stop_strings(tmp_path: Path, smollm2_path: Path) -> None:
    with NullSwarm(tmp_path, ("amber",)) as swarm:
        swarm.realize(text_of=smollm2_path)
        session = swarm.generate(PROMPT, 5, ignore_stop=True, stop=("\u2603",)).record.session
        swarm.ask(m.Retire())
        swarm.realize()
        with pytest.raises(AdmissionError, match="without a tokenizer"):
            swarm.ask(m.Replay(session=session))
