"""The same documents as plain text for a terminal: aligned columns, at most 100 characters wide, no color."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from inferswarm.planner.plan import Decision, ExecutionPlan, Interval, MemoryAccount
from inferswarm.resources.types import ResourceGraph
from inferswarm.strategies.paths import PathReport
from inferswarm.units import format_bytes, format_seconds
from inferswarm.views.labels import (
    bits_fact,
    bytes_fact,
    count,
    describe_compute_unit,
    describe_kind,
    describe_memory,
    describe_node,
    describe_outcome,
    describe_plan,
    describe_prediction,
    describe_units,
    format_rate,
    optional_bytes,
    optional_seconds,
    step_seconds,
    term_seconds,
)
from inferswarm.views.path_rows import PATH_HEADERS, PATH_NUMBERS, path_rows

WIDTH = 100
_GAP = "  "
_LEAST_COLUMN = 14
Unit = Literal["s", "tok/s", "B", ""]


class MeasuredRow(NamedTuple):
    """One quantity with what was predicted and what was measured, both in `unit`; None is unknown."""

    name: str
    unit: Unit
    predicted: Interval | None
    measured: float | None


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]], numbers: frozenset[int] = frozenset()) -> str:
    """Return aligned columns; those in `numbers` are set to the right and never wrapped.

    All other cells wrap where the table would be wider than 100 characters, the last column first.
    """
    cells = [[" ".join(cell.split()) for cell in row] for row in (headers, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for column in (len(widths) - 1, *(column for column in range(len(widths) - 1) if column not in numbers)):
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - WIDTH
        if excess > 0:
            widths[column] = max(min(widths[column], _LEAST_COLUMN), widths[column] - excess)
    lines: list[str] = []
    for number, row in enumerate(cells):
        wrapped = [
            [cell] if column in numbers else textwrap.wrap(cell, widths[column], break_on_hyphens=False)
            for column, cell in enumerate(row)
        ]
        for index in range(max(1, *map(len, wrapped))):
            parts = (column[index] if index < len(column) else "" for column in wrapped)
            aligned = [
                part.rjust(width) if column in numbers else part.ljust(width)
                for column, (part, width) in enumerate(zip(parts, widths, strict=True))
            ]
            lines.append(_GAP.join(aligned).rstrip())
        if number == 0:
            lines.append(_GAP.join("─" * width for width in widths))
    return "\n".join(lines)


def graph_text(graph: ResourceGraph, paths: Sequence[PathReport] = ()) -> str:
    """Return a resource graph as text: what each Node has, the links between Nodes, and each path's address pairs."""
    names = {node.id: node.name for node in graph.nodes}
    rows: list[tuple[str, str, str]] = []
    for node in graph.nodes:
        rows.append((node.name, "", describe_node(node)))
        for unit in graph.compute_units:
            if unit.node_id == node.id:
                rows.append(("", "compute", f"{describe_compute_unit(unit)} · {unit.name}"))
        for memory in graph.memory_resources:
            if memory.node_id == node.id:
                capacity, reserved = bytes_fact(memory.capacity_bytes), bytes_fact(memory.reserved_bytes)
                limit = "not enforced" if memory.enforcement == "none" else f"enforced by {memory.enforcement}"
                rows.append(("", "memory", f"{describe_kind(memory.kind)} {capacity}, {reserved} reserved, {limit}"))
    parts = [format_table(("Node", "has", "what"), rows)]
    if graph.links:
        links = [
            (
                names.get(link.source, link.source),
                names.get(link.target, link.target),
                link.kind if link.available else f"{link.kind}, not available",
                bits_fact(link.nominal_bits_per_second),
            )
            for link in graph.links
        ]
        parts.append(format_table(("from", "to", "link", "nominal rate"), links))
    if paths:
        parts.append(format_table(PATH_HEADERS, path_rows(graph, paths), PATH_NUMBERS))
    return "\n\n".join(parts) + "\n"


