"""Exact cuts for a given order of sites: dynamic programming along the order with Pareto labels.

A label is a way to cover the chain up to some atom with the first sites of the order: its seconds, its slowest pace,
its longest step and what it used of shared memory, of the limit on steps and of what several parts share. One label
is dropped for another that is no worse in any of these. Above `MOST_LABELS` for one atom the least promising go, and
the answer is no longer called exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import le
from typing import NamedTuple

from inferswarm.planner.solvers.instance import Instance, Part, Steps, Trail, shared_memories, steps_of_trail

MOST_LABELS = 64
NOTHING = Part(0.0)
_Label = tuple[float, tuple[float, ...], tuple[float, ...], Trail]
"""Seconds; greatest pace (and step, where it counts); sums; and the stages so far."""


class Cuts(NamedTuple):
    """The best route in the given order, and whether it is proved to be that."""

    value: float
    steps: Steps
    exact: bool


class Group(NamedTuple):
    """Parts of an order that share something, so that together they take the weighed sum of their times.

    A member is a place in the order: of a stage for `stages`, of the site that a path starts from for `paths` (the
    last place is the way back).
    """

    stages: tuple[int, ...]
    paths: tuple[int, ...]
    factors: tuple[float, ...]
    """Of the stages, then of the paths."""


def best_cuts(
    instance: Instance,
    order: Sequence[int],
    longest: Sequence[Sequence[int]],
    ends: Sequence[int] | None = None,
    groups: Sequence[Group] = (),
    below: float = math.inf,
    most_labels: int = MOST_LABELS,
) -> Cuts | None:
    """Return the best cuts for sites in this order, each with at least one atom, or None when there are none.

    `longest` is `longest_ranges(instance)`. `ends`, when given, fixes the atoms covered after each stage. What the
    `groups` take together counts as a part does. Of routes that are not `below` a value, any or none is returned.
    """
    if not order or len(order) > instance.most_stages or not instance.mixes(order):
        return None
    final = len(order) - 1
    back: Part | None = Part(0.0)
    if final:
        back = instance.returns[order[-1]][order[0]]
    if back is None:
        return None
    cadenced, paced = instance.cadence_weight > 0, instance.pace_weight > 0
    timed = cadenced or instance.step_limit is not None
    shared = shared_memories(instance, order) if final else []
    profiles = [dict(instance.holds[site]) for site in order]
    limits = [float(instance.room_together(memory)) for memory in shared]
    if timed:
        limits.append(math.inf if instance.step_limit is None else instance.step_limit)
    first_sum = len(limits)
    factors = [_factors(group, len(order)) for group in groups]
    limits += [math.inf] * (len(groups) * (int(paced) + int(cadenced)))

    def sums(used: Sequence[float], part: Part, by_group: Sequence[float]) -> tuple[float, ...]:
        found = [*used, part.step] if timed else [*used]
        if paced:
            found += [weight * part.pace for weight in by_group]
        if cadenced:
            found += [weight * part.step for weight in by_group]
        return tuple(found)

    def peaks(part: Part) -> tuple[float, ...]:
        return (part.pace, part.step) if cadenced else (part.pace,)

    def value(label: _Label, rest: Part = NOTHING) -> float:
        seconds, most, added, _ = label
        pace, slowest = most[0], most[1] if cadenced else 0.0
        if groups and paced:
            pace = max(pace, *added[first_sum : first_sum + len(groups)])
        if groups and cadenced:
            slowest = max(slowest, *added[-len(groups) :])
        step = added[first_sum - 1] + rest.step if timed else 0.0
        return instance.value(seconds + rest.seconds, pace, step, slowest)

    exact = True
    rests = _rests(instance, order) if below < math.inf else []
    free = (0.0,) * len(shared)
    begin = sums(free, back, [by[1][final] for by in factors])
    labels: dict[int, list[_Label]] = {0: [(back.seconds, peaks(back), begin, ())]}
    if not all(map(le, begin, limits)):
        return None
    for place, site in enumerate(order):
        grown: dict[int, list[_Label]] = {}
        left = final - place
        on_stage = [by[0][place] for by in factors]
        for first, here in labels.items():
            hop: Part | None = Part(0.0)
            if place:
                hop = instance.hops[order[place - 1]][site][instance.payloads[first]]
            if hop is None:
                continue
            over = sums(free, hop, [by[1][place - 1] for by in factors] if place else [0.0] * len(factors))
            lowest = instance.num_atoms if not left else first + 1
            highest = min(longest[site][first], instance.num_atoms - left)
            stage = Part(0.0)
            for end in range(first + 1, highest + 1):
                part = instance.costs[site][instance.kinds[end - 1]]
                if part is None:
                    break
                stage = stage.plus(part)
                if end < lowest or (ends is not None and end != ends[place]):
                    continue
                used: tuple[float, ...] = ()
                if shared:
                    own = profiles[place]
                    used = tuple(
                        float(instance.peak(first, end, own[memory])) if memory in own else 0.0 for memory in shared
                    )
                more = sums(used, stage, on_stage)
                if over:
                    more = tuple(a + b for a, b in zip(more, over, strict=True))
                most = tuple(map(max, peaks(stage), peaks(hop)))
                added_seconds = hop.seconds + stage.seconds
                bucket = grown.setdefault(end, [])
                for seconds, before, so_far, trail in here:
                    spent = tuple(a + b for a, b in zip(so_far, more, strict=True)) if more else ()
                    if all(map(le, spent, limits)):
                        bucket.append(
                            (seconds + added_seconds, tuple(map(max, before, most)), spent, (trail, site, end))
                        )
        labels = {}
        for end, bucket in grown.items():
            if rests:
                bucket = [label for label in bucket if value(label, rests[end]) < below]
            kept = _undominated(bucket)
            if len(kept) > most_labels:
                kept.sort(key=value)
                kept, exact = kept[:most_labels], False
            if kept:
                labels[end] = kept
    complete = labels.get(instance.num_atoms)
    if not complete:
        return None
    best = min(complete, key=value)
    return Cuts(value(best), steps_of_trail(best[3]), exact)


def _rests(instance: Instance, order: Sequence[int]) -> list[Part]:
    """Return, by atoms covered, what the others add at least, wherever in the order they are."""
    rests = [NOTHING]
    for kind in reversed(instance.kinds):
        parts = [part for site in order if (part := instance.costs[site][kind]) is not None]
        seconds = min((part.seconds for part in parts), default=math.inf)
        rests.append(rests[-1].plus(Part(seconds, 0.0, min((part.step for part in parts), default=math.inf))))
    return rests[::-1]


def _factors(group: Group, size: int) -> tuple[list[float], list[float]]:
    """Return a group's weight of each stage and of each path, by place."""
    stages, paths = [0.0] * size, [0.0] * size
    for place, weight in zip(group.stages, group.factors, strict=False):
        stages[place] = weight
    for place, weight in zip(group.paths, group.factors[len(group.stages) :], strict=True):
        paths[place] = weight
    return stages, paths


def _undominated(labels: list[_Label]) -> list[_Label]:
    if len(labels) < 2:
        return labels
    labels.sort(key=lambda label: label[:3])
    kept: list[_Label] = []
    for label in labels:
        if not any(all(map(le, other[1], label[1])) and all(map(le, other[2], label[2])) for other in kept):
            kept.append(label)
    return kept
