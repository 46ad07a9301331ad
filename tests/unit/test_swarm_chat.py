"""A conversation is a list of pairs or of dicts with two keys; anything else is refused, never guessed at."""

from __future__ import annotations

import pytest

from inferswarm.errors import SpecError
from inferswarm.fabric.messages import ChatMessage
from inferswarm.swarm.service import _chat_message


@pytest.mark.parametrize(
    "message", [("user", "hi"), ["user", "hi"], {"role": "user", "content": "hi"}, {"content": "hi", "role": "user"}]
)
def test_pairs_and_dicts_are_the_same_message(message: object) -> None:
    assert _chat_message(message) == ChatMessage("user", "hi")


@pytest.mark.parametrize(
    "message",
    ["hi", "ab", ("user",), ("user", 3), {"role": "user"}, {"role": "u", "content": "x", "name": "y"}, 3],
)
def test_anything_else_is_refused(message: object) -> None:
    with pytest.raises(SpecError):
        _chat_message(message)
