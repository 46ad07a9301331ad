"""Which single measurement could change the decision.

Every curve has bounds. A measurement is worth making when some value within the bounds of what it measures, all else
as it is expected, makes another plan the best. One *measurement* is all curves of a Compute Unit in one
representation, with its states near or apart, or the curve of one directed path: what one run measures together. What
nobody has measured at all has no bounds; it is supposed to take almost no time, and when even that would not change
the decision, measuring cannot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, product
from typing import Literal, NamedTuple

import msgspec

from inferswarm.documents import Document
from inferswarm.planner.assemble import make_case, plan_route
from inferswarm.planner.cost import predict
from inferswarm.planner.economics import Economics, PathCurve, Phase, ServiceCurve
from inferswarm.planner.modes import ADDRESSABLE, families_of, searched
from inferswarm.planner.plan import Decision, ExecutionPlan
from inferswarm.planner.resolving import LEAST_DIFFERENCE, Best, Describe, Inputs, Resolver, describe, value_of
from inferswarm.planner.sites import GraphView, Site
from inferswarm.planner.solvers.solution import SolverLimits
from inferswarm.units import format_seconds

MOST_SOLVES = 200
MOST_RIVALS = 5
"""Rivals that are written out."""
NO_TIME_SECONDS = 1e-12
"""What is supposed of that which nobody measured: less than anything takes, and still some time."""

Bound = Literal["at its low bound", "at its high bound", "unknown"]
BOTH: tuple[Bound, ...] = ("at its low bound", "at its high bound")


class Rival(Document, frozen=True, kw_only=True):
    """A family that could be better than the chosen plan if all bounds went its way at once."""

    plan: ExecutionPlan
    overlap_seconds: float
    """By how much its best case is below the chosen plan's worst case, in seconds of a request."""

    def __str__(self) -> str:
        """Return the rival and the overlap in one line."""
        return self.text(describe)

    def text(self, call: Describe) -> str:
        """Return the same, with the plan called as the caller wants."""
        return f"{call(self.plan)}: the intervals overlap by {format_seconds(self.overlap_seconds)}"


class DecisiveMeasurement(Document, frozen=True, kw_only=True):
    """One measurement that could make another plan the best."""

    subject: str
    """The Compute Unit, the representation and whether states are apart, or the directed path, by ids."""
    what: str
    """The same for people."""
    bound: Bound
    plan: ExecutionPlan
    """The plan that would be best then."""
    gain_seconds: float | None
    """How much better than the chosen one, under the same supposition; None where no plan was chosen."""

    def __str__(self) -> str:
        """Return the measurement and what it could change in one sentence."""
        return self.text(describe)

    def text(self, call: Describe) -> str:
        """Return the same, with the plan called as the caller wants."""
        gain = "" if self.gain_seconds is None else f", better by up to {format_seconds(self.gain_seconds)}"
        if self.bound == "unknown":
            return f"measure {self.what}: nothing is known of it; {call(self.plan)} could be the best plan{gain}"
        return f"measure {self.what} again: {self.bound}, {call(self.plan)} is the best plan{gain}"


class WorthMeasuring(Document, frozen=True, kw_only=True):
    """What could change the decision: single measurements, what gains most first, and rivals if all is uncertain."""

    decisive: tuple[DecisiveMeasurement, ...]
    rivals: tuple[Rival, ...]
    unsettled: tuple[str, ...]
    """Measurements that the limits left no time to judge, or of which too little was proved."""
    num_solved: int

    def __str__(self) -> str:
        """Return everything as lines."""
        return "\n".join(self.lines(describe))

    def lines(self, call: Describe) -> list[str]:
        """Return the same line by line, with plans called as the caller wants."""
        lines = [item.text(call) for item in self.decisive] or [
            "no single measurement that was judged changes the decision"
        ]
        lines += [f"rival, {rival.text(call)}" for rival in self.rivals[:MOST_RIVALS]]
        if len(self.rivals) > MOST_RIVALS:
            lines.append(f"and {len(self.rivals) - MOST_RIVALS} more rivals")
        return lines + [f"not settled: {item}" for item in self.unsettled]


class _Variation(NamedTuple):
    """One thing moved to a bound: what it is, where to, and the curves then."""

    subject: str
    what: str
    bound: Bound
    curves: Economics


