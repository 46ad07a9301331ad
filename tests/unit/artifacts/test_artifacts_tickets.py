"""A ticket authorizes one artifact, participant, source and attempt, for a time, in one scope, and nothing else."""

import math
import re

import msgspec
import pytest

from inferswarm.artifacts import taxonomy
from inferswarm.artifacts.keys import derive_key
from inferswarm.artifacts.sources import Source
from inferswarm.artifacts.tickets import Expected, Ticket, TicketBooth, TicketRefusal
from inferswarm.documents import digest_bytes
from inferswarm.errors import ArtifactError, SpecError

replace = msgspec.structs.replace
PEER = Source("node-bob", "http://bob:7000")
TICKET = Ticket(
    scope="acme",
    artifact=digest_bytes(b"x"),
    participant="stage-1",
    node_id="node-ann",
    source=PEER,
    attempt=1,
    generation=3,
    expires_at=1_000,
)
EXPECTED = Expected(TICKET.artifact, "stage-1", "node-ann", PEER, 3, 999.9)
BOOTH = TicketBooth("token", "acme")
TEXT = BOOTH.issue(TICKET)


def test_a_ticket_authorizes_what_it_names():
    assert BOOTH.judge(TEXT, EXPECTED) == TICKET
    assert TicketBooth("token", "acme").check(TEXT, EXPECTED) == TICKET


def test_a_ticket_fits_a_header():
    assert re.fullmatch(r"[A-Za-z0-9._-]+", TEXT)
    assert len(TEXT) < 600


@pytest.mark.parametrize(
    ("expected", "kind"),
    [
        (EXPECTED._replace(artifact=digest_bytes(b"y")), "artifact"),
        (EXPECTED._replace(participant="stage-2"), "participant"),
        (EXPECTED._replace(node_id="node-eve"), "node"),
        (EXPECTED._replace(source=Source("node-eve", PEER.endpoint)), "source"),
        (EXPECTED._replace(source=Source(PEER.id, "http://bob:7001")), "endpoint"),
        (EXPECTED._replace(generation=4), "generation"),
        (EXPECTED._replace(now=1_000.0), "expired"),
        (EXPECTED._replace(now=math.inf), "expired"),
        (EXPECTED._replace(now=math.nan), "expired"),
    ],
)
def test_a_ticket_for_something_else_is_refused_with_the_reason(expected, kind):
    refusal = BOOTH.judge(TEXT, expected)
    assert isinstance(refusal, TicketRefusal)
    assert (refusal.kind, refusal.code) == (kind, taxonomy.UNAUTHORIZED)
    with pytest.raises(ArtifactError, match=f"{kind}: ") as caught:
        BOOTH.check(TEXT, expected)
    assert caught.value.code == taxonomy.UNAUTHORIZED


def test_a_newer_freeze_voids_every_earlier_ticket_and_no_later_one():
    for generation, good in ((2, True), (3, True), (4, False)):
        judged = BOOTH.judge(TEXT, EXPECTED._replace(generation=generation))
        assert isinstance(judged, Ticket) is good


@pytest.mark.parametrize("booth", [TicketBooth("another", "acme"), TicketBooth("token", "acme2")])
def test_a_ticket_that_another_key_signed_is_refused(booth):
    text = booth.issue(replace(TICKET, scope=booth.scope))
    assert BOOTH.judge(text, EXPECTED).kind == "signature"


@pytest.mark.rule(88)
def test_a_ticket_of_one_tenant_opens_nothing_of_another():
    """A peer that has the content refuses a request of another scope, and the refusal says so for the log.

    Mutation: derive the key of a `TicketBooth` without the scope, and drop the scope from `_compare`.
    """
    theirs = TicketBooth("token", "rival")
    refusal = theirs.judge(TEXT, EXPECTED)
    assert (refusal.kind, refusal.code) == ("signature", taxonomy.UNAUTHORIZED)
    assert "'rival'" in refusal.reason
    with pytest.raises(ArtifactError, match=r"SOURCE_UNAUTHORIZED.*is of scope 'acme', not 'rival'"):
        theirs.issue(TICKET)


def test_no_altered_character_passes():
    for place, character in enumerate(TEXT):
        altered = TEXT[:place] + ("B" if character == "A" else "A") + TEXT[place + 1 :]
        assert isinstance(BOOTH.judge(altered, EXPECTED), TicketRefusal)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "t1..",
        "t2" + TEXT[2:],
        TEXT + "=",
        TEXT + ".x",
        TEXT[:-4],
        TEXT.replace(".", " "),
        "é" * 40,
        "t1." * 2000,
    ],
)
def test_what_is_no_ticket_is_refused(text):
    assert BOOTH.judge(text, EXPECTED).kind == "malformed"


def test_what_was_signed_must_still_be_a_ticket():
    loose = msgspec.defstruct("Loose", [(name, object) for name in Ticket.__struct_fields__], kw_only=True)
    fields = {name: getattr(TICKET, name) for name in Ticket.__struct_fields__}
    for change in ({"attempt": 0}, {"generation": -1}, {"artifact": "x"}, {"expires_at": "late"}):
        text = BOOTH.issue(loose(**{**fields, **change}))
        assert BOOTH.judge(text, EXPECTED).kind == "malformed"


def test_keys_differ_by_token_purpose_and_subject_and_never_change():
    keys = {
        derive_key(token, purpose, subject)
        for token in ("a", "b")
        for purpose in ("artifact-ticket", "inventory-receipt")
        for subject in ("x", "y", "")
    }
    assert len(keys) == 12
    # HKDF of RFC 5869 with SHA-256, computed by openssl kdf: salt inferswarm/artifacts/1, lengths in front in info.
    assert derive_key("token", "artifact-ticket", "acme").hex() == (
        "48aff6da5e6d1e4aa88b02da4201b696321c47dd53c4e08ce38a82c8c13e7302"
    )
    with pytest.raises(SpecError, match="token"):
        derive_key("", "artifact-ticket", "acme")
