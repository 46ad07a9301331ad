"""A passed run is of the commit that it names, or nobody knows; what a repository says is held against its names."""

from __future__ import annotations

import shutil
import subprocess
import time
import zlib
from pathlib import Path

import pytest

from inferswarm.campaigns import layout
from inferswarm.campaigns.git_objects import GitObjects
from inferswarm.campaigns.laws import State
from inferswarm.campaigns.repository import read_repository
from inferswarm.campaigns.verdicts import RootVerdict
from inferswarm.campaigns.verify import verify_root
from inferswarm.cli_verify import exit_status, verdict_lines
from inferswarm.errors import EvidenceError
from tests.adversarial.forging import Forgery
from tests.adversarial.tiny_project import ROOT, commit, git
from tests.unit.campaigns.made_runs import make_project, make_run

COMMITTED, PACKAGE = "expectations-committed", "package-at-commit"


def make_committed(top: Path, with_package: bool) -> Path:
    """Make a project below a repository's top, committed, and commit the evidence of a passed run."""
    project = make_project(top / "sub" / "project")
    if with_package:
        shutil.copytree(ROOT / "inferswarm", project / "inferswarm", ignore=shutil.ignore_patterns("__pycache__"))
    git(top, "init", "--quiet")
    git(top, "add", "--all")
    commit(top, "project")
    make_run(project, project / "evidence", "first")
    git(top, "add", "--all")
    commit(top, "evidence")
    return project


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_committed(tmp_path_factory.mktemp("light"), with_package=False)