def worth_measuring(
    inputs: Inputs, decision: Decision, limits: SolverLimits | None = None, most_solves: int = MOST_SOLVES
) -> WorthMeasuring:
    """Return the single measurements that could change a decision, and the rivals whose intervals overlap.

    `limits.seconds` are for all variations together; unknown things are judged first, then what the chosen plan rests
    on, then the rest. Raises SpecError for input that is wrong.
    """
    resolver = Resolver(limits or SolverLimits(), most_solves)
    chosen = decision.plan
    decisive: list[DecisiveMeasurement] = []
    unsettled: list[str] = []
    open_gaps: list[float] = []
    for variation in _variations(inputs, chosen):
        varied = inputs._replace(economics=variation.curves, allow_estimates=True)
        best = resolver.best(varied)
        if best is None:
            unsettled.append(f"everything from {variation.what}, {variation.bound}, on: the limits were reached")
            break
        found = _judge(varied, chosen, variation, best)
        if isinstance(found, float):
            open_gaps.append(found)
        elif found is not None:
            decisive.append(found)
    if open_gaps:
        unsettled.append(
            f"{len(open_gaps)} suppositions: no better plan was found; the search leaves open whether one is better "
            f"by at most {max(open_gaps):.2%}"
        )
    decisive.sort(key=lambda item: -(math.inf if item.gain_seconds is None else item.gain_seconds))
    return WorthMeasuring(
        decisive=tuple(decisive),
        rivals=tuple(sorted(_rivals(decision), key=lambda rival: -rival.overlap_seconds)),
        unsettled=tuple(unsettled),
        num_solved=resolver.num_solved,
    )


def _judge(
    varied: Inputs, chosen: ExecutionPlan | None, variation: _Variation, best: Best
) -> DecisiveMeasurement | float | None:
    """Compare the best plan under a supposition with the chosen one; return the gap where too little is proved."""
    now = math.inf if chosen is None else _value_under(varied, chosen)
    if best.plan is not None and best.value < now * (1 - LEAST_DIFFERENCE):
        return DecisiveMeasurement(
            subject=variation.subject,
            what=variation.what,
            bound=variation.bound,
            plan=best.plan,
            gain_seconds=None if math.isinf(now) else now - best.value,
        )
    if best.bound < now * (1 - LEAST_DIFFERENCE) and math.isfinite(now):
        return (now - best.bound) / now
    return None


def _value_under(varied: Inputs, plan: ExecutionPlan) -> float:
    """Return what the chosen plan's value is under a supposition."""
    problem = searched(varied.problem, varied.policy)
    implementation = next(
        item
        for item in families_of(problem)
        if (item.representation, item.primitive) == (plan.representation, plan.primitive)
    )
    view = varied.view
    case = make_case(problem, implementation, varied.workload, varied.curves, ("", ""), view)
    prediction = predict(case.pricing, plan_route(plan, view))
    return value_of(msgspec.structs.replace(plan, prediction=prediction))


def _rivals(decision: Decision) -> Iterator[Rival]:
    if decision.plan is None or decision.plan.prediction is None:
        return
    worst = decision.plan.prediction.request.high
    for family in decision.families:
        plan = family.best
        if family.status != "RANKED" or plan is None or plan.prediction is None or plan == decision.plan:
            continue
        if plan.prediction.request.low < worst:
            yield Rival(plan=plan, overlap_seconds=worst - plan.prediction.request.low)


def _variations(inputs: Inputs, chosen: ExecutionPlan | None) -> Iterator[_Variation]:
    """Yield every supposition: what is unknown, then what the chosen plan rests on, then everything else."""
    view = inputs.view
    yield from _unknown(inputs, view)
    placements = () if chosen is None else chosen.placements
    nodes = [placement.node_id for placement in placements]
    units = {placement.compute_unit_id for placement in placements}
    paths = set(zip(nodes, (*nodes[1:], *nodes[:1]), strict=True))
    # What the chosen plan rests on may also be better than expected, and another plan may use it more.
    for used, bounds in ((True, BOTH), (False, BOTH[:1])):
        yield from _moved_services(inputs.curves, view, used, units, bounds)
        yield from _moved_paths(inputs, used, paths, bounds)


def _moved_services(
    curves: Economics, view: GraphView, used: bool, units: set[str], bounds: tuple[Bound, ...]
) -> Iterator[_Variation]:
    owners = {site.id: site.node.name for site in view.sites}
    keys = {(curve.compute_unit_id, curve.representation, curve.apart) for curve in curves.services}
    for unit, representation, apart in sorted(keys):
        if (unit in units) != used or unit not in owners:
            continue
        for bound in bounds:
            services = tuple(
                _moved_service(curve, bound)
                if (curve.compute_unit_id, curve.representation, curve.apart) == (unit, representation, apart)
                and _factor(curve, bound) != 1
                else curve
                for curve in curves.services
            )
            if services != curves.services:
                moved = msgspec.structs.replace(curves, services=services)
                yield _of_services(unit, owners[unit], representation, apart, bound, moved)


