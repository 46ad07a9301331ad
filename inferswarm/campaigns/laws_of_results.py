"""The laws of what came out: the plans that ran, the numbers computed again, and the two gates."""

from __future__ import annotations

from collections.abc import Iterator

from inferswarm.campaigns import layout
from inferswarm.campaigns.case import Case
from inferswarm.campaigns.findings import broken, compared, unproven
from inferswarm.campaigns.judging import GATES, judge
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.results import check_result
from inferswarm.documents import digest, read_json
from inferswarm.errors import DocumentError


def check_plans(case: Case) -> Iterator[Finding]:
    """The plans that the stages say they executed are exactly those that the arm recorded."""
    law, run = "plan-realized", case.run
    if run.arm is None or run.seal is None:
        yield unproven(law, layout.SEAL, "the plans that were realized", "there is no seal that would say so")
        return
    recorded: list[str] = []
    for name in run.arm.realizes:
        if name not in run.bundle.files:
            yield unproven(law, name, "a recorded plan", "no file")
            continue
        try:
            recorded.append(digest(read_json(run.bundle.files[name], name)))
        except DocumentError as error:
            yield broken(law, name, "a recorded plan", error.reason)
    yield compared(law, layout.SEAL, sorted(set(recorded)), sorted(run.seal.realized_plans))


def check_results(case: Case) -> Iterator[Finding]:
    """Every number is computed again from raw samples and answers: the summaries first, then the two gates."""
    run = case.run
    if run.expectations is None or run.request is None:
        for law in ("summaries-recomputed", *GATES.values()):
            yield unproven(law, layout.EXPECTATIONS, "what is expected of the arm", "it is not known")
        return
    expected = run.expectations.of_arm(run.request.arm)
    data = run.bundle.files.get(layout.RESULT)
    yield check_result(data, run.request.run_id, expected, run.samples, run.outputs)
    yield from judge(expected, run.samples, run.outputs)
