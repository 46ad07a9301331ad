"""What moved of models, for people: bytes by class and source, and the numbers that must be 0."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from inferswarm.artifacts.ledger_checks import ZeroInvariant
from inferswarm.units import format_bytes
from inferswarm.views.labels import count
from inferswarm.views.markup import Markup, badge, details, element, page, table
from inferswarm.views.text import WIDTH

NOWHERE = "—"
"""Stands for a source where nothing moved."""


class ClassRow(NamedTuple):
    """The bytes of one class from one source; `source` is a Node's name, `origin`, or empty."""

    kind: str
    source: str
    events: int
    bytes: int


class Realized(NamedTuple):
    """What one realization's Nodes required and where it came from, in bytes."""

    realization: str
    nodes: tuple[str, ...]
    required: int
    held: int
    received: tuple[tuple[str, int], ...]
    """By source."""
    serves: bool
    results: int = 0
    """Of results of transforms, beside what was required: there, or received with the rest."""


class TransfersShown(NamedTuple):
    """Everything that is shown."""

    rows: tuple[ClassRow, ...]
    realizations: tuple[Realized, ...]
    zeros: tuple[ZeroInvariant, ...]


def transfers_text(shown: TransfersShown) -> str:
    """Return it as plain text."""
    lines = [summary(shown)]
    for item in shown.realizations:
        lines += textwrap.wrap(_realized(item), WIDTH, initial_indent="  ", subsequent_indent="    ")
    if shown.rows:
        lines += ["", f"  {'class':<26}{'source':<18}{'events':>8}{'bytes':>18}"]
        lines += [
            f"  {row.kind:<26}{row.source or NOWHERE:<18}{row.events:>8,}{row.bytes:>18,}" for row in shown.rows
        ]
    if shown.zeros:
        lines += ["", "  must be 0:"]
        lines += [f"  {_mark(zero)} {zero.name:<42}{_value(zero):>14}" for zero in shown.zeros]
    return "\n".join(lines) + "\n"


def transfers_html(shown: TransfersShown) -> Markup:
    """Return the same as static HTML; everything is escaped."""
    classes = table(
        ("class", "source", "events", "bytes"),
        [(row.kind, row.source or NOWHERE, f"{row.events:,}", f"{row.bytes:,}") for row in shown.rows],
        frozenset({2, 3}),
    )
    zeros = table(
        ("must be 0", "is", "derived from"),
        [(zero.name, badge(_value(zero), "good" if zero.holds else "bad"), zero.mechanism) for zero in shown.zeros],
    )
    each = [element("div", _realized(item)) for item in shown.realizations]
    title = element("div", summary(shown), kind="title")
    return page(title, *each, details("bytes by class", classes, opened=True), details("zeros", zeros, opened=True))


def summary(shown: TransfersShown) -> str:
    """Return one line: how much moved, for how many realizations, and whether all that must be 0 is."""
    if not shown.realizations:
        return "Transfers: nothing was acquired"
    moved = sum(num_bytes for item in shown.realizations for _, num_bytes in item.received)
    wrong = sum(not zero.holds for zero in shown.zeros)
    zeros = "all zeros hold" if not wrong else f"{wrong} of {len(shown.zeros)} numbers are not known to be 0"
    return f"Transfers for {count(len(shown.realizations), 'realization')}: {format_bytes(moved)} moved; {zeros}"


def _realized(item: Realized) -> str:
    came = ", ".join(f"{format_bytes(num_bytes)} from {source}" for source, num_bytes in item.received)
    state = "" if item.serves else "; it did not serve"
    beside = f", {format_bytes(item.results)} of results beside" if item.results else ""
    return (
        f"{item.realization} on {', '.join(item.nodes)}: {format_bytes(item.required)} required, "
        f"{format_bytes(item.held)} there, {came or 'nothing moved'}{beside}{state}"
    )


def _mark(zero: ZeroInvariant) -> str:
    return " " if zero.holds else "!"


def _value(zero: ZeroInvariant) -> str:
    return "unknown" if zero.value is None else f"{zero.value:,}"
