"""The backend that computes nothing still tells a right prefix from a wrong one."""

from __future__ import annotations

import pytest

from inferswarm.backends.direct import run_direct, run_split_direct
from inferswarm.backends.null import NullExecutor, extend_digest, pseudo_token
from inferswarm.errors import FabricError
from tests.unit.backends.backends_support import assign, built, chain, small_description, tokens_payload

DESCRIPTION = small_description()
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 12


def whole(**options):
    return built(assign(DESCRIPTION, primitive="null", **options))


@pytest.mark.parametrize("cuts", [(0, 3, 6), (0, 1, 5, 6), (0, 5, 6)])
@pytest.mark.parametrize("representation", ["fp32", "bf16"])
def test_a_split_gives_the_tokens_of_the_whole(cuts, representation):
    expected = run_direct(whole(), PROMPT, max_tokens=8, chunk_positions=64)
    executors = chain(DESCRIPTION, cuts, primitive="null", representation=representation)
    assert run_split_direct(executors, PROMPT, max_tokens=8, chunk_positions=64) == expected


def test_tokens_do_not_depend_on_chunks():
    results = [run_direct(whole(), PROMPT, max_tokens=8, chunk_positions=size) for size in (64, 7, 1)]
    assert len({result.tokens for result in results}) == 1
    assert len(set(results[0].tokens)) > 4


def test_tokens_depend_on_every_token_of_the_prefix():
    first = run_direct(whole(), PROMPT, max_tokens=1, chunk_positions=64)
    changed = run_direct(whole(), [2, *PROMPT[1:]], max_tokens=1, chunk_positions=64)
    assert first.logits_digests != changed.logits_digests


def test_a_token_is_the_published_hash_of_its_prefix():
    prefix = b""
    for token in (5, 6, 7):
        prefix = extend_digest(prefix, token)
    result = run_direct(whole(), [5, 6, 7], max_tokens=1, chunk_positions=64)
    assert result.tokens == (pseudo_token(prefix, 320),)


def test_boundaries_have_the_size_of_hidden_states():
    first = built(assign(DESCRIPTION, 0, 3, primitive="null", representation="bf16"))
    first.open("a")
    assert len(first.step("a", 0, 5, tokens_payload(PROMPT[:5]), sample=False).payload) == 5 * 64 * 2


def test_an_altered_boundary_changes_the_token():
    first, last = chain(DESCRIPTION, (0, 3, 6), primitive="null")
    first.open("a")
    boundary = bytearray(first.step("a", 0, 2, tokens_payload([1, 2]), sample=True).payload)
    tokens = []
    for _session in range(2):
        last.open("a")
        tokens.append(last.step("a", 0, 2, bytes(boundary), sample=True).logits_digest)
        last.close("a")
        boundary[64 * 4] ^= 1
    assert tokens[0] != tokens[1]


def test_a_truncated_session_recomputes_the_same():
    executor = whole()
    executor.open("a")
    tokens = [executor.step("a", 0, 8, tokens_payload(PROMPT[:8]), sample=True).token]
    executor.truncate("a", 3)
    tokens.append(executor.step("a", 3, 5, tokens_payload(PROMPT[3:8]), sample=True).token)
    assert tokens[0] == tokens[1]


def test_a_step_takes_the_time_that_was_asked_for(monkeypatch):
    slept = []
    monkeypatch.setattr("inferswarm.backends.null.time.sleep", slept.append)
    executor = NullExecutor(assign(DESCRIPTION, primitive="null"), lambda start, count: 0.5 + start + 0.001 * count)
    executor.materialize(lambda done, total: None)
    executor.open("a")
    executor.step("a", 0, 8, tokens_payload(PROMPT[:8]), sample=False)
    executor.step("a", 8, 1, tokens_payload(PROMPT[:1]), sample=True)
    assert slept == [0.508, 8.501]


def test_it_holds_and_reads_nothing():
    executor = whole()
    run_direct(executor, PROMPT, max_tokens=3, chunk_positions=64)
    assert executor.counters() == (98, 4, 0, 0, 0)


def test_materializing_twice_is_an_error():
    with pytest.raises(FabricError, match="materialized already"):
        whole().materialize(lambda done, total: None)
