"""One instance to one solution: which method for how many sites, and how they help each other.

Few sites are searched exactly by dynamic programming. For more, a heuristic finds a plan first; a linear program
bounds every other plan from below and rules out what no better plan can contain; and if few enough ways remain, a
constraint program searches them to the end. If more remain, it searches the most promising ones, for a better plan
only. A time limit ends any of them: the best plan so far is returned with the best bound so far, so its gap is always
known.
"""

from __future__ import annotations

import math

from inferswarm.planner.solvers.constraint import solve_program
from inferswarm.planner.solvers.counted import count_chain
from inferswarm.planner.solvers.cuts import best_cuts
from inferswarm.planner.solvers.exact import MAX_EXACT_SITES, best_of_all
from inferswarm.planner.solvers.heuristic import search_orders
from inferswarm.planner.solvers.instance import Instance, Steps, longest_ranges
from inferswarm.planner.solvers.relaxation import relax
from inferswarm.planner.solvers.solution import Method, Solution, SolverLimits, SolverStatus

MOST_WAYS, PROMISING_WAYS = 8000, 4000
"""Paths left, forward and back, up to which the constraint program is worth building; and of a part of them."""
HEURISTIC_SHARE, RELAXATION_SHARE = 0.2, 0.6
"""Of the time limit: when the heuristic stops, and when the bound does."""
WORTH_POLISHING = 0.5
"""Seconds that must be left to search the most promising paths of a swarm that is too large for all of them."""
COUNTS_SHARE = 0.5
"""Of the time that is left: what the relaxation without positions may take, where positions matter."""
PROVED = 1e-12
"""A relative gap that only the order of float sums makes."""


def solve(
    instance: Instance, limits: SolverLimits | None = None, hint: Steps | None = None, cutoff: float = math.inf
) -> Solution:
    """Solve an instance with the method that its size asks for. `hint` is a route that may be good.

    Values above `cutoff` are of no interest: a large search may end as soon as it proves that there are no others.
    Without a time limit that cuts in, and with one thread, equal instances give equal solutions.
    """
    limits = limits or SolverLimits()
    if instance.num_units <= MAX_EXACT_SITES and instance.is_sum:
        started = limits.clock()
        found = best_of_all(instance)
        why = f"{instance.num_units} Compute Units, at most {MAX_EXACT_SITES}: all subsets, orders and cuts"
        spent = limits.clock() - started
        if found is None:
            return Solution("dynamic programming", "INFEASIBLE", None, None, math.inf, 0.0, spent, why)
        value, steps = found
        return Solution("dynamic programming", "OPTIMAL", steps, value, value, 0.0, spent, why)
    return _solve_large(instance, limits, hint, cutoff)


def _solve_large(
    instance: Instance, limits: SolverLimits, hint: Steps | None = None, cutoff: float = math.inf
) -> Solution:
    started = limits.clock()

    def share(part: float) -> float:
        return started + part * limits.seconds

    steps: Steps | None = None
    value = math.inf
    guess = search_orders(instance, share(HEURISTIC_SHARE), limits.clock, limits.seed, hint)
    if guess is not None:
        steps, value = guess.steps, guess.value
    alone = _best_alone(instance)
    if instance.most_stages < 2 or instance.num_sites == 0:
        return _finished(
            instance, limits, started, "bounded heuristic", steps, value, alone, 0.0, "one stage at most"
        )
    goal = min(value, cutoff)
    relaxed, promising = relax(instance, goal, steps, share(RELAXATION_SHARE), limits.clock, PROMISING_WAYS)
    bound, rounding = min(alone, relaxed.bound), 0.0
    method: Method = "bounded heuristic"
    size = f"{instance.num_units} Compute Units"
    size += f", more than {MAX_EXACT_SITES}" if instance.num_units > MAX_EXACT_SITES else ", all of their sessions"
    if instance.num_sites > instance.num_units:
        size += f", {instance.num_sites} ways to use them"
    if bound >= goal * (1 - PROVED) or not relaxed.sites:
        why = f"{size}; the linear bound already settles it"
        bound = max(bound, min(alone, goal)) if not relaxed.sites else bound
    elif relaxed.num_ways > MOST_WAYS:
        why = (
            f"{size}; the linear bound leaves {len(relaxed.sites)} of them and {relaxed.num_ways:,} paths, more than "
            f"the {MOST_WAYS:,} that a constraint program is built for"
        )
        left = limits.seconds - (limits.clock() - started) - WORTH_POLISHING
        if promising is not None and left > WORTH_POLISHING:
            polished = solve_program(instance, promising, goal, steps, left, limits.num_threads, limits.seed)
            if polished.value is not None and polished.value < value:
                steps, value = polished.steps, polished.value
    else:
        method = "constraint programming"
        why = f"{size}; {len(relaxed.sites)} of them and {relaxed.num_ways:,} paths are left by the linear bound"
        for positions in (False, True):
            left = limits.seconds - (limits.clock() - started)
            if not positions:
                if _counts_suffice(instance):
                    continue
                left *= COUNTS_SHARE
            outcome = solve_program(
                instance, relaxed, goal, steps, left, limits.num_threads, limits.seed, positions, bound
            )
            rounding = outcome.rounding
            found = outcome.value, outcome.steps
            if not positions and outcome.steps is not None:
                cuts = best_cuts(instance, [site for site, _ in outcome.steps], longest_ranges(instance))
                found = (None, None) if cuts is None else (cuts.value, cuts.steps)
            if found[0] is not None and found[0] < value:
                value, steps = found[0], found[1]
                goal = min(goal, value)
            # Routes that the program does not hold are worse than the value it was given.
            bound = max(bound, min(alone, outcome.bound, goal))
            if goal <= bound + 2 * rounding:
                break
    return _finished(instance, limits, started, method, steps, value, bound, rounding, why)


def _finished(
    instance: Instance,
    limits: SolverLimits,
    started: float,
    method: Method,
    steps: Steps | None,
    value: float,
    bound: float,
    rounding: float,
    why: str,
) -> Solution:
    spent = limits.clock() - started
    if steps is None:
        nothing: SolverStatus = "INFEASIBLE" if bound == math.inf else "UNKNOWN"
        return Solution(method, nothing, None, None, max(0.0, bound), rounding, spent, why)
    bound = max(0.0, min(bound, value))
    proved = value - bound <= 2 * rounding + PROVED * value
    return Solution(method, "OPTIMAL" if proved else "FEASIBLE", steps, value, bound, rounding, spent, why)


def _best_alone(instance: Instance) -> float:
    """Return the least value of a route over one site; infinite when none fits."""
    longest = longest_ranges(instance)
    values = [best_cuts(instance, (site,), longest) for site in range(instance.num_sites)]
    return min((cuts.value for cuts in values if cuts is not None), default=math.inf)


def _counts_suffice(instance: Instance) -> bool:
    """Return whether what a site holds follows from counts alone."""
    counted = count_chain(instance, longest_ranges(instance))
    return counted is not None and counted.exact
