"""How stages get on that want more threads than their machine has cores.

Between two cases lies what happens. Either the work of all stages fills the cores: together they take threads / cores
of their times. Or a stage waits until each of its threads has a core, as those wait for each other many times in a
step: then two stages whose threads are too many for the cores are never at work at once, and neither is any set of
which every two are. A prediction's low bound is the first, its point lies half way between the two, its high bound
beyond the second. (Measured: a fifth of the way to all of it, by machine load; see ADR 21.)
"""

from __future__ import annotations

from collections.abc import Sequence


def core_shares(threads: Sequence[int], num_cores: int) -> tuple[tuple[float, ...], ...]:
    """Return weighed sums of stages' times, each weight in the order of `threads`; the largest sum sets their pace.

    The first is that of filled cores. Each other one is half of that and half of one stage with all that have at
    least as many threads and cannot be at work beside it. Every sum holds for any part of the stages too. None where
    the threads of all stages have a core each.
    """
    if len(threads) < 2 or sum(threads) <= num_cores:
        return ()
    filled = tuple(count / num_cores for count in threads)
    found = [filled]
    for index, count in enumerate(threads):
        apart = [
            place == index or (other >= count and other + count > num_cores) for place, other in enumerate(threads)
        ]
        if count < num_cores and sum(apart) > 1:
            found.append(tuple((share + float(alone)) / 2 for share, alone in zip(filled, apart, strict=True)))
    return tuple(found)


def most_shares(threads: Sequence[int], num_cores: int) -> tuple[float, ...]:
    """Return the weight of each stage at worst: while one waits, all cores but those that it lacks may be at rest."""
    busy = max(1, num_cores - max(threads) + 1)
    return tuple(max(count / num_cores, min(1.0, count / busy)) for count in threads)
