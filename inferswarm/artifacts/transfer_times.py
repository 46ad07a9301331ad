"""How long an acquisition takes: bytes and measured speeds, everything that can move at once moving at once.

Bytes flow like water: a participant's link in, a source's link out and the path between the two each carry what they
were measured to carry, shared by all that use them, and of several allowed sources each gives as much as is best. The
time is the least in which all of it can be through: a linear program. Transforms and loading follow the transfer. It
is an estimate for ranking changes and for a person who waits; no verdict rests on it. It does not count the waiting
for answers to start, nor Nodes that share one machine's link without saying so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from inferswarm.errors import SpecError


class Speed(NamedTuple):
    """Bytes per second: the slowest and fastest to be expected, and the best single figure."""

    low: float
    point: float
    high: float


class Demand(NamedTuple):
    """Bytes of one participant that the same sources may serve."""

    participant: str
    bytes: int
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeeds:
    """What was measured between sources and participants."""

    paths: Mapping[tuple[str, str], Speed]
    """(source, participant) → of the path between them, nothing else moving."""
    inbound: Mapping[str, Speed] = field(default_factory=dict)
    """Participant → of its link in. One that is not named is taken as fast as the fastest path into it."""
    outbound: Mapping[str, Speed] = field(default_factory=dict)
    """Source → of its link out, likewise."""

    def __post_init__(self) -> None:
        """Refuse a speed that is none, and one whose figures are out of order. Raises SpecError."""
        for name, speed in (*self.paths.items(), *self.inbound.items(), *self.outbound.items()):
            if not 0 < speed.low <= speed.point <= speed.high < math.inf:
                raise SpecError("speed", (name, *speed), "finite bytes per second above 0: low, point, high in order")


class TransferEstimate(NamedTuple):
    """Seconds of one acquisition; all three are None while a path that is needed was not measured."""

    low: float | None
    point: float | None
    high: float | None
    missing: tuple[str, ...]
    """Paths that were not measured although they alone could serve something."""


def estimate_seconds(
    demands: Iterable[Demand],
    speeds: LinkSpeeds,
    after_seconds: Mapping[str, float] | None = None,
) -> TransferEstimate:
    """Return how long it takes until all participants have their bytes and have made states of them.

    `after_seconds` is what transforms and loading take at each participant once its bytes are there. The interval
    goes from every link at its fastest to every link at its slowest. A source whose path was not measured is left
    out; where none is left, the estimate is unknown and `missing` names the paths. Raises SpecError for negative
    bytes or seconds.
    """
    after = dict(after_seconds or {})
    for name, seconds in after.items():
        if not 0 <= seconds < math.inf:
            raise SpecError("after_seconds", (name, seconds), "finite seconds, not negative")
    wanted: list[Demand] = []
    missing: list[str] = []
    for demand in demands:
        if demand.bytes < 0:
            raise SpecError("bytes", demand.bytes, f"not negative for {demand.participant}")
        known = tuple(sorted({s for s in demand.sources if (s, demand.participant) in speeds.paths}))
        if demand.bytes and known:
            wanted.append(Demand(demand.participant, demand.bytes, known))
        elif demand.bytes:
            missing += [f"{source} to {demand.participant}" for source in demand.sources or ("no source",)]
    if missing:
        return TransferEstimate(None, None, None, tuple(sorted(set(missing))))
    moving = max((after.get(demand.participant, 0.0) for demand in wanted), default=0.0)
    rest = max(after.values(), default=0.0)
    low, point, high = (max(_least_seconds(wanted, speeds, which) + moving, rest) for which in (2, 1, 0))
    return TransferEstimate(low, point, high, ())


def _least_seconds(demands: list[Demand], speeds: LinkSpeeds, which: int) -> float:
    """Return the least time in which all demands can be through, with one of the three figures of every speed."""
    if not demands:
        return 0.0
    import scipy.optimize  # here: a quarter of a second, which only estimates need
    import scipy.sparse

    flows = [(index, source) for index, demand in enumerate(demands) for source in demand.sources]
    links: dict[tuple[str, str], float] = {}
    rows: list[tuple[tuple[str, str], int]] = []
    for column, (index, source) in enumerate(flows):
        participant = demands[index].participant
        for link, speed in (
            (("path", f"{source} {participant}"), speeds.paths[source, participant][which]),
            (("in", participant), _shared(speeds, participant, 1, which)),
            (("out", source), _shared(speeds, source, 0, which)),
        ):
            links[link] = speed
            rows.append((link, column))
    # Bytes and time in units of the whole, so that the solver's tolerances are relative: x = bytes / total,
    # and T in units of total / fastest.
    total, fastest = sum(demand.bytes for demand in demands), max(links.values())
    places = {link: row for row, link in enumerate(links)}
    last = len(flows)
    data = [1.0] * len(rows) + [-speed / fastest for speed in links.values()]
    at_row = [places[link] for link, _ in rows] + list(range(len(links)))
    at_column = [column for _, column in rows] + [last] * len(links)
    carried = scipy.sparse.csr_array((data, (at_row, at_column)), shape=(len(links), last + 1))
    served = scipy.sparse.csr_array(
        ([1.0] * last, ([index for index, _ in flows], range(last))), shape=(len(demands), last + 1)
    )
    solved = scipy.optimize.linprog(
        [*itertools.repeat(0.0, last), 1.0],
        A_ub=carried,
        b_ub=[0.0] * len(links),
        A_eq=served,
        b_eq=[demand.bytes / total for demand in demands],
        method="highs",
    )
    assert solved.status == 0, solved.message  # feasible for a T that is large enough, and T is bounded below by 0
    return float(solved.x[last]) * total / fastest


def _shared(speeds: LinkSpeeds, name: str, end: int, which: int) -> float:
    """Return the speed of a participant's link in (end 1) or a source's link out (end 0)."""
    stated = (speeds.outbound, speeds.inbound)[end].get(name)
    if stated is not None:
        return stated[which]
    return max(speed[which] for pair, speed in speeds.paths.items() if pair[end] == name)
