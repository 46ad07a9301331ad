"""`inferswarm verify`: what evidence comes to, computed again from what lies there. Needs the base install only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferswarm.errors import SpecError

if TYPE_CHECKING:
    from inferswarm.campaigns.laws import Finding
    from inferswarm.campaigns.verdicts import CampaignVerdict, RootVerdict, RunVerdict

EXIT_BROKEN = 4
"""A record is missing, altered or contradicts itself."""
EXIT_NOT_PASSED = 5
"""Every record is sound, and a campaign of which it was required is no PASS."""
EXIT_NO_PROVENANCE = 6
"""Every record is sound, and nothing shows that a passed run is of the commit that it names, or that no line that was
committed is gone."""
MOST_LINES = 3
"""So many findings of a run are shown, unless all are asked for; what is broken is always shown."""

PathArgument = Annotated[
    Path, typer.Argument(help="An evidence root, a campaign of one, or a run (default: evidence).")
]


def verify(
    path: PathArgument = Path("evidence"),
    project: Annotated[
        Path | None,
        typer.Option("--project", help="Where the campaigns and their repository are (default: found above PATH)."),
    ] = None,
    require_pass: Annotated[
        list[str] | None,
        typer.Option("--require-pass", help="A campaign that must be a PASS. Repeat for several."),
    ] = None,
    key: Annotated[
        list[Path] | None,
        typer.Option("--key", help="A public key (PEM): every run must be signed by it. Repeat for any of several."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict document.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show every finding, proven ones too.")] = False,
) -> None:
    """Verify evidence. Exit status 0: sound, and of its commits; 4: broken; 5: no PASS; 6: no provenance."""
    from inferswarm.campaigns.spec import read_bytes
    from inferswarm.campaigns.verify import project_of, verify_root
    from inferswarm.documents import write_document

    if not path.exists():
        raise SpecError("evidence", str(path), "a directory that is there")
    keys = [read_bytes(item, "key") for item in key or ()]
    verdict = verify_root(path, project or project_of(path), public_keys=keys)
    if as_json:
        typer.echo(write_document(verdict), nl=False)
    else:
        for line in verdict_lines(verdict, show_all):
            typer.echo(line)
    if status := exit_status(verdict, require_pass or ()):
        raise typer.Exit(status)


def exit_status(verdict: RootVerdict, require_pass: list[str] | tuple[str, ...]) -> int:
    """Return the status for a verdict: what is broken comes first, then what is required, then what is not known."""
    passed = {campaign.campaign for campaign in verdict.campaigns if campaign.state == "PASS"}
    if not verdict.is_sound:
        return EXIT_BROKEN
    if set(require_pass) - passed:
        return EXIT_NOT_PASSED
    return 0 if verdict.is_provenance_proven else EXIT_NO_PROVENANCE


def verdict_lines(verdict: RootVerdict, show_all: bool = False) -> Iterator[str]:
    """Yield a verdict as lines for people."""
    for campaign in verdict.campaigns:
        yield from _campaign_lines(campaign)
    for run in verdict.runs:
        yield from _run_lines(run, show_all)
    for finding in verdict.findings:
        if show_all or finding.state != "PROVEN":
            yield _finding_line(finding)
    if any(_is_unsigned(run) for run in verdict.runs):
        from inferswarm.campaigns.signatures import UNSIGNED

        yield UNSIGNED
    yield (
        "every record is sound" if verdict.is_sound else "BROKEN: a record is missing, altered or contradicts itself"
    )
    if not verdict.is_provenance_proven:
        yield f"provenance is not proven: {_why_no_provenance(verdict)}"
    verifier = verdict.verifier
    yield f"ledger head {verdict.head}"
    yield f"verified by inferswarm {verifier.version}, package {verifier.package_digest}"


def _campaign_lines(campaign: CampaignVerdict) -> Iterator[str]:
    earlier = (
        f", earlier editions {', '.join(map(str, campaign.earlier_editions))}" if campaign.earlier_editions else ""
    )
    accepted = ", accepted" if campaign.accepted else ""
    yield f"{campaign.state}  {campaign.campaign}, edition {campaign.edition}{earlier}{accepted}: {campaign.claim}"
    for arm in campaign.arms:
        waived = f", {arm.without_waiver} without the waiver" if arm.state == "WAIVED" else ""
        attempts = "1 attempt" if arm.attempts == 1 else f"{arm.attempts} attempts"
        yield f"  {arm.state:<10}  {arm.arm}, {attempts}{waived}"
    for allowed in campaign.authorizations:
        yield f"  authorized: {allowed}"


def _run_lines(run: RunVerdict, show_all: bool) -> Iterator[str]:
    recorded = "" if run.recorded == run.disposition else f" (recorded: {run.recorded or 'nothing'})"
    yield f"{run.disposition}{recorded}  {run.campaign}/{run.run_id}, attempt {run.attempt}"
    shown = 0
    for finding in run.findings:
        is_plain = finding.state == "PROVEN" or (finding.law == "signature" and finding.state == "UNPROVEN")
        if show_all or finding.state == "BROKEN" or (not is_plain and shown < MOST_LINES):
            shown += 1
            yield _finding_line(finding)


def _finding_line(finding: Finding) -> str:
    found = "" if finding.found == finding.expected else f", found {finding.found}"
    return f"  {finding.state:<8}  {finding.law}: {finding.path}: needed {finding.expected}{found}"


def _is_unsigned(run: RunVerdict) -> bool:
    return any(finding.law == "signature" and finding.state == "UNPROVEN" for finding in run.findings)


def _why_no_provenance(verdict: RootVerdict) -> str:
    for finding in verdict.findings:
        if finding.law == "ledger-chain" and finding.state == "UNPROVEN":
            return f"{finding.path}: {finding.found}"
    for run in verdict.runs:
        for finding in run.findings:
            is_of_law = finding.law in ("expectations-committed", "package-at-commit")
            if run.disposition == "PASS" and is_of_law and finding.state != "PROVEN":
                return f"{run.run_id}: {finding.found}"
    return ""
