"""Names of answers: `chatcmpl-SCOPE-SESSION-TAG`. Who has one may read the session again, nobody can guess it.

The tag is a keyed digest over scope, session and model. The key comes from the swarm's token, so a name stays good
for as long as the swarm's Coordinator, restarted or not, has that token; for another model it is the name of nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

CHAT, COMPLETION = "chatcmpl", "cmpl"
_TAG_CHARACTERS = 16
_MAX_DIGITS = 15
"""Of a session's number: more than a ledger can ever reach."""


class Named(NamedTuple):
    """What a name stands for."""

    session: int
    is_chat: bool


class SessionNames:
    """Makes and reads the names of one scope's answers of one model."""

    def __init__(self, key: bytes, scope: str, model: str) -> None:
        self._key = key
        self._scope = scope
        self._model = model

    def name(self, session: int, *, is_chat: bool) -> str:
        """Return the name of a session's answer."""
        prefix = f"{CHAT if is_chat else COMPLETION}-{self._scope}-{session}"
        return f"{prefix}-{self._tag(prefix)}"

    def read(self, name: str) -> Named | None:
        """Return what a name stands for; None for one that was not made here."""
        kind = name.partition("-")[0]
        number = name.split("-")[-2] if name.count("-") > 1 else ""
        if not (name.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS):
            return None
        named = Named(int(number), kind == CHAT)
        made = self.name(named.session, is_chat=named.is_chat)
        return named if hmac.compare_digest(made, name) else None

    def _tag(self, prefix: str) -> str:
        digest = hmac.new(self._key, f"{prefix}\n{self._model}".encode(), hashlib.sha256)
        return digest.hexdigest()[:_TAG_CHARACTERS]
