"""Two Coordinators, one scope: every interleaving of leases, pauses, deaths, commits and commands of a small model.

Each Coordinator drives the real machine; the lease's row, the ledger's fence and the Node's memory of terms are
modeled as their documents say. A Coordinator may be paused between any two steps, in particular between the machine's
word and the ledger's write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, RealizationState
from inferswarm.fabric.recovery import restored
from inferswarm.fabric.recovery_records import TransitionMode, Trigger
from inferswarm.fabric.transitions import apply
from tests.unit.fabric.fabric_samples import PLAN, join
from tests.unit.fabric.recovery_explorer import SERVING_EVENTS, name, plain

LEASE = 1
PROMPT, TOKENS = 1, 2
ONE = (("stage-0", "n1"),)


class Rules(NamedTuple):
    """What keeps the scope to one authority. Each is switched off once, to see that it is needed."""

    waits_for_the_lease: bool = True
    looks_at_its_own_lease: bool = True
    ledger_is_fenced: bool = True
    nodes_refuse_lower_terms: bool = True


class Holder(NamedTuple):
    """One Coordinator process. `state` is None before it holds a lease, and after it ended."""

    state: AuthorityState | None = None
    decided: int | None = None
    """A position that the machine committed and the ledger does not have yet."""
    renewing_since: int | None = None


class World(NamedTuple):
    """Everything there is: two processes, the ledger's file, one Node, one client."""

    now: int
    term: int
    holder: int
    until: int
    kept: AuthorityState
    commits: tuple[int, ...] = ()
    """The term under which each position was written."""
    shown: int = 0
    """Positions that the client has seen."""
    node_term: int = 0
    coordinators: tuple[Holder, Holder] = (Holder(), Holder())
    deaths: int = 0


def beginning() -> World:
    """Coordinator 0 serves one session of two tokens under term 1."""
    state = AuthorityState(scope="scope")
    events = [
        ev.LeaseGranted(term=1, lease_until=LEASE),
        *SERVING_EVENTS[1:2],
        ev.RealizationStarted(realization_id=name(1), plan_digest=PLAN, participants=ONE),
        *SERVING_EVENTS[4:],
        ev.SessionRequested(prompt_tokens=PROMPT, resumable=True, max_tokens=TOKENS),
    ]
    for event in events:
        state = _demand(state, event, 0.0)
    return World(0, 1, 0, LEASE, plain(state), coordinators=(Holder(plain(state)), Holder()))


def _demand(state: AuthorityState, event: ev.Event, now: float) -> AuthorityState:
    transition = apply(state, event, now)
    assert not any(isinstance(effect, ev.Refused) for effect in transition.effects), (event, transition.effects)
    return transition.state


def set_holder(world: World, index: int, holder: Holder) -> World:
    first, second = world.coordinators
    return world._replace(coordinators=(holder, second) if index == 0 else (first, holder))


def owns(world: World, index: int, holder: Holder) -> bool:
    """Whether the lease's row is this Coordinator's. The ledger looks at it in the transaction of each write."""
    return holder.state is not None and (world.holder, world.term) == (index, holder.state.term)


def moves(world: World, rules: Rules) -> Iterator[World]:
    """Every world that is one step away."""
    if world.now < 3:
        yield world._replace(now=world.now + 1)
    for index, holder in enumerate(world.coordinators):
        if holder.state is None:
            free = world.until < world.now or not rules.waits_for_the_lease
            if free and world.term < 3:
                yield acquire(world, index)
            continue
        if world.deaths < 1:
            yield set_holder(world, index, Holder())._replace(deaths=world.deaths + 1)
        if holder.renewing_since is None:
            yield set_holder(world, index, holder._replace(renewing_since=world.now))
        else:
            yield renew(world, index, holder)
        yield command(world, holder, rules)
        if holder.decided is None:
            yield decide(world, index, holder, rules)
        else:
            yield write(world, index, holder, rules)


def acquire(world: World, index: int) -> World:
    """Take the lease, read the ledger, adopt the living stage, resume the session: the path of a restart."""
    term, now = world.term + 1, float(world.now)
    committed = ((item.number, PROMPT + len(world.commits)) for item in world.kept.sessions)
    state = restored(world.kept, committed, "its Coordinator ended").state
    old = next(item for item in state.realizations if item.state is RealizationState.DEAD)
    fresh, number = name(state.next_attempt), state.next_transition
    events = [
        ev.LeaseGranted(term=term, lease_until=now + LEASE),
        join("n1", "a"),
        ev.TransitionStarted(trigger=Trigger.COORDINATOR_RESTARTED, detail=""),
        ev.TransitionPlanned(
            transition=number,
            plan_digest=PLAN,
            decision_digest="d",
            snapshot_digest="s",
            mode=TransitionMode.READOPTION,
        ),
        ev.RealizationStarted(
            realization_id=fresh,
            plan_digest=PLAN,
            participants=ONE,
            transition=number,
            adopts=ev.Adoption(realization_id=old.id, participants=("stage-0",)),
        ),
        ev.RealizationReadied(realization_id=fresh),
        ev.EpochRequested(realization_id=fresh, transition=number),
        *(ev.ResumptionRequested(session=item.number) for item in state.sessions),
        ev.EpochReclaimed(epoch=state.next_epoch - 1),
    ]
    for event in events:
        state = _demand(state, event, now)
    state = plain(state)
    world = world._replace(term=term, holder=index, until=world.now + LEASE, kept=state)
    return set_holder(world, index, Holder(state))


