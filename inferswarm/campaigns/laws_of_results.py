"""The laws of what came out: whose samples these are, the numbers computed again, and the two gates."""

from __future__ import annotations

from collections.abc import Iterator

from inferswarm.campaigns import layout
from inferswarm.campaigns.case import Case
from inferswarm.campaigns.findings import broken, compared, unproven
from inferswarm.campaigns.journal import JOURNAL
from inferswarm.campaigns.judging import GATES, judge
from inferswarm.campaigns.laws import Finding
from inferswarm.campaigns.partial_runs import judge_journal
from inferswarm.campaigns.results import check_result
from inferswarm.campaigns.samples import outputs_identity, samples_identity


def check_identity(case: Case) -> Iterator[Finding]:
    """Samples and answers say that they are of this run, and no sample is of a time when it did not run."""
    law, run, request = "samples", case.run, case.run.request
    if request is None:
        yield unproven(law, layout.REQUEST, "samples and answers of this run", "it is not known which run this is")
        return
    needed = (request.run_id, request.nonce)
    for name, held, read in (
        (layout.SAMPLES, run.samples, samples_identity),
        (layout.OUTPUTS, run.outputs, outputs_identity),
    ):
        if held is None:
            yield unproven(law, name, f"of the run {request.run_id}", run.faults.get(name, "none"))
            continue
        of = read(run.bundle.files[name])
        yield compared(law, name, needed, (of.run_id, of.nonce))
    if run.samples is None or run.samples.is_empty():
        return
    last, outcome = run.samples["at_seconds"][-1], run.outcome
    wanted = "samples of the time in which it ran"
    if outcome is None:
        yield unproven(law, layout.SAMPLES, wanted, "nobody saw how long that was")
    elif last > outcome.seconds:
        found = f"a sample {last:.3f} s after the arm's start, in a run of {outcome.seconds:.3f} s"
        yield broken(law, layout.SAMPLES, wanted, found)


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
    journal = run.bundle.files.get(JOURNAL)
    if run.samples is None and journal is not None:
        yield from judge_journal(expected, journal)
    else:
        yield from judge(expected, run.samples, run.outputs)
