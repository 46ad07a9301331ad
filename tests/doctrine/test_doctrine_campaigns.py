"""Rules about records of campaigns: what is accepted stays as it is, and only what it may be used for changes."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from inferswarm.campaigns.saying import accept_campaign, authorize, saying
from inferswarm.campaigns.verify import verify_root
from tests.unit.campaigns.made_runs import SECOND, make_project, make_run

HOUR = 3600 * SECOND


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose campaign passed, was accepted, and carries an authorization for an hour."""
    project = make_project(tmp_path_factory.mktemp("accepted") / "project")
    root = project / "evidence"
    make_run(project, root, "first")
    make_run(project, root, "second")
    acceptance = accept_campaign(root, "made", project, saying("somebody", "read them"))
    authorize(root, "made", acceptance, time.time_ns() + HOUR, saying("somebody", "publish it"))
    return project


@pytest.mark.rule("101")
def test_one_byte_of_an_accepted_bundle_changed_and_it_does_not_verify(accepted, tmp_path):
    """Whatever file it is in, and the ledger too; what mends a record is a new edition, which says why.

    Mutation: leave `file-digest` out of the checks of a run, or `acceptance` out of those of a root.
    """
    assert verify_root(accepted / "evidence", accepted).is_sound
    files = sorted(path for path in (accepted / "evidence").rglob("*") if path.is_file() and path.suffix != ".lock")
    for path in files[:: max(1, len(files) // 12)]:
        root = Path(shutil.copytree(accepted / "evidence", tmp_path / "evidence", dirs_exist_ok=True))
        there = root / path.relative_to(accepted / "evidence")
        data = there.read_bytes() or b" "
        there.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert not verify_root(root, accepted).is_sound, path.name


@pytest.mark.rule("95")
def test_an_authorization_that_expires_leaves_the_evidence_as_it_was(accepted):
    """No byte changes and no disposition does: what was passed stays passed, and is no longer allowed for anything.

    Mutation: count an authorization without its term, or let an expired one take the PASS from its campaign.
    """
    root = accepted / "evidence"
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    (now,) = verify_root(root, accepted).campaigns
    later = verify_root(root, accepted, now=time.time_ns() + 2 * HOUR)
    assert (now.state, now.authorizations) == ("PASS", ("publish it",))
    assert (later.campaigns[0].state, later.campaigns[0].authorizations, later.is_sound) == ("PASS", (), True)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
