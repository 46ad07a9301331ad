"""The report of one run: every finding, every expectation with its interval, samples, answers and environment."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from inferswarm.campaigns.bundle import Run
from inferswarm.campaigns.describing import describe
from inferswarm.campaigns.environment import Environment
from inferswarm.campaigns.expectations import Expectation, Median, Proportion, Quantile, Ratio, RelativeError
from inferswarm.campaigns.judgement import Judgement
from inferswarm.campaigns.judging import judgement_of
from inferswarm.campaigns.laws import LAWS, Finding, State
from inferswarm.campaigns.records import Outcome, Request
from inferswarm.campaigns.samples import Output
from inferswarm.units import format_seconds
from inferswarm.views.campaign_pictures import interval_picture, samples_picture
from inferswarm.views.campaign_series import SeriesShown, series_of
from inferswarm.views.labels import bytes_fact, count, short_digest
from inferswarm.views.markup import Content, Markup, badge, details, element, joined, page, table

QUALITIES = {
    "PROVEN": "good",
    "PASS": "good",
    "BROKEN": "bad",
    "FAIL": "bad",
    "UNPROVEN": "",
    "INCOMPLETE": "",
    "BLOCKED": "",
    "WAIVED": "",
}
"""How states and dispositions are colored: only what is proven is good."""


class JudgedExpectation(NamedTuple):
    """An expectation with what came of it."""

    expectation: Expectation
    judgement: Judgement


class RunShown(NamedTuple):
    """One run with what a verifier found of it."""

    run: Run
    findings: tuple[Finding, ...]
    disposition: str
    verifier: str
    """Who says so: the verifier's version and package digest."""

    @property
    def title(self) -> str:
        """One line: campaign, arm, run and what it came to."""
        bundle = self.run.bundle
        arm = "unknown arm" if self.run.request is None else self.run.request.arm
        return f"{bundle.campaign} · {arm} · {bundle.run_id}: {self.disposition}"

    @property
    def judged(self) -> tuple[JudgedExpectation, ...]:
        """Every expectation of the run's arm, judged from its samples and answers."""
        run = self.run
        if run.expectations is None or run.request is None:
            return ()
        return tuple(
            JudgedExpectation(item, judgement_of(item, run.samples, run.outputs))
            for item in run.expectations.of_arm(run.request.arm)
        )

    @property
    def series(self) -> tuple[SeriesShown, ...]:
        """Every series that the run observed."""
        return () if self.run.samples is None else series_of(self.run.samples)


def report_html(shown: RunShown) -> Markup:
    """Return the report as a fragment that needs no script, no file and no network; everything is escaped."""
    run = shown.run
    title, _, disposition = shown.title.rpartition(": ")
    parts: list[Content] = [
        element("div", title, " ", badge(disposition, QUALITIES.get(disposition, "")), kind="title")
    ]
    if run.spec is not None:
        parts.append(element("div", run.spec.title, ": ", run.spec.claim))
    parts.append(element("div", _findings_line(shown.findings), kind="faint"))
    parts.append(details("Expectations", _expectations(shown.judged), opened=True))
    wrong = any(finding.state is not State.PROVEN for finding in shown.findings)
    parts.append(details(f"All {count(len(shown.findings), 'finding')}", _findings(shown.findings), opened=wrong))
    parts.append(details("Samples", _series(shown.series), opened=True))
    parts.append(details("Answers", _answers(run.outputs or ())))
    if run.request is not None:
        parts.append(details("Request and outcome", _request(run.request, run.outcome)))
    if run.environment is not None:
        parts.append(details("Environment", _environment(run.environment)))
    parts.append(element("div", f"verified by {shown.verifier}", kind="faint"))
    return page(*parts)


def report_text(shown: RunShown) -> str:
    """Return the report in short, as plain text: every expectation, and every finding that is not proven."""
    lines = [shown.title, f"  {_findings_line(shown.findings)}"]
    for item, judged in shown.judged:
        lines.append(f"  {judged.state:<9} {item.id}: {item.claim}: {judged.found}")
    for finding in shown.findings:
        if finding.state is not State.PROVEN:
            lines.append(f"  {finding.state:<9} {finding.law}: {finding.path}: {finding.found}")
            lines.append(f"  {'':<9} needed: {finding.expected}")
    for series in shown.series:
        lines.append(f"  {series.name}: n = {len(series.judged)}; {series.middle_text or series.range_text}")
    return "\n".join(lines) + "\n"


