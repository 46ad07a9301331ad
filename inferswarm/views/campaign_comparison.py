"""Two runs beside each other: medians with their bounds and ratio, series by series, and what else differs.

It describes. Runs at two times differ by more than what was changed between them: what claims a difference measures
both sides interleaved in one run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from inferswarm.campaigns.bundle import Run
from inferswarm.campaigns.environment import Environment
from inferswarm.campaigns.statistics import Estimate, ratio_of_two
from inferswarm.views.campaign_series import CONFIDENCE, SeriesShown, estimate_text, series_of
from inferswarm.views.markup import Content, Markup, element, page, table
from inferswarm.views.text import format_table

RESAMPLES = 999
"""Enough for the ends of a 95 % interval to rest on 25 resamples each."""
SEED = 0
UNCOMPARED = frozenset({"captured_at", "ram_available_bytes", "packages", "variables"})
"""Fields of an environment that differ always, or are compared entry by entry."""
REQUEST_FIELDS = (
    "campaign",
    "edition",
    "arm",
    "campaign_digest",
    "expectations_digest",
    "notebook_digest",
    "package_digest",
    "package_version",
    "commit",
    "dirty",
)


class SeriesPair(NamedTuple):
    """One series under one condition in both runs; None where a run does not have it."""

    name: str
    unit: str
    left: SeriesShown | None
    right: SeriesShown | None
    ratio: Estimate | None
    """Of the medians, left / right; None where there is none."""


class Difference(NamedTuple):
    """Something that is not the same in both runs."""

    what: str
    left: str
    right: str


class ComparisonShown(NamedTuple):
    """Everything that is shown of two runs."""

    left: str
    right: str
    series: tuple[SeriesPair, ...]
    differences: tuple[Difference, ...]


def compare_runs(left: Run, right: Run) -> ComparisonShown:
    """Return two runs beside each other, whatever is missing of either."""
    return ComparisonShown(
        f"{left.bundle.campaign} · {left.bundle.run_id}",
        f"{right.bundle.campaign} · {right.bundle.run_id}",
        tuple(_pairs(left, right)),
        tuple(_differences(left, right)),
    )


def comparison_html(shown: ComparisonShown) -> Markup:
    """Return the comparison as a fragment; everything is escaped."""
    series = table(SERIES_HEADERS, [_row(pair) for pair in shown.series], frozenset({2, 4}))
    rows: list[tuple[Content, ...]] = [(item.what, item.left, item.right) for item in shown.differences]
    differences = table(("differs", "left", "right"), rows) if rows else element("div", "Nothing else differs.")
    return page(element("div", _title(shown), kind="title"), series, differences)


def comparison_text(shown: ComparisonShown) -> str:
    """Return the comparison as plain text."""
    parts = [_title(shown), format_table(SERIES_HEADERS, [_row(pair) for pair in shown.series], frozenset({2, 4}))]
    if shown.differences:
        parts.append(format_table(("differs", "left", "right"), shown.differences))
    else:
        parts.append("Nothing else differs.")
    return "\n\n".join(parts) + "\n"


SERIES_HEADERS = (
    "series",
    "unit",
    "n left",
    "left: median (bounds)",
    "n right",
    "right: median (bounds)",
    "left / right",
)


def _title(shown: ComparisonShown) -> str:
    return f"{shown.left} beside {shown.right}"


def _row(pair: SeriesPair) -> tuple[str, ...]:
    def cells(side: SeriesShown | None) -> tuple[str, str]:
        return ("0", "none") if side is None else (str(len(side.judged)), side.middle_text or side.range_text)

    ratio = "" if pair.ratio is None else estimate_text(pair.ratio, "")
    return (pair.name, pair.unit, *cells(pair.left), *cells(pair.right), ratio)


def _pairs(left: Run, right: Run) -> Iterable[SeriesPair]:
    sides = [
        {item.name: item for item in ([] if run.samples is None else series_of(run.samples))} for run in (left, right)
    ]
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = sides[0].get(name), sides[1].get(name)
        units = dict.fromkeys(side.unit for side in (one, other) if side is not None)
        yield SeriesPair(name, " or ".join(units), one, other, _ratio(one, other))


def _ratio(left: SeriesShown | None, right: SeriesShown | None) -> Estimate | None:
    if left is None or right is None or left.unit != right.unit or left.middle is None or right.middle is None:
        return None
    if right.middle.value == 0:
        return None
    return ratio_of_two(left.judged, right.judged, "median", CONFIDENCE, RESAMPLES, SEED)


def _differences(left: Run, right: Run) -> Iterable[Difference]:
    for name in REQUEST_FIELDS:
        yield from _different(
            name.replace("_", " "), getattr(left.request, name, None), getattr(right.request, name, None)
        )
    parameters = [
        {item.name: item.value for item in run.request.parameters} if run.request else {} for run in (left, right)
    ]
    for name in dict.fromkeys([*parameters[0], *parameters[1]]):
        yield from _different(f"parameter {name}", parameters[0].get(name), parameters[1].get(name))
    if left.environment is None or right.environment is None:
        yield from _different("environment", _there(left.environment), _there(right.environment))
        return
    for name in Environment.__struct_fields__:
        if name not in UNCOMPARED:
            yield from _different(
                name.replace("_", " "), getattr(left.environment, name), getattr(right.environment, name)
            )
    for kind in ("packages", "variables"):
        entries = [
            {
                item.name: getattr(item, "version", None) or getattr(item, "value", None)
                for item in getattr(side, kind)
            }
            for side in (left.environment, right.environment)
        ]
        for name in sorted({*entries[0], *entries[1]}):
            yield from _different(f"{kind.removesuffix('s')} {name}", entries[0].get(name), entries[1].get(name))


def _there(environment: Environment | None) -> str:
    return "none that can be read" if environment is None else "there"


def _different(what: str, left: object, right: object) -> Iterable[Difference]:
    if left != right:
        yield Difference(what, _shown(left), _shown(right))


def _shown(value: object) -> str:
    return "none" if value is None else str(value)
