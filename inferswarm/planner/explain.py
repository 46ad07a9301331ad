"""A decision as plain text for a terminal, at most 100 columns wide."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from inferswarm.planner.binding import bindings
from inferswarm.planner.demands import demands_of
from inferswarm.planner.explain_plan import account_lines, bottleneck_lines, plan_lines, predicted_lines
from inferswarm.planner.memory import memory_violation
from inferswarm.planner.naming import Names
from inferswarm.planner.pareto import ParetoFront, front_of_families
from inferswarm.planner.plan import CandidateFamily, Decision, SolverReport, Status
from inferswarm.planner.ranking import worth
from inferswarm.planner.whatif import WhatIf
from inferswarm.units import format_seconds

WIDTH = 100
INDENT = "  "
LIKELIEST_FIRST: tuple[Status, ...] = (
    "RANKED",
    "FEASIBLE_UNRANKED",
    "POLICY_EXCLUDED",
    "INTEGRITY_EXCLUDED",
    "TECHNICALLY_INFEASIBLE",
)
MOST_FAMILIES = 12
"""Families over several Nodes that are written out; the decision itself holds all of them."""
MOST_NODES = 12
"""Nodes whose families are written out."""
LEAVE = " leave no plan: "
"""Between the demands that leave a family without a plan, written once, and what is lacking then."""
LEAST_ROUNDING = 1e-6
"""Of a value: what rounding may lose below this is not written out."""
MOST_ALIKE = 3
"""Compute Units with one and the same reason that are written out one by one."""


def explain(decision: Decision, what_if: WhatIf | None = None, front: ParetoFront | None = None) -> str:
    """Return why each single Node can or cannot do it alone, what was chosen, what is expected, and why not the rest.

    Sections that have nothing to say are left out. What would have to be different, and what is worth measuring, take
    further searches: `what_if` holds them, see `varied`. `front` is the one of `front_of_ranked`, for its figures of
    all sessions together; without it the families are compared in the two figures that the decision states.
    """
    names = Names(decision)
    sections: tuple[tuple[str, Iterable[str]], ...] = (
        ("Decision", _outcome(decision)),
        ("One Node alone", _single_nodes(decision, names)),
        ("The plan", () if decision.plan is None else plan_lines(decision.plan, names)),
        ("Predicted", () if decision.plan is None else predicted_lines(decision.plan)),
        ("Bottleneck", bottleneck_lines(decision, names)),
        ("Plans of which none beats another in everything", _front(decision, names, what_if, front)),
        ("The other families", _others(decision, names)),
        ("Compute Units", _resources(decision)),
        ("Nodes without a Compute Unit", _without_units(decision)),
        ("What would change the decision", () if what_if is None else what_if.changes.lines(names.plan)),
        ("Worth measuring", () if what_if is None else what_if.measurements.lines(names.plan)),
        ("Missing evidence", decision.missing_evidence),
        ("Proof", _proof(decision)),
    )
    written = ((title, [line for entry in body for line in _wrapped(entry)]) for title, body in sections)
    return "\n\n".join("\n".join((title, *lines)) for title, lines in written if lines) + "\n"


def _wrapped(entry: str) -> list[str]:
    """Indent an entry, and break it at the width with its continuation further in, never between number and unit."""
    depth = len(entry) - len(entry.lstrip(" "))
    lead = INDENT + " " * depth
    if len(INDENT + entry) <= WIDTH:
        return [INDENT + entry]
    bound = re.sub(r"(?<=\d) (?=(?:[kMGT]?B|[mµ]?s)\b)", "\N{NO-BREAK SPACE}", entry.lstrip(" "))
    lines = textwrap.wrap(
        bound, WIDTH, initial_indent=lead, subsequent_indent=lead + INDENT * 2, break_on_hyphens=False
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _outcome(decision: Decision) -> Iterator[str]:
    yield f"{decision.outcome}: {decision.summary}"
    yield from (f"override by the operator: {override}" for override in decision.overrides)
    yield from (f"demanded by the operator: {demand}" for demand in demands_of(decision.policy))


def _single_nodes(decision: Decision, names: Names) -> Iterator[str]:
    """Write what each Node can do alone, in each representation; of its sets of Compute Units only the best."""
    by_node: dict[tuple[str, str], list[CandidateFamily]] = {}
    for family in decision.families:
        if len(set(family.node_names)) == 1:
            by_node.setdefault((family.node_names[0], family.representation), []).append(family)
    groups = [sorted(families, key=_likeliest) for families in by_node.values()]
    if len({node for node, _ in by_node}) > MOST_NODES:
        groups.sort(key=lambda families: _likeliest(families[0]))
        groups, alike = _merged(groups)
        for families in groups[:MOST_NODES]:
            yield from _alone(families, names, alike.get(_said(families), 0))
        if rest := groups[MOST_NODES:]:
            yield f"and {len(rest)} more: {_counted(families[0] for families in rest)}"
        return
    for families in groups:
        yield from _alone(families, names)


def _merged(groups: list[list[CandidateFamily]]) -> tuple[list[list[CandidateFamily]], dict[str, int]]:
    """Return one of all Nodes of which the same is to be said, and how many more there are."""
    first: dict[str, list[CandidateFamily]] = {}
    times = Counter(_said(families) for families in groups)
    for families in groups:
        first.setdefault(_said(families), families)
    return list(first.values()), {said: count - 1 for said, count in times.items()}


def _said(families: list[CandidateFamily]) -> str:
    """Return what is to be said of a Node's families; of one that does not fit, its own names are part of it."""
    return f"{families[0].representation} {_verdict(families[0])} {_counted(families)}"


