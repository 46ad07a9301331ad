"""Campaigns, runs and comparisons that show themselves: as text, as HTML in notebooks, as polars and pandas tables.

They verify what they show first; what is not proven is not shown as if it were.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from inferswarm.campaigns.bundle import Run, read_run
from inferswarm.campaigns.laws import LAWS
from inferswarm.campaigns.verdicts import RootVerdict, RunVerdict, Verifier
from inferswarm.views.campaign_comparison import ComparisonShown, compare_runs, comparison_html, comparison_text
from inferswarm.views.campaign_overview import gates_of, overview_html, overview_text, runs_of, summary
from inferswarm.views.campaign_report import RunShown, report_html, report_text
from inferswarm.views.markup import whole_page

if TYPE_CHECKING:
    import pandas


class CampaignsView:
    """Every campaign below an evidence root."""

    def __init__(self, verdict: RootVerdict) -> None:
        """Wrap a verdict."""
        self.verdict = verdict

    def table(self) -> pl.DataFrame:
        """Return one row for each arm, run or not: campaign, edition, arm, state, attempts, both gates."""
        rows = [
            (campaign.campaign, campaign.edition, arm.arm, arm.state, arm.attempts, *gates_of(arm, runs))
            for campaign in self.verdict.campaigns
            for runs in [runs_of(self.verdict, campaign)]
            for arm in campaign.arms
        ]
        names = ("campaign", "edition", "arm", "state", "attempts", "correctness", "performance")
        return _frame(rows, names, {"edition": pl.Int64, "attempts": pl.Int64})

    def runs(self) -> pl.DataFrame:
        """Return one row for each attempt, of earlier editions too."""
        names = (
            "campaign",
            "edition",
            "arm",
            "run_id",
            "attempt",
            "disposition",
            "recorded",
            "correctness",
            "performance",
            "provenance",
            "is_sound",
            "seconds",
            "commit",
            "is_dirty",
            "package_digest",
        )
        rows = [tuple(getattr(run, name) for name in names) for run in self.verdict.runs]
        kinds = {
            "edition": pl.Int64,
            "attempt": pl.Int64,
            "is_sound": pl.Boolean,
            "seconds": pl.Float64,
            "is_dirty": pl.Boolean,
        }
        return _frame(rows, names, kinds)

    def to_pandas(self) -> pandas.DataFrame:
        """Return `table` for pandas, which the `lab` extra installs."""
        return to_pandas(self.table())

    def html(self) -> str:
        """Return the overview as a whole page that needs no other file, no script and no network."""
        return whole_page(summary(self.verdict), overview_html(self.verdict))

    def __repr__(self) -> str:
        """One honest line."""
        return f"CampaignsView({summary(self.verdict)})"

    def __str__(self) -> str:
        """The overview as text."""
        return overview_text(self.verdict)

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        return str(overview_html(self.verdict))


class RunView:
    """One run, with every finding."""

    def __init__(self, directory: Path, verdict: RunVerdict, verifier: Verifier) -> None:
        """Read a run whose verdict is given. Raises SpecError when its directory cannot be listed."""
        said_by = f"InferSwarm {verifier.version}, package {verifier.package_digest}"
        self.verdict = verdict
        self.shown = RunShown(read_run(directory), verdict.findings, verdict.disposition, said_by)

    @property
    def samples(self) -> pl.DataFrame | None:
        """The raw samples, or None where there are none that can be used."""
        return self.shown.run.samples

    def findings(self) -> pl.DataFrame:
        """Return one row for each finding."""
        rows = [
            (item.law, LAWS[item.law], item.state, item.path, item.expected, item.found)
            for item in self.verdict.findings
        ]
        return _frame(rows, ("law", "group", "state", "path", "expected", "found"), {})

    def table(self) -> pl.DataFrame:
        """Return one row for each expectation: what was computed, between which bounds, from how many samples."""
        rows = []
        for item, judged in self.shown.judged:
            value, low, high = (None, None, None) if judged.estimate is None else judged.estimate[:3]
            rows.append((item.id, item.gate, judged.state, value, low, high, judged.num_samples, judged.found))
        numbers = {"value": pl.Float64, "low": pl.Float64, "high": pl.Float64, "num_samples": pl.Int64}
        return _frame(rows, ("id", "gate", "state", *numbers, "found"), numbers)

    def to_pandas(self) -> pandas.DataFrame:
        """Return `table` for pandas, which the `lab` extra installs."""
        return to_pandas(self.table())

    def html(self) -> str:
        """Return the report as a whole page that needs no other file, no script and no network."""
        return whole_page(self.shown.title, report_html(self.shown))

    def __repr__(self) -> str:
        """One honest line."""
        return f"RunView({self.shown.title})"

    def __str__(self) -> str:
        """The report in short."""
        return report_text(self.shown)

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        return str(report_html(self.shown))


class ComparisonView:
    """Two runs beside each other. It describes; it proves nothing of a difference."""

    def __init__(self, left: Run, right: Run) -> None:
        """Compare two runs that were read."""
        self.shown: ComparisonShown = compare_runs(left, right)

    def table(self) -> pl.DataFrame:
        """Return one row for each series under one condition: medians of both sides and their ratio with bounds."""
        rows = []
        for pair in self.shown.series:
            sides: list[object] = []
            for side in (pair.left, pair.right):
                middle = (None, None, None) if side is None or side.middle is None else side.middle[:3]
                sides += [None if side is None else len(side.judged), *middle]
            ratio = (None, None, None) if pair.ratio is None else pair.ratio[:3]
            rows.append((pair.name, pair.unit, *sides, *ratio))
        numbers = [f"{side}_{what}" for side in ("left", "right") for what in ("num", "median", "low", "high")]
        numbers += ["ratio", "ratio_low", "ratio_high"]
        kinds = {name: pl.Int64 if name.endswith("_num") else pl.Float64 for name in numbers}
        return _frame(rows, ("series", "unit", *numbers), kinds)

    def to_pandas(self) -> pandas.DataFrame:
        """Return `table` for pandas, which the `lab` extra installs."""
        return to_pandas(self.table())

    def html(self) -> str:
        """Return the comparison as a whole page that needs no other file, no script and no network."""
        return whole_page(f"{self.shown.left} beside {self.shown.right}", comparison_html(self.shown))

    def __repr__(self) -> str:
        """One honest line."""
        return f"ComparisonView({self.shown.left}, {self.shown.right}, {len(self.shown.differences)} differences)"

    def __str__(self) -> str:
        """The comparison as text."""
        return comparison_text(self.shown)

    def _repr_html_(self) -> str:
        """Static HTML for notebooks."""
        return str(comparison_html(self.shown))


def to_pandas(frame: pl.DataFrame) -> pandas.DataFrame:
    """Return a table for pandas, without pyarrow. Raises ImportError where pandas is not installed."""
    import pandas

    return pandas.DataFrame(frame.to_dict(as_series=False), columns=frame.columns)


def _frame(rows: Sequence[Sequence[Any]], names: Sequence[str], kinds: dict[str, Any]) -> pl.DataFrame:
    """Make a table; columns are texts unless `kinds` says otherwise."""
    plain = [[str(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    return pl.DataFrame(plain, schema={name: kinds.get(name, pl.String) for name in names}, orient="row")
