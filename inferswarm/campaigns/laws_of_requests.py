"""The laws of a request: whose it is, what it froze, the closed set that it belongs to, and the order of times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from inferswarm.campaigns import layout
from inferswarm.campaigns.case import Case
from inferswarm.campaigns.expectations import refuse_mismatch
from inferswarm.campaigns.findings import broken, compared, proven, unproven
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.layout import NANOSECONDS
from inferswarm.campaigns.ledger import lies_ahead, num_requests
from inferswarm.campaigns.records import Request
from inferswarm.errors import DocumentError

CLOCK_TOLERANCE_SECONDS = 1.0
"""By how much the day's clock and the monotonic one may disagree over a run, beside the share below."""
CLOCK_TOLERANCE_SHARE = 0.001
"""Twice as fast as Linux slews a clock (500 millionths)."""
_NONCE: Final = re.compile(r"[0-9a-f]{32,64}")


def check_request(case: Case) -> Iterator[Finding]:
    """The request is of this run, and the files that it froze are here with the digests that it names."""
    law, run = "request", case.run
    request, bundle = run.request, run.bundle
    if request is None:
        yield broken(law, layout.REQUEST, "a request", run.faults.get(layout.REQUEST, "none"))
        return
    yield compared(law, "campaign", bundle.campaign, request.campaign)
    yield compared(law, "run_id", bundle.run_id, request.run_id)
    yield from _run_id(request)
    for name, recorded in (
        (layout.CAMPAIGN, request.campaign_digest),
        (layout.EXPECTATIONS, request.expectations_digest),
        (layout.NOTEBOOK, request.notebook_digest),
    ):
        yield compared(law, name, recorded, bundle.digest(name))
    package = None if run.package is None else run.package.digest
    yield compared(law, layout.PACKAGE, request.package_digest, package)
    if case.requested:
        earlier = num_requests(case.before, request.campaign, request.edition, request.arm)
        yield compared(law, "attempt", earlier + 1, request.attempt)


def _run_id(request: Request) -> Iterator[Finding]:
    match = layout.RUN_ID.fullmatch(request.run_id)
    needed = layout.run_id_of(request.arm, int(request.requested_at), request.nonce)
    yield compared("request", "run_id", needed, match.group() if match else f"{request.run_id}, no run's name")
    if not _NONCE.fullmatch(request.nonce):
        yield broken("request", "nonce", "32 to 64 hexadecimal digits", request.nonce)


def check_arms_closed(case: Case) -> Iterator[Finding]:
    """The arm is one of the campaign's, and the campaign is the one whose run this is."""
    law, request, spec = "arms-closed", case.run.request, case.run.spec
    if request is None or spec is None:
        missing = layout.REQUEST if request is None else layout.CAMPAIGN
        yield unproven(law, missing, "a campaign with this arm", "it cannot be read")
        return
    needed = (request.campaign, request.edition)
    yield compared(law, layout.CAMPAIGN, needed, (spec.campaign, spec.edition))
    arms = [arm.name for arm in spec.arms]
    if request.arm not in arms:
        yield broken(law, layout.CAMPAIGN, f"one of: {', '.join(arms)}", request.arm)
    elif (needs := spec.arm(request.arm).deadline_seconds) != request.deadline_seconds:
        yield broken("request", "deadline_seconds", f"{needs} s", f"{request.deadline_seconds} s")


def check_expectations(case: Case) -> Iterator[Finding]:
    """The expectations are those of this campaign and edition, and each of its arms has some."""
    law, spec, expectations = "expectations-unchanged", case.run.spec, case.run.expectations
    if spec is None or expectations is None:
        missing = layout.EXPECTATIONS if expectations is None else layout.CAMPAIGN
        yield unproven(law, missing, "the expectations of the campaign", "they cannot be read")
        return
    try:
        refuse_mismatch(spec, expectations, layout.EXPECTATIONS)
    except DocumentError as error:
        yield broken(law, layout.EXPECTATIONS, "the expectations of the campaign", error.reason)
        return
    yield proven(law, layout.EXPECTATIONS, f"edition {spec.edition} of {spec.campaign}")


def check_chronology(case: Case) -> Iterator[Finding]:
    """Times of day follow each other as what they date did, and agree with the monotonic clock.

    Where they do not, the clock was set or somebody wrote another time: which, nothing shows.
    """
    law, run = "chronology", case.run
    request, outcome = run.request, run.outcome
    if request is None or outcome is None or not case.requested:
        yield unproven(law, layout.OUTCOME, "times that follow each other", "not all of them are known")
        return
    times = [("requested", request.requested_at), ("in the ledger", case.requested[0].at)]
    # Not the line before: two runners may take their times in one order and write their lines in the other.
    finished = [entry for entry in case.before if entry.kind == "finished"]
    if rested_on := [entry.at for entry in finished if entry.run_id in request.predecessors]:
        times.insert(0, ("the arms before it finished", max(rested_on, key=int)))
    if run.parent_environment is not None:
        times.append(("environment of the parent captured", run.parent_environment.captured_at))
    times.append(("started", outcome.started_at))
    if run.environment is not None:
        times.append(("environment captured", run.environment.captured_at))
    if run.seal is not None:
        times.append(("sealed", run.seal.sealed_at))
    times.append(("ended", outcome.ended_at))
    finishing = case.finished[0].at if case.finished else case.finishing_at
    if finishing is not None:
        times.append(("finished", str(finishing)))
    backward = [
        f"{later} {(int(before) - int(after)) / NANOSECONDS:.3f} s before {earlier}"
        for (earlier, before), (later, after) in pairwise(times)
        if int(after) < int(before)
    ]
    name, latest = max(times, key=lambda item: int(item[1]))
    if lies_ahead(int(latest)):
        backward.append(f"{name} at a time that has not come yet")
    for fault in backward:
        yield unproven(law, layout.OUTCOME, " ≤ ".join(name for name, _ in times), fault)
    by_day = (int(outcome.ended_at) - int(outcome.started_at)) / NANOSECONDS
    slack = CLOCK_TOLERANCE_SECONDS + CLOCK_TOLERANCE_SHARE * abs(outcome.seconds)
    if abs(by_day - outcome.seconds) > slack:
        yield unproven(law, layout.OUTCOME, f"{outcome.seconds:.3f} s ± {slack:.3f} s", f"{by_day:.3f} s by the day")
    elif not backward:
        yield proven(law, layout.OUTCOME, " ≤ ".join(name for name, _ in times))