@pytest.fixture
def project(committed: Path, tmp_path: Path) -> Path:
    """A project whose repository does not hold the package."""
    shutil.copytree(committed.parents[1], tmp_path / "top")
    return tmp_path / "top" / "sub" / "project"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose repository holds the package too."""
    return make_committed(tmp_path_factory.mktemp("whole"), with_package=True)


def run_of(project: Path, arm: str = "first") -> Path:
    (found,) = (project / "evidence" / "made").glob(f"{arm}-*")
    return found


def name_of(project: Path, revision: str) -> str:
    command = ["git", "-C", str(project), "rev-parse", revision]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def states(verdict: RootVerdict, law: str) -> set[State]:
    return {finding.state for run in verdict.runs for finding in run.findings if finding.law == law}


def found(verdict: RootVerdict, law: str) -> str:
    return "; ".join(finding.found for run in verdict.runs for finding in run.findings if finding.law == law)


def name_commit(project: Path, **fields: object) -> None:
    """Have the request name another commit, and everything above it agree; commit that."""
    name_uncommitted(project, **fields)
    git(project, "add", "--all")
    commit(project, "other evidence")


def name_uncommitted(project: Path, **fields: object) -> None:
    """Have the request name another commit, and everything above it agree, as its author would."""
    forgery, run = Forgery(project / "evidence"), run_of(project)
    forgery.record(run / layout.REQUEST, lambda record: record.update(fields))
    standing = {name: value for name, value in fields.items() if name in ("commit", "dirty")}
    forgery.environments(run, lambda record: record["repository"].update(standing))
    where = {name: value for name, value in fields.items() if name in ("commit", "dirty")}
    forgery.environments(run, lambda record: record["repository"].update(where))
    forgery.carry(run, request=True)


def test_a_package_is_proven_by_the_commit_and_broken_by_another_or_a_link_in_it(whole):
    root = whole / "evidence"
    verdict = verify_root(root, whole)
    assert (states(verdict, COMMITTED), states(verdict, PACKAGE)) == ({State.PROVEN}, {State.PROVEN})
    assert exit_status(verdict, ()) == 0
    path = whole / "inferswarm" / "units.py"
    path.write_text(path.read_text() + "\n# more\n")
    assert exit_status(verify_root(root, whole), ()) == 0  # whatever the tree is today
    git(whole, "add", "--all")
    commit(whole, "another package")
    name_commit(whole, commit=name_of(whole, "HEAD"), requested_at=str(time.time_ns()))
    verdict = verify_root(root, whole)
    assert states(verdict, PACKAGE) == {State.BROKEN}
    assert exit_status(verdict, ()) == 4
    (whole / "inferswarm" / "also.py").symlink_to("units.py")
    git(whole, "add", "--all")
    commit(whole, "a link")
    name_commit(whole, commit=name_of(whole, "HEAD"), requested_at=str(time.time_ns()))
    assert "no plain file in the commit" in found(verify_root(root, whole), PACKAGE)


def test_a_repository_without_the_package_proves_the_rest_and_no_more(project):
    verdict = verify_root(project / "evidence", project)
    assert (states(verdict, COMMITTED), states(verdict, PACKAGE)) == ({State.PROVEN}, {State.UNPROVEN})
    assert exit_status(verdict, ()) == 6


def test_a_run_of_a_changed_tree_is_of_no_commit(project):
    (project / "experiments" / "more.txt").write_text("")
    make_run(project, project / "evidence", "first")
    verdict = verify_root(project / "evidence", project)
    assert verdict.is_sound
    assert "the project differed from its commit" in found(verdict, COMMITTED)
    assert exit_status(verdict, ()) == 6


def test_a_changed_tree_does_not_become_clean_by_saying_so(project):
    path = project / "experiments" / "made" / "expectations.toml"
    path.write_text(path.read_text().replace("at_most = 0.5", "at_most = 0.6"))
    shutil.rmtree(project / "evidence")
    make_run(project, project / "evidence", "first")
    name_commit(project, dirty=False)
    verdict = verify_root(project / "evidence", project)
    assert states(verdict, COMMITTED) == {State.BROKEN, State.PROVEN}
    assert exit_status(verdict, ()) == 4


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"commit": "0" * 40}, "not in the repository"),
        ({"commit": "HEAD"}, "no name of an object"),
        ({"commit": ""}, "no name"),
    ],
)
def test_a_commit_that_is_not_there_proves_nothing(project, fields, reason):
    name_commit(project, **fields)
    verdict = verify_root(project / "evidence", project)
    assert reason in found(verdict, COMMITTED)
    assert states(verdict, PACKAGE) == {State.UNPROVEN}
    assert exit_status(verdict, ()) == 6


def test_a_tree_is_no_commit(project):
    name_commit(project, commit=name_of(project, "HEAD^{tree}"))
    assert "is a tree" in found(verify_root(project / "evidence", project), COMMITTED)


def test_a_commit_from_after_the_request_proves_nothing(project):
    later = str(int(time.time()) + 3600)
    settings = {"GIT_COMMITTER_DATE": f"@{later} +0000", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    who = ["-c", "user.name=tests", "-c", "user.email=tests@localhost"]
    command = ["git", "-C", str(project), *who, "commit", "--quiet", "--allow-empty", "-m", "later"]
    subprocess.run(command, check=True, timeout=60, env=settings)
    name_commit(project, commit=name_of(project, "HEAD"))
    verdict = verify_root(project / "evidence", project)
    assert states(verdict, COMMITTED) == {State.PROVEN, State.UNPROVEN}
    assert exit_status(verdict, ()) == 6


def test_an_object_that_is_not_what_its_name_says_is_refused(project):
    name = name_of(project, "HEAD:sub/project/experiments/made/expectations.toml")
    path = project.parents[1] / ".git" / "objects" / name[:2] / name[2:]
    data = zlib.decompress(path.read_bytes()).replace(b"at_most = 0.5", b"at_most = 0.9")
    path.chmod(0o644)
    path.write_bytes(zlib.compress(data))
    verdict = verify_root(project / "evidence", project)
    assert "whose name would be" in found(verdict, COMMITTED) or "not in the repository" in found(verdict, COMMITTED)
    assert State.PROVEN not in states(verdict, PACKAGE)


def test_a_replacement_in_the_repository_is_not_looked_at(project):
    old = name_of(project, "HEAD:sub/project/experiments/made/expectations.toml")
    new = name_of(project, "HEAD:sub/project/experiments/made/campaign.toml")
    git(project, "replace", "--force", old, new)
    assert states(verify_root(project / "evidence", project), COMMITTED) == {State.PROVEN}


def test_lines_that_were_committed_cannot_be_dropped_from_the_end(project):
    assert verify_root(project / "evidence", project).is_sound
    forgery = Forgery(project / "evidence")
    shutil.rmtree(run_of(project))
    forgery.lines(lambda entries: [{**entries[0], "kind": "waived", "run_id": "", "arm": "first"}])
    verdict = verify_root(project / "evidence", project)
    broken = [finding for finding in verdict.findings if finding.law == "ledger-chain" and finding.state == "BROKEN"]
    assert [finding.found for finding in broken] == ["others, or fewer"]


def test_more_lines_than_were_committed_are_none_the_worse(project):
    make_run(project, project / "evidence", "first")
    findings = verify_root(project / "evidence", project).findings
    kept = [finding for finding in findings if finding.law == "ledger-chain" and "perhaps more" in finding.expected]
    assert {finding.state for finding in kept} == {State.PROVEN}


def backdated(project: Path, parents: tuple[str, ...] = ()) -> str:
    """Return a commit of what is staged, made long before anything, that no ref leads to."""
    settings = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    for who in ("COMMITTER", "AUTHOR"):
        settings |= {f"GIT_{who}_NAME": "a", f"GIT_{who}_EMAIL": "b@c", f"GIT_{who}_DATE": "2020-01-01T00:00:00Z"}
    asked = {"capture_output": True, "text": True, "check": True, "timeout": 60, "env": settings}
    tree = subprocess.run(["git", "-C", str(project), "write-tree"], **asked).stdout.strip()
    named = [part for parent in parents for part in ("-p", parent)]
    command = ["git", "-C", str(project), "commit-tree", tree, *named, "-m", "soft"]
    return subprocess.run(command, **asked).stdout.strip()


def soften(project: Path) -> None:
    """Move a threshold after the data, in the project and in the run, and stage it."""
    path = project / "experiments" / "made" / "expectations.toml"
    path.write_text(path.read_text().replace("at_most = 0.5", "at_most = 0.6"))
    shutil.copy(path, run_of(project))
    git(project, "add", "--all")


def test_thresholds_that_were_moved_after_the_data_are_of_no_commit_that_came_before(project):
    git(project, "rm", "-r", "--quiet", "--cached", "evidence")
    who = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    git(project, *who, "commit", "--quiet", "--amend", "--allow-empty", "-m", "no evidence")
    git(project, "reflog", "expire", "--expire=all", "--all")
    soften(project)
    name_uncommitted(project, commit=backdated(project))
    verdict = verify_root(project / "evidence", project)
    assert "HEAD does not come from it" in found(verdict, COMMITTED)
    assert State.BROKEN not in states(verdict, COMMITTED)
    assert exit_status(verdict, ()) == 6


def test_a_commit_that_came_after_the_runs_line_was_committed_proves_nothing(project):
    soften(project)
    softened = backdated(project, (name_of(project, "HEAD"),))
    git(project, "reset", "--hard", "--quiet", softened)
    name_commit(project, commit=softened)
    verdict = verify_root(project / "evidence", project)
    assert "one that does not lead to it" in found(verdict, COMMITTED)
    assert exit_status(verdict, ()) == 6


def lose_head(project: Path) -> None:
    git(project, "symbolic-ref", "HEAD", "refs/heads/nothing")


def lose_the_tree(project: Path) -> None:
    name = name_of(project, "HEAD:sub/project/evidence")
    (project.parents[1] / ".git" / "objects" / name[:2] / name[2:]).unlink()


def go_back(project: Path) -> None:
    git(project, "reset", "--soft", "HEAD~1")


def rename_the_root(project: Path) -> None:
    (project / "evidence").rename(project / "renamed")


def move_the_root_out(project: Path) -> None:
    (project / "evidence").rename(project.parents[2] / "moved")


@pytest.mark.parametrize("hide", [lose_head, lose_the_tree, go_back, rename_the_root, move_the_root_out])
def test_a_dropped_run_is_not_hidden_by_a_repository_that_cannot_say_so(project, hide):
    make_run(project, project / "evidence", "second")
    git(project, "add", "--all")
    commit(project, "more evidence")
    forgery = Forgery(project / "evidence")
    forgery.drop_run(run_of(project, "second"))
    assert exit_status(verify_root(project / "evidence", project), ()) == 4
    hide(project)
    places = (project / "evidence", project / "renamed", project.parents[2] / "moved")
    (root,) = (path for path in places if path.is_dir())
    verdict = verify_root(root, project)
    why = [item.found for item in verdict.findings if (item.law, item.state) == ("ledger-chain", "UNPROVEN")]
    assert why
    assert all("others, or fewer" in text or "nobody could look" in text for text in why)
    assert exit_status(verdict, ()) == 6
    assert any(why[0] in line for line in verdict_lines(verdict) if line.startswith("provenance is not proven"))


def test_a_root_that_was_never_committed_is_said_to_be_so_wherever_it_is(whole, tmp_path):
    for root in (whole / "out" / "evidence", tmp_path / "evidence"):
        make_run(whole, root, "first")
        verdict = verify_root(root, whole)
        (finding,) = (item for item in verdict.findings if "never committed" in item.found)
        assert finding.state is State.PROVEN
        assert verdict.is_sound
        shutil.rmtree(root)


def test_what_git_was_told_to_overlook_is_seen(project):
    (project / "inferswarm").mkdir()
    (project / "inferswarm" / "units.py").write_text("")
    git(project, "add", "--all")
    commit(project, "a package")
    before = read_repository(project)
    path = project / "experiments" / "made" / "expectations.toml"
    data = path.read_bytes()
    git(project, "update-index", "--assume-unchanged", str(path))
    path.write_bytes(data + b"\n")
    assert read_repository(project).dirty
    path.write_bytes(data)
    (project.parents[1] / ".git" / "info" / "exclude").write_text("ignored.py\n")
    ignored = project / "inferswarm" / "ignored.py"
    ignored.write_text("")
    assert read_repository(project).dirty
    ignored.unlink()
    assert read_repository(project) == before
    assert not before.dirty


def test_the_environment_does_not_lead_git_elsewhere(whole, monkeypatch):
    before = read_repository(whole)
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent")
    assert read_repository(whole) == before


def test_where_there_is_no_repository_or_no_git_the_reason_is_said(project, tmp_path, monkeypatch):
    shutil.rmtree(project.parents[1] / ".git")
    verdict = verify_root(project / "evidence", project)
    assert "not a git repository" in found(verdict, PACKAGE)
    assert exit_status(verdict, ()) == 6
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EvidenceError, match="No such file"):
        GitObjects(project)
