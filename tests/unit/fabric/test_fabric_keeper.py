"""The keeper writes first and tells afterwards; a member's calls end with it; assignments belong to a plan."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from inferswarm.errors import AuthorityUncertain, CommitRefused, EngineError, SpecError
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.authority import SessionState
from inferswarm.fabric.authority_keeper import AuthorityKeeper
from inferswarm.fabric.faults import to_fault
from inferswarm.fabric.ledger import CommitRow, Ledger, SessionRow
from inferswarm.fabric.membership import Membership
from tests.unit.fabric.fabric_samples import PLAN, activate, join, lease, lose, ready, renew, request, result, start

SERVING_EVENTS = [lease(), join("n1"), join("n2"), start(), ready(), activate(), request(3)]
RESUMABLE = ev.SessionRequested(prompt_tokens=3, resumable=True, max_tokens=9)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger")
    yield opened
    opened.close()


def open_row(ledger: Ledger, number: int) -> None:
    ledger.open_session(SessionRow(number, 1, "OPEN", "", (1, 2, 3), 9, (), b"{}", 0, 1))


def stored(ledger: Ledger, query: str) -> list[tuple[object, ...]]:
    reader = sqlite3.connect(ledger.path)
    rows = reader.execute(query).fetchall()
    reader.close()
    return rows


def test_what_follows_is_in_the_ledger_before_anybody_hears_of_it(ledger: Ledger) -> None:
    heard: list[tuple[str, object]] = []

    def on_effect(effect: ev.Effect) -> None:
        kind = type(effect).__name__
        if isinstance(effect, ev.EpochLost | ev.EpochActivated):
            heard.append((kind, stored(ledger, "SELECT number, state FROM epochs")))
        if isinstance(effect, ev.SessionClosed):
            heard.append((kind, stored(ledger, "SELECT number, state FROM sessions")))
        assert kind in {name for name, _ in ledger.audit()}

    keeper = AuthorityKeeper("scope", ledger, on_effect)
    for event in SERVING_EVENTS:
        keeper.demand(event)
    open_row(ledger, 1)
    keeper.demand(lose())
    assert heard == [
        ("EpochActivated", [(1, "ACTIVE")]),
        ("EpochLost", [(1, "NON_EXECUTABLE")]),
        ("SessionClosed", [(1, "FAILED")]),
    ]


def test_changes_are_audited_and_what_comes_all_the_time_is_not(ledger: Ledger) -> None:
    keeper = AuthorityKeeper("scope", ledger, lambda effect: None)
    for event in [*SERVING_EVENTS, renew("n1"), lease(), ev.ClockAdvanced(), result(3)]:
        keeper.demand(event)
    assert [kind for kind, _ in ledger.audit()] == [
        "NodeJoined",
        "NodeJoined",
        "RealizationStarted",
        "RealizationReadied",
        "EpochRequested",
        "EpochActivated",
        "SessionRequested",
        "SessionOpened",
    ]


def test_a_refusal_is_counted_and_told_to_the_caller_only(ledger: Ledger) -> None:
    heard: list[ev.Effect] = []
    keeper = AuthorityKeeper("scope", ledger, heard.append)
    for event in SERVING_EVENTS:
        keeper.demand(event)
    before, audited = keeper.state, ledger.audit()
    heard.clear()
    (effect,) = keeper.advance(result(4))
    assert isinstance(effect, ev.Refused)
    assert (keeper.state, ledger.audit(), heard) == (before, audited, [])
    assert ledger.refusals() == {"NON_NEXT_COMMIT_POSITION": 1}
    with pytest.raises(CommitRefused) as refused:
        keeper.demand(result(4))
    assert refused.value.code == "NON_NEXT_COMMIT_POSITION"
    assert ledger.refusals() == {"NON_NEXT_COMMIT_POSITION": 2}


def test_numbers_go_on_where_an_earlier_coordinator_ended(ledger: Ledger) -> None:
    open_row(ledger, 7)
    ledger.save_epoch(4, "r0", PLAN, "RECLAIMED")
    keeper = AuthorityKeeper("scope", ledger, lambda effect: None)
    effects = [effect for event in SERVING_EVENTS for effect in keeper.demand(event)]
    assert ev.EpochActivated(epoch=5, realization_id="r1", plan_digest=PLAN) in effects
    assert ev.SessionOpened(session=8, epoch=5, prompt_tokens=3) in effects


def test_a_successor_begins_with_what_was_kept_and_nothing_serves(ledger: Ledger) -> None:
    keeper = AuthorityKeeper("scope", ledger, lambda effect: None)
    for event in [*SERVING_EVENTS[:-1], RESUMABLE, request(3)]:
        keeper.demand(event)
        assert ledger.authority("scope") == keeper.state or isinstance(event, ev.LeaseGranted)
    open_row(ledger, 1)
    open_row(ledger, 2)
    keeper.demand(result(3))
    ledger.commit(1, CommitRow(3, 9, 1, "", 0.5, 1))
    heir = AuthorityKeeper("scope", ledger, lambda effect: None)
    (session,) = heir.state.sessions
    assert (session.number, session.suspended, session.next_position) == (1, True, 4)
    assert (heir.state.members, heir.state.active_epoch()) == ((), None)
    assert [ledger.session(number).state for number in (1, 2)] == ["OPEN", "FAILED"]
    assert ledger.authority("scope") == heir.state
    assert stored(ledger, "SELECT number, state FROM epochs") == [(1, "NON_EXECUTABLE")]


def test_an_event_that_cannot_be_written_changes_nothing(ledger: Ledger) -> None:
    ledger.acquire_lease("scope", "first", 0.0)
    heard: list[ev.Effect] = []
    keeper = AuthorityKeeper("scope", ledger, heard.append)
    keeper.demand(lease())
    heir = Ledger(ledger.path)
    heir.acquire_lease("scope", "heir", 60.0)
    before = keeper.state
    with pytest.raises(AuthorityUncertain):
        keeper.advance(join("n1"))
    assert (keeper.state, heard) == (before, [])
    heir.close()


def test_a_session_that_ended_is_closed_in_the_ledger(ledger: Ledger) -> None:
    keeper = AuthorityKeeper("scope", ledger, lambda effect: None)
    for event in SERVING_EVENTS:
        keeper.demand(event)
    open_row(ledger, 1)
    keeper.demand(ev.SessionEnded(session=1, state=SessionState.COMPLETED, reason="length"))
    assert (ledger.session(1).state, ledger.session(1).reason) == ("COMPLETED", "length")


# -- members --


def member(name: str) -> m.Join:
    return m.Join(
        token="t", protocol=1, package="0", node_id=f"id-{name}", name=name, incarnation="i", pid=1, mechanism="none"
    )


class Wires(list[tuple[bytes, msgspec.Struct]]):
    """Keeps what was sent to whom."""

    async def send(self, identity: bytes, message: msgspec.Struct) -> None:
        self.append((identity, message))


async def two_members() -> tuple[Membership, Wires]:
    wires = Wires()
    members = Membership(wires.send, 3)
    members.add(b"A", member("amber"))
    members.add(b"B", member("birch"))
    return members, wires


def test_a_call_waits_for_its_own_answer() -> None:
    async def run() -> None:
        members, wires = await two_members()
        notes: list[m.Progressed] = []
        first = asyncio.create_task(members.call("id-amber", m.InspectNode(), notes.append))
        second = asyncio.create_task(members.on_stage("id-birch", "r1/stage-0", m.Report()))
        await asyncio.sleep(0)
        (to_first, one), (to_second, two) = wires
        assert (to_first, to_second) == (b"A", b"B")
        assert isinstance(one, m.AgentCall)
        assert isinstance(two, m.AgentCall)
        assert (one.term, two.command) == (3, m.OnStage(stage="r1/stage-0", command=m.Report()))
        members.answered("id-birch", m.Answered(request=one.request, answer=m.Done()))  # not the one asked
        members.answered("id-amber", m.Progressed(request=one.request, done=1, total=2, note="bytes"))
        members.answered("id-birch", m.Answered(request=two.request, answer=m.Done()))
        members.answered(
            "id-amber", m.Failed(request=one.request, fault=to_fault(SpecError("stage", "x", "another")))
        )
        members.answered("id-amber", m.Answered(request=one.request, answer=m.Done()))  # too late
        members.answered("id-amber", m.Answered(request=999, answer=m.Done()))
        assert await second == m.Done()
        with pytest.raises(SpecError):
            await first
        assert [note.done for note in notes] == [1]

    asyncio.run(run())


def test_a_call_ends_with_its_node_and_others_go_on() -> None:
    async def run() -> None:
        members, _ = await two_members()
        lost = asyncio.create_task(members.call("id-amber", m.InspectNode()))
        kept = asyncio.create_task(members.call("id-birch", m.InspectNode()))
        await asyncio.sleep(0)
        members.remove("id-amber", "its lease ran out")
        with pytest.raises(EngineError, match=r"Node 'amber'.*its lease ran out"):
            await lost
        assert not kept.done()
        with pytest.raises(EngineError, match=r"Node 'amber'.*its lease ran out"):
            await members.call("id-amber", m.InspectNode())
        with pytest.raises(SpecError, match="birch") as unknown:
            await members.call("id-cedar", m.InspectNode())
        assert unknown.value.found == "id-cedar"
        kept.cancel()
        assert (members.node_of(b"A"), members.node_of(b"B")) == (None, "id-birch")
        assert (members.name_of("id-amber"), members.name_of("id-birch")) == ("id-amber", "birch")

    asyncio.run(run())


def test_members_are_listed_by_name_with_what_is_left_of_their_lease() -> None:
    async def run() -> None:
        members, _ = await two_members()
        members.add(b"C", member("aspen"))
        statuses = members.statuses(lambda node_id: None if node_id == "id-birch" else 0.0)
        assert [(status.name, status.lease_left_seconds) for status in statuses] == [
            ("amber", 0.0),
            ("aspen", 0.0),
            ("birch", 0.0),
        ]

    asyncio.run(run())