def plan_text(plan: ExecutionPlan) -> str:
    """Return a plan as text: participants, memory term by term, prediction."""
    participants = format_table(
        ("participant", "Node", "threads", "peak of memory", "prompt", "step", "units"),
        [
            (
                placement.participant,
                placement.node_name,
                str(placement.threads),
                describe_memory(placement.memory),
                optional_seconds(term_seconds(plan, placement.participant, "first-pass")),
                optional_seconds(step_seconds(plan, placement.participant)),
                describe_units(placement.unit_ids),
            )
            for placement in plan.placements
        ],
        frozenset({2, 3, 4, 5}),
    )
    memory = format_table(
        ("participant", "needs", "of", "term by term"),
        [(placement.participant, *memory_cells(placement.memory)) for placement in plan.placements],
        frozenset({1, 2}),
    )
    return "\n".join((describe_plan(plan), describe_prediction(plan), "", participants, "", memory, ""))


def decision_text(decision: Decision) -> str:
    """Return a decision as text: outcome, plan, why each resource is or is not used, what became of each family."""
    parts = [f"{describe_outcome(decision.outcome)}: {decision.summary}"]
    if decision.plan is not None:
        parts.append(plan_text(decision.plan).rstrip())
    parts.append(
        format_table(
            ("Node", "used", "reason"),
            [(item.node_name, "yes" if item.used else "no", item.reason) for item in decision.resources],
        )
    )
    parts.append(
        format_table(
            ("Nodes", "form", "status", "request", "reasons"),
            [
                (
                    ", ".join(family.node_names),
                    family.representation,
                    family.status,
                    "" if family.request_seconds is None else format_seconds(family.request_seconds),
                    "; ".join(family.reasons),
                )
                for family in decision.families
            ],
            frozenset({3}),
        )
    )
    if decision.overrides:
        parts.append("overridden by the operator: " + "; ".join(decision.overrides))
    if decision.missing_evidence:
        parts.append("missing evidence:\n" + "\n".join(f"  {item}" for item in decision.missing_evidence))
    parts.append(f"{'proved optimal' if decision.proved_optimal else 'not proved optimal'}: {decision.search}")
    wrapped = (part if "\n" in part else "\n".join(textwrap.wrap(part, WIDTH)) for part in parts)
    return "\n\n".join(wrapped) + "\n"


def memory_cells(account: MemoryAccount) -> tuple[str, str, str]:
    """Return an account as three texts: the peak, what is available, and the terms with the reservation."""
    terms = " + ".join(f"{term.name} {format_bytes(term.bytes)}" for term in account.terms)
    there = f"{optional_bytes(account.capacity_bytes)} less {optional_bytes(account.reserved_bytes)} reserved"
    verdict = "" if account.fits else "does not fit: "
    needed, available = format_bytes(account.needed_bytes), optional_bytes(account.available_bytes)
    return needed, available, f"{verdict}{terms}; {there}"


def prediction_versus_measured_text(rows: Iterable[MeasuredRow]) -> str:
    """Return predictions beside measurements, with measured ÷ expected and whether it lies within the bounds.

    What is unknown, not finite or without a prediction is written as unknown, and never counts as within.
    """
    table: list[tuple[str, ...]] = []
    for row in rows:
        known = row.measured is not None and math.isfinite(row.measured)
        measured = _quantity(row.measured, row.unit) if row.measured is not None and known else "unknown"
        ratio, within = "unknown", "unknown"
        if row.predicted is not None and row.measured is not None and known:
            within = "yes" if row.predicted.low <= row.measured <= row.predicted.high else "no"
            if row.predicted.point:
                ratio = f"{row.measured / row.predicted.point:.2f}"
        table.append((row.name, *_interval_cells(row.predicted, row.unit), measured, ratio, within))
    headers = ("", "expected", "low", "high", "measured", "ratio", "within")
    return format_table(headers, table, frozenset({1, 2, 3, 4, 5})) + "\n"


def _interval_cells(interval: Interval | None, unit: Unit) -> tuple[str, str, str]:
    if interval is None:
        return ("unknown", "", "")
    return _quantity(interval.point, unit), _quantity(interval.low, unit), _quantity(interval.high, unit)


def _quantity(value: float, unit: Unit) -> str:
    if unit == "s":
        return format_seconds(value)
    if unit == "B":
        return format_bytes(value)
    return f"{format_rate(value)} {unit}".rstrip()


def summary_line(graph: ResourceGraph) -> str:
    """Return one line that says what a graph holds."""
    parts = (
        count(len(graph.nodes), "Node"),
        count(len(graph.compute_units), "Compute Unit"),
        count(len(graph.memory_resources), "Memory Resource"),
        count(len(graph.links), "link"),
    )
    return ", ".join(parts)
