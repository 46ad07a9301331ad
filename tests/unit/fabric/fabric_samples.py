"""Ready-made states, events and frames for the tests of the fabric."""

from __future__ import annotations

from collections.abc import Iterable

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState
from inferswarm.fabric.transitions import apply

SCOPE = "scope"
PLAN = "sha256:" + "ab" * 32
OTHER_PLAN = "sha256:" + "cd" * 32
PARTICIPANTS = (("stage-0", "n1"), ("stage-1", "n2"))
FOREVER = 1e9


def lease(term: int = 1, until: float = FOREVER) -> ev.LeaseGranted:
    return ev.LeaseGranted(term=term, lease_until=until)


def join(node_id: str = "n1", incarnation: str = "a", until: float = FOREVER) -> ev.NodeJoined:
    return ev.NodeJoined(node_id=node_id, incarnation=incarnation, lease_until=until)


def renew(node_id: str = "n1", incarnation: str = "a", until: float = FOREVER) -> ev.NodeRenewed:
    return ev.NodeRenewed(node_id=node_id, incarnation=incarnation, lease_until=until)


def left(node_id: str = "n1", reason: str = "unplugged") -> ev.NodeLeft:
    return ev.NodeLeft(node_id=node_id, reason=reason)


def start(
    realization: str = "r1", plan: str = PLAN, participants: tuple[tuple[str, str], ...] = PARTICIPANTS
) -> ev.RealizationStarted:
    return ev.RealizationStarted(realization_id=realization, plan_digest=plan, participants=participants)


def ready(realization: str = "r1") -> ev.RealizationReadied:
    return ev.RealizationReadied(realization_id=realization)


def end(realization: str = "r1", reason: str = "out of disk") -> ev.RealizationEnded:
    return ev.RealizationEnded(realization_id=realization, reason=reason)


def activate(realization: str = "r1") -> ev.EpochRequested:
    return ev.EpochRequested(realization_id=realization)


def retire(epoch: int = 1, reason: str = "on request") -> ev.EpochRetired:
    return ev.EpochRetired(epoch=epoch, reason=reason)


def reclaim(epoch: int = 1) -> ev.EpochReclaimed:
    return ev.EpochReclaimed(epoch=epoch)


def lose(realization: str = "r1", participant: str = "stage-1", reason: str = "killed") -> ev.ParticipantLost:
    return ev.ParticipantLost(realization_id=realization, participant=participant, reason=reason)


def request(prompt_tokens: int = 3) -> ev.SessionRequested:
    return ev.SessionRequested(prompt_tokens=prompt_tokens)


def result(
    position: int, *, session: int = 1, epoch: int = 1, realization: str = "r1", plan: str = PLAN
) -> ev.ResultArrived:
    return ev.ResultArrived(
        epoch=epoch, realization_id=realization, plan_digest=plan, session=session, position=position
    )


def after(events: Iterable[ev.Event], state: AuthorityState | None = None, now: float = 0.0) -> AuthorityState:
    """Fold events that must all be accepted."""
    state = AuthorityState(scope=SCOPE) if state is None else state
    for event in events:
        transition = apply(state, event, now)
        assert not any(isinstance(effect, ev.Refused) for effect in transition.effects), (event, transition.effects)
        state = transition.state
    return state


EMPTY = AuthorityState(scope=SCOPE)
MEMBERS = after([lease(), join("n1"), join("n2")])
PREPARING = after([start()], MEMBERS)
READY = after([ready()], PREPARING)
ACTIVE = after([activate()], READY)
SERVING = after([request(3), request(5)], ACTIVE)
"""Session 1 has 3 prompt tokens, session 2 has 5."""
