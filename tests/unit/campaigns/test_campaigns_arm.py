"""An arm in this process: what it takes, what it refuses, and when there is a seal."""

from __future__ import annotations

import asyncio
import functools
import gc
import io
import json
import math
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from inferswarm.campaigns import arm as arm_module
from inferswarm.campaigns import journal as journal_module
from inferswarm.campaigns.arm import Arm
from inferswarm.campaigns.background import unasked_failures, watch
from inferswarm.campaigns.environment import capture_environment
from inferswarm.campaigns.handover import handed_over
from inferswarm.campaigns.layout import ENVIRONMENT, OUTPUTS, REQUEST, RESULT, SAMPLES, SEAL
from inferswarm.campaigns.preflight import prepare_campaign
from inferswarm.campaigns.records import BackgroundFailure, Request, Seal
from inferswarm.campaigns.requesting import request_run
from inferswarm.campaigns.samples import RunIdentity, outputs_identity, read_outputs, read_samples, samples_identity
from inferswarm.documents import digest_bytes, read_document, write_document
from inferswarm.errors import DocumentError, EvidenceError, SpecError
from tests.campaigns.campaigns_support import CAMPAIGN, TinyArm, write_project

PARAMETERS = {"count": 3, "rate": 1.0, "name": "a=b {x}", "on": True}


class Given(NamedTuple):
    run_id: str
    directory: Path
    told: list[Any]


captured_once = functools.cache(capture_environment)


@pytest.fixture
def quiet(monkeypatch):
    """Leave this process's hooks alone, and close what arms leave open; return what would have been hooked."""
    told: list[Any] = []
    files: list[io.FileIO] = []

    def opened(*arguments):
        files.append(io.FileIO(*arguments))
        return files[-1]

    monkeypatch.setattr(arm_module, "watch", told.append)
    monkeypatch.setattr(arm_module, "capture_environment", captured_once)
    monkeypatch.setattr(journal_module, "FileIO", opened)
    yield told
    for file in files:
        file.close()


@pytest.fixture
def given(tmp_path, monkeypatch, quiet):
    """A requested run that this process was started for."""
    write_project(tmp_path, TinyArm("good", parameters=PARAMETERS, produces=("plan.json",)))
    prepared = prepare_campaign(CAMPAIGN, tmp_path, tmp_path / "evidence")
    requested = request_run(prepared, prepared.arms[0], 1_800_000_000_000_000_000)
    for name, value in handed_over(requested.directory, requested.request.nonce, tmp_path).items():
        monkeypatch.setenv(name, value)
    return Given(requested.request.run_id, requested.directory, quiet)


