"""A green baseline, then one defect at a time: each is noticed by the law that is there for it.

A control whose law is not proven on the baseline is void. The score is printed (`tests/conftest.py`), and written to
`out/adversarial.json`.
"""

from __future__ import annotations

import functools
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferswarm.campaigns import verify
from inferswarm.campaigns.findings import state_of
from inferswarm.campaigns.laws import LAWS, Finding, State
from inferswarm.campaigns.verdicts import RootVerdict
from inferswarm.errors import SpecError
from tests.adversarial import (
    controls_of_files,
    controls_of_provenance,
    controls_of_requests,
    controls_of_runs,
    controls_of_samples,
    controls_of_witnesses,
)
from tests.adversarial.baseline import Baseline, make_baseline
from tests.adversarial.controls import CONTROLS, Control
from tests.adversarial.forging import Forgery

ROOT = Path(__file__).resolve().parents[2]
REGISTERED = (
    controls_of_files,
    controls_of_provenance,
    controls_of_requests,
    controls_of_runs,
    controls_of_samples,
    controls_of_witnesses,
)
ROOTS = ("green", "red")
LEAST_CONTROLS = 40
LAWS_OF_PROJECTS = frozenset(
    {"expectations-unchanged", "notebook-source", "expectations-committed", "package-at-commit"}
)
"""Laws that look at the project and its repository too; the others are verified without, in half of the time."""


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Baseline]:
    made = make_baseline(tmp_path_factory.mktemp("adversarial"))
    with pytest.MonkeyPatch.context() as patch:  # who verifies is the same every time, and takes long to find out
        patch.setattr(verify, "this_verifier", functools.cache(verify.this_verifier))
        yield made


@pytest.fixture(scope="module")
def before(baseline: Baseline) -> dict[str, RootVerdict]:
    return {root: baseline.verify(root, path) for root, path in baseline.roots.items()}


@pytest.fixture(scope="module")
def score() -> Iterator[dict[str, bool]]:
    """Which controls were detected; written down at the end."""
    found: dict[str, bool] = {}
    yield found
    out = ROOT / "out" / "adversarial.json"
    out.parent.mkdir(exist_ok=True)
    laws = {control.name: control.law for control in CONTROLS}
    rows = [{"control": name, "law": laws[name], "detected": caught} for name, caught in found.items()]
    out.write_text(json.dumps({"detected": sum(found.values()), "of": len(found), "controls": rows}, indent=1) + "\n")


def all_findings(verdict: RootVerdict) -> list[Finding]:
    return [*verdict.findings, *(finding for run in verdict.runs for finding in run.findings)]


def is_approved(verdict: RootVerdict) -> bool:
    """Whether somebody who asks for PASS and sound records would be content."""
    states = [campaign.state for campaign in verdict.campaigns]
    return verdict.is_sound and bool(states) and set(states) == {"PASS"}


def states_of_arms(verdict: RootVerdict) -> dict[str, str]:
    return {arm.arm: arm.state for campaign in verdict.campaigns for arm in campaign.arms}


def test_the_green_baseline_is_green_and_the_red_one_is_not(before):
    assert is_approved(before["green"])
    assert before["green"].is_provenance_proven
    assert [finding for finding in all_findings(before["green"]) if finding.state is not State.PROVEN] == []
    assert states_of_arms(before["green"]) == {"first": "PASS", "second": "PASS"}
    assert states_of_arms(before["red"]) == {"flaky": "FAIL", "halted": "INCOMPLETE", "blocked": "BLOCKED"}
    assert [run.disposition for run in before["red"].runs if run.arm == "flaky"] == ["FAIL", "PASS"]
    assert before["red"].is_sound


def test_there_are_controls_for_every_law():
    assert len(CONTROLS) >= LEAST_CONTROLS
    assert len({control.name for control in CONTROLS}) == len(CONTROLS)
    assert set(LAWS) == {control.law for control in CONTROLS}