def format_moment(nanoseconds: str) -> str:
    """Write a time of day in UTC, to the second.

    >>> format_moment("1764530000000000000")
    '2025-11-30 19:13:20 UTC'
    """
    moment = datetime.fromtimestamp(int(nanoseconds) // 10**9, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def thresholds_of(expectation: Expectation) -> tuple[float | None, float | None]:
    """Return between which numbers an expectation's interval must lie; None where there is no such limit."""
    match expectation:
        case Ratio(low=low, high=high):
            return low, high
        case Median(at_least=low, at_most=high):
            return low, high
        case Quantile(at_most=high):
            return None, high
        case Proportion(at_least=low):
            return low, None
        case RelativeError(share=low):
            return low, None
        case _:
            return None, None


def _findings_line(findings: Sequence[Finding]) -> str:
    states = [sum(finding.state is state for finding in findings) for state in State]
    words = ", ".join(f"{number} {state.lower()}" for number, state in zip(states, State, strict=True))
    return f"{count(len(findings), 'finding')}: {words}"


def _expectations(judged: Sequence[JudgedExpectation]) -> Markup:
    rows = []
    for item, found in judged:
        limits = thresholds_of(item)
        drawn = found.estimate is not None and limits != (None, None)
        picture = interval_picture(found.estimate, *limits) if drawn and found.estimate is not None else ""
        claim = joined((item.claim, element("div", describe(item), kind="faint")))
        state = badge(found.state, QUALITIES[found.state])
        rows.append((element("b", item.id), item.gate, claim, state, found.found, picture))
    return table(("expectation", "gate", "claim", "state", "found", ""), rows)


def _findings(findings: Sequence[Finding]) -> Markup:
    rows = [
        (
            finding.law,
            LAWS.get(finding.law, "unknown"),
            badge(finding.state, QUALITIES[finding.state]),
            finding.path,
            element("span", finding.expected, kind="long"),
            element("span", "" if finding.found == finding.expected else finding.found, kind="long"),
        )
        for finding in findings
    ]
    return table(("law", "group", "state", "where", "expected", "found"), rows)


def _series(series: Sequence[SeriesShown]) -> Markup:
    rows = []
    for item in series:
        middle = None if item.middle is None else item.middle.value
        rows.append(
            (
                item.name,
                item.unit,
                str(len(item.judged)),
                str(sum(item.warm_up)),
                item.middle_text,
                item.range_text,
                samples_picture(item.values, item.warm_up, middle),
            )
        )
    heads = ("series", "unit", "samples", "warm-ups", "median (bounds, each 95 %)", "from – to", "in their order")
    return table(heads, rows, frozenset({2, 3}))


def _answers(outputs: Sequence[Output]) -> Markup:
    rows = [
        (
            output.condition,
            output.key,
            output.representation,
            str(len(output.prompt_ids)),
            str(len(output.token_ids)),
            " ".join(map(str, output.token_ids)),
            short_digest(output.logits_digest),
        )
        for output in outputs
    ]
    heads = ("condition", "key", "representation", "prompt tokens", "tokens", "token ids", "logits")
    return table(heads, rows, frozenset({3, 4}))


def _request(request: Request, outcome: Outcome | None) -> Markup:
    rows: list[tuple[Content, ...]] = [
        ("requested at", format_moment(request.requested_at)),
        ("attempt", str(request.attempt)),
        ("edition", str(request.edition)),
        *((f"parameter {item.name}", repr(item.value)) for item in request.parameters),
        ("deadline", format_seconds(request.deadline_seconds)),
        ("rests on", ", ".join(request.predecessors) or "nothing"),
        ("commit", f"{request.commit}{' with changes' if request.dirty else ''}"),
        *((name.replace("_", " "), getattr(request, name)) for name in _DIGESTS),
    ]
    if outcome is not None:
        status = "" if outcome.exit_status is None else f" with status {outcome.exit_status}"
        rows += [
            ("the parent saw", f"{outcome.end}{status} after {format_seconds(outcome.seconds)}; {outcome.reason}"),
            ("processes that had to be killed afterwards", str(outcome.survivors)),
        ]
    return table(("", ""), rows)


_DIGESTS = ("campaign_digest", "expectations_digest", "notebook_digest", "package_digest")


def _environment(environment: Environment) -> Markup:
    rows = [
        ("Python", f"{environment.implementation} {environment.python}, {environment.executable}"),
        ("InferSwarm", environment.package_version),
        ("system", f"{environment.system}, {environment.libc}"),
        ("CPU", environment.cpu.model_name.value or "unknown"),
        ("logical CPUs that it may use", ", ".join(map(str, environment.allowed_cpus))),
        ("RAM", bytes_fact(environment.ram_total_bytes)),
        ("cards", ", ".join(card.name.value or "unknown" for card in environment.nvml.cards) or "none"),
        *((item.name, item.value) for item in environment.variables if item.value is not None),
    ]
    packages = table(("package", "version"), [(item.name, item.version) for item in environment.packages])
    return joined((table(("", ""), rows), details(count(len(environment.packages), "package"), packages)))
