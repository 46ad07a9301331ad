"""Random instances on plain numbers, and two oracles that share no search with the solvers.

`brute_force` tries every order and every cut. `held_karp` is the subset dynamic programming that is exact where no
Compute Units share memory: best value by (sites used, last site, atoms covered) for each possible slowest pace.
"""

from __future__ import annotations

import math
import random
from itertools import combinations, permutations

from inferswarm.planner.solvers import Common, Hold, Instance, Part, Profile, evaluate


def random_instance(
    seed: int,
    *,
    sites: tuple[int, int] = (1, 5),
    atoms: tuple[int, int] = (1, 7),
    alike: bool | None = None,
    shared: bool = True,
    gaps: bool = True,
    objective: str = "request",
    modes: bool = False,
) -> Instance:
    """An instance in which everything may differ; `alike` asks for equal atoms between the first and the last.

    `objective`: request, throughput or mix. With `modes` a Compute Unit may be several sites, which may take memory
    by other profiles and hold a part of it elsewhere.
    """
    rng = random.Random(seed)
    num_sites, num_atoms = rng.randint(*sites), rng.randint(*atoms)
    alike = rng.random() < 0.5 if alike is None else alike
    # Pieces that touch alike are of one kind only together with everything else that a kind stands for.
    groups = (
        [frozenset(rng.sample(range(num_atoms), rng.randint(2, num_atoms))) for _ in range(rng.randint(0, 2))]
        if (num_atoms > 2)
        else []
    )
    if alike:
        middle = frozenset(range(1, num_atoms - 1))
        groups = [middle, frozenset({0, num_atoms - 1})] if num_atoms > 3 else []
    looks: dict[object, int] = {}
    kinds = []
    for atom in range(num_atoms):
        place = ("ends", atom) if atom in (0, num_atoms - 1) else ("between", 0 if alike else rng.randint(0, 1))
        look = (place, tuple(atom in group for group in groups))
        kinds.append(looks.setdefault(look, len(looks)))
    num_kinds, num_payloads = len(looks), 1 if alike else rng.randint(1, 2)
    memory_of = [site if not shared or site == 0 or rng.random() < 0.75 else site - 1 for site in range(num_sites)]
    names = sorted(set(memory_of))

    def maybe(part: Part, share: float = 0.05) -> Part | None:
        return None if gaps and rng.random() < share else part

    def part(scale: float) -> Part:
        return Part(rng.uniform(0, scale), rng.uniform(0, scale), rng.uniform(0, scale))

    far = rng.choice((0.2, 3.0))
    profiles = [
        Profile(
            tuple(rng.randint(1, 9) for _ in range(num_kinds)),
            tuple(Common(rng.randint(1, 6), group) for group in groups),
            rng.randint(0, 3),
        )
        for _ in range(1 + 2 * modes)
    ]
    unit_of = [unit for unit in range(num_sites) for _ in range(rng.choice((1, 2, 2, 3)) if modes else 1)]

    def holds(unit: int) -> tuple[Hold, ...]:
        near = names.index(memory_of[unit])
        others = [memory for memory in range(len(names)) if memory != near]
        if not modes or not others or rng.random() < 0.5:
            return (Hold(near, rng.randrange(len(profiles))),)
        return Hold(near, rng.randrange(len(profiles))), Hold(rng.choice(others), rng.randrange(len(profiles)))

    hops = [[[maybe(part(far)) for _ in range(num_payloads)] for _ in range(num_sites)] for _ in range(num_sites)]
    returns = [[maybe(part(far)) for _ in range(num_sites)] for _ in range(num_sites)]
    part_limit = rng.choice((None, rng.uniform(2, 8))) if objective != "request" else None

    def quick(found: Part | None) -> Part | None:
        return None if found is None or (part_limit is not None and found.step > part_limit) else found

    return Instance(
        kinds=tuple(kinds),
        ends=tuple(range(1, num_atoms + 1)),
        profiles=tuple(profiles),
        payloads=(0, *(rng.randrange(num_payloads) for _ in range(num_atoms - 1))),
        costs=tuple(tuple(maybe(part(4.0)) for _ in range(num_kinds)) for _ in unit_of),
        holds=tuple(holds(unit) for unit in unit_of),
        room=tuple(rng.randint(4, 8 + 6 * num_atoms) for _ in names),
        hops=tuple(tuple(tuple(map(quick, hops[a][b])) for b in unit_of) for a in unit_of),
        returns=tuple(tuple(quick(returns[a][b]) for b in unit_of) for a in unit_of),
        later_chunks=rng.choice((0.0, 1.0, 5.0)),
        units=tuple(unit_of) if modes else (),
        forms=tuple(rng.randint(0, 1) for _ in unit_of) if modes and rng.random() < 0.4 else (),
        request_weight={"request": 1.0, "throughput": 0.0, "mix": rng.choice((0.2, 0.7))}[objective],
        cadence_weight={"request": 0.0, "throughput": 1.0, "mix": rng.choice((1.0, 8.0))}[objective],
        sessions=rng.choice((1, 2, 8)),
        step_limit=rng.choice((None, None, rng.uniform(2, 20))),
        part_limit=part_limit,
        most_sites=rng.choice((None, None, None, 2)),
    )


