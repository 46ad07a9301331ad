"""The notebooks from resources to campaigns run under papermill in time, with what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.notebooks.executing import execute

PROJECT = Path(__file__).parents[2]
TOPOLOGIES = str(PROJECT / "experiments" / "topologies")
DEADLINE_SECONDS = 90
"""Of each, on two cores that nobody else uses."""
ON_A_BUSY_MACHINE = 2 * DEADLINE_SECONDS


@pytest.mark.notebook
@pytest.mark.timeout(ON_A_BUSY_MACHINE + 30)
def test_resources_are_shown_with_reasons_for_what_is_unknown(tmp_path: Path) -> None:
    shown = execute(
        "01_resources.ipynb", tmp_path, ON_A_BUSY_MACHINE, topologies=TOPOLOGIES, state=str(tmp_path / "state")
    )
    assert shown.num_pictures >= 5
    for expected in ("NUMA nodes", "why it is unknown", "Declared figures, not measured", "campus-200", "home-pair"):
        assert expected in shown.text
    assert "needed Nodes that exist" in shown.text


@pytest.mark.notebook
@pytest.mark.timeout(ON_A_BUSY_MACHINE + 30)
def test_evidence_is_measured_fitted_compared_and_made_stale(tmp_path: Path) -> None:
    shown = execute("02_evidence.ipynb", tmp_path, ON_A_BUSY_MACHINE)
    assert shown.num_pictures >= 2
    for expected in (
        "unit-seconds",
        "message-seconds",
        "residual",
        "two slow records in a row: degraded, degraded: ALERT",
    ):
        assert expected in shown.text
    assert "one slow record: degraded: no alert" in shown.text
    assert "records that a change makes stale" in shown.text
    assert "with the old kernel back, nothing is stale for it" in shown.text


@pytest.mark.notebook
@pytest.mark.timeout(ON_A_BUSY_MACHINE + 30)
def test_planning_is_explained_varied_and_bounded(tmp_path: Path) -> None:
    shown = execute("03_planning.ipynb", tmp_path, ON_A_BUSY_MACHINE, topologies=TOPOLOGIES)
    assert shown.num_pictures >= 4
    for expected in (
        "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE",
        "Estimate from declared figures. Nothing here was measured.",
        "network / 10",
        "Nodes pinned, in this order: laptop, desktop",
        "proved bound",
    ):
        assert expected in shown.text
    widgets = [
        output for output in shown.outputs if "application/vnd.jupyter.widget-view+json" in output.get("data", {})
    ]
    assert len(widgets) == 1


@pytest.mark.notebook
@pytest.mark.timeout(3 * ON_A_BUSY_MACHINE + 30)
def test_a_node_is_lost_in_an_answer_that_goes_on_and_is_the_same(tmp_path: Path) -> None:
    shown = execute("04_epochs.ipynb", tmp_path, 3 * ON_A_BUSY_MACHINE, max_tokens=64, kill_at=24)
    assert shown.num_pictures >= 5
    for expected in (
        "is killed ———",
        "from the signal to the next token",
        "MemberLost",
        "NODE_LOST: epoch ",
        "tokens and logits digests equal",
        "joined again",
        "drained",
        "the answer is the same over every plan",
    ):
        assert expected in shown.text


@pytest.mark.notebook
@pytest.mark.timeout(2 * ON_A_BUSY_MACHINE + 30)
def test_nodes_fetch_what_they_need_and_a_third_gets_it_from_them(tmp_path: Path) -> None:
    shown = execute("05_artifacts.ipynb", tmp_path, 2 * ON_A_BUSY_MACHINE)
    assert shown.num_pictures >= 3
    for expected in (
        "digests known by: layout",
        "in place (100%)",
        "no Node holds the whole file",
        "0 B moved; the answer is the same",
        "from its peers; 0 B left the origin",
    ):
        assert expected in shown.text


@pytest.mark.notebook
@pytest.mark.timeout(2 * ON_A_BUSY_MACHINE + 30)
def test_a_campaign_is_run_verified_read_back_and_altered_in_vain(tmp_path: Path) -> None:
    shown = execute("06_campaigns.ipynb", tmp_path, 2 * ON_A_BUSY_MACHINE, project=str(PROJECT))
    for expected in (
        "PASS two-nodes-",
        "two-nodes.answers",
        "rows-differing",
        "a-file-less            sound: False",
        "no-run                 sound: False",
    ):
        assert expected in shown.text
