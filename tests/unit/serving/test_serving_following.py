"""Following a session through its ledger, as it grows, ends, or was deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from inferswarm.errors import SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.following import follow
from inferswarm.fabric.ledger import CommitRow, Ledger, SessionRow

ROW = SessionRow(
    number=1,
    epoch=1,
    state="OPEN",
    reason="",
    prompt=(5, 6),
    max_tokens=9,
    stop=(),
    partition=b"{}",
    replay_of=0,
    at_ns=1,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "ledger")
    ledger.open_session(ROW)
    return ledger


def commit(ledger: Ledger, position: int) -> None:
    ledger.commit(1, CommitRow(position, position * 10, 1, "digest", 0.5, 1))


@pytest.mark.parametrize("from_position", [0, 2, 3, 6])
def test_every_token_from_a_position_on_comes_once_and_the_end_ends_it(ledger: Ledger, from_position: int) -> None:
    seen: list[tuple[int, int, int]] = []

    async def on_token(session: int, position: int, token: int, text: str, logprobs: object) -> None:
        seen.append((session, position, token))

    async def scenario() -> None:
        commit(ledger, 2)
        following = asyncio.create_task(
            follow(ledger, None, m.Follow(session=1, from_position=from_position), on_token)
        )
        for position in (3, 4):
            await asyncio.sleep(0.06)
            commit(ledger, position)
        assert not following.done(), "the session is still open"
        commit(ledger, 5)
        ledger.end_session(1, "COMPLETED", "length")
        await asyncio.wait_for(following, 2.0)

    asyncio.run(scenario())
    assert seen == [(1, position, position * 10) for position in range(max(2, from_position), 6)]


@pytest.mark.parametrize("number", [1, 2])
def test_a_session_that_is_not_there_any_more_is_refused(ledger: Ledger, number: int) -> None:
    ledger.delete_session(1)

    async def on_token(*_: object) -> None:
        pytest.fail("there is no token to see")

    with pytest.raises(SpecError, match="session"):
        asyncio.run(follow(ledger, None, m.Follow(session=number), on_token))
