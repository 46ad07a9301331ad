"""One arm of a campaign, as its notebook sees it: parameters checked, observations kept, and a seal at the end.

The second cell opens the arm, the last one finishes it. In between everything observed is written down as it comes.
Outside of a run, in a *rehearsal*, all of it works in a temporary directory and proves nothing. What an arm says of
itself is one witness of two; the parent, which watches the process, is the other.
"""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from inferswarm.campaigns.arm_files import Given, refuse_name, write_arm_files, write_whole
from inferswarm.campaigns.background import unasked_failures, watch
from inferswarm.campaigns.environment import capture_environment
from inferswarm.campaigns.handover import given_project, given_run
from inferswarm.campaigns.journal import JOURNAL, Journal, Sampled
from inferswarm.campaigns.layout import CAMPAIGN, ENVIRONMENT, REQUEST, SEAL
from inferswarm.campaigns.package_tree import package_tree
from inferswarm.campaigns.records import SCHEMA, BackgroundFailure, Parameter, Request, Seal, Value
from inferswarm.campaigns.samples import TRUTH_UNIT, Output
from inferswarm.campaigns.spec import read_bytes, read_campaign, same_parameters
from inferswarm.documents import Document, digest_bytes, read_document, write_document
from inferswarm.errors import EvidenceError, SpecError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
REHEARSAL = "rehearsal: nothing here is proved"


