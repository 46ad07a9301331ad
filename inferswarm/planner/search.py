"""Exact search over subset, order and cuts of a chain: dynamic programming with Pareto labels and bounds.

A *label* is a partial route that covers the chain up to some unit: the seconds that add up, the *pace* (a maximum:
its slowest stage or path so far) and what it has used of limited budgets. The value of a complete route is
`seconds + pace_weight × pace`. A label is dropped for one of two reasons only:

* another label with the same first site, sites used, last site and covered units is no worse in seconds, pace and
  every use that can still grow: both have the same continuations, and nothing here ever decreases;
* no completion over any set of sites can beat the best route that is already known for that set.

So what remains at the chain's end holds, for every set of sites, a best route. Among equals that remain, the smaller
sequence of (site, end of stage) wins: equal inputs give equal answers. Sites and units are plain indexes; the
search knows neither names nor meanings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import add, le
from typing import Any, NamedTuple

Uses = tuple[float, ...]
SLACK = 1e-9
"""Relative margin by which a label must miss its bound: sums of floats in another order differ by far less."""


class StageOption(NamedTuple):
    """One legal range for a site: units up to `end` (excluded), its time, its pace, and what it uses."""

    end: int
    seconds: float
    pace: float
    uses: Uses = ()
    choice: int = 0
    """Which of its ways to hold that range a site takes: an index without meaning, see `ChainSpace.forms`."""


class HopOption(NamedTuple):
    """The path between two neighbors, or back from the last to the first: its time, its pace, what it uses."""

    seconds: float
    pace: float = float("-inf")
    uses: Uses = ()


class ChainSpace(NamedTuple):
    """Everything that may be combined, and what each part costs. No time and no use is negative.

    `stages[site][first]` lists the ranges that the site may hold from unit `first` on; `hops[source][target][first]`
    is the path into a stage that starts at `first`, and `returns[last][first_site]` the way back, None where there
    is none. `limits` bounds the sums of `uses`, of which every part has as many. `settle`, for `quick_routes` only,
    raises a complete route's pace by what its uses amount to. `seats` and `ends`, when given, say which sites may be
    the n-th participant and where it must end. `forms`, when given, say of each choice what form it is (0, 1, …): a
    route must then hold two forms at least.
    """

    num_units: int
    stages: Sequence[Sequence[Sequence[StageOption]]]
    hops: Sequence[Sequence[Sequence[HopOption | None]]]
    returns: Sequence[Sequence[HopOption | None]]
    pace_weight: float
    limits: Uses = ()
    settle: Callable[[float, Uses], float] | None = None
    seats: Sequence[frozenset[int]] | None = None
    ends: Sequence[int] | None = None
    forms: Sequence[int] | None = None


class Found(NamedTuple):
    """A best route over one set of sites: its value, (site, end) of each stage, and the choice of each."""

    value: float
    steps: tuple[tuple[int, int], ...]
    choices: tuple[int, ...] = ()


_Trail = Any
"""Nested ((((), site, end, choice), site, end, choice) …): grows without copying, compares from the first on."""
_Label = tuple[float, float, Uses, _Trail]
_Key = tuple[int, int, int]
"""First site, bit set of sites used and, above them, of forms used where they matter, last site."""
_Variants = list[list[tuple[int, Sequence[Sequence[StageOption]]]]]
"""By site: its stages in each form, with the form's bit; one entry and no bit where forms do not matter."""
_Frontier = dict[_Key, dict[int, list[_Label]]]
_Best = dict[int, tuple[float, _Trail]]
_Ceilings = list[list[float]]
"""For each bit set of sites used and each number of covered units: the largest value worth keeping."""


def best_routes(
    space: ChainSpace, wanted: Collection[frozenset[int]], below: float = float("inf")
) -> dict[frozenset[int], Found]:
    """Return a best route for every wanted set of sites that has one; each site of a set holds at least one unit.

    Of a set whose best route is not `below` a value, any route or none is returned.
    """
    assert space.settle is None, "only quick_routes keeps uses that can no longer grow"
    sets = {sum(1 << site for site in members) for members in wanted}
    known = _sweep(space, None) if below == float("inf") else {}
    # No value is negative, so nothing betters a known 0.
    open_ = {used for used in sets if used not in known or known[used][0] > 0}
    goals = {used: min(below, known[used][0] * (1 + SLACK) if used in known else below) for used in open_}
    better = _sweep(space, _ceilings(space, goals))
    best = known | {used: found for used, found in better.items() if used not in known or found < known[used]}
    return _found(space, {used: best[used] for used in sets & best.keys()})


def quick_routes(space: ChainSpace) -> dict[frozenset[int], Found]:
    """Return a good route for every set of sites where one comes up, with one label kept where there could be many.

    When a route's value is its pace alone (no seconds, no uses), that loses nothing: then the routes are the best
    ones, and a set without one has none.
    """
    return _found(space, _sweep(space, None))