def renew(world: World, index: int, holder: Holder) -> World:
    """Write the row, if it is still its own, and believe no longer than from before the write on."""
    assert holder.state is not None
    assert holder.renewing_since is not None
    if not owns(world, index, holder):
        return set_holder(world, index, Holder())
    until = float(holder.renewing_since + LEASE)
    granted = _demand(holder.state, ev.LeaseGranted(term=holder.state.term, lease_until=until), float(world.now))
    world = world._replace(until=world.now + LEASE)
    return set_holder(world, index, holder._replace(state=granted, renewing_since=None))


def command(world: World, holder: Holder, rules: Rules) -> World:
    """The Node obeys a command of a Coordinator."""
    assert holder.state is not None
    if rules.nodes_refuse_lower_terms and holder.state.term < world.node_term:
        return world
    assert holder.state.term >= world.node_term, "a Node obeyed a Coordinator of a lower term"
    return world._replace(node_term=holder.state.term)


def decide(world: World, index: int, holder: Holder, rules: Rules) -> World:
    """Ask the machine about the next result."""
    state = holder.state
    assert state is not None
    active = state.active_epoch()
    if active is None or not state.sessions:
        return world
    at = state.sessions[0].next_position
    event = ev.ResultArrived(
        epoch=active.number,
        realization_id=active.realization_id,
        plan_digest=active.plan_digest,
        session=state.sessions[0].number,
        position=at,
    )
    now = float(world.now) if rules.looks_at_its_own_lease else 0.0
    transition = apply(state, event, now)
    if not isinstance(transition.effects[0], ev.Committed):
        return world
    assert world.now <= state.lease_until, "a Coordinator whose lease ran out commits"
    return set_holder(world, index, holder._replace(state=transition.state, decided=at))


def write(world: World, index: int, holder: Holder, rules: Rules) -> World:
    """Write what was decided, then show it. Without the lease's row nothing is written, and the process ends."""
    assert holder.state is not None
    assert holder.decided is not None
    if rules.ledger_is_fenced and not owns(world, index, holder):
        return set_holder(world, index, Holder())
    assert holder.decided == PROMPT + len(world.commits), "a position was written twice or skipped"
    assert world.shown <= len(world.commits), "the client saw what the ledger has not"
    assert all(term <= holder.state.term for term in world.commits), "a lower term wrote after a higher one"
    world = world._replace(commits=(*world.commits, holder.state.term), shown=len(world.commits) + 1)
    return set_holder(world, index, holder._replace(decided=None))


def check(world: World) -> None:
    """One authority at a time, as each Coordinator sees itself."""
    believing = [
        holder.state.term
        for holder in world.coordinators
        if holder.state is not None and holder.state.lease_until >= world.now and holder.state.active_epoch()
    ]
    assert len(believing) <= 1, f"terms {believing} both have authority"


def walk(rules: Rules) -> tuple[int, int]:
    """Visit every world; return how many there are, and in how many the whole answer was shown."""
    origin = beginning()
    seen, queue = {origin}, deque([origin])
    while queue:
        world = queue.popleft()
        check(world)
        for after in moves(world, rules):
            if after not in seen:
                seen.add(after)
                queue.append(after)
        assert len(seen) < 300_000
    return len(seen), sum(world.shown == TOKENS for world in seen)


def test_no_interleaving_of_two_coordinators_gives_two_authorities() -> None:
    num_worlds, num_complete = walk(Rules())
    print(f"{num_worlds:,} worlds, the answer complete in {num_complete:,}")
    assert num_worlds > 1_000
    assert num_complete > 100


@pytest.mark.parametrize("rule", Rules._fields)
def test_every_rule_of_the_protocol_is_needed(rule: str) -> None:
    with pytest.raises(AssertionError):
        walk(Rules()._replace(**{rule: False}))


def test_a_successor_begins_behind_what_was_shown() -> None:
    decided = decide(beginning(), 0, beginning().coordinators[0], Rules())
    written = write(decided, 0, decided.coordinators[0], Rules())
    state = acquire(written._replace(now=2), 1).coordinators[1].state
    assert state is not None
    assert [(item.next_position, item.suspended) for item in state.sessions] == [(PROMPT + 1, False)]
    assert [epoch.number for epoch in state.epochs] == [2]