def _of_services(
    unit: str, node: str, representation: str, apart: bool, bound: Bound, curves: Economics
) -> _Variation:
    """Name the variation of all curves of a Compute Unit in one representation, with states near or apart."""
    where = ", states apart" if apart else ""
    return _Variation(f"{unit} {representation}{where}", f"{node} ({unit}) in {representation}{where}", bound, curves)


def _places(site: Site) -> tuple[bool, ...]:
    """Return whether states may be in the nearest memory (False) and in another one (True)."""
    return (False, True) if ADDRESSABLE in site.compute_unit.capabilities and site.further else (False,)


def _moved_paths(
    inputs: Inputs, used: bool, chosen: set[tuple[str, str]], bounds: tuple[Bound, ...]
) -> Iterator[_Variation]:
    curves, names = inputs.curves, {node.id: node.name for node in inputs.graph.nodes}
    for path in curves.paths:
        if ((path.source, path.target) in chosen) != used or not {path.source, path.target} <= names.keys():
            continue
        for bound in bounds:
            if _factor(path, bound) != 1:
                paths = tuple(_moved_path(item, bound) if item is path else item for item in curves.paths)
                what = f"the path {names[path.source]} → {names[path.target]}"
                moved = msgspec.structs.replace(curves, paths=paths)
                yield _Variation(f"{path.source} {path.target}", what, bound, moved)


def _unknown(inputs: Inputs, view: GraphView) -> Iterator[_Variation]:
    """Suppose of each Compute Unit and each pair of Nodes that lacks a curve that it takes almost no time."""
    curves = inputs.curves
    known = {
        (item.compute_unit_id, item.representation, item.apart, item.cost_class, item.phase)
        for item in curves.services
    }
    needed: dict[tuple[str, Phase], None] = {}
    for unit in inputs.problem.units:
        needed[unit.cost_class, "step"] = None
        if not unit.only_last_position:
            needed[unit.cost_class, "first-pass"] = None
            if unit.opens_requests is True:
                needed[unit.cost_class, "opening"] = None
    standing = [site for site in view.sites if site.compute_unit.available]
    for site in standing:
        representations = [item.representation for item in inputs.problem.implementations]
        for representation, apart in product(representations, _places(site)):
            lacking = [
                ServiceCurve(
                    compute_unit_id=site.id,
                    cost_class=cost_class,
                    representation=representation,
                    phase=phase,
                    base_seconds=NO_TIME_SECONDS,
                    basis="declared",
                    states="apart" if apart else msgspec.UNSET,
                )
                for cost_class, phase in needed
                if (site.id, representation, apart, cost_class, phase) not in known
            ]
            if lacking:
                supposed = msgspec.structs.replace(curves, services=(*curves.services, *lacking))
                yield _of_services(site.id, site.node.name, representation, apart, "unknown", supposed)
    nodes = sorted({site.node.id: site.node for site in standing}.items())
    pairs = {(path.source, path.target) for path in curves.paths}
    several = [pair for pair in nodes if sum(site.node.id == pair[0] for site in standing) > 1]
    for (_, one), (_, other) in (*combinations(nodes, 2), *zip(several, several, strict=True)):
        lacking_paths = tuple(
            PathCurve(
                source=source.id,
                target=target.id,
                latency_seconds=NO_TIME_SECONDS,
                seconds_per_byte=0.0,
                basis="declared",
            )
            for source, target in dict.fromkeys(((one, other), (other, one)))
            if (source.id, target.id) not in pairs and view.linked(source, target)
        )
        if lacking_paths:
            supposed = msgspec.structs.replace(curves, paths=(*curves.paths, *lacking_paths))
            yield _Variation(f"{one.id} {other.id}", f"the path {one.name} ↔ {other.name}", "unknown", supposed)


def _factor(curve: ServiceCurve | PathCurve, bound: Bound) -> float:
    """Return how far a bound is from the point; 1 for bounds that enclose none, whose curve counts as missing."""
    if not 0 < curve.low <= 1 <= curve.high:
        return 1.0
    return curve.low if bound == "at its low bound" else curve.high


def _moved_service(curve: ServiceCurve, bound: Bound) -> ServiceCurve:
    factor = _factor(curve, bound)
    return msgspec.structs.replace(
        curve,
        base_seconds=curve.base_seconds * factor,
        seconds_per_position=curve.seconds_per_position * factor,
        seconds_per_position_context=curve.seconds_per_position_context * factor,
        low=1.0,
        high=1.0,
        basis="declared",
    )


def _moved_path(curve: PathCurve, bound: Bound) -> PathCurve:
    factor = _factor(curve, bound)
    return msgspec.structs.replace(
        curve,
        latency_seconds=curve.latency_seconds * factor,
        seconds_per_byte=curve.seconds_per_byte * factor,
        low=1.0,
        high=1.0,
        basis="declared",
    )