def _found(space: ChainSpace, best: _Best) -> dict[frozenset[int], Found]:
    found = {}
    for used, (value, trail) in sorted(best.items()):
        stages = _stages_of(trail)
        found[frozenset(site for site in range(len(space.stages)) if used >> site & 1)] = Found(
            value, tuple((site, end) for site, end, _ in stages), tuple(choice for _, _, choice in stages)
        )
    return found


def _sweep(space: ChainSpace, ceilings: _Ceilings | None) -> _Best:
    """Grow routes stage by stage. Without ceilings keep one promising label each: quick, good, not exact."""
    num_sites = len(space.stages)
    depth_limit = num_sites if space.seats is None else min(num_sites, len(space.seats))
    alone = HopOption(0.0, uses=(0.0,) * len(space.limits))
    best: _Best = {}
    variants = _variants(space)
    everyone = (1 << num_sites) - 1
    frontier = _first_stages(space, variants, ceilings is None)
    for depth in range(1, depth_limit + 1):
        for (first, used, last), by_end in frontier.items():
            labels = by_end.pop(space.num_units, None)
            back = alone if depth == 1 else space.returns[last][first]
            mixed = space.forms is None or (used >> num_sites).bit_count() > 1
            if labels is not None and back is not None and mixed:
                _finish(space, labels, back, used & everyone, best)
        if depth < depth_limit:
            frontier = _next_stages(space, variants, frontier, depth, ceilings)
    return best


def _variants(space: ChainSpace) -> _Variants:
    if space.forms is None:
        return [[(0, stages)] for stages in space.stages]
    num_sites, forms = len(space.stages), space.forms
    return [
        [
            (
                1 << num_sites + form,
                [[option for option in options if forms[option.choice] == form] for options in stages],
            )
            for form in sorted({forms[option.choice] for options in stages for option in options})
        ]
        for stages in space.stages
    ]


def _first_stages(space: ChainSpace, variants: _Variants, quick: bool) -> _Frontier:
    frontier: _Frontier = {}
    for site, forms in enumerate(variants):
        if space.seats is not None and site not in space.seats[0]:
            continue
        for form, stages in forms:
            by_end = frontier.setdefault((site, 1 << site | form, site), {})
            for end, seconds, pace, uses, choice in stages[0]:
                spent = _spend((0.0,) * len(space.limits), uses, space.limits)
                if spent is not None and (space.ends is None or end == space.ends[0]):
                    by_end.setdefault(end, []).append((seconds, pace, spent, ((), site, end, choice)))
            for end, labels in by_end.items():
                if len(labels) > 1 and quick:
                    by_end[end] = [min(labels, key=lambda label: label[0] + space.pace_weight * label[1])]
                elif len(labels) > 1:
                    by_end[end] = _undominated(labels, tuple(range(len(space.limits))))
    return frontier


def _finish(space: ChainSpace, labels: list[_Label], back: HopOption, used: int, best: _Best) -> None:
    for seconds, pace, uses, trail in labels:
        spent = _spend(uses, back.uses, space.limits)
        if spent is None:
            continue
        slowest = max(pace, back.pace)
        final_pace = slowest if space.settle is None else space.settle(slowest, spent)
        candidate = (seconds + back.seconds + space.pace_weight * final_pace, trail)
        if used not in best or candidate < best[used]:
            best[used] = candidate


def _next_stages(
    space: ChainSpace, variants: _Variants, frontier: _Frontier, depth: int, ceilings: _Ceilings | None
) -> _Frontier:
    """Append one more stage to every label, then drop the labels that cannot matter."""
    grown: _Frontier = {}
    everyone = (1 << len(space.stages)) - 1
    for (first, used, last), by_end in frontier.items():
        for site, forms in enumerate(variants):
            bit = 1 << site
            if used & bit or (space.seats is not None and site not in space.seats[depth]):
                continue
            only_end = space.num_units if (used | bit) & everyone == everyone else None
            if space.ends is not None:
                only_end = space.ends[depth]
            ceiling = None if ceilings is None else ceilings[(used | bit) & everyone]
            for form, stages in forms:
                target = grown.setdefault((first, used | bit | form, site), {})
                for start, labels in by_end.items():
                    hop = space.hops[last][site][start]
                    if hop is not None:
                        _append(space, labels, hop, site, stages[start], only_end, ceiling, target)
    if ceilings is None:
        return grown
    open_uses = {used: _open_uses(space, used) if space.limits else () for _, used, _ in grown}
    return {
        key: {end: _undominated(labels, open_uses[key[1]]) for end, labels in by_end.items()}
        for key, by_end in grown.items()
    }


