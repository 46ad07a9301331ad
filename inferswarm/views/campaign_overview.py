"""Campaigns at a glance: their arms, gates and dispositions, every attempt, and whether the records are sound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inferswarm.campaigns.laws import State
from inferswarm.campaigns.verdicts import ArmVerdict, CampaignVerdict, RootVerdict, RunVerdict
from inferswarm.units import format_seconds
from inferswarm.views.campaign_report import QUALITIES
from inferswarm.views.labels import count, short_digest
from inferswarm.views.markup import Content, Markup, badge, details, element, page, table
from inferswarm.views.text import format_table

ARM_HEADERS = ("arm", "comes to", "attempts", "correctness", "performance", "rests on")
RUN_HEADERS = (
    "run",
    "attempt",
    "came to",
    "recorded as",
    "correctness",
    "performance",
    "provenance",
    "took",
    "commit",
)
MARKS = {State.PROVEN: "proven", State.BROKEN: "broken", State.UNPROVEN: "unproven"}
NOT_CHECKED = "—"


def overview_html(verdict: RootVerdict) -> Markup:
    """Return all campaigns as a fragment; everything is escaped."""
    parts: list[Content] = [element("div", summary(verdict), kind="title")]
    for campaign in verdict.campaigns:
        runs = runs_of(verdict, campaign)
        rows = [
            (
                element("b", arm.arm),
                _badge(arm.state),
                str(arm.attempts),
                *map(_badge, gates_of(arm, runs)),
                _rests(arm),
            )
            for arm in campaign.arms
        ]
        attempts = [
            (
                run.run_id,
                str(run.attempt),
                _badge(run.disposition),
                *(_badge(cell) for cell in _states(run)),
                *_facts(run),
            )
            for run in runs
        ]
        parts += [
            element("div", campaign.campaign, " ", _badge(campaign.state), " ", campaign.claim, kind="title"),
            table(ARM_HEADERS, rows, frozenset({2})),
            details(count(len(runs), "attempt"), table(RUN_HEADERS, attempts, frozenset({1, 7}))),
            *(element("div", line, kind="faint") for line in _said(campaign)),
        ]
    wrong = [finding for finding in verdict.findings if finding.state is not State.PROVEN]
    if wrong:
        rows = [
            (finding.law, _badge(finding.state), finding.path, finding.expected, finding.found) for finding in wrong
        ]
        parts.append(table(("law", "state", "where", "expected", "found"), rows))
    parts.append(element("div", _signed_by(verdict), kind="faint"))
    return page(*parts)


def overview_text(verdict: RootVerdict) -> str:
    """Return all campaigns as plain text."""
    parts = [summary(verdict)]
    for campaign in verdict.campaigns:
        runs = runs_of(verdict, campaign)
        rows = [(arm.arm, arm.state, str(arm.attempts), *gates_of(arm, runs), _rests(arm)) for arm in campaign.arms]
        parts.append(f"{campaign.campaign}, edition {campaign.edition}: {campaign.state}: {campaign.claim}")
        parts.append(format_table(ARM_HEADERS, rows, frozenset({2})))
        parts.extend(_said(campaign))
    for finding in verdict.findings:
        if finding.state is not State.PROVEN:
            parts.append(f"{finding.state} {finding.law}: {finding.path}: {finding.found}; needed {finding.expected}")
    return "\n\n".join([*parts, _signed_by(verdict).replace("; ", "\n")]) + "\n"


def summary(verdict: RootVerdict) -> str:
    """Return one line: how many campaigns and runs, whether their records are sound and where they come from."""
    sound = "every record is sound" if verdict.is_sound else "records are BROKEN"
    known = "provenance proven" if verdict.is_provenance_proven else "provenance not proven"
    states = ", ".join(f"{item.campaign} {item.state}" for item in verdict.campaigns) or "nothing was run"
    return (
        f"{count(len(verdict.campaigns), 'campaign')}, {count(len(verdict.runs), 'run')}: {states}; {sound}, {known}"
    )


def runs_of(verdict: RootVerdict, campaign: CampaignVerdict) -> tuple[RunVerdict, ...]:
    """Return the runs of a campaign's edition that counts, in the verdict's order."""
    return tuple(run for run in verdict.runs if (run.campaign, run.edition) == (campaign.campaign, campaign.edition))


def gates_of(arm: ArmVerdict, runs: Sequence[RunVerdict]) -> tuple[str, str]:
    """Return what all attempts of an arm say of the two gates: broken by one, else proven by one, else not."""
    return _gate(run.correctness for run in runs if run.arm == arm.arm), _gate(
        run.performance for run in runs if run.arm == arm.arm
    )


def _gate(states: Iterable[State]) -> str:
    found = set(states)
    for state in (State.BROKEN, State.PROVEN, State.UNPROVEN):
        if state in found:
            return MARKS[state]
    return NOT_CHECKED


def _badge(text: str) -> Markup:
    return badge(text, QUALITIES.get(text.upper(), ""))


def _states(run: RunVerdict) -> tuple[str, ...]:
    gates = (MARKS[run.correctness], MARKS[run.performance], MARKS[run.provenance])
    return run.recorded or "nothing", *gates


def _facts(run: RunVerdict) -> tuple[str, str]:
    took = "unknown" if run.seconds is None else format_seconds(run.seconds)
    return took, f"{short_digest(run.commit)}{' with changes' if run.is_dirty else ''}" if run.commit else "none"


def _rests(arm: ArmVerdict) -> str:
    return ", ".join(short_digest(item) if item.startswith("sha256:") else item for item in arm.carriers)


def _said(campaign: CampaignVerdict) -> list[str]:
    lines = [f"accepted: {short_digest(item)}" for item in campaign.accepted]
    lines += [f"authorized: {item}" for item in campaign.authorizations]
    if campaign.earlier_editions:
        lines.append(f"earlier editions, which do not count: {', '.join(map(str, campaign.earlier_editions))}")
    return lines or ["nobody has accepted it, and it authorizes nothing"]


def _signed_by(verdict: RootVerdict) -> str:
    by = verdict.verifier
    return f"ledger head {verdict.head}; verified by {by.version}, package {by.package_digest}"
