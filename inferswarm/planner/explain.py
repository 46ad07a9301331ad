"""A decision as plain text for a terminal, at most 100 columns wide."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from inferswarm.planner.binding import bindings
from inferswarm.planner.memory import memory_violation
from inferswarm.planner.pareto import front_of_families
from inferswarm.planner.plan import (
    ESTIMATE,
    CandidateFamily,
    Decision,
    ExecutionPlan,
    Interval,
    MemoryAccount,
    Placement,
    Prediction,
    Share,
    Status,
)
from inferswarm.planner.sites import unit_range
from inferswarm.units import format_bytes, format_seconds

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
MOST_PARTS = 4
"""Parts of a figure that are written out."""
LEAST_SHARE = 0.005
"""Of a figure: smaller parts than this are not written out."""


def explain(decision: Decision) -> str:
    """Return why each single Node can or cannot do it alone, what was chosen, what is expected, and why not the rest.

    Sections that have nothing to say are left out. What would have to be different, and what is worth measuring, take
    further searches: see `counterfactuals` and `worth_measuring`.
    """
    sections: tuple[tuple[str, Iterable[str]], ...] = (
        ("Decision", _outcome(decision)),
        ("One Node alone", _single_nodes(decision)),
        ("The plan", () if decision.plan is None else _plan(decision.plan)),
        ("Predicted", () if decision.plan is None else _predicted(decision.plan)),
        ("Bottleneck", _bottleneck(decision)),
        ("Plans that no other family beats in everything", _front(decision)),
        ("The other families", _others(decision)),
        (
            "Compute Units",
            (f"{item.node_name} ({item.compute_unit_id}): {item.reason}" for item in decision.resources),
        ),
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


def _single_nodes(decision: Decision) -> Iterator[str]:
    several = _several(decision)
    for family in decision.families:
        if len(set(family.node_names)) > 1:
            continue
        who = f"{_members(family, several)}, {family.representation}"
        if family.status != "TECHNICALLY_INFEASIBLE":
            yield f"{who}: {_verdict(family)}"
            continue
        short = [account for account in family.memory if not account.fits]
        in_numbers = {str(memory_violation(account, family.representation)) for account in short}
        other = [reason for reason in family.reasons if reason not in in_numbers]
        yield f"{who}: technically infeasible" + (f": {'; '.join(other)}" if other else "")
        for account in short:
            yield from _account(account)


def _account(account: MemoryAccount) -> Iterator[str]:
    """Write an account that does not fit: what is needed, term by term, against what is there."""
    needed, available = account.needed_bytes, account.available_bytes
    have = "an unknown amount" if available is None else format_bytes(available)
    lack = "" if available is None else f", short of {format_bytes(needed - available)}"
    yield f"  needs {format_bytes(needed)}, has {have}{lack}"
    for term in account.terms:
        yield f"    {term.name:<28}{format_bytes(term.bytes):>10}"
    yield f"    {'= needed':<28}{format_bytes(needed):>10}"
    if account.capacity_bytes is not None and account.reserved_bytes is not None:
        yield (
            f"    {'available':<28}{have:>10}   ({format_bytes(account.capacity_bytes)} capacity, "
            f"{format_bytes(account.reserved_bytes)} reserved)"
        )


def _plan(plan: ExecutionPlan) -> Iterator[str]:
    yield (
        f"{plan.representation} by {plan.primitive}; {plan.max_positions} positions for {plan.sessions} "
        f"{'session' if plan.sessions == 1 else 'sessions'}; prompt in chunks of {plan.chunk_positions}"
    )
    for placement in plan.placements:
        yield from _placement(placement)


def _placement(placement: Placement) -> Iterator[str]:
    account = placement.memory
    threads = "thread" if placement.threads == 1 else "threads"
    yield (
        f"{placement.participant}: {placement.node_name}, {placement.threads} {threads}, "
        f"{unit_range(placement.first_unit, placement.end_unit)} ({_span(placement.unit_ids)})"
    )
    available = "unknown" if account.available_bytes is None else format_bytes(account.available_bytes)
    verdict = "" if account.fits else ": DOES NOT FIT"
    yield f"  memory {format_bytes(account.needed_bytes)} of {available}{verdict}"
    yield "    " + ", ".join(f"{term.name} {format_bytes(term.bytes)}" for term in account.terms)


def _predicted(plan: ExecutionPlan) -> Iterator[str]:
    prediction = plan.prediction
    if prediction is None:
        yield "no prediction: curves are missing"
        return
    workload = plan.workload
    if prediction.is_estimate:
        yield f"{ESTIMATE}; nothing here was measured"
    yield f"for {workload.prompt_tokens} prompt tokens and {workload.output_tokens} output tokens:"
    yield f"{'time to first token':<24}{_seconds(prediction.ttft)}"
    yield f"{'time between tokens':<24}{_seconds(prediction.inter_token)}"
    rate = prediction.decode_rate
    yield f"{'tokens per second':<24}{rate.point:.3g}  ({rate.low:.3g} – {rate.high:.3g})"
    yield f"{'whole request':<24}{_seconds(prediction.request)}"
    if not isinstance(prediction.throughput, msgspec.UnsetType):
        together = prediction.throughput
        yield f"{'tokens per second of all':<24}{together.point:.3g}  ({together.low:.3g} – {together.high:.3g})"
    yield "where the request's time goes, largest first:"
    yield from _terms(prediction)
    source = "declared figures and records" if prediction.is_estimate else "records of evidence"
    yield f"from {len(prediction.evidence_ids)} {source}"


def _terms(prediction: Prediction) -> Iterator[str]:
    for term in sorted(prediction.terms, key=lambda term: -term.seconds):
        share = term.seconds / prediction.request.point
        yield f"  {term.subject + ', ' + term.what:<34}{format_seconds(term.seconds):>10}{share:>8.1%}"


def _bottleneck(decision: Decision) -> Iterator[str]:
    """Say which part dominates each figure of the chosen plan, then the others that matter."""
    parts = decision.breakdown
    if isinstance(parts, msgspec.UnsetType) or decision.plan is None or decision.plan.prediction is None:
        return
    several = _several(decision)
    nodes = {
        item.participant: _named(item.node_name, item.compute_unit_id, several) for item in decision.plan.placements
    }
    prediction = decision.plan.prediction
    for name, whole, shares in (
        ("time to first token", prediction.ttft.point, parts.ttft),
        ("time between tokens", prediction.inter_token.point, parts.inter_token),
    ):
        if shares:
            yield f"{name}, {format_seconds(whole)}: {_part(shares[0], nodes)} dominates"
            others = [share for share in shares[1:MOST_PARTS] if share.share >= LEAST_SHARE]
            rest = ", ".join(_part(share, nodes) for share in others)
            if rest:
                yield f"  then {rest}"
    slowest = parts.cadence[0]
    yield (
        f"with ever more sessions: at most {1 / slowest.seconds:.3g} tokens/s, one each "
        f"{format_seconds(slowest.seconds)}, set by {_where(slowest, nodes)}"
    )


def _part(share: Share, nodes: dict[str, str]) -> str:
    return f"{_where(share, nodes)} {format_seconds(share.seconds)} ({share.share:.0%})"


def _where(share: Share, nodes: dict[str, str]) -> str:
    where = re.sub(r"stage-\d+", lambda found: nodes.get(found.group(), found.group()), share.subject)
    what = {"waiting": "later chunks", "newest-position": "newest position"}.get(share.what, share.what)
    return f"{where} {what}"


def _front(decision: Decision) -> Iterator[str]:
    """Write the ranked families that are better than the chosen one in something, with it among them."""
    front, several = front_of_families(decision), _several(decision)
    if len(front) < 2:
        return
    for family in front[:MOST_FAMILIES]:
        assert family.best is not None, "families of the front have a predicted plan"
        prediction = family.best.prediction
        assert prediction is not None, "families of the front have a predicted plan"
        mark = " (chosen)" if family.best == decision.plan else ""
        yield (
            f"{_members(family, several)}, {family.representation}{mark}: first token "
            f"{format_seconds(prediction.ttft.point)}, {prediction.decode_rate.point:.3g} tokens/s"
        )
    if len(front) > MOST_FAMILIES:
        yield f"and {len(front) - MOST_FAMILIES} more"


def _others(decision: Decision) -> Iterator[str]:
    """Write the families over several Nodes that were not chosen, the likeliest first, and count the rest."""
    several = _several(decision)
    others = [
        family
        for family in decision.families
        if len(set(family.node_names)) > 1 and (decision.plan is None or family.best != decision.plan)
    ]
    others.sort(key=lambda family: (LIKELIEST_FIRST.index(family.status), family.request_seconds or 0.0))
    for family in others[:MOST_FAMILIES]:
        yield f"{_members(family, several)}, {family.representation}: {_verdict(family)}"
        if family.status == "RANKED" and (slow := bindings(decision, family)):
            yield f"  {slow[0].text}"
    rest = Counter(family.status for family in others[MOST_FAMILIES:])
    if rest:
        counts = ", ".join(f"{rest[status]} {_words(status)}" for status in LIKELIEST_FIRST if rest[status])
        yield f"and {rest.total()} more: {counts}"


def _proof(decision: Decision) -> Iterator[str]:
    if decision.plan is not None:
        yield (
            "proved the best of all feasible and allowed plans" if decision.proved_optimal else "not proved the best"
        )
    yield decision.search
    for report in decision.solvers:
        yield f"{report.representation} by {report.primitive}: {report.method}, because {report.why}"
        if report.value is not None and report.bound is not None and report.gap is not None:
            rounding = (
                f", rounding within {format_seconds(report.rounding_seconds)}" if report.rounding_seconds else ""
            )
            yield (
                f"  {report.status.lower()}: {format_seconds(report.value)}, proved bound "
                f"{format_seconds(report.bound)}, gap {report.gap:.3%}{rounding}"
            )
        else:
            least = "" if report.bound is None else f" below {format_seconds(report.bound)}"
            yield f"  {report.status.lower()}: no plan that can be ranked{least}"
    inputs = decision.inputs
    for name in ("problem", "graph", "policy", "workload", "economics"):
        yield f"{name:<10} {getattr(inputs, name)}"
    if not isinstance(decision.health, msgspec.UnsetType):
        yield f"{'health':<10} {decision.health}"


def _verdict(family: CandidateFamily) -> str:
    reasons = "; ".join(reason.removeprefix("policy: ") for reason in family.reasons)
    return f"{_words(family.status)}: {reasons}"


def _words(status: Status) -> str:
    return status.lower().replace("_", " ")


def _several(decision: Decision) -> frozenset[str]:
    """Return the names of the Nodes that have several Compute Units: one name does not tell which."""
    times = Counter(item.node_name for item in decision.resources)
    return frozenset(name for name, count in times.items() if count > 1)


def _named(node_name: str, compute_unit_id: str, several: frozenset[str]) -> str:
    return f"{node_name}/{compute_unit_id}" if node_name in several else node_name


def _members(family: CandidateFamily, several: frozenset[str]) -> str:
    """Name a family by its Nodes, and by its Compute Units where a Node has several."""
    members = zip(family.node_names, family.compute_unit_ids, strict=True)
    return " + ".join(_named(name, unit, several) for name, unit in members)


def _span(unit_ids: tuple[str, ...]) -> str:
    return unit_ids[0] if len(unit_ids) == 1 else f"{unit_ids[0]} … {unit_ids[-1]}"


def _seconds(interval: Interval) -> str:
    low, high = format_seconds(interval.low), format_seconds(interval.high)
    return f"{format_seconds(interval.point)}  ({low} – {high})"
