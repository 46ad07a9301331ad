"""Tickets: one authorization for one artifact, one participant, one source and one attempt, which a source can check.

A ticket is signed with a key that is derived from the swarm's token for one scope; a source needs nothing but that
key to check it. Every freeze of a plan's artifacts has a number, its *generation*, and a newer one invalidates all
tickets of the earlier ones. An object whose digest is not known comes from the origin only, which takes no tickets.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from inferswarm.artifacts.keys import derive_key, is_signature, sign
from inferswarm.artifacts.sources import Source
from inferswarm.artifacts.taxonomy import UNAUTHORIZED
from inferswarm.documents import Digest, canonical_bytes, read_document
from inferswarm.errors import ArtifactError, DocumentError

MAX_TICKET_CHARACTERS: Final = 4096
"""Longer texts are not looked at: servers of HTTP take headers of 8 KiB together."""
_FORM: Final = "t1"
_SIGNATURE_BYTES: Final = 32

RefusalKind = Literal[
    "malformed",
    "signature",
    "scope",
    "artifact",
    "participant",
    "node",
    "source",
    "endpoint",
    "generation",
    "expired",
]
"""What about a ticket is not as it must be; the first that is found, in this order."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is authorized. Names are short because the text travels in every request."""

    scope: str
    """Whose bytes: a tenant, a swarm's name. A ticket of one scope is none in another."""
    artifact: Digest
    """The digest of the content."""
    participant: str
    node_id: str
    """Where the participant is."""
    source: Source
    attempt: Annotated[int, msgspec.Meta(ge=1)]
    generation: Annotated[int, msgspec.Meta(ge=0)]
    expires_at: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
    """Seconds since 1970; from this second on it is void."""


class Expected(NamedTuple):
    """What a source knows of a request without the ticket, and what it holds itself to."""

    artifact: str
    participant: str
    node_id: str
    source: Source
    """Itself."""
    generation: int
    """The newest freeze that it was told of."""
    now: float
    """Seconds since 1970."""


class TicketRefusal(NamedTuple):
    """Why a ticket does not authorize a request."""

    kind: RefusalKind
    reason: str
    code: str = UNAUTHORIZED


class TicketBooth:
    """Issues and checks the tickets of one scope."""

    def __init__(self, token: str, scope: str) -> None:
        """Derive the key of a scope from the swarm's token. Raises SpecError for an empty token."""
        self.scope = scope
        self._key = derive_key(token, "artifact-ticket", scope)

    def issue(self, ticket: Ticket) -> str:
        """Return the text of a ticket, for a header of HTTP: letters, digits, `-`, `_` and dots.

        Raises ArtifactError `SOURCE_UNAUTHORIZED` for a ticket of another scope.
        """
        if ticket.scope != self.scope:
            raise ArtifactError(UNAUTHORIZED, ticket.artifact, f"is of scope {ticket.scope!r}, not {self.scope!r}")
        body = canonical_bytes(ticket)
        return f"{_FORM}.{_encode(body)}.{_encode(sign(self._key, body))}"

    def judge(self, text: str, expected: Expected) -> Ticket | TicketRefusal:
        """Return the ticket when it authorizes exactly this request now, else why it does not."""
        opened = self._open(text)
        if isinstance(opened, TicketRefusal):
            return opened
        return _compare(opened, expected, self.scope) or opened

    def check(self, text: str, expected: Expected) -> Ticket:
        """Return the ticket that authorizes a request. Raises ArtifactError `SOURCE_UNAUTHORIZED` saying why not."""
        judged = self.judge(text, expected)
        if isinstance(judged, TicketRefusal):
            raise ArtifactError(judged.code, expected.artifact, f"{judged.kind}: {judged.reason}")
        return judged

    def _open(self, text: str) -> Ticket | TicketRefusal:
        """Return what a text says once its signature is found right; nothing of it is read before."""
        parts = text.split(".") if len(text) <= MAX_TICKET_CHARACTERS else []
        if len(parts) != 3 or parts[0] != _FORM:
            return TicketRefusal("malformed", f"the text of {len(text):,} characters is no ticket of form {_FORM}")
        body, signature = _decode(parts[1]), _decode(parts[2])
        if body is None or signature is None or len(signature) != _SIGNATURE_BYTES:
            return TicketRefusal("malformed", "the text is not base64url as tickets have it")
        if not is_signature(self._key, body, signature):
            return TicketRefusal("signature", f"it was not signed for scope {self.scope!r} of this swarm")
        try:
            return read_document(Ticket, body, "ticket")
        except DocumentError as error:
            return TicketRefusal("malformed", error.reason)


def _compare(ticket: Ticket, expected: Expected, scope: str) -> TicketRefusal | None:
    pairs: tuple[tuple[RefusalKind, str, str], ...] = (
        ("scope", ticket.scope, scope),
        ("artifact", ticket.artifact, expected.artifact),
        ("participant", ticket.participant, expected.participant),
        ("node", ticket.node_id, expected.node_id),
        ("source", ticket.source.id, expected.source.id),
        ("endpoint", ticket.source.endpoint, expected.source.endpoint),
    )
    for kind, found, needed in pairs:
        if found != needed:
            return TicketRefusal(kind, f"it is for {found!r}, asked was for {needed!r}")
    if ticket.generation < expected.generation:
        return TicketRefusal(
            "generation", f"it is of generation {ticket.generation}, the newest freeze is {expected.generation}"
        )
    if not expected.now < ticket.expires_at:  # also for a clock that gives no number
        return TicketRefusal("expired", f"it was good until {ticket.expires_at}, the time is {expected.now:.0f}")
    return None


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> bytes | None:
    """Return the bytes of a text that `_encode` writes, None for any other: one ticket has one text."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return data if _encode(data) == text else None
