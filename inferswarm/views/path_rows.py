"""Rows of a table of paths: each address pair with its round trip and goodput, and whether it is used or why not."""

from __future__ import annotations

from collections.abc import Iterable

from inferswarm.resources.types import ResourceGraph
from inferswarm.strategies.paths import LARGE_BYTES, SECOND_BYTES, STEP_BYTES, PairReport, PairTimes, PathReport
from inferswarm.units import format_rate, format_seconds

PATH_HEADERS = ("path", "addresses", "RTT, 4 KB", "64 KB", "16 MB", "used")
PATH_NUMBERS = frozenset({2, 3, 4})
"""The columns that hold numbers: the median round trip, and the median goodput of two sizes, one way."""
_NOTHING = "–"
Row = tuple[str, str, str, str, str, str]


def path_rows(graph: ResourceGraph, paths: Iterable[PathReport]) -> list[Row]:
    """Return a row for each address pair, the one that is used first; software is part of every number.

    Beneath the name of a path between Nodes of one host stands that there is no network.
    """
    names = {node.id: node.name for node in graph.nodes}
    hosts = {node.id: node.host_id for node in graph.nodes}
    rows: list[Row] = []
    for path in paths:
        lines = [f"{names.get(path.source, path.source)} → {names.get(path.target, path.target)}"]
        if path.source in hosts and hosts[path.source] == hosts.get(path.target):
            lines.append("  one host, no network")
        cells = [(" → ".join(pair.addresses), *_numbers(pair.times), _verdict(pair)) for pair in path.pairs]
        cells += [("", "", "", "", "")] * (len(lines) - len(cells))
        lines += [""] * (len(cells) - len(lines))
        rows += [(line, *row) for line, row in zip(lines, cells, strict=True)]
    return rows


def _numbers(times: PairTimes | None) -> tuple[str, str, str]:
    if times is None:
        return _NOTHING, _NOTHING, _NOTHING
    step = times.seconds(STEP_BYTES)
    round_trip = _NOTHING if step is None else format_seconds(2 * step)
    return round_trip, _goodput(times, SECOND_BYTES), _goodput(times, LARGE_BYTES)


def _goodput(times: PairTimes, payload_bytes: int) -> str:
    seconds = times.seconds(payload_bytes)
    return _NOTHING if not seconds else format_rate(payload_bytes / seconds)


def _verdict(pair: PairReport) -> str:
    left_out = "" if pair.times is None or not pair.times.left_out else f" ({pair.times.left_out})"
    return f"yes{left_out}" if pair.used else f"no: {pair.reason}{left_out}"
