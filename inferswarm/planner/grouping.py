"""Demands about a plan's Compute Units as a whole, which no solver sees: how many machines, and what is bit-exact.

Where few enough sets of Compute Units meet them, each is searched, and together they are proved as far as each is.
Where there are too many sets of machines, everything is searched first: that bounds every plan from below. When the
plan is on too many machines, some of their sets are searched, and what is found is as good as that bound proves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from math import comb

import msgspec

from inferswarm.planner.gates import Rules
from inferswarm.planner.problem import Implementation
from inferswarm.planner.sites import Site
from inferswarm.planner.solvers.building import Built
from inferswarm.planner.solvers.solution import Solution, SolverLimits, SolverStatus

MOST_MACHINE_SETS = 16
"""Sets of machines that are searched, each for itself."""
Search = Callable[[tuple[Site, ...], SolverLimits, float], tuple[Built, Solution]]
"""Searches all plans over some sites: within limits, and nothing above a value."""


def search_groups(
    implementation: Implementation,
    rules: Rules,
    sites: tuple[Site, ...],
    search: Search,
    limits: SolverLimits,
    cutoff: float = math.inf,
) -> tuple[Built, Solution]:
    """Search the plans over these sites that meet the demands about sets as a whole; the time is for all searches."""
    groups: list[tuple[Site, ...]] = []
    answers: list[tuple[Built, Solution]] = []
    relaxed: tuple[Built, Solution] | None = None
    until = limits.clock() + limits.seconds
    for group in rules.groups(implementation, sites):
        machines = sorted({site.node.host_id for site in group})
        most = (
            len(machines) if isinstance(rules.policy.max_machines, msgspec.UnsetType) else rules.policy.max_machines
        )
        if most >= len(machines):
            groups.append(group)
        elif comb(len(machines), most) <= MOST_MACHINE_SETS:
            groups += [_on(group, chosen) for chosen in combinations(machines, most)]
        else:
            share = limits._replace(seconds=limits.seconds / 2)
            built, whole = search(group, share, cutoff)
            if whole.steps is None or _num_machines(built, whole) <= most:
                answers.append((built, whole))
            else:
                groups += [_on(group, chosen) for chosen in _promising(group, built, whole, most)]
                relaxed = (built, whole) if relaxed is None or whole.bound < relaxed[1].bound else relaxed
    unique = list(dict.fromkeys(groups))
    if len(unique) == 1 and relaxed is None and not answers:
        return search(unique[0], limits, cutoff)
    for place, group in enumerate(unique):
        left = max(0.0, until - limits.clock()) / (len(unique) - place)
        best = min((answer.value for _, answer in answers if answer.value is not None), default=math.inf)
        answers.append(search(group, limits._replace(seconds=left), min(cutoff, best)))
    if not answers:
        built, nothing = search((), limits, cutoff)
        return built, nothing._replace(status="INFEASIBLE", why="the policy allows no set of these Compute Units")
    return answers[0] if len(answers) == 1 and relaxed is None else _together(answers, relaxed)


def _together(
    answers: list[tuple[Built, Solution]], relaxed: tuple[Built, Solution] | None
) -> tuple[Built, Solution]:
    """Return the best answer with what all of them prove; `relaxed` bounds the sets that nobody searched."""
    built, best = min(answers, key=lambda answer: math.inf if answer[1].value is None else answer[1].value)
    bound = min(answer.bound for _, answer in answers)
    why = f"{best.why}; {len(answers)} sets of Compute Units that the policy allows, each for itself"
    if relaxed is not None:
        bound = min(bound, relaxed[1].bound)
        why += "; not all sets of machines: the bound is that of plans over any machines"
    settled = all(answer.status in ("OPTIMAL", "INFEASIBLE") for _, answer in answers) and relaxed is None
    status: SolverStatus
    if best.value is None:
        status = "INFEASIBLE" if settled else "UNKNOWN"
    else:
        bound = min(bound, best.value)
        proved = settled or all(
            answer.bound >= best.value for _, answer in (*answers, *([relaxed] if relaxed else ()))
        )
        status = "OPTIMAL" if proved else "FEASIBLE"
    spent = sum(answer.wall_seconds for _, answer in (*answers, *([relaxed] if relaxed else ())))
    rounding = max(answer.rounding for _, answer in answers)
    return built, best._replace(status=status, bound=bound, rounding=rounding, wall_seconds=spent, why=why)


def _promising(group: tuple[Site, ...], built: Built, whole: Solution, most: int) -> tuple[tuple[str, ...], ...]:
    """Return sets of so many machines: of those of a plan over too many, and of those that have most room.

    Of the plan's the ones that hold most units come first, each such set also filled up with the roomiest others.
    """
    assert whole.steps is not None, "only asked for a plan"
    held: dict[str, int] = {}
    for leg in built.route(whole.steps):
        machine = leg.site.node.host_id
        held[machine] = held.get(machine, 0) + leg.end_unit - leg.first_unit
    used = sorted(held, key=lambda machine: (-held[machine], machine))
    room: dict[str, dict[str, int]] = {}
    for site in group:
        if site.memory is not None:
            room.setdefault(site.node.host_id, {})[site.memory.id] = site.available_bytes or 0
    roomy = sorted(room, key=lambda machine: (-sum(room[machine].values()), machine))
    filled = [(*used[:count], *(item for item in roomy if item not in used[:count])) for count in range(most + 1)]
    sets = [tuple(sorted(items[:most])) for items in filled]
    sets += [tuple(sorted(chosen)) for chosen in combinations(used, most)]
    return tuple(dict.fromkeys(sets))[:MOST_MACHINE_SETS]


def _on(group: tuple[Site, ...], machines: tuple[str, ...]) -> tuple[Site, ...]:
    return tuple(site for site in group if site.node.host_id in machines)


def _num_machines(built: Built, solution: Solution) -> int:
    assert solution.steps is not None, "only asked for a plan"
    return len({leg.site.node.host_id for leg in built.route(solution.steps)})
