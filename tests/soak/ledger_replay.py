"""Replays a ledger: every recorded event is applied to the state machine again, and must do what was recorded.

The audit has the events that changed something, with what followed from each; the commits have the results. Together
they are the whole history, apart from times: leases are taken to run until the record says that they lapsed. What a
new Coordinator began with is `recovery.restored`, applied wherever the term rises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from inferswarm.fabric import events as ev
from inferswarm.fabric.audit import read_audit
from inferswarm.fabric.authority import AuthorityState
from inferswarm.fabric.authority_keeper import ENDED
from inferswarm.fabric.ledger import CommitRow, Ledger
from inferswarm.fabric.recovery import restored
from inferswarm.fabric.recovery_records import TransitionRecord
from inferswarm.fabric.transitions import apply

ALWAYS = 1e18
"""A moment after every reading of a clock: leases run until the record says otherwise."""
NOW = 0.0
END = 2**53
"""Behind every position."""


class Group(NamedTuple):
    """One recorded event, under which term, and what stands behind it: its effects, then those of a new beginning."""

    number: int
    term: int
    event: ev.Event
    effects: tuple[ev.Effect, ...]
    begun: tuple[ev.Effect, ...] = ()


class Replayed(NamedTuple):
    """What the history comes to, and everything in it that the machine does otherwise."""

    state: AuthorityState
    findings: tuple[str, ...]
    num_events: int
    num_commits: int


def groups_of(entries: Iterable[tuple[int, int, ev.Event | ev.Effect]]) -> Iterator[Group]:
    """Put each recorded event, (number, term, item), together with the effects behind it."""
    number, term, event = 0, 0, None
    effects: list[ev.Effect] = []
    for entry_number, entry_term, item in entries:
        if isinstance(item, ev.Event):
            if event is not None:
                yield _group(number, term, event, effects)
            number, term, event, effects = entry_number, entry_term, item, []
        else:
            effects.append(item)
    if event is not None:
        yield _group(number, term, event, effects)


def _group(number: int, term: int, event: ev.Event, effects: list[ev.Effect]) -> Group:
    """Tell an event's effects from those of a new Coordinator's beginning: these say that the one before ended."""
    count = len(effects)
    if not getattr(event, "reason", "").startswith(ENDED):
        count = next((i for i, item in enumerate(effects) if getattr(item, "reason", "").startswith(ENDED)), count)
    return Group(number, term, event, tuple(effects[:count]), tuple(effects[count:]))


class _Commits:
    """The commits of all sessions, taken as the record shows that they had been made."""

    def __init__(self, ledger: Ledger, sessions: Sequence[int]) -> None:
        self.prompts = {number: len(ledger.session(number).prompt) for number in sessions}
        self.left: dict[int, list[CommitRow]] = {number: list(ledger.commits(number)) for number in sessions}

    def up_to(self, session: int, position: int) -> list[CommitRow]:
        rows = self.left.get(session, [])
        taken = [row for row in rows if row.position < position]
        self.left[session] = rows[len(taken) :]
        return taken

    def of_epoch(self, session: int, epoch: int) -> list[CommitRow]:
        positions = [row.position for row in self.left.get(session, []) if row.epoch <= epoch]
        return self.up_to(session, max(positions) + 1) if positions else []


def replay_ledger(path: Path, scope: str) -> Replayed:
    """Replay a ledger that nobody writes any more. Raises SpecError or DocumentError for what cannot be read."""
    ledger = Ledger(path)
    try:
        sessions = [int(row[0]) for row in ledger._db.execute("SELECT number FROM sessions ORDER BY number")]
        commits = _Commits(ledger, sessions)
        num_commits = sum(len(rows) for rows in commits.left.values())
        kept = ledger.authority(scope)
    finally:
        ledger.close()
    state, findings, num_events = AuthorityState(scope=scope), [], 0
    begun: tuple[ev.Effect, ...] = ()
    for group in groups_of((entry.number, entry.term, entry.item) for entry in read_audit(path)):  # type: ignore[misc]
        num_events += 1
        where = f"record {group.number}, {type(group.event).__name__}"
        if group.term > state.term:
            state, begun = _began_again(state, group.term, commits, begun)
        if begun:
            findings.append(f"before {where}: {_names(begun)} follows from nothing")
        for session, rows in _shown(commits, (*group.effects, group.event)):
            state = _commit(state, rows, session, findings)
        after = apply(_as_lapsed(state, group), group.event, NOW)
        effects = tuple(item for item in after.effects if not isinstance(item, ev.Refused | ev.Committed))
        state, begun = after.state, group.begun
        if _timeless(effects) != _timeless(group.effects):
            findings.append(f"{where}: recorded is {_names(group.effects)}, it does {_names(after.effects)}")
    state, begun = _began_again(state, state.term + 1, commits, begun) if begun else (state, begun)
    for session in commits.left:
        state = _commit(state, commits.up_to(session, END), session, findings)
    if begun:
        findings.append(f"at the end: {_names(begun)} follows from nothing")
    if kept is None or _timeless_state(kept) != _timeless_state(state):
        findings.append("the state that was kept is not the one that the events come to")
    return Replayed(state, tuple(findings), num_events, num_commits)


def _began_again(
    state: AuthorityState, term: int, commits: _Commits, begun: tuple[ev.Effect, ...]
) -> tuple[AuthorityState, tuple[ev.Effect, ...]]:
    """Do what every Coordinator up to `term` began with; return the state and what is left of the effects."""
    while state.term < term:
        if state.term:
            for session, rows in _shown(commits, begun):
                state = _commit(state, rows, session, [])
            positions = [(item.number, item.next_position) for item in state.sessions if item.number in commits.left]
            restart = restored(state, positions, ENDED)
            if _timeless(restart.effects) == _timeless(begun[: len(restart.effects)]):
                begun = begun[len(restart.effects) :]
            state = restart.state
        state = apply(state, ev.LeaseGranted(term=state.term + 1, lease_until=ALWAYS), NOW).state
    return state, begun


def _shown(commits: _Commits, items: Iterable[ev.Event | ev.Effect]) -> Iterator[tuple[int, list[CommitRow]]]:
    """Return the commits that must have been made before these events or effects."""
    for item in items:
        match item:
            case ev.EpochLost() | ev.EpochRetired():
                for session in list(commits.left):
                    yield session, commits.of_epoch(session, item.epoch)
            case ev.SessionClosed() | ev.SessionSuspended():
                yield item.session, commits.up_to(item.session, commits.prompts.get(item.session, 0) + item.committed)
            case ev.TransitionRecorded():
                for boundary in item.record.committed:
                    yield boundary.session, commits.up_to(boundary.session, boundary.position)
            case _:
                pass


def _commit(state: AuthorityState, rows: Iterable[CommitRow], session: int, findings: list[str]) -> AuthorityState:
    for row in rows:
        epoch = state.epoch(row.epoch)
        result = ev.ResultArrived(
            epoch=row.epoch,
            realization_id="" if epoch is None else epoch.realization_id,
            plan_digest="" if epoch is None else epoch.plan_digest,
            session=session,
            position=row.position,
        )
        after = apply(state, result, NOW)
        if not any(isinstance(effect, ev.Committed) for effect in after.effects):
            what = f"the commit of position {row.position} of session {session} by epoch {row.epoch}"
            findings.append(f"{what}: {_names(after.effects)}")
        state = after.state
    return state


def _as_lapsed(state: AuthorityState, group: Group) -> AuthorityState:
    """Return the state with the leases run out that the record says were, and all others running."""
    lapsed = {item.node_id for item in group.effects if isinstance(item, ev.MemberLost)}
    is_clock = isinstance(group.event, ev.ClockAdvanced)
    members = tuple(
        replace(item, lease_until=-ALWAYS if is_clock and item.node_id in lapsed else ALWAYS)
        for item in state.members
    )
    return replace(state, members=members, lease_until=ALWAYS)


def _timeless(effects: Iterable[ev.Effect]) -> list[ev.Effect]:
    return [
        ev.TransitionRecorded(record=_without_times(item.record)) if isinstance(item, ev.TransitionRecorded) else item
        for item in effects
    ]


def _without_times(record: TransitionRecord) -> TransitionRecord:
    return replace(record, phases=tuple(replace(phase, at_seconds=0.0) for phase in record.phases))


def _timeless_state(state: AuthorityState) -> AuthorityState:
    members = tuple(replace(item, lease_until=0.0) for item in state.members)
    transition = None if state.transition is None else _without_times(state.transition)
    return replace(state, term=0, lease_until=0.0, members=members, transition=transition)


def _names(effects: Iterable[ev.Effect]) -> str:
    names = [
        f"{type(item).__name__} {item.code.value}" if isinstance(item, ev.Refused) else type(item).__name__
        for item in effects
    ]
    return ", ".join(names) or "nothing"
