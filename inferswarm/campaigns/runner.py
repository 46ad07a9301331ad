"""Runs the arms of a campaign, each as a run of its own, and leaves records of every attempt.

Whatever happens to a run after its request is in the ledger, also this process's death, leaves INCOMPLETE behind and
never a PASS. Several runners may work in one evidence root at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from inferswarm.campaigns.arm_files import write_whole
from inferswarm.campaigns.concluding import Concluded, conclude
from inferswarm.campaigns.environment import Environment, capture_environment
from inferswarm.campaigns.layout import PARENT_ENVIRONMENT
from inferswarm.campaigns.preflight import Prepared, PreparedArm, prepare_campaign
from inferswarm.campaigns.requesting import Requested, request_run
from inferswarm.campaigns.requirements import FindModel, unmet_requirements
from inferswarm.campaigns.watching import Clock, Ended, Say, StopSignals, Task, execute
from inferswarm.documents import write_document
from inferswarm.errors import EvidenceError


class RunReport(NamedTuple):
    """What one run came to."""

    arm: str
    run_id: str
    directory: Path
    concluded: Concluded


class CampaignReport(NamedTuple):
    """The runs of one call, and by which signal it was ended before the others, if it was."""

    runs: tuple[RunReport, ...]
    stopped_by: str | None


def run_campaign(
    campaign: str,
    *,
    project: Path,
    evidence: Path,
    say: Callable[[str, str], None],
    find_model: FindModel,
    arms: Sequence[str] = (),
    clock: Clock | None = None,
) -> CampaignReport:
    """Run the arms of a campaign that are named (none: all), in the order of its file.

    `say` is told lines of progress with the arm that they are about; `find_model` resolves names of models. Raises as
    `prepare_campaign` does, before anything is written; SpecError and EvidenceError when records cannot be written,
    which leaves the current run INCOMPLETE.
    """
    used_clock = clock or Clock()
    prepared = prepare_campaign(campaign, project, evidence, arms)
    runs: list[RunReport] = []
    with StopSignals() as stop:
        for arm in prepared.arms:
            runs.append(run_arm(prepared, arm, stop, used_clock, partial(say, arm.spec.name), find_model))
            if stop.received is not None:
                break
    return CampaignReport(tuple(runs), stop.received)


def run_arm(
    prepared: Prepared, arm: PreparedArm, stop: StopSignals, clock: Clock, say: Say, find_model: FindModel
) -> RunReport:
    """Make one attempt of one arm, and record it. Raises as `run_campaign` does once it is under way."""
    requested = request_run(prepared, arm, clock.time_ns())
    request = requested.request
    say(f"run {request.run_id}, attempt {request.attempt}, at most {request.deadline_seconds:g} s")
    try:
        environment = capture_environment(prepared.project)
        write_whole(requested.directory / PARENT_ENVIRONMENT, write_document(environment).encode())
        ended = _attempt(prepared, arm, requested, environment, stop, clock, say, find_model)
        concluded = conclude(prepared, requested, environment, ended, clock)
    except OSError as error:
        reason = f"its records could not be written ({error.strerror}): the run is INCOMPLETE"
        raise EvidenceError(f"run {request.run_id}: {reason}") from error
    say(f"{concluded.disposition} after {ended.seconds:.1f} s")
    for reason in concluded.reasons:
        say(reason)
    return RunReport(request.arm, request.run_id, requested.directory, concluded)


def _attempt(
    prepared: Prepared,
    arm: PreparedArm,
    requested: Requested,
    environment: Environment,
    stop: StopSignals,
    clock: Clock,
    say: Say,
    find_model: FindModel,
) -> Ended:
    """Execute the arm, unless something that it needs is lacking. Raises OSError when it cannot be started."""
    now = clock.time_ns()
    nothing = Ended("not-started", None, None, now, now, 0.0, None, 0, "", None)
    if requested.lacking:
        return nothing._replace(end="blocked", reason=f"not passed: {', '.join(requested.lacking)}")
    if unmet := unmet_requirements(arm.spec.requires, environment, find_model):
        return nothing._replace(reason="; ".join(unmet))
    if stop.received is not None:
        return nothing._replace(reason=f"{stop.received} to the parent")
    request = requested.request
    task = Task(
        project=prepared.project,
        directory=requested.directory,
        run_id=request.run_id,
        nonce=request.nonce,
        notebook=arm.notebook,
        parameters=arm.spec.parameters,
        deadline_seconds=request.deadline_seconds,
    )
    return execute(task, stop, clock, say)
