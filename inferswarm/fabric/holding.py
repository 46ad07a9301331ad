"""What each stage of a route that adopts stages is to hold of each session, and who gives it what it lacks. Pure.

A stage that was kept has the state of a session's first positions; a new one has none. Positions that a stage lacks
come from the one before it, out of the payloads that it kept, or else are computed there again; the first stage gets
tokens. All of it in the steps in which the positions were computed first, so that nothing changes a bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from inferswarm.backends.partition import Step
from inferswarm.fabric.messages import Refill, SessionHeld, SessionOrder


class SessionNeed(NamedTuple):
    """A session that is to go on."""

    session: int
    terms: bytes
    """A `SessionTerms`, as in an OPEN frame."""
    steps: tuple[Step, ...]
    """Those that were computed and the next one: the last of them gives the result that comes next."""


class Holding(NamedTuple):
    """Orders for one route, by its stages' order, and where each session is fed from."""

    orders: tuple[tuple[SessionOrder, ...], ...]
    refills: tuple[tuple[Refill, ...], ...]
    fed_from: dict[int, int]
    """For each session, the position from which the first stage gets tokens."""


def plan_holding(needs: Sequence[SessionNeed], held: Sequence[Mapping[int, SessionHeld]]) -> Holding:
    """Return what the stages of a route do, given what each holds of each session that it knows."""
    orders: list[list[SessionOrder]] = [[] for _ in held]
    refills: list[list[Refill]] = [[] for _ in held]
    fed_from: dict[int, int] = {}
    for need in needs:
        known = [stage.get(need.session, SessionHeld(need.session, 0, 0)) for stage in held]
        common, positions = _positions(need.steps, known)
        for index, position in enumerate(positions):
            following = positions[index + 1] if index + 1 < len(positions) else position
            passes_from = common if position == 0 < following else 0
            orders[index].append(SessionOrder(need.session, need.terms, position, passes_from))
            if following == 0 < position:
                refills[index].append(Refill(session=need.session, first=0, end=common))
        fed_from[need.session] = positions[0]
    return Holding(tuple(map(tuple, orders)), tuple(map(tuple, refills)), fed_from)


def _positions(steps: tuple[Step, ...], known: Sequence[SessionHeld]) -> tuple[int, list[int]]:
    """Return up to where the kept state is used, and the position that each stage begins at: that one, or 0.

    Never in the middle of a step, and never past the one that gives the next result.
    """
    ends = [0, *(step.start for step in steps)]
    kept = [item.positions for item in known if item.positions > 0]
    common = max(end for end in ends if end <= min(kept, default=0))
    positions = [common if item.positions >= common else 0 for item in known]
    for index in range(len(positions) - 1, 0, -1):
        before = known[index - 1]
        journaled = before.journal_from == 0 and before.positions >= common
        if positions[index] == 0 and not journaled:
            positions[index - 1] = 0
    return common, positions