@pytest.mark.parametrize("control", CONTROLS, ids=[control.name.replace(" ", "-") for control in CONTROLS])
def test_a_defect_is_noticed_by_its_law(control: Control, baseline, before, score, tmp_path):
    assert state_of(all_findings(before[control.root]), (control.law,)) is State.PROVEN, "void: red on the baseline"
    root = baseline.copy(control.root, tmp_path)
    control.change(Forgery(root))
    score[control.name] = False
    verdict = baseline.verify(control.root, root, project=control.law in LAWS_OF_PROJECTS)
    noticed = [item for item in all_findings(verdict) if item.law == control.law and item.state is not State.PROVEN]
    assert noticed, [item for item in all_findings(verdict) if item.state is not State.PROVEN]
    assert all(item.expected and item.found for item in noticed)
    assert not is_approved(verdict) or (LAWS[control.law] == "provenance" and not verdict.is_provenance_proven)
    score[control.name] = True


def removals(root: Path) -> list[str]:
    """Everything of a root that can be lost: files, runs, and lines of the ledger."""
    files = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*"))]
    lines = (root / "ledger.jsonl").read_bytes().count(b"\n")
    return [*files, *(f"line {number}" for number in range(lines))]


def lose(root: Path, things: Iterable[str], chained: bool) -> None:
    """Lose some of it; the lines of the ledger that are left may be chained again."""
    lost = {int(thing.split()[1]) for thing in things if thing.startswith("line ")}
    if lost:
        kept = [entry for entry in Forgery(root).entries() if entry["sequence"] not in lost]
        Forgery(root).lines(lambda entries: kept, chained)
    for thing in things:
        if (root / thing).is_dir():
            shutil.rmtree(root / thing)
        elif not thing.startswith("line "):
            (root / thing).unlink(missing_ok=True)


def denials_turned(before: RootVerdict, after: RootVerdict) -> list[str]:
    """Return the arms and runs that were no PASS and are one."""
    then, now = states_of_arms(before), states_of_arms(after)
    runs = {run.run_id: run.disposition for run in before.runs}
    turned = [name for name, state in now.items() if state == "PASS" and then.get(name) != "PASS"]
    return turned + [run.run_id for run in after.runs if run.disposition == "PASS" != runs.get(run.run_id)]


@pytest.mark.parametrize("root", ROOTS)
def test_losing_anything_turns_no_denial_into_an_approval_and_is_noticed(root, baseline, before, tmp_path):
    """Mutation: count a run whose directory is gone as one that did not come to its end."""
    wrong, unnoticed = {}, set()
    things = [(thing, True) for thing in removals(baseline.roots[root])]
    things += [(thing, False) for thing, _ in things if thing.startswith("line ")]
    for number, (thing, chained) in enumerate(things):
        copy = baseline.copy(root, tmp_path / str(number))
        lose(copy, [thing], chained)
        after = baseline.verify(root, copy, project=False)
        if turned := denials_turned(before[root], after):
            wrong[thing, chained] = turned
        if is_approved(after):
            unnoticed.add(thing)
        shutil.rmtree(copy)
    assert wrong == {}
    assert unnoticed == ({"ledger.lock"} if root == "green" else set())  # the lock is no record


@pytest.mark.parametrize("root", ROOTS)
@settings(
    max_examples=8, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_losing_several_things_turns_no_denial_into_an_approval(root, baseline, before, tmp_path, data):
    """The ledger's head is kept, by the commit that the evidence is in: then nothing that is lost goes unnoticed."""
    where = baseline.roots[root]
    known = removals(where)
    things = data.draw(st.sets(st.sampled_from(known), min_size=2, max_size=12))
    kept = shutil.copytree(where, tmp_path / f"kept-{time.monotonic_ns()}")
    try:
        lose(where, sorted(things), chained=data.draw(st.booleans()))
        after = verify_somehow(baseline, root)
        assert after is None or denials_turned(before[root], after) == []
        assert after is None or not is_approved(after)
    finally:
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(kept, where)


def verify_somehow(baseline: Baseline, root: str) -> RootVerdict | None:
    """Verify a root in its place; None where so much is lost that nobody would call it evidence."""
    try:
        return baseline.verify(root, baseline.roots[root])
    except SpecError:
        return None
