"""Campaigns, runs and comparisons as people see them: all is there, escaped, and only proof looks like proof."""

from __future__ import annotations

import re

import msgspec
import polars as pl
import pytest

from inferswarm.campaigns.bundle import read_run
from inferswarm.campaigns.laws import LAWS, Finding, State
from inferswarm.campaigns.statistics import Estimate
from inferswarm.campaigns.verify import verify_root
from inferswarm.views.campaign_pictures import interval_picture, samples_picture
from inferswarm.views.campaign_report import RunShown, report_html, report_text
from inferswarm.views.campaigns import CampaignsView, ComparisonView, RunView
from tests.unit.campaigns.made_runs import make_project, make_run
from tests.unit.views.test_views_html import ATTACK, Reader


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two attempts of the first arm, the second of which fails; then the second arm, which is blocked by that."""
    directory = tmp_path_factory.mktemp("made")
    project = make_project(directory / "project")
    where = directory / "evidence"
    for arm, kept in (("first", True), ("first", False), ("second", True)):
        make_run(project, where, arm, kept=kept)
    return where


@pytest.fixture(scope="module")
def verdict(root):
    return verify_root(root, None)


@pytest.fixture(scope="module")
def views(root, verdict):
    """The passed attempt, the failed one and the blocked run, by what they came to."""
    return {run.disposition: RunView(root / run.campaign / run.run_id, run, verdict.verifier) for run in verdict.runs}


def test_the_overview_shows_arms_gates_attempts_and_who_verified(verdict):
    view = CampaignsView(verdict)
    shown = Reader(view._repr_html_()).text
    for words in (
        "first FAIL 2 broken proven",
        "second BLOCKED 1",
        "3 attempts",
        verdict.head,
        "nobody has accepted",
    ):
        assert words in shown
    assert "provenance not proven" in shown
    text = str(view)
    assert "made, edition 1: FAIL: what is kept is kept" in text
    assert re.search(r"first +FAIL +2 +broken +proven", text)
    assert max(map(len, text.splitlines())) <= 120  # the digest of the package alone is 71 long


def test_the_overview_as_tables(verdict):
    view = CampaignsView(verdict)
    rows = view.table().rows()
    assert rows[0] == ("made", 1, "first", "FAIL", 2, "broken", "proven")
    assert rows[1][2:5] == ("second", "BLOCKED", 1)
    runs = view.runs()
    assert set(runs["disposition"]) == {"PASS", "FAIL", "BLOCKED"}
    assert runs["seconds"].null_count() == 0
    frame = view.to_pandas()
    assert list(frame.columns) == view.table().columns
    assert frame["state"].tolist() == ["FAIL", "BLOCKED"]


def test_a_report_has_every_finding_every_expectation_and_every_series(views):
    for disposition, view in views.items():
        reader = Reader(view._repr_html_())
        for finding in view.verdict.findings:
            assert finding.law in reader.text
            assert " ".join(finding.path.split()) in reader.text
        assert disposition in reader.text
        assert ("svg" in reader.tags) is (disposition != "BLOCKED")
    text = Reader(views["FAIL"]._repr_html_()).text
    for words in ("first.kept", "1 not true: 'k0'; n = 3", "median of seconds, its bounds (each 95 %) at most 0.5"):
        assert words in text
    assert "BROKEN first.kept" in " ".join(str(views["FAIL"]).split())


def test_only_what_is_proven_is_green(views):
    good = {view: set(re.findall(r'badge good">([^<]*)<', views[view]._repr_html_())) for view in views}
    assert good["PASS"] == {"PASS", "PROVEN"}
    assert good["FAIL"] == good["BLOCKED"] == {"PROVEN"}


def test_a_report_is_one_page_that_needs_nothing_else(views):
    page = views["PASS"].html()
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'" in page
    for outside in ("http:", "https:", "src=", "href=", "url(", "@import", "<script"):
        assert outside not in page.replace("https://in-toto.io", "")


def test_hostile_records_are_text_and_nothing_else(views):
    run = views["PASS"].shown.run
    findings = tuple(
        Finding(law=law, state=State.BROKEN, path=ATTACK, expected=ATTACK, found=ATTACK + law) for law in LAWS
    )
    spec = msgspec.structs.replace(run.spec, title=ATTACK, claim=ATTACK)
    environment = msgspec.structs.replace(run.environment, system=ATTACK)
    request = msgspec.structs.replace(run.request, commit=ATTACK)
    hostile = run._replace(spec=spec, environment=environment, request=request)
    fragment = report_html(RunShown(hostile, findings, "FAIL", ATTACK))
    reader = Reader(fragment)
    assert reader.text.count(ATTACK) >= 3 * len(LAWS) + 5
    assert "<script" not in fragment
    assert reader.tags & {"script", "img", "iframe", "link", "object"} == set()
    assert [name for name, _ in reader.attributes if name.startswith("on")] == []


def test_a_report_of_nothing_says_so(tmp_path):
    directory = tmp_path / "made" / "first-20260101T000000Z-00000000"
    directory.mkdir(parents=True)
    shown = RunShown(read_run(directory), (), "INCOMPLETE", "somebody")
    assert "unknown arm" in report_text(shown)
    assert "INCOMPLETE" in Reader(report_html(shown)).text


def test_a_report_as_tables(views):
    view = views["FAIL"]
    rows = view.table().rows(named=True)
    assert [(row["id"], row["state"], row["num_samples"]) for row in rows] == [
        ("first.kept", "BROKEN", 3),
        ("first.fast", "PROVEN", 12),
    ]
    assert rows[1]["low"] < rows[1]["value"] < rows[1]["high"] < 0.5
    assert len(view.findings()) == len(view.verdict.findings)
    assert view.samples is not None
    assert view.to_pandas().shape == view.table().shape


def test_a_comparison_shows_medians_ratio_and_what_differs(views):
    left, right = views["PASS"].shown.run, views["FAIL"].shown.run
    slower = right._replace(
        samples=right.samples.with_columns(value=right.samples["value"] * 2),
        environment=msgspec.structs.replace(right.environment, python="3.99.0"),
    )
    view = ComparisonView(left, slower)
    row = view.table().row(by_predicate=pl.col("series") == "seconds", named=True)
    assert row["ratio"] == pytest.approx(0.5)
    assert row["ratio_low"] <= 0.5 <= row["ratio_high"]
    shown = Reader(view._repr_html_()).text
    assert "python" in shown
    assert "3.99.0" in shown
    assert "3 of 3 true" in str(view)
    assert ComparisonView(left, left).shown.differences == ()
    nothing = ComparisonView(left, left._replace(samples=None, environment=None))
    assert "none that can be read" in str(nothing)
    assert nothing.table()["right_num"].null_count() == len(nothing.table())


def test_pictures_show_every_sample_or_every_group_of_them():
    few = samples_picture([3.0, 1.0, 2.0], [True, False, False], 1.5)
    assert few.count("<circle") == 3
    assert few.count('fill="none"') == 1
    many = samples_picture([float(index % 7) for index in range(5000)], [False] * 5000, None)
    assert "<circle" not in many
    assert many.count("<line") <= 400
    assert samples_picture([], [], None) == ""


@pytest.mark.parametrize(
    "estimate", [Estimate(1.0, 0.9, 1.1, 9), Estimate(1.0, None, None, 3), Estimate(0.0, 0, 0, 1)]
)
def test_intervals_are_drawn_inside_their_picture(estimate):
    picture = interval_picture(estimate, 0.8, 1.25)
    places = [float(value) for value in re.findall(r'(?:x1|x2|cx)="([-\d.]+)"', picture)]
    assert places
    assert all(0 <= place <= 180 for place in places)
    assert ("stroke-dasharray" in picture) is (estimate.low is None)
    assert picture.count("<line") == 3
