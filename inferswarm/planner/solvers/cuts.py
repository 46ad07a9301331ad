"""Exact cuts for a given order of sites: dynamic programming along the order with Pareto labels.

A label is a way to cover the chain up to some atom with the first sites of the order: its seconds, its slowest pace
and what it used of shared memory and of the limit on a step. One label is dropped for another that is no worse in
any of these. Above `MOST_LABELS` for one atom the least promising go, and the answer is no longer called exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import le
from typing import Any, NamedTuple

from inferswarm.planner.solvers.instance import Instance, Part, Steps

MOST_LABELS = 64
_Label = tuple[float, float, tuple[float, ...], Any]


class Cuts(NamedTuple):
    """The best route in the given order, and whether it is proved to be that."""

    value: float
    steps: Steps
    exact: bool


def best_cuts(
    instance: Instance,
    order: Sequence[int],
    longest: Sequence[Sequence[int]],
    ends: Sequence[int] | None = None,
) -> Cuts | None:
    """Return the best cuts for sites in this order, each with at least one atom, or None when there are none.

    `longest` is `longest_ranges(instance)`. `ends`, when given, fixes the atoms covered after each stage.
    """
    if not order or len(order) > instance.most_stages:
        return None
    back: Part | None = Part(0.0)
    if len(order) > 1:
        back = instance.returns[order[-1]][order[0]]
    if back is None:
        return None
    memories = [instance.memory_of[site] for site in order]
    shared = sorted({memory for memory in memories if memories.count(memory) > 1})
    limits = [float(instance.room[memory]) for memory in shared]
    timed = instance.step_limit is not None
    if instance.step_limit is not None:
        limits.append(instance.step_limit - back.step)
    exact = True
    labels: dict[int, list[_Label]] = {0: [(back.seconds, back.pace, (0.0,) * len(limits), ())]}
    for place, site in enumerate(order):
        grown: dict[int, list[_Label]] = {}
        left = len(order) - place - 1
        for first, here in labels.items():
            hop: Part | None = Part(0.0)
            if place:
                hop = instance.hops[order[place - 1]][site][instance.payloads[first]]
            if hop is None:
                continue
            lowest = instance.num_atoms if not left else first + 1
            highest = min(longest[site][first], instance.num_atoms - left)
            stage = hop.seconds
            pace, step = 0.0, hop.step
            for end in range(first + 1, highest + 1):
                part = instance.costs[site][instance.kinds[end - 1]]
                if part is None:
                    break
                stage, pace, step = stage + part.seconds, pace + part.pace, step + part.step
                if end < lowest or (ends is not None and end != ends[place]):
                    continue
                slowest = max(pace, hop.pace)
                more: tuple[float, ...] = ()
                if limits:
                    peak = float(instance.peak(first, end)) if instance.memory_of[site] in shared else 0.0
                    more = tuple(peak if memory == instance.memory_of[site] else 0.0 for memory in shared)
                    more = (*more, step) if timed else more
                bucket = grown.setdefault(end, [])
                for seconds, before, uses, trail in here:
                    spent = tuple(a + b for a, b in zip(uses, more, strict=True))
                    if all(map(le, spent, limits)):
                        bucket.append((seconds + stage, max(before, slowest), spent, (trail, site, end)))
        labels = {}
        for end, bucket in grown.items():
            kept = _undominated(bucket)
            if len(kept) > MOST_LABELS:
                kept.sort(key=lambda label: instance.value(label[0], label[1]))
                kept, exact = kept[:MOST_LABELS], False
            if kept:
                labels[end] = kept
    final = labels.get(instance.num_atoms)
    if not final:
        return None
    best = min(final, key=lambda label: instance.value(label[0], label[1]))
    return Cuts(instance.value(best[0], best[1]), _steps(best[3]), exact)


def _undominated(labels: list[_Label]) -> list[_Label]:
    labels.sort(key=lambda label: label[:3])
    kept: list[_Label] = []
    for label in labels:
        if not any(other[1] <= label[1] and all(map(le, other[2], label[2])) for other in kept):
            kept.append(label)
    return kept


def _steps(trail: Any) -> Steps:
    steps: list[tuple[int, int]] = []
    while trail:
        trail, site, end = trail
        steps.append((site, end))
    return tuple(reversed(steps))