def brute_force(instance: Instance) -> float:
    """Return the least value over every order and cut; infinite when nothing is possible."""
    best = math.inf
    for count in range(1, instance.most_stages + 1):
        for order in permutations(range(instance.num_sites), count):
            for cuts in combinations(range(1, instance.num_atoms), count - 1):
                value = evaluate(instance, tuple(zip(order, (*cuts, instance.num_atoms), strict=True)))
                best = best if value is None else min(best, value)
    return best


def held_karp(instance: Instance) -> float:
    """Return the least value where no memory is shared and no step is limited; infinite when nothing is possible."""
    sites, num_atoms = range(instance.num_sites), instance.num_atoms
    stages = {
        (site, first, end): part
        for site in sites
        for first in range(num_atoms)
        for end in range(first + 1, num_atoms + 1)
        if instance.peak(first, end) <= instance.room[instance.holds[site][0].memory]
        and (part := instance.stage(site, first, end)) is not None
    }
    paths = [part for row in (*instance.hops,) for by_payload in row for part in by_payload if part is not None]
    paths += [part for row in instance.returns for part in row if part is not None]
    paces = sorted({part.pace for part in (*stages.values(), *paths)})
    least = math.inf
    for pace in paces if instance.pace_weight else paces[-1:]:
        seconds = _least_seconds(instance, stages, pace)
        least = min(least, instance.value(seconds, pace if instance.pace_weight else 0.0))
    return least


def _least_seconds(instance: Instance, stages: dict[tuple[int, int, int], Part], pace: float) -> float:
    """Return the least seconds of a route none of whose parts is slower than `pace`."""
    num_atoms, best = instance.num_atoms, math.inf
    for lead in range(instance.num_sites):
        table: dict[tuple[int, int, int], float] = {}
        for (site, first, end), part in stages.items():
            if site == lead and first == 0 and part.pace <= pace:
                table[1 << site, site, end] = part.seconds
        for _ in range(instance.most_stages):
            for (_, last, end), seconds in table.items():
                if end == num_atoms:
                    back = instance.returns[last][lead] if last != lead else Part(0.0)
                    if back is not None and back.pace <= pace:
                        best = min(best, seconds + back.seconds)
            grown: dict[tuple[int, int, int], float] = {}
            for (used, last, covered), seconds in table.items():
                for (site, first, end), part in stages.items():
                    if first != covered or used >> site & 1 or part.pace > pace:
                        continue
                    hop = instance.hops[last][site][instance.payloads[first]]
                    if hop is not None and hop.pace <= pace:
                        key = (used | 1 << site, site, end)
                        grown[key] = min(grown.get(key, math.inf), seconds + hop.seconds + part.seconds)
            table = grown
    return best