def _alone(families: list[CandidateFamily], names: Names, alike: int = 0) -> Iterator[str]:
    best = families[0]
    more = f" and {alike} more Nodes" if alike else ""
    if best.status != "TECHNICALLY_INFEASIBLE":
        yield f"{names.family(best)}{more}, {best.representation}: {_verdict(best)}"
        if len(families) > 1:
            more = "1 more set" if len(families) == 2 else f"{len(families) - 1} more sets"
            yield f"  and {more} of its Compute Units: {_counted(families[1:])}"
        return
    for family in families:
        short = [account for account in family.memory if not account.fits]
        in_numbers = {str(memory_violation(account, family.representation)) for account in short}
        other = [reason for reason in family.reasons if reason not in in_numbers]
        said = "; ".join(dict.fromkeys(other))
        yield f"{names.family(family)}, {family.representation}: technically infeasible" + (
            f": {said}" if said else ""
        )
        for account in short if len(family.compute_unit_ids) == 1 else ():
            yield from account_lines(account)


def _front(decision: Decision, names: Names, what_if: WhatIf | None, ranked: ParetoFront | None) -> Iterator[str]:
    """Write the plans that are better than the chosen one in something, with it among them.

    Without `what_if` these are the ranked families, whose plans are best in the objective; `ranked` has their front
    in three figures.
    """
    known = ranked if what_if is None else what_if.front
    if known is not None:
        if len(known.points) > 1:
            yield from (point.text(names.plan) for point in known.points)
            if what_if is None:
                yield "one plan of each set; --what-if (what_if=True) also searches for the best in each figure alone"
            elif not known.complete:
                yield "not proved to be all: a plan that was not looked at may beat one of these"
        return
    front = front_of_families(decision)
    if len(front) < 2:
        return
    for family in front[:MOST_FAMILIES]:
        assert family.best is not None, "families of the front have a predicted plan"
        prediction = family.best.prediction
        assert prediction is not None, "families of the front have a predicted plan"
        mark = " (chosen)" if family.best == decision.plan else ""
        yield (
            f"{names.family(family)}, {family.representation}{mark}: first token "
            f"{format_seconds(prediction.ttft.point)}, {prediction.decode_rate.point:.3g} tokens/s"
        )
    if len(front) > MOST_FAMILIES:
        yield f"and {len(front) - MOST_FAMILIES} more"