@pytest.fixture
def rehearsed(quiet, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Arm.open("", count=3)


def test_a_warm_up_for_nothing_and_a_truth_in_a_warm_up_are_refused(given):
    arm = Arm.open(given.run_id, **PARAMETERS)
    with pytest.raises(TypeError, match="warm_up"):
        arm.truth("works", False, warm_up=True)
    arm.sample("seconds", 9.0, "s", warm_up=True)
    arm.document("plan.json", {})
    with pytest.raises(DocumentError, match="a warm-up that nothing judged follows"):
        arm.finish()
    assert not (given.directory / SEAL).exists()


def read_seal(directory: Path) -> Seal:
    return read_document(Seal, (directory / SEAL).read_bytes(), SEAL)


def test_a_finished_arm_has_sealed_what_it_observed(given, capsys):
    arm = Arm.open(given.run_id, **PARAMETERS)
    arm.sample("seconds", np.float32(0.5), "s", condition="two", key="p", block=1, warm_up=True)
    arm.samples("seconds", [1, 2.0], "s", condition="two", key="p", block=1)
    arm.truth("works", True)
    arm.output(condition="two", key="p", representation="fp32", prompt_ids=[1], token_ids=np.array([2, 3]))
    arm.document("plan.json", {"b": 1, "a": "é"})
    arm.realized(digest_bytes(b"plan"))
    arm.realized(digest_bytes(b"plan"))
    arm.finish()
    seal = read_seal(given.directory)
    assert [entry.path for entry in seal.files] == ["outputs.jsonl", "plan.json", "result.json", "samples.parquet"]
    for entry in seal.files:
        assert digest_bytes((given.directory / entry.path).read_bytes()) == entry.digest
    assert (seal.num_samples, seal.num_outputs, seal.realized_plans) == (4, 1, (digest_bytes(b"plan"),))
    assert {item.name: item.value for item in seal.parameters} == PARAMETERS
    table = read_samples(given.directory / SAMPLES)
    assert table["value"].to_list() == [0.5, 1.0, 2.0, 1.0]
    assert table["warm_up"].to_list() == [True, False, False, False]
    assert read_outputs(given.directory / "outputs.jsonl")[0].token_ids == (2, 3)
    nonce = read_document(Request, (given.directory / REQUEST).read_bytes(), REQUEST).nonce
    identity = RunIdentity(run_id=given.run_id, nonce=nonce)
    assert samples_identity(given.directory / SAMPLES) == outputs_identity(given.directory / OUTPUTS) == identity
    (expectation,) = json.loads((given.directory / RESULT).read_text())["expectations"]
    assert expectation["state"] == "PROVEN"
    assert digest_bytes((given.directory / SEAL).read_bytes()) in capsys.readouterr().out
    assert not list(given.directory.glob("*journal*"))
    with pytest.raises(SpecError, match="called again"):
        arm.finish()
    with pytest.raises(EvidenceError, match="finished"):
        arm.truth("works", True)


REFUSED_PARAMETERS = [
    ({"count": 4}, "parameter 'count'"),
    ({"count": 3.0}, "parameter 'count'"),
    ({"rate": 1}, "parameter 'rate'"),
    ({"on": 1}, "parameter 'on'"),
    ({"name": "a=b"}, "parameter 'name'"),
    ({"more": 1}, "parameters"),
    ({"count": None}, "parameter 'count'"),
    ({"count": (1, 2)}, "parameter 'count'"),
    ({"name": b"a"}, "parameter 'name'"),
    ({"count": np.int64(3)}, "parameter 'count'"),
    ({"rate": math.nan}, "parameter 'rate'"),
]


def test_parameters_that_were_not_requested_are_refused(given):
    for change, refused in REFUSED_PARAMETERS:
        with pytest.raises(SpecError, match=refused):
            Arm.open(given.run_id, **{**PARAMETERS, **change})
        assert not (given.directory / ENVIRONMENT).exists()


def test_a_missing_parameter_is_refused(given):
    with pytest.raises(SpecError, match="parameters"):
        Arm.open(given.run_id, count=3)


def test_a_run_that_this_process_was_not_started_for_is_refused(given, monkeypatch):
    with pytest.raises(SpecError, match="for which this process was started"):
        Arm.open("good-20260101T000000Z-00000000", **PARAMETERS)
    monkeypatch.setenv("INFERSWARM_RUN_NONCE", "0" * 32)
    with pytest.raises(SpecError, match="nonce"):
        Arm.open(given.run_id, **PARAMETERS)
    monkeypatch.delenv("INFERSWARM_RUN_NONCE")
    with pytest.raises(SpecError, match="rehearsal"):
        Arm.open(given.run_id, **PARAMETERS)


def test_a_run_is_opened_once(given):
    Arm.open(given.run_id, **PARAMETERS)
    with pytest.raises(EvidenceError, match="opened before"):
        Arm.open(given.run_id, **PARAMETERS)


def test_a_sealed_run_is_not_opened_again(given):
    (given.directory / SEAL).write_text("{}")
    with pytest.raises(EvidenceError, match=r"opened before: seal\.json"):
        Arm.open(given.run_id, **PARAMETERS)


def test_another_package_than_the_requested_one_is_refused(given):
    path = given.directory / REQUEST
    request = read_document(Request, path.read_bytes(), REQUEST)
    fields = json.loads(write_document(request)) | {"package_digest": digest_bytes(b"other")}
    path.write_text(json.dumps(fields))
    with pytest.raises(EvidenceError, match="the package is"):
        Arm.open(given.run_id, **PARAMETERS)


def test_a_package_that_changes_under_an_arm_is_not_sealed(given, monkeypatch):
    arm = Arm.open(given.run_id, **PARAMETERS)
    arm.document("plan.json", {})
    found = arm_module.package_tree()
    monkeypatch.setattr(arm_module, "package_tree", lambda: type(found)(schema=1, files=found.files[1:]))
    with pytest.raises(EvidenceError, match="package changed"):
        arm.finish()
    assert not (given.directory / SEAL).exists()


def test_an_arm_without_its_documents_is_not_sealed(given):
    arm = Arm.open(given.run_id, **PARAMETERS)
    with pytest.raises(SpecError, match=r"plan\.json"):
        arm.finish()
    assert not (given.directory / SEAL).exists()


@pytest.mark.parametrize("name", ["other.json", "seal.json", "../plan.json", "plan", ".hidden.json", "Plan.json"])
def test_documents_that_the_campaign_does_not_announce_are_refused(given, name):
    with pytest.raises(SpecError, match="document"):
        Arm.open(given.run_id, **PARAMETERS).document(name, {})


def test_samples_that_cannot_be_written_are_lost_and_so_is_the_seal(given, monkeypatch):
    monkeypatch.setattr(journal_module, "FileIO", lambda path, mode: io.FileIO("/dev/full", "w"))
    arm = Arm.open(given.run_id, **PARAMETERS)
    arm.document("plan.json", {})
    for _ in range(2):
        with pytest.raises(EvidenceError, match="No space left on device"):
            arm.truth("works", True)
    with pytest.raises(EvidenceError, match="samples are missing"):
        arm.finish()
    assert not (given.directory / SEAL).exists()


def test_failures_in_the_background_are_in_the_seal_and_later_ones_withdraw_it(given, capsys):
    arm = Arm.open(given.run_id, **PARAMETERS)
    (tell,) = given.told
    arm.document("plan.json", {})
    tell(BackgroundFailure("thread a", "ZeroDivisionError"))
    arm.finish()
    assert read_seal(given.directory).background_failures == (BackgroundFailure("thread a", "ZeroDivisionError"),)
    tell(BackgroundFailure("thread b", "ValueError"))
    assert not (given.directory / SEAL).exists()
    assert "withdrawn" in capsys.readouterr().err


def test_a_failure_while_the_seal_is_written_leaves_no_seal(given, monkeypatch):
    arm = Arm.open(given.run_id, **PARAMETERS)
    (tell,) = given.told
    arm.document("plan.json", {})
    write = arm_module.write_whole

    def fail_meanwhile(path, data):
        tell(BackgroundFailure("unraisable", "ValueError"))
        write(path, data)

    monkeypatch.setattr(arm_module, "write_whole", fail_meanwhile)
    with pytest.raises(EvidenceError, match="while the arm was sealed"):
        arm.finish()
    assert not (given.directory / SEAL).exists()


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", True, None, pytest.param(10**400, id="huge")])
def test_what_is_no_finite_number_is_no_sample(rehearsed, value):
    with pytest.raises(SpecError):
        rehearsed.sample("a", value, "s")


@pytest.mark.parametrize("value", [1, 0.0, None, "True", np.bool_(True)])
def test_only_true_and_false_are_truths(rehearsed, value):
    with pytest.raises(SpecError):
        rehearsed.truth("a", value)


@pytest.mark.parametrize(
    "call",
    [
        lambda arm: arm.sample("", 1.0, "s"),
        lambda arm: arm.sample("a", 1.0, ""),
        lambda arm: arm.sample("a", 1.0, "bool"),
        lambda arm: arm.sample("a", 1.0, "s", block=-1),
        lambda arm: arm.sample("a", 1.0, "s", block=True),
        lambda arm: arm.sample("a", 1.0, "s", key=1),
        lambda arm: arm.truth("a", True, condition=None),
        lambda arm: arm.realized("plan"),
        lambda arm: arm.output(condition="c", key="k", representation="r", prompt_ids=[1], token_ids=[-1]),
        lambda arm: arm.output(
            condition="c", key="k", representation="r", prompt_ids=[], token_ids=[], logits_digest="x"
        ),
    ],
)
def test_what_a_reader_would_refuse_is_refused_at_once(rehearsed, call):
    with pytest.raises(SpecError):
        call(rehearsed)


def test_a_condition_answers_a_key_once(rehearsed):
    for condition in ("one", "two"):
        rehearsed.output(condition=condition, key="k", representation="r", prompt_ids=[1], token_ids=[2])
    with pytest.raises(DocumentError, match="already"):
        rehearsed.output(condition="one", key="k", representation="r", prompt_ids=[1], token_ids=[2])


def test_a_rehearsal_works_and_proves_nothing(rehearsed, tmp_path, capsys):
    rehearsed.truth("works", True)
    rehearsed.document("anything.json", [1])
    rehearsed.document("curve.txt", b"1 2\n")
    rehearsed.progress("half")
    assert rehearsed.scratch.is_dir()
    rehearsed.finish()
    (directory,) = tmp_path.glob("inferswarm-rehearsal-*")
    assert not (directory / SEAL).exists()
    assert len(read_samples(directory / SAMPLES)) == 1
    assert (directory / "anything.json").read_text() == "[\n  1\n]\n"
    assert (directory / "curve.txt").read_bytes() == b"1 2\n"
    assert "nothing here is proved" in capsys.readouterr().out


# Failures that end no cell, told of by the interpreter itself.


@pytest.fixture
def told(monkeypatch):
    failures: list[BackgroundFailure] = []
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    loops = asyncio.base_events.BaseEventLoop
    monkeypatch.setattr(loops, "call_exception_handler", lambda _self, _context: None)
    watch(failures.append)
    return failures


async def fail() -> None:
    raise ValueError("in a task")


def test_a_thread_that_fails_is_told_of(told):
    thread = threading.Thread(target=lambda: 1 / 0, name="counting")
    thread.start()
    thread.join()
    assert told == [BackgroundFailure("thread counting", "ZeroDivisionError: division by zero")]


def test_a_task_that_fails_is_told_of_whether_or_not_somebody_holds_it(told):
    held = []

    async def start() -> None:
        asyncio.create_task(fail())  # noqa: RUF006 - that nobody holds it is what is tested
        held.append(asyncio.create_task(fail()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(start())
    gc.collect()
    assert told == [BackgroundFailure("task", "ValueError: in a task")]
    assert unasked_failures() == (BackgroundFailure("task", "ValueError: in a task"),)
    assert unasked_failures() == ()  # asked for


def test_what_nobody_could_raise_is_told_of(told):
    class Noisy:
        def __del__(self):
            raise ValueError("while it went")

    del_me = Noisy()
    del del_me
    gc.collect()
    assert told == [BackgroundFailure("unraisable", "ValueError: while it went")]