def _append(
    space: ChainSpace,
    labels: list[_Label],
    hop: HopOption,
    site: int,
    options: Sequence[StageOption],
    only_end: int | None,
    ceiling: list[float] | None,
    target: dict[int, list[_Label]],
) -> None:
    """Append each stage that the site may hold to each label. Without a ceiling keep the best label of each end."""
    limits, weight = space.limits, space.pace_weight
    hop_seconds, hop_pace, hop_uses = hop
    least = labels[0][0]
    for end, stage_seconds, stage_pace, stage_uses, choice in options:
        if only_end is not None and end != only_end:
            continue
        added = hop_seconds + stage_seconds
        slowest = stage_pace if stage_pace > hop_pace else hop_pace
        bucket = target.get(end)
        if ceiling is not None:
            highest = ceiling[end]
        else:
            highest = float("inf") if not bucket else bucket[0][0] + weight * bucket[0][1]
        if least + added + weight * slowest > highest:
            continue
        more = tuple(map(add, hop_uses, stage_uses)) if limits else ()
        for seconds, pace, uses, trail in labels:
            new_seconds = seconds + added
            new_pace = pace if pace > slowest else slowest
            if new_seconds + weight * new_pace <= highest:
                spent = _spend(uses, more, limits) if limits else ()
                if spent is not None:
                    label = (new_seconds, new_pace, spent, (trail, site, end, choice))
                    if bucket is None:
                        target[end] = bucket = [label]
                    elif ceiling is None:
                        bucket[0] = label
                    else:
                        bucket.append(label)
            if pace <= slowest and not limits:
                # Labels are sorted by seconds with falling pace: from here on all would have this same pace.
                break


def _spend(uses: Uses, more: Uses, limits: Uses) -> Uses | None:
    """Return the sum of two uses, or None when it breaks a limit."""
    spent = tuple(map(add, uses, more))
    return spent if all(map(le, spent, limits)) else None


def _staircase(labels: list[_Label]) -> list[_Label]:
    """Keep the labels that no other beats in seconds and pace: sorted by seconds, the pace falls."""
    labels.sort()
    kept = labels[:1]
    for label in labels:
        if label[1] < kept[-1][1]:
            kept.append(label)
    return kept


def _undominated(labels: list[_Label], open_uses: tuple[int, ...]) -> list[_Label]:
    """Keep the labels that no other beats in seconds, pace and every use that can still grow."""
    if not open_uses:
        return _staircase(labels)
    labels.sort()
    kept: list[_Label] = []
    beaten_by: list[Uses] = []
    for label in labels:
        uses = label[2]
        weight = (label[1], *(uses[index] for index in open_uses))
        for other in beaten_by:
            if all(map(le, other, weight)):
                break
        else:
            kept.append(label)
            beaten_by.append(weight)
    return kept


def _open_uses(space: ChainSpace, used: int) -> tuple[int, ...]:
    """Return which uses a site that is still free, or a path, may add to."""
    parts: list[Uses] = [hop.uses for table in space.hops for row in table for hop in row if hop is not None]
    parts += [back.uses for row in space.returns for back in row if back is not None]
    for site, stages in enumerate(space.stages):
        if not used >> site & 1:
            parts += [option.uses for options in stages for option in options]
    return tuple(index for index in range(len(space.limits)) if any(uses[index] > 0 for uses in parts))


def _ceilings(space: ChainSpace, goals: Mapping[int, float]) -> _Ceilings:
    """Return what a label may cost at most, by sites used and units covered, to matter for one of the `goals`.

    These are the largest value worth keeping of each set of sites that matters.
    The rest of the chain is bounded from below by its cheapest cover with the sites that are still free, each as
    often as one likes and with the cheapest paths.
    """
    num_sites, num_units = len(space.stages), space.num_units
    everyone = (1 << num_sites) - 1
    hops = [row for table in space.hops for row in table]
    cheapest_hop = [
        min((hop.seconds for row in hops if (hop := row[start]) is not None), default=float("inf"))
        for start in range(num_units)
    ]
    rest = [[0.0] * (num_units + 1) for _ in range(everyone + 1)]
    for free in range(everyone + 1):
        sites = [site for site in range(num_sites) if free >> site & 1]
        for start in range(num_units - 1, 0, -1):
            rest[free][start] = cheapest_hop[start] + min(
                (option.seconds + rest[free][option.end] for site in sites for option in space.stages[site][start]),
                default=float("inf"),
            )
    ceilings = [[float("-inf")] * (num_units + 1) for _ in range(everyone + 1)]
    for used in range(1, everyone + 1):
        row, free = ceilings[used], everyone & ~used
        more = free
        while True:
            goal = goals.get(used | more, float("-inf"))
            if not more:
                row[num_units] = goal
                break
            for covered in range(1, num_units):
                if rest[more][covered] < float("inf"):
                    row[covered] = max(row[covered], goal - rest[more][covered])
            more = (more - 1) & free
    return ceilings


def _stages_of(trail: _Trail) -> tuple[tuple[int, int, int], ...]:
    stages: list[tuple[int, int, int]] = []
    while trail:
        trail, site, end, choice = trail
        stages.append((site, end, choice))
    return tuple(reversed(stages))