def _others(decision: Decision, names: Names) -> Iterator[str]:
    """Write the families over several Nodes that were not chosen, the likeliest first, and count the rest."""
    others = [
        family
        for family in decision.families
        if len(set(family.node_names)) > 1 and (decision.plan is None or family.best != decision.plan)
    ]
    others.sort(key=_likeliest)
    for family in others[:MOST_FAMILIES]:
        binding = bindings(decision, family)
        short = [item.text for item in binding if item.kind == "memory"]
        if short:
            said = "; ".join(item.text for item in binding if item.kind != "memory")
            yield f"{names.family(family)}, {family.representation}: {_words(family.status)}: {said}"
            yield from (f"  {text}" for text in short)
            continue
        yield f"{names.family(family)}, {family.representation}: {_verdict(family)}"
        if family.status == "RANKED" and binding:
            yield f"  {binding[0].text}"
    if rest := others[MOST_FAMILIES:]:
        yield f"and {len(rest)} more: {_counted(rest)}"


def _resources(decision: Decision) -> Iterator[str]:
    """Write the reason of every Compute Unit; of many with the same one, how many and which."""
    alike: dict[str, list[str]] = {}
    for item in decision.resources:
        alike.setdefault(item.reason, []).append(f"{item.node_name} ({item.compute_unit_id})")
    for reason, units in alike.items():
        if len(units) <= MOST_ALIKE:
            yield from (f"{unit}: {reason}" for unit in units)
            continue
        nodes = Counter(unit.rpartition(" (")[0] for unit in units)
        which = ", ".join(name if times == 1 else f"{name} × {times}" for name, times in nodes.items())
        yield f"{len(units)} Compute Units: {reason}"
        yield f"  on {which}"


def _without_units(decision: Decision) -> Iterator[str]:
    """Write the Nodes that no Compute Unit speaks for."""
    spoken_for = {item.node_name for item in decision.resources}
    for item in () if isinstance(decision.nodes, msgspec.UnsetType) else decision.nodes:
        if item.node_name not in spoken_for:
            yield f"{item.node_name}: {item.reason}"


def _proof(decision: Decision) -> Iterator[str]:
    if decision.plan is not None:
        yield (
            "proved the best of all feasible and allowed plans" if decision.proved_optimal else "not proved the best"
        )
    yield decision.search
    for report in decision.solvers:
        yield f"{report.representation} by {report.primitive}: {report.method}, because {report.why}"
        yield f"  {_report(decision, report)}"
    inputs = decision.inputs
    for name in ("problem", "graph", "policy", "workload", "economics"):
        yield f"{name:<13} {getattr(inputs, name)}"
    for name, value in (("health", decision.health), ("qualification", decision.qualification)):
        if not isinstance(value, msgspec.UnsetType):
            yield f"{name:<13} {value}"


def _report(decision: Decision, report: SolverReport) -> str:
    """Write what a solver found and proved, in the figure that the objective asks for."""

    def figure(value: float) -> str:
        return format_seconds(value) if decision.plan is None or value <= 0 else worth(decision.plan.workload, value)

    if report.value is not None and report.bound is not None and report.gap is not None:
        loss = report.rounding_seconds
        rounding = f", rounding within {format_seconds(loss)}" if loss > LEAST_ROUNDING * report.value else ""
        found = f"{report.status.lower()}: {figure(report.value)}, proved bound {figure(report.bound)}"
        return f"{found}, gap {report.gap:.3%}{rounding}"
    least = "" if report.bound is None else f" below {figure(report.bound)}"
    return f"{report.status.lower()}: no plan that can be ranked{least}"


def _verdict(family: CandidateFamily) -> str:
    said: list[str] = []
    cause = ""
    for reason in family.reasons:
        who, leave, lacking = reason.removeprefix("policy: ").partition(LEAVE)
        said.append(lacking if leave and who == cause else f"{who}{leave}{lacking}")
        cause = who if leave else cause
    reasons = "; ".join(said)
    return reasons if reasons.startswith("selected") else f"{_words(family.status)}: {reasons}"


def _words(status: Status) -> str:
    return status.lower().replace("_", " ")


def _counted(families: Iterable[CandidateFamily]) -> str:
    """Count families by their status, the likeliest first."""
    counts = Counter(family.status for family in families)
    return ", ".join(f"{counts[status]} {_words(status)}" for status in LIKELIEST_FIRST if counts[status])


def _likeliest(family: CandidateFamily) -> tuple[int, float]:
    return LIKELIEST_FIRST.index(family.status), family.request_seconds or 0.0
