"""What would have to be different for the decision to be another: more memory here, a better Link there.

Each answer was solved, not guessed: the question is asked again with one thing changed, and the least change that
makes a difference, of a thousandth at least, is found by halving. More memory and a better Link never make the best
plan worse, so that there is a least change. What could not be settled within the limits is named, and so is what
changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from inferswarm.documents import Document, digest
from inferswarm.planner.aiming import open_sites
from inferswarm.planner.assemble import build_plan, make_case
from inferswarm.planner.better_links import with_links
from inferswarm.planner.eligibility import withheld_by
from inferswarm.planner.gates import policy_refusals
from inferswarm.planner.goals import broken_by
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import Implementation
from inferswarm.planner.resolving import Best, Describe, Inputs, Resolver, describe, value_of
from inferswarm.planner.search import SLACK
from inferswarm.planner.sites import Leg, Site
from inferswarm.planner.solvers.solution import SolverLimits
from inferswarm.resources.types import MemoryResource, Node, declared
from inferswarm.units import format_bytes, format_seconds

MOST_TIMES = 2
"""How much more than it has a Memory Resource may be wished to have, for one Compute Unit alone."""
MOST_SOLVES = 400
"""Variations of one question at most."""
BYTES_RESOLUTION, LINK_RESOLUTION = 1 / 1024, 1.05
"""How far above the least change an answer may be: relative to the range searched, and as a factor."""
FASTEST_BITS, SLOWEST_BITS = 1e13, 1e3
"""Bits per second between which a Link is looked for."""
LEAST_SECONDS = 1e-7
"""A latency that counts as none."""

Kind = Literal["fits-alone", "memory", "known-memory", "rate", "latency", "rate-without-latency"]


class Counterfactual(Document, frozen=True, kw_only=True):
    """One change that makes a difference. `amount`: bytes more, bits per second at least, or seconds at most."""

    kind: Kind
    subject: str
    """Id of the Memory Resource or the Node."""
    node_name: str
    amount: float
    plan: ExecutionPlan
    """What becomes feasible (`fits-alone`), or the best plan that the change makes possible."""
    value_before: float | None
    """Of the best plan without the change, None when there is none. Seconds of a request, or for each token."""
    value_after: float | None
    """Of `plan`; None when it cannot be priced."""

    def __str__(self) -> str:
        """Return the change and what comes of it in one sentence."""
        return self.text(describe)

    def text(self, call: Describe) -> str:
        """Return the same, with the plan called as the caller wants."""
        plan, where = call(self.plan), f"{self.node_name} ({self.subject})"
        if self.kind == "fits-alone":
            price = "" if self.value_after is None else f", at {format_seconds(self.value_after)}"
            return f"with {format_bytes(self.amount)} more on {where}, {plan} alone becomes feasible{price}"
        if self.kind == "memory":
            change = f"with {format_bytes(self.amount)} more on {where}"
        elif self.kind == "known-memory":
            change = f"if {format_bytes(self.amount)} were known to be available on {where}"
        elif self.kind == "latency":
            change = f"with paths of at most {format_seconds(self.amount)} per message to and from {self.node_name}"
        else:
            change = f"with a Link of at least {_rate(self.amount)} to and from {self.node_name}"
            change += " and almost no latency" if self.kind == "rate-without-latency" else ""
        before = "no plan" if self.value_before is None else format_seconds(self.value_before)
        after = "" if self.value_after is None else f": {format_seconds(self.value_after)} instead of {before}"
        return f"{change}, {plan} becomes the best plan{after}"


class Counterfactuals(Document, frozen=True, kw_only=True):
    """All changes that were found to make a difference, what makes none, and what was not settled."""

    items: tuple[Counterfactual, ...]
    without_effect: tuple[str, ...]
    unsettled: tuple[str, ...]
    """Not asked to the end: the limits were reached, or the search proved too little."""
    num_solved: int

    def __str__(self) -> str:
        """Return everything as lines."""
        return "\n".join(self.lines(describe))

    def lines(self, call: Describe) -> list[str]:
        """Return the same line by line, with plans called as the caller wants."""
        lines = [item.text(call) for item in self.items]
        lines += self.without_effect
        return lines + [f"not settled: {item}" for item in self.unsettled]


def counterfactuals(
    inputs: Inputs, limits: SolverLimits | None = None, most_solves: int = MOST_SOLVES
) -> Counterfactuals:
    """Return the small changes of memory and Links that would change the decision, each with its least amount.

    `limits.seconds` are for all variations together. Raises SpecError for input that is wrong.
    """
    return _Search(inputs, Resolver(limits or SolverLimits(), most_solves)).run()


class _Scale(NamedTuple):
    """How to halve: the middle of two amounts, and whether they are close enough."""

    middle: Callable[[float, float], float]
    close: Callable[[float, float], bool]


FACTORS = _Scale(
    lambda one, other: math.sqrt(one * other), lambda one, other: max(one, other) <= LINK_RESOLUTION * min(one, other)
)


class _Search:
    """One run: the question, what was found so far, and what is left of the budget."""

    def __init__(self, inputs: Inputs, resolver: Resolver) -> None:
        self._inputs = inputs
        self._resolver = resolver
        self._view = inputs.view
        self._rules = inputs.rules(self._view)
        self._kept = withheld_by(inputs.policy, self._view)[0].kept
        self._items: list[Counterfactual] = []
        self._without_effect: list[str] = []
        self._unsettled: list[str] = []
        self._cut_off: dict[str, None] = {}

    def run(self) -> Counterfactuals:
        self._alone()
        base = self._resolver.best(self._inputs)
        if base is None:
            self._unsettled.append("the question itself: the limits leave no time for it")
        else:
            closed = self._rules.closed
            standing = [site for site in self._view.sites if site.compute_unit.available and site.id not in closed]
            memories = {site.memory.id: site for site in standing if site.memory is not None}
            searches = [self._memory(base, site) for site in memories.values()]
            used = set() if base.plan is None else {placement.node_id for placement in base.plan.placements}
            nodes = {site.node.id: site.node for site in standing}
            if len(nodes) > 1:
                searches += [self._links(base, node) for node in nodes.values() if node.id not in used]
            # First of each whether it makes a difference at all, then how little of it does.
            begun = [search for search in searches if next(search, False)]
            for search in begun:
                next(search, None)
        if self._cut_off:
            names = list(self._cut_off)
            which = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more questions"
            self._unsettled.append(f"{which}: the limits left no time")
        return Counterfactuals(
            items=tuple(self._items),
            without_effect=tuple(self._without_effect),
            unsettled=tuple(self._unsettled),
            num_solved=self._resolver.num_solved,
        )

    def _alone(self) -> None:
        """Say what each Compute Unit lacks to hold everything alone: the account knows it, nothing is solved.

        What would take more than `MOST_TIMES` the present room is no small change, and is left out.
        """
        inputs, num_units = self._inputs, len(self._inputs.problem.units)
        digests = digest(inputs.problem), digest(inputs.graph)
        for implementation in inputs.problem.implementations:
            case = make_case(inputs.problem, implementation, inputs.workload, inputs.curves, digests, self._view)
            for site in open_sites(case, self._view, self._rules):
                account = case.memory.account(site, 0, num_units)
                if account.fits or account.available_bytes is None:
                    continue
                if account.needed_bytes > MOST_TIMES * account.available_bytes:
                    continue
                plan = build_plan(case, (Leg(site, 0, num_units),))
                if self._forbidden(implementation, site, plan):
                    continue
                value = value_of(plan)
                self._items.append(
                    Counterfactual(
                        kind="fits-alone",
                        subject=account.memory_id,
                        node_name=site.node.name,
                        amount=float(account.needed_bytes - account.available_bytes),
                        plan=plan,
                        value_before=None,
                        value_after=value if math.isfinite(value) else None,
                    )
                )

    def _forbidden(self, implementation: Implementation, site: Site, plan: ExecutionPlan) -> bool:
        """Whether the policy would not allow a plan on one Compute Unit alone, however much memory it had."""
        policy, prediction = self._inputs.policy, plan.prediction
        if policy_refusals(self._rules, implementation, (site,)) or broken_by(plan, policy):
            return True
        rate = policy.min_tokens_per_second
        return rate is not None and prediction is not None and prediction.decode_rate.point * (1 + SLACK) < rate

    def _memory(self, base: Best, site: Site) -> Iterator[bool]:
        """Find the least that one Memory Resource must have for a better plan, or any at all.

        Yields once, when it is known that it makes a difference.
        """
        memory = site.memory
        assert memory is not None, "only asked for sites with one"
        have, most = max(0, site.available_bytes or 0), self._most_bytes(memory) + self._kept.get(memory.id, 0)

        def ask(amount: float) -> Best | None:
            return self._resolver.best(self._with_memory(memory, math.ceil(amount)))

        where = f"more memory on {site.node.name} ({memory.id})"
        if most <= have:
            self._without_effect.append(f"{where} changes nothing: it holds everything as it is")
            return
        fine = max(1.0, (most - have) * BYTES_RESOLUTION)
        most_helps = ask(most)
        if not self._makes_a_difference(base, most_helps, where, f"{where} makes no better plan, however much it is"):
            return
        assert most_helps is not None, "what makes a difference was solved"
        yield True
        scale = _Scale(lambda one, other: (one + other) / 2, lambda one, other: abs(one - other) <= fine)
        amount, best = self._halved(base, ask, most, have, most_helps, scale, where)
        kind: Kind = "memory" if site.available_bytes is not None else "known-memory"
        self._found(kind, memory.id, site.node, math.ceil(amount) - have, base, best)

    def _links(self, base: Best, node: Node) -> Iterator[bool]:
        """Find the least rate, the greatest latency, or the two together, that make a Node worth using.

        Yields once, when it is known that any of them makes a difference.
        """

        def ask(rate: float, latency: float) -> Best | None:
            return self._resolver.best(with_links(self._inputs, node, rate, latency))

        name = f"a better Link to and from {node.name}"
        best = ask(math.inf, LEAST_SECONDS)
        if not self._makes_a_difference(base, best, name, f"{name} makes no better plan, however fast it is"):
            return
        yield True

        rates = (1 / FASTEST_BITS, 1 / SLOWEST_BITS)
        found = self._greatest(base, lambda pace: ask(1 / pace, math.inf), rates, name)
        if found is not None:
            self._found("rate", node.id, node, 1 / found[0], base, found[1])
        latency = self._greatest(base, lambda seconds: ask(0.0, seconds), (LEAST_SECONDS, 10.0), name)
        if latency is not None:
            self._found("latency", node.id, node, latency[0], base, latency[1])
        if found is None and latency is None:
            both = self._greatest(base, lambda pace: ask(1 / pace, LEAST_SECONDS), rates, name)
            if both is not None:
                self._found("rate-without-latency", node.id, node, 1 / both[0], base, both[1])

    def _halved(
        self,
        base: Best,
        ask: Callable[[float], Best | None],
        enough: float,
        too_little: float,
        best: Best,
        scale: _Scale,
        name: str,
    ) -> tuple[float, Best]:
        """Halve between an amount that makes a difference, with `best` as its plan, and one that makes none.

        Returns the amount closest to the latter that was seen to make one, and its plan.
        """
        while not scale.close(enough, too_little):
            middle = scale.middle(enough, too_little)
            tried = ask(middle)
            if tried is None:
                self._unsettled.append(f"{name}: it is enough, a smaller change may be as well")
                break
            if tried.surely_better_than(base):
                enough, best = middle, tried
            else:
                too_little = middle
        return enough, best

    def _greatest(
        self, base: Best, ask: Callable[[float], Best | None], between: tuple[float, float], name: str
    ) -> tuple[float, Best] | None:
        """Return the greatest of a small thing that makes a difference, on a scale of factors; None if none does."""
        best = ask(between[0])
        if best is None:
            self._cut_off[name] = None
            return None
        return self._halved(base, ask, *between, best, FACTORS, name) if best.surely_better_than(base) else None

    def _makes_a_difference(self, base: Best, best: Best | None, name: str, otherwise: str) -> bool:
        if best is None:
            self._cut_off[name] = None
            return False
        if best.surely_better_than(base):
            return True
        if best.surely_no_better_than(base):
            self._without_effect.append(otherwise)
        else:
            left = 1.0 if math.isinf(base.value) else (base.value - best.bound) / base.value
            self._unsettled.append(f"{name}: no surely better plan was found; at most {left:.2%} is left open")
        return False

    def _found(self, kind: Kind, subject: str, node: Node, amount: float, base: Best, best: Best) -> None:
        assert best.plan is not None, "what makes a difference has a plan"
        value = value_of(best.plan)
        self._items.append(
            Counterfactual(
                kind=kind,
                subject=subject,
                node_name=node.name,
                amount=float(amount),
                plan=best.plan,
                value_before=base.value if math.isfinite(base.value) else None,
                value_after=value if math.isfinite(value) else None,
            )
        )

    def _most_bytes(self, memory: MemoryResource) -> int:
        """Return what any plan could need of one memory: everything, once for each of its Compute Units."""
        inputs = self._inputs
        holders = sum(site.memory is not None and site.memory.id == memory.id for site in self._view.sites)
        peaks = []
        for implementation in inputs.problem.implementations:
            case = make_case(inputs.problem, implementation, inputs.workload, inputs.curves, ("", ""))
            peaks.append(sum(term.bytes for term in case.memory.terms(0, len(inputs.problem.units))))
        return max(peaks) * holders

    def _with_memory(self, memory: MemoryResource, available_bytes: int) -> Inputs:
        graph = self._inputs.graph
        larger = msgspec.structs.replace(memory, capacity_bytes=declared(available_bytes), reserved_bytes=declared(0))
        memories = tuple(larger if item.id == memory.id else item for item in graph.memory_resources)
        return self._inputs._replace(graph=msgspec.structs.replace(graph, memory_resources=memories))


def _rate(bits_per_second: float) -> str:
    for suffix, size in (("Gb/s", 1e9), ("Mb/s", 1e6)):
        if bits_per_second >= size:
            return f"{bits_per_second / size:.3g} {suffix}"
    return f"{bits_per_second / 1e3:.3g} kb/s"
