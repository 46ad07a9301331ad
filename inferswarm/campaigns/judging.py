"""The two gates: every expectation of an arm computed again from raw samples and answers, one finding for each."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from inferswarm.campaigns.describing import describe
from inferswarm.campaigns.expectations import Expectation, OfSides, TokensEqual
from inferswarm.campaigns.judgement import Judgement, finite, unproven
from inferswarm.campaigns.judging_answers import judge_answers
from inferswarm.campaigns.judging_series import judge_series
from inferswarm.campaigns.judging_sides import judge_sides
from inferswarm.campaigns.laws import Finding, State
from inferswarm.campaigns.layout import EXPECTATIONS
from inferswarm.campaigns.samples import Output
from inferswarm.campaigns.selecting import select, sides_of

GATES = {"correctness": "correctness-gate", "performance": "performance-gate"}
"""The law of each gate."""


def judgement_of(
    expectation: Expectation, samples: pl.DataFrame | None, outputs: Sequence[Output] | None
) -> Judgement:
    """Judge one expectation by what a run left (None: the file is missing or cannot be used).

    It never raises for what a run left or lacks: that is a judgement, with the reason.
    """
    if isinstance(expectation, TokensEqual):
        if outputs is None:
            return unproven("there are no answers that can be used", 0)
        return judge_answers(expectation, outputs)
    if samples is None:
        return unproven("there are no samples that can be used", 0)
    if isinstance(expectation, OfSides):
        judged = judge_sides(expectation, *sides_of(samples, expectation))
    else:
        judged = judge_series(expectation, select(samples, expectation, expectation.gate))
    return finite(judged)


def judge(
    expectations: Sequence[Expectation], samples: pl.DataFrame | None, outputs: Sequence[Output] | None
) -> tuple[Finding, ...]:
    """Return one finding for each expectation of an arm, correctness before performance.

    The path names the expectation. A performance gate of which nothing is expected is PROVEN, because the file of
    expectations says so; of correctness something must be expected.
    """
    findings = []
    for gate, law in GATES.items():
        of_gate = [item for item in expectations if item.gate == gate]
        for expectation in of_gate:
            judged = judgement_of(expectation, samples, outputs)
            path = f"{EXPECTATIONS}#{expectation.id}"
            wanted = f"{expectation.claim}: {describe(expectation)}"
            findings.append(Finding(law=law, state=judged.state, path=path, expected=wanted, found=judged.found))
        if not of_gate:
            state = State.PROVEN if gate == "performance" else State.UNPROVEN
            needed = "what was expected" if gate == "performance" else "at least one expectation"
            findings.append(Finding(law=law, state=state, path=EXPECTATIONS, expected=needed, found="nothing"))
    return tuple(findings)
