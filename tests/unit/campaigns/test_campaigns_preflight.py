"""What is refused before anything of a run is written, and what is found out about the machine and the source."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import msgspec
import pytest

from inferswarm.campaigns import layout
from inferswarm.campaigns.environment import Environment, Variable, capture_environment, environment_differences
from inferswarm.campaigns.package_tree import PackageTree, package_parent, package_tree, python_path, tree_of
from inferswarm.campaigns.preflight import prepare_campaign
from inferswarm.campaigns.repository import read_repository
from inferswarm.campaigns.requesting import request_run
from inferswarm.campaigns.requirements import unmet_requirements
from inferswarm.campaigns.spec import Requirements
from inferswarm.documents import digest, digest_bytes, read_document, write_document
from inferswarm.errors import DocumentError, EvidenceError, SpecError
from inferswarm.resources.types import observed, unknown
from tests.campaigns.campaigns_support import (
    CAMPAIGN,
    TinyArm,
    ledger_lines,
    no_model,
    notebook_bytes,
    write_project,
)

AT = 1_800_000_000_000_000_000


def prepare(project: Path, *arms: str):
    return prepare_campaign(CAMPAIGN, project, project / "evidence", arms)


def edit(project: Path, old: str, new: str, name: str = "campaign.toml") -> None:
    path = project / "experiments" / CAMPAIGN / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture
def project(tmp_path):
    return write_project(tmp_path, TinyArm("good", parameters={"count": 1}), TinyArm("next", after=("good",)))


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        ('"count" = 1', '"count" = 1.5', "the notebook's type, int"),
        ('"count" = 1', '"count" = true', "the notebook's type, int"),
        ('"count" = 1', '"count" = "1"', "the notebook's type, int"),
        ('"count" = 1', '"count" = [1, 2]', "type list"),
        ('"count" = 1', '"count" = { 1 = 2 }', "type dict"),
        ('"count" = 1', '"count" = 1979-05-27', "type date"),
        ('"count" = 1', '"count" = nan', "finite"),
        ('"count" = 1', '"Count" = 1', "found 'Count', needed one that the notebook has too"),
        ('"count" = 1', "", "found 'count', needed one that the campaign has too"),
        ('"count" = 1', '"count" = 1\n"a=b" = 1', "cannot be the name of a parameter"),
        ('"count" = 1', '"count" = 1\n"{x}" = 1', "cannot be the name of a parameter"),
        ('"count" = 1', '"count" = 1\n"run" = ""', "cannot be the name of a parameter"),
        ("good.ipynb", "gone.ipynb", "can be read"),
        (f"notebooks/arms/{CAMPAIGN}/good.ipynb", "../good.ipynb", "plain path"),
        ('title = "Tiny"', 'titel = "Tiny"', "titel"),
        (f'campaign = "{CAMPAIGN}"', 'campaign = "other"', "name of its folder"),
        ("edition = 1", "edition = 2", "campaign and edition"),
        ("deadline_seconds = 60.0", "deadline_seconds = 0", "deadline_seconds"),
        ('after = ["good"]', 'after = ["next"]', "must stand before it"),
    ],
)
def test_a_campaign_that_contradicts_itself_or_its_notebooks_is_refused(project, old, new, refused):
    edit(project, old, new)
    with pytest.raises((SpecError, DocumentError), match=refused):
        prepare(project)
    assert not (project / "evidence").exists()


def test_a_notebook_that_skips_its_gate_is_refused_by_its_place(project):
    path = project / "notebooks" / "arms" / CAMPAIGN / "next.ipynb"
    path.write_bytes(notebook_bytes(["assert False"], tags={2: ["skip-execution"]}))
    with pytest.raises(SpecError, match=r"next\.ipynb: notebook\.ipynb: cell 4: found 'skip-execution'"):
        prepare(project)
    assert [arm.spec.name for arm in prepare(project, "good").arms] == ["good"]


def test_a_notebook_behind_a_link_that_leads_away_is_refused(project, tmp_path_factory):
    away = tmp_path_factory.mktemp("away") / "good.ipynb"
    path = project / "notebooks" / "arms" / CAMPAIGN / "good.ipynb"
    path.rename(away)
    path.symlink_to(away)
    with pytest.raises(SpecError, match="a file below"):
        prepare(project)


def test_unknown_campaigns_and_arms_are_refused_with_those_that_there_are(project):
    with pytest.raises(SpecError, match=f"one that .* has: {CAMPAIGN}"):
        prepare_campaign("other", project, project / "evidence")
    with pytest.raises(SpecError, match="one of: good, next"):
        prepare(project, "others")


def test_an_evidence_root_that_cannot_be_written_is_refused(project):
    (project / "evidence").write_text("a file")
    with pytest.raises(SpecError, match="evidence root"):
        prepare(project)
    with pytest.raises(SpecError, match="evidence root"):
        prepare_campaign(CAMPAIGN, project, Path("/proc/inferswarm"))  # the system lets nobody write there


def test_a_ledger_that_is_broken_is_refused(project):
    root = project / "evidence"
    root.mkdir()
    (root / "ledger.jsonl").write_text("{}\n")
    with pytest.raises(EvidenceError, match="breaks the chain"):
        prepare(project)


def test_a_temporary_directory_that_is_too_deep_for_sockets_is_refused(project, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "d" * 80)
    with pytest.raises(SpecError, match="TMPDIR"):
        prepare(project)


def test_a_request_is_on_the_disk_and_in_the_ledger_with_copies_of_what_it_names(project):
    prepared = prepare(project, "good")
    first, second = (request_run(prepared, prepared.arms[0], AT) for _ in range(2))
    assert (first.request.attempt, second.request.attempt) == (1, 2)
    assert first.directory != second.directory
    assert {path.name for path in first.directory.iterdir()} == {*layout.FROZEN_FILES, layout.REQUEST}
    for name, recorded in (
        (layout.CAMPAIGN, first.request.campaign_digest),
        (layout.EXPECTATIONS, first.request.expectations_digest),
        (layout.NOTEBOOK, first.request.notebook_digest),
    ):
        assert digest_bytes((first.directory / name).read_bytes()) == recorded
    package = read_document(PackageTree, (first.directory / layout.PACKAGE).read_bytes(), layout.PACKAGE)
    assert package.digest == first.request.package_digest
    lines = ledger_lines(prepared.ledger.root)
    assert [(line.kind, line.run_id, line.subject) for line in lines] == [
        ("requested", run.request.run_id, digest_bytes((run.directory / layout.REQUEST).read_bytes()))
        for run in (first, second)
    ]
    assert first.request.predecessors == ()


def test_an_arm_whose_predecessor_has_not_passed_lacks_it(project):
    prepared = prepare(project, "next")
    assert request_run(prepared, prepared.arms[0], AT).lacking == ("good (INCOMPLETE, 0 attempts)",)


def test_a_run_that_cannot_be_entered_in_the_ledger_is_none(project, monkeypatch):
    prepared = prepare(project, "good")

    def refuse(*_arguments, **_fields):
        raise SpecError("ledger", "full", "room")

    monkeypatch.setattr(prepared.ledger, "append", refuse)
    with pytest.raises(SpecError, match="room"):
        request_run(prepared, prepared.arms[0], AT)
    assert list((prepared.ledger.root / CAMPAIGN).iterdir()) == []


# What a machine has.


@pytest.fixture(scope="module")
def here() -> Environment:
    return capture_environment()


def changed(environment: Environment, **fields: object) -> Environment:
    return msgspec.structs.replace(environment, **fields)


def test_an_environment_survives_its_file_and_equals_itself(here):
    again = read_document(Environment, write_document(here), "environment")
    assert again == here
    assert environment_differences(here, again) == ()
    assert {item.name for item in here.packages} >= {"msgspec", "papermill"}


@pytest.mark.parametrize(
    "fields",
    [
        {"python": "3.9.1"},
        {"executable": "/usr/bin/python"},
        {"optimize": 2},
        {"package_version": "0"},
        {"package_place": "elsewhere"},
        {"packages": ()},
        {"allowed_cpus": ()},
        {"variables": (Variable("OMP_NUM_THREADS", "7"),)},
        {"memory_limit_bytes": observed(1, "a test")},
        {"ram_total_bytes": observed(1, "a test")},
    ],
)
def test_another_interpreter_or_machine_is_a_difference(here, fields):
    (difference,) = environment_differences(changed(here, **fields), here)
    assert difference.startswith(f"{next(iter(fields))}: ")


def test_another_processor_is_a_difference(here):
    for field, fact in (("model_name", "another"), ("cores", 77), ("caches", ())):
        value = observed(fact, "a test") if fact else fact
        (difference,) = environment_differences(changed(here, cpu=changed(here.cpu, **{field: value})), here)
        assert difference.startswith(f"cpu: kernel {field} ")


def test_what_changes_by_itself_is_none(here):
    later = changed(here, captured_at="1", ram_available_bytes=unknown("a test"))
    assert environment_differences(later, here) == ()


@pytest.mark.parametrize(
    ("needs", "unmet"),
    [
        (Requirements(cpus=1), None),
        (Requirements(cpus=100_000), "needs 100000 CPUs, has "),
        (Requirements(memory_bytes=2**52), "B of memory, has "),
        (Requirements(files=("gemma",)), "needs the model 'gemma'"),
        (Requirements(extras=("lab",)), None),
    ],
)
def test_what_a_machine_lacks_is_named_with_what_it_has(here, needs, unmet):
    found = unmet_requirements(needs, here, no_model)
    assert (found == ()) if unmet is None else (unmet in found[0])


def test_what_is_unknown_is_lacking(here):
    blind = changed(here, cpu=changed(here.cpu, usable_cpus=unknown("dark")), ram_available_bytes=unknown("dark"))
    found = unmet_requirements(Requirements(cpus=1, memory_bytes=1), blind, no_model)
    assert [text.split(",")[1] for text in found] == [" has an unknown number (dark)"] * 2


def test_an_extra_that_is_not_installed_is_lacking(here, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (found,) = unmet_requirements(Requirements(extras=("run",)), here, no_model)
    assert "pip install 'inferswarm[run]'" in found


# Which source it was.


def test_a_package_is_every_source_file_in_the_order_of_paths(tmp_path):
    files = {"inferswarm/b.py": b"b", "inferswarm/a/c.py": b"c", "inferswarm/a/__init__.py": b""}
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "inferswarm/__pycache__").mkdir()
    (tmp_path / "inferswarm/__pycache__/b.pyc").write_bytes(b"a cache")
    tree = package_tree(tmp_path)
    assert [entry.path for entry in tree.files] == [
        "inferswarm/a/__init__.py",
        "inferswarm/a/c.py",
        "inferswarm/b.py",
    ]
    assert tree == tree_of(files.items())
    assert tree.digest == digest(tree.files)
    (tmp_path / "inferswarm/b.py").write_bytes(b"B")
    assert package_tree(tmp_path).digest != tree.digest
    with pytest.raises(EvidenceError, match="no source"):
        package_tree(tmp_path / "inferswarm")


@pytest.mark.parametrize("name", ["b.pyc", "b.so", "b.abi3.so", "link"])
def test_a_package_with_other_code_than_sources_is_refused(tmp_path, name):
    (tmp_path / "inferswarm").mkdir()
    (tmp_path / "inferswarm/b.py").write_bytes(b"b")
    if name == "link":
        (tmp_path / "inferswarm/link").symlink_to(tmp_path, target_is_directory=True)
    else:
        (tmp_path / "inferswarm" / name).write_bytes(b"code")
    with pytest.raises(EvidenceError, match="sources only"):
        package_tree(tmp_path)


def test_a_path_of_python_is_the_same_for_who_gets_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    given = python_path({"PYTHONPATH": f"more{os.pathsep}{package_parent()}"})
    assert given == f"{package_parent()}{os.pathsep}{tmp_path / 'more'}"
    assert python_path({"PYTHONPATH": given}) == given


def git(project: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(project), *identity, *arguments], check=True, capture_output=True)


def test_a_project_is_dirty_by_what_a_run_depends_on_and_by_nothing_else(project):
    assert read_repository(project).dirty
    assert read_repository(project).reason
    git(project, "init")
    git(project, "add", ".")
    git(project, "commit", "-m", "first")
    clean = read_repository(project)
    assert (len(clean.commit), clean.dirty, clean.diff_digest, clean.reason) == (40, False, "", "")
    (project / "evidence").mkdir()
    (project / "evidence" / "ledger.jsonl").write_text("")
    assert read_repository(project) == clean
    edit(project, '"count" = 1', '"count" = 2')
    changed_once = read_repository(project)
    assert changed_once.dirty
    edit(project, '"count" = 2', '"count" = 3')
    assert read_repository(project).diff_digest != changed_once.diff_digest
    git(project, "checkout", ".")
    (project / "inferswarm").mkdir()
    (project / "inferswarm" / "new.py").write_text("")
    assert read_repository(project).dirty
