"""Following a session through the ledger: what is committed, then what comes, until the session has ended.

The ledger alone is read, so it does not matter who asked for the session, whether that client is still there, or
whether the Coordinator that opened it was another process.
"""

from __future__ import annotations

import asyncio

from inferswarm.errors import SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.active import ActiveSession, OnToken
from inferswarm.fabric.authority import SessionState
from inferswarm.fabric.ledger import Ledger
from inferswarm.fabric.text_side import TextSide

FOLLOW_SECONDS = 0.05
"""How often the ledger of an open session is looked at: a follower sees a token at most so much later."""


async def follow(ledger: Ledger, text: TextSide | None, question: m.Follow, on_token: OnToken) -> None:
    """Give each token of a session from `from_position` on to `on_token`, and return when the session has ended.

    The text of each token is what the session's own client was shown with it, because it is made in the same way
    from the first token on; without `text` there is none. Raises SpecError for a session that is not in the ledger
    or was deleted, and for a token that the tokenizer lacks.
    """
    number = question.session
    row = ledger.session(number)
    if not row.prompt:
        raise SpecError("session", number, "the number of a session whose tokens are still in the ledger")
    shown = ActiveSession(row, 0, text, on_token)
    while True:
        state = ledger.session(number).state  # before the commits: an ended session gets no more of them
        for commit in ledger.commits(number, len(row.prompt) + len(shown.commits)):
            shown.commits.append(commit)
            piece, _ = shown.show(commit.token)
            if commit.position >= question.from_position:
                await on_token(number, commit.position, commit.token, piece, commit.logprobs)
        if state != SessionState.OPEN.value:
            return
        await asyncio.sleep(FOLLOW_SECONDS)
