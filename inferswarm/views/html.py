"""Static HTML of graphs, plans and decisions: tables that need no script and no front end. Everything is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from inferswarm.planner.plan import CandidateFamily, Decision, ExecutionPlan, MemoryAccount, Prediction
from inferswarm.resources.types import Fact, ResourceGraph
from inferswarm.strategies.paths import PathReport
from inferswarm.units import format_bytes, format_seconds
from inferswarm.views.labels import (
    bits_fact,
    bytes_fact,
    count,
    describe_kind,
    describe_memory,
    describe_outcome,
    describe_plan,
    describe_units,
    optional_bytes,
    optional_seconds,
    rate_interval,
    seconds_interval,
    short_digest,
    step_seconds,
    term_seconds,
)
from inferswarm.views.markup import Content, Markup, badge, bar, details, element, joined, page, table
from inferswarm.views.path_rows import PATH_HEADERS, PATH_NUMBERS, path_rows


def graph_html(graph: ResourceGraph, paths: Sequence[PathReport] = ()) -> str:
    """Return a resource graph as tables: Nodes, Compute Units, Memory Resources, links, with provenance.

    `paths` are the address pairs that were measured or tried between its Nodes.
    """
    names = {node.id: node.name for node in graph.nodes}
    nodes = table(
        ("Node", "kind", "host", "facts"),
        [
            (
                element("b", node.name),
                "virtual" if node.virtual else "physical",
                node.host_id,
                _lines([joined((f"{item.name}: ", _fact(item.fact, item.fact.value or ""))) for item in node.facts]),
            )
            for node in graph.nodes
        ],
    )
    units = table(
        ("Node", "Compute Unit", "kind", "threads", "available", "capabilities"),
        [
            (
                names.get(unit.node_id, unit.node_id),
                unit.name,
                describe_kind(unit.kind),
                str(unit.threads),
                badge("yes", "good") if unit.available else badge("no", "bad"),
                ", ".join(unit.capabilities),
            )
            for unit in graph.compute_units
        ],
        frozenset({3}),
    )
    memories = table(
        ("Node", "kind", "capacity", "reserved", "enforced by"),
        [
            (
                names.get(memory.node_id, memory.node_id),
                describe_kind(memory.kind),
                _fact(memory.capacity_bytes, bytes_fact(memory.capacity_bytes)),
                _fact(memory.reserved_bytes, bytes_fact(memory.reserved_bytes)),
                memory.enforcement,
            )
            for memory in graph.memory_resources
        ],
        frozenset({2, 3}),
    )
    links = table(
        ("from", "to", "kind", "nominal rate", "available"),
        [
            (
                names.get(link.source, link.source),
                names.get(link.target, link.target),
                link.kind,
                _fact(link.nominal_bits_per_second, bits_fact(link.nominal_bits_per_second)),
                badge("yes", "good") if link.available else badge("no", "bad"),
            )
            for link in graph.links
        ],
        frozenset({3}),
    )
    title = f"Resource graph: {count(len(graph.nodes), 'Node')}"
    pairs = [table(PATH_HEADERS, path_rows(graph, paths), PATH_NUMBERS)] if paths else []
    return page(element("div", title, kind="title"), nodes, units, memories, links, *pairs)


def plan_html(plan: ExecutionPlan) -> str:
    """Return a plan as tables: participants, memory term by term, prediction with its bounds."""
    return page(*_plan_parts(plan))


def decision_html(decision: Decision) -> str:
    """Return a decision: the outcome and why, its plan, every resource's and every family's reason."""
    outcome = badge(describe_outcome(decision.outcome), "good" if decision.outcome == "SELECTED" else "bad")
    parts: list[Content] = [element("div", outcome, " ", decision.summary, kind="title")]
    if decision.plan is not None:
        parts.extend(_plan_parts(decision.plan))
    parts.append(
        table(
            ("Node", "Compute Unit", "used", "reason"),
            [
                (
                    item.node_name,
                    item.compute_unit_id,
                    badge("yes", "good") if item.used else badge("no"),
                    item.reason,
                )
                for item in decision.resources
            ],
        )
    )
    families = table(
        ("Nodes", "representation", "primitive", "status", "request", "reasons"),
        [
            (
                ", ".join(family.node_names),
                family.representation,
                family.primitive,
                badge(family.status, _status_quality(family)),
                "" if family.request_seconds is None else format_seconds(family.request_seconds),
                joined((_lines(family.reasons), *(_family_memory(account) for account in family.memory))),
            )
            for family in decision.families
        ],
        frozenset({4}),
    )
    parts.append(details(f"{len(decision.families)} families of plans", families, opened=decision.plan is None))
    if decision.overrides:
        parts.append(element("div", "Overridden by the operator: ", "; ".join(decision.overrides)))
    if decision.missing_evidence:
        missing = _lines(decision.missing_evidence)
        parts.append(details(f"Missing evidence ({len(decision.missing_evidence)})", missing))
    proof = "proved optimal" if decision.proved_optimal else "not proved optimal"
    parts.append(element("div", f"{proof}: {decision.search}", kind="faint"))
    inputs = [(name, short_digest(getattr(decision.inputs, name))) for name in decision.inputs.__struct_fields__]
    parts.append(element("div", " · ".join(f"{name} {value}" for name, value in inputs), kind="faint"))
    return page(*parts)


def _plan_parts(plan: ExecutionPlan) -> tuple[Markup, ...]:
    participants = table(
        ("participant", "Node", "units", "peak memory", "", "prompt", "step"),
        [
            (
                placement.participant,
                element("b", placement.node_name),
                describe_units(placement.unit_ids),
                describe_memory(placement.memory),
                _memory_bar(placement.memory),
                optional_seconds(term_seconds(plan, placement.participant, "first-pass")),
                optional_seconds(step_seconds(plan, placement.participant)),
            )
            for placement in plan.placements
        ],
        frozenset({3, 5, 6}),
    )
    memory = table(
        ("participant", "term", "size"),
        [row for placement in plan.placements for row in _memory_rows(placement.participant, placement.memory)],
        frozenset({2}),
    )
    prediction = (
        element("div", badge("no prediction: evidence is missing", "bad"))
        if plan.prediction is None
        else _prediction_table(plan.prediction)
    )
    title = element("div", f"Plan: {describe_plan(plan)}", kind="title")
    return title, participants, prediction, details("Memory, term by term", memory)


def _memory_rows(participant: str, account: MemoryAccount) -> list[tuple[Content, ...]]:
    rows: list[tuple[Content, ...]] = [(participant, term.name, format_bytes(term.bytes)) for term in account.terms]
    verdict = badge("fits", "good") if account.fits else badge("does not fit", "bad")
    rows.append((participant, joined((element("b", "peak"), " ", verdict)), element("b", describe_memory(account))))
    capacity = f"{optional_bytes(account.reserved_bytes)} of {optional_bytes(account.capacity_bytes)}"
    rows.append((participant, "reserved of the capacity", capacity))
    return rows


def _prediction_table(prediction: Prediction) -> Markup:
    rows = table(
        ("prediction", "expected (between)"),
        [
            ("time to first token", seconds_interval(prediction.ttft)),
            ("time between tokens", seconds_interval(prediction.inter_token)),
            ("whole request", seconds_interval(prediction.request)),
            ("decode rate", rate_interval(prediction.decode_rate)),
        ],
        frozenset({1}),
    )
    terms = table(
        ("share of the request", "what", "time"),
        [(term.subject, term.what, format_seconds(term.seconds)) for term in prediction.terms],
        frozenset({2}),
    )
    evidence = _lines([short_digest(item) for item in prediction.evidence_ids])
    based_on = details(f"Rests on {count(len(prediction.evidence_ids), 'record')}", evidence)
    return joined((rows, details("Time, term by term", terms), based_on))


def _family_memory(account: MemoryAccount) -> Markup:
    terms = " + ".join(f"{term.name} {format_bytes(term.bytes)}" for term in account.terms)
    return element("div", f"{account.memory_id}: {terms} = {describe_memory(account)}", kind="faint")


def _memory_bar(account: MemoryAccount) -> Content:
    if not account.capacity_bytes or account.reserved_bytes is None:
        return ""
    color = "rgb(43,106,153)" if account.fits else "rgb(214,58,58)"
    return bar(
        (account.reserved_bytes / account.capacity_bytes, "rgba(128,128,128,.6)"),
        (account.needed_bytes / account.capacity_bytes, color),
    )


def _status_quality(family: CandidateFamily) -> str:
    if family.status == "RANKED":
        return "good"
    return "" if family.status == "FEASIBLE_UNRANKED" else "bad"


def _fact(fact: Fact[int] | Fact[str], text: str) -> Markup:
    """Write a fact with where it comes from, or why it is unknown, as the tooltip."""
    if fact.provenance == "unknown":
        return joined(
            (element("span", "unknown", title=fact.detail), " ", element("span", fact.detail, kind="faint"))
        )
    return element("span", text, title=f"{fact.provenance}: {fact.detail}")


def _lines(items: tuple[str, ...] | list[str] | list[Markup]) -> Markup:
    return joined(element("div", item) for item in items)
