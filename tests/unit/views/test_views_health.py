"""Health as people see it: every axis by itself, names beside ids, nothing unescaped."""

from __future__ import annotations

from inferswarm.evidence.events import AXES, Scope
from inferswarm.evidence.report import report_of
from inferswarm.views.health import health_html, health_text
from tests.unit.evidence.evidence_samples import make_event

PATH = Scope("path", "node-1->node-2")
EVENTS = [
    make_event("checksum-mismatch", PATH, evidence=("sha256:" + "a" * 64,)),
    make_event("joined", Scope("node", "<b>")),
]
NAMES = {"node-1": "birch", "node-2": "oak"}


def test_a_quarantine_is_shown_with_its_scope_its_evidence_and_what_ends_it() -> None:
    text = health_text(report_of(EVENTS), NAMES)
    assert "quarantine: path birch->oak (node-1->node-2)" in text
    assert "sha256:aaaaaaaaaaaa" in text
    assert "by a revalidation of exactly this scope that passes" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_each_axis_has_its_own_place_and_no_other_sums_them_up() -> None:
    html = health_html(report_of(EVENTS), NAMES)
    assert all(f">{axis}</th>" in html for axis in AXES)
    assert html.count("<th") >= len(AXES) + 1
    assert "quarantined" in html


def test_what_a_journal_says_is_escaped() -> None:
    assert "<b>" not in health_html(report_of(EVENTS), NAMES)
