"""Signatures of runs: who asks for one gets one, and nobody takes one that was not checked for proof."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest

from inferswarm.campaigns import signatures
from inferswarm.campaigns.laws import State
from inferswarm.campaigns.layout import ENVELOPE, STATEMENT
from inferswarm.campaigns.signing import make_keys, sign_run
from inferswarm.campaigns.verify import verify_root
from inferswarm.errors import EvidenceError, SpecError
from tests.adversarial.forging import Forgery
from tests.unit.campaigns.made_runs import make_project, make_run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a passed run that is signed, and two keys: `mine`, by which it is, and `other`."""
    place = tmp_path_factory.mktemp("signatures")
    run = make_run(make_project(place / "project"), place / "evidence", "first")
    for name in ("mine", "other"):
        make_keys(place / f"{name}.pem", place / f"{name}.pub")
    sign_run(run, place / "mine.pem")
    return place


@pytest.fixture
def root(place: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(place / "evidence", tmp_path / "evidence"))


def run_of(root: Path) -> Path:
    (found,) = (root / "made").glob("first-*")
    return found


def signature(root: Path, *keys: Path) -> tuple[State, str, bool]:
    verdict = verify_root(root, None, public_keys=[key.read_bytes() for key in keys])
    (finding,) = (item for item in verdict.runs[0].findings if item.law == "signature")
    return finding.state, finding.found, verdict.is_sound


def test_a_run_that_is_signed_by_a_trusted_key_is_proven_to_be(place):
    assert signature(place / "evidence", place / "mine.pub")[::2] == (State.PROVEN, True)
    assert signature(place / "evidence", place / "other.pub", place / "mine.pub")[::2] == (State.PROVEN, True)
    assert stat.S_IMODE((place / "mine.pem").stat().st_mode) == 0o600


def test_without_a_key_or_the_extra_a_signature_is_there_and_not_checked(place, monkeypatch):
    state, found, sound = signature(place / "evidence")
    assert (state, sound) == (State.UNPROVEN, True)
    assert "not checked (no key was given)" in found
    monkeypatch.setattr(signatures, "can_sign", lambda: False)
    state, found, sound = signature(place / "evidence")
    assert (state, sound) == (State.UNPROVEN, True)
    assert "needs the extra 'sign'" in found
    with pytest.raises(SpecError, match="the extra 'sign'"):
        signature(place / "evidence", place / "mine.pub")


def unsign(run: Path) -> None:
    (run / ENVELOPE).unlink()


def resign(run: Path) -> None:
    """Put another signature of the right length in its place."""
    fields = json.loads((run / ENVELOPE).read_bytes())
    fields["signatures"][0]["sig"] = "A" * 86 + "=="
    (run / ENVELOPE).write_text(json.dumps(fields))


def restate(run: Path) -> None:
    Forgery(run.parents[1]).record(run / STATEMENT, lambda record: record["predicate"].update(warnedTests=["seal"]))


def empty(run: Path) -> None:
    Forgery(run.parents[1]).record(run / ENVELOPE, lambda record: record.update(signatures=[]))


def retype(run: Path) -> None:
    Forgery(run.parents[1]).record(run / ENVELOPE, lambda record: record.update(payloadType="text/plain"))


def garble(run: Path) -> None:
    Forgery(run.parents[1]).record(run / ENVELOPE, lambda record: record.update(payload="?"))


@pytest.mark.parametrize("change", [unsign, resign, restate, empty, retype, garble])
def test_who_asks_for_a_signature_gets_no_other(root, place, change):
    change(run_of(root))
    assert signature(root, place / "mine.pub")[::2] == (State.BROKEN, False)


@pytest.mark.parametrize("change", [restate, empty, retype, garble])
def test_a_signature_of_something_else_breaks_the_record_for_everybody(root, change):
    change(run_of(root))
    assert signature(root)[::2] == (State.BROKEN, False)


def test_a_run_that_is_signed_by_others_is_not_signed(place):
    state, found, sound = signature(place / "evidence", place / "other.pub")
    assert (state, sound) == (State.BROKEN, False)
    assert "signed by others" in found


def test_an_unsigned_run_is_said_to_be_and_is_sound(root):
    unsign(run_of(root))
    assert signature(root) == (State.UNPROVEN, signatures.UNSIGNED, True)


def test_what_cannot_be_signed_or_trusted_is_refused(root, place, tmp_path):
    run = run_of(root)
    with pytest.raises(EvidenceError, match="is signed already"):
        sign_run(run, place / "mine.pem")
    unsign(run)
    with pytest.raises(SpecError, match="a private key as PEM"):
        sign_run(run, place / "mine.pub")
    with pytest.raises(SpecError, match="a file that can be read"):
        sign_run(tmp_path, place / "mine.pem")
    with pytest.raises(SpecError, match="a public key as PEM"):
        signature(root, place / "mine.pem")
    with pytest.raises(SpecError, match="a file that is not there yet"):
        make_keys(place / "mine.pem", tmp_path / "more.pub")