class Arm:
    """What a notebook observes, from `Arm.open` to `finish`. Safe to use from several threads."""

    def __init__(
        self, directory: Path, scratch: Path, parameters: tuple[Parameter, ...], given: Given | None
    ) -> None:
        self.scratch = scratch
        """A directory for what is needed while the arm runs, such as a swarm's state. It is no part of the run."""
        self._directory = directory
        self._parameters = parameters
        self._given = given
        self._started = time.monotonic()
        self._clock = threading.Lock()
        self._ending = threading.RLock()  # reentrant: a failure may be told of while this thread seals
        self._journal = Journal(directory / JOURNAL)
        self._documents: list[str] = []
        self._realized: list[str] = []
        self._failures: list[BackgroundFailure] = []
        self._executable = ""
        self._is_finished = False
        self._is_sealed = False

    @classmethod
    def open(cls, run: str, /, **parameters: Value) -> Self:
        """Open the arm of a run, or a rehearsal where `run` is "".

        `parameters` are those of the notebook's first cell, as its variables have them. Raises SpecError when they
        are not, by name, type and value, those that the run was requested with, or when this process was started for
        another run; EvidenceError when the run has been opened before, or the package is not the one requested.
        """
        named = tuple(Parameter(name, _checked(name, value)) for name, value in parameters.items())
        if not run:
            directory = Path(tempfile.mkdtemp(prefix="inferswarm-rehearsal-"))
            scratch = directory / "scratch"
            scratch.mkdir()
            arm = cls(directory, scratch, named, None)
            arm._say(f"{REHEARSAL}; files are in {directory}")
        else:
            given = _read_given(run)
            _refuse_parameters(named, given)
            arm = cls(given.directory, Path.cwd(), named, given)
        watch(arm._on_failure)
        environment = capture_environment(given_project() if run else None)
        arm._executable = environment.executable
        (arm._directory / ENVIRONMENT).write_text(write_document(environment), encoding="utf-8")
        return arm

    def __repr__(self) -> str:
        """One line: which run, and how much has been observed."""
        what = REHEARSAL if self._given is None else f"run {self._given.request.run_id}"
        state = "finished" if self._is_finished else "open"
        return f"Arm({what}, {state}, {self._journal.num_samples} samples, {len(self._journal.outputs)} answers)"

    def sample(
        self,
        series: str,
        value: float,
        unit: str,
        *,
        condition: str = "",
        key: str = "",
        block: int = 0,
        warm_up: bool = False,
    ) -> None:
        """Keep one sample. Raises SpecError for a value that is no finite number, EvidenceError when it is lost."""
        self.samples(series, (value,), unit, condition=condition, key=key, block=block, warm_up=warm_up)

    def samples(
        self,
        series: str,
        values: Iterable[float],
        unit: str,
        *,
        condition: str = "",
        key: str = "",
        block: int = 0,
        warm_up: bool = False,
    ) -> None:
        """Keep samples of one series in their order; see `sample`. Truths are kept with `truth`."""
        if not series or not unit or unit == TRUTH_UNIT:
            needed = f"a name, and a unit that is not {TRUTH_UNIT!r} (truths are kept with `truth`)"
            raise SpecError("series and unit", (series, unit), needed)
        self._observe(series, tuple(_number(series, value) for value in values), unit, condition, key, block, warm_up)

    def truth(self, series: str, value: bool, *, condition: str = "", key: str = "", block: int = 0) -> None:
        """Keep that something is so, or is not: never a warm-up. Raises SpecError for anything but True and False."""
        if not series or type(value) is not bool:
            raise SpecError(f"truth {series!r}", value, "a name, and True or False")
        self._observe(series, (float(value),), TRUTH_UNIT, condition, key, block, False)

    def output(
        self,
        *,
        condition: str,
        key: str,
        representation: str,
        prompt_ids: Sequence[int],
        token_ids: Sequence[int],
        logits_digest: str = "",
    ) -> None:
        """Keep one answer. Raises DocumentError when its condition has answered the key, SpecError for bad fields."""
        fields = {
            "condition": condition,
            "key": key,
            "representation": representation,
            "prompt_ids": [int(token) for token in prompt_ids],
            "token_ids": [int(token) for token in token_ids],
            "logits_digest": logits_digest,
        }
        try:
            answer = msgspec.convert(fields, Output, strict=True)
        except msgspec.ValidationError as error:
            raise SpecError("answer", f"{condition} / {key}", str(error)) from error
        self._journal.answer(answer)

    def document(self, name: str, document: Document | bytes | Any) -> None:
        """Write a document, or plain JSON data, beside the samples; bytes are written as they are.

        Raises SpecError for a name that the campaign does not say this arm produces, and one that is there already.
        """
        produces = None if self._given is None else self._given.spec.produces
        refuse_name(name, produces, self._documents)
        data = document if isinstance(document, bytes) else write_document(document).encode()
        (self._directory / name).write_bytes(data)
        self._documents.append(name)

    def realized(self, plan_digest: str) -> None:
        """Keep the digest of a plan as the stages that execute it report it. Raises SpecError for any other text."""
        if not DIGEST.fullmatch(plan_digest):
            raise SpecError("realized plan", plan_digest, "`sha256:` and 64 hexadecimal digits")
        if plan_digest not in self._realized:
            self._realized.append(plan_digest)

    def progress(self, text: str) -> None:
        """Say a line about how far the arm is, to whoever watches."""
        self._journal.note("progress", text)
        self._say(f"[{time.monotonic() - self._started:.1f} s] {text}")

    def finish(self) -> None:
        """Write what was observed, and seal it. Nothing can be observed afterwards.

        Raises SpecError when it was called before, and when a document that the campaign says this arm produces is
        not there; EvidenceError when something observed was lost, or the package is not the one that the arm was
        opened with.
        """
        if self._is_finished:
            raise SpecError("finish", "called again", "one call, in the last cell")
        self._is_finished = True
        self._journal.stop()
        if self._given is None:
            write_arm_files(self._directory, self._journal, None, ())
            self._journal.remove()
            self._failures.extend(unasked_failures())
            for failure in self._failures:
                self._say(f"failed in the background, in {failure.where}: {failure.error}")
            self._say(f"{REHEARSAL} ({self._journal.num_samples} samples, {len(self._journal.outputs)} answers)")
            return
        given = self._given
        if missing := [name for name in given.spec.produces if name not in self._documents]:
            raise SpecError("documents", self._documents, f"also {', '.join(missing)}, which the campaign announces")
        if (found := package_tree().digest) != given.package_digest:
            raise EvidenceError(
                f"the package changed while the arm ran: {found}, at its start {given.package_digest}"
            )
        files = write_arm_files(self._directory, self._journal, given, self._documents)
        self._journal.remove()
        unasked = unasked_failures()
        with self._ending:
            self._failures.extend(unasked)
            told = tuple(self._failures)
            seal = Seal(
                schema=SCHEMA,
                run_id=given.request.run_id,
                nonce=given.request.nonce,
                request_digest=given.request_digest,
                parameters=self._parameters,
                files=files,
                num_samples=self._journal.num_samples,
                num_outputs=len(self._journal.outputs),
                realized_plans=tuple(self._realized),
                kernel_pid=os.getpid(),
                executable=self._executable,
                package_digest=given.package_digest,
                background_failures=told,
                sealed_at=str(time.time_ns()),
            )
            data = write_document(seal).encode()
            write_whole(self._directory / SEAL, data)
            self._is_sealed = True
            if len(self._failures) > len(told):
                self._withdraw(self._failures[-1])
                raise EvidenceError(f"something failed while the arm was sealed: {self._failures[-1].error}")
        self._say(f"sealed: {digest_bytes(data)}")

    def _observe(
        self, series: str, values: tuple[float, ...], unit: str, condition: str, key: str, block: int, warm_up: bool
    ) -> None:
        if type(block) is not int or block < 0:
            raise SpecError(f"block of {series!r}", block, "a whole number from 0")
        if not all(type(text) is str for text in (series, unit, condition, key)):
            raise SpecError(f"sample of {series!r}", (series, unit, condition, key), "texts")
        with self._clock:  # so that samples are written in the order of their times
            self._journal.observe(
                Sampled(
                    series=series,
                    condition=condition,
                    key=key,
                    block=block,
                    at_seconds=time.monotonic() - self._started,
                    values=values,
                    unit=unit,
                    warm_up=bool(warm_up),
                )
            )

    def _on_failure(self, failure: BackgroundFailure) -> None:
        """Keep a failure in the background. After the seal, the seal is withdrawn: it says that there was none."""
        with self._ending:
            self._failures.append(failure)
            if self._is_sealed:
                self._withdraw(failure)
        if not self._is_finished:
            self._journal.note("failure", f"{failure.where}: {failure.error}")

    def _withdraw(self, failure: BackgroundFailure) -> None:
        (self._directory / SEAL).unlink(missing_ok=True)
        sys.stderr.write(f"after the arm's end, in {failure.where}: {failure.error}: the seal is withdrawn\n")

    def _say(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def _read_given(run: str) -> Given:
    """Read what a run was requested with. Raises as `Arm.open` does."""
    directory, nonce = given_run(run)
    data = read_bytes(directory / REQUEST, "run")
    request = read_document(Request, data, REQUEST)
    if (request.run_id, request.nonce) != (run, nonce):
        raise SpecError("run", run, f"{request.run_id!r} with its nonce, which its request names")
    if begun := [name for name in (SEAL, JOURNAL, ENVIRONMENT) if os.path.lexists(directory / name)]:
        raise EvidenceError(
            f"run {run} was opened before: {', '.join(begun)} is there; another attempt is another run"
        )
    spec = read_campaign(directory / CAMPAIGN).arm(request.arm)
    if (found := package_tree().digest) != request.package_digest:
        raise EvidenceError(f"the package is {found} here, and the run was requested with {request.package_digest}")
    return Given(directory, request, digest_bytes(data), spec, request.package_digest)


def _refuse_parameters(named: tuple[Parameter, ...], given: Given) -> None:
    """Refuse parameters that are not those requested. JSON has one kind of number, so types are the campaign's."""
    requested = {item.name: item.value for item in given.request.parameters}
    found = {item.name: item.value for item in named}
    if set(requested) != set(found):
        raise SpecError(
            "parameters", sorted(found), f"those of the request: {', '.join(sorted(requested)) or 'none'}"
        )
    for name, value in found.items():
        declared = given.spec.parameter(name)
        kind = type(value) if declared is None else type(declared.value)
        pair = (Parameter(name, value),), (Parameter(name, requested[name]),)
        if type(value) is not kind or not same_parameters(*pair):
            raise SpecError(f"parameter {name!r}", value, f"the {kind.__name__} {requested[name]!r} of the request")


def _checked(name: str, value: object) -> Value:
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"parameter {name!r}", value, "a finite number")
    if type(value) in (str, int, float, bool):
        return value  # type: ignore[return-value]
    raise SpecError(f"parameter {name!r}", value, "a text, an integer, a float or a truth")


def _number(series: str, value: object) -> float:
    """Return a sample's value as a float; other libraries' numbers convert themselves."""
    if isinstance(value, (bool, str, bytes)):
        raise SpecError(f"sample of {series!r}", value, "a number (truths are kept with `truth`)")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecError(f"sample of {series!r}", value, "a number") from error
    if not math.isfinite(number):
        raise SpecError(f"sample of {series!r}", value, "a finite number")
    return number
