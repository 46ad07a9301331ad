"""`inferswarm campaign`: runs the arms of a campaign, and says which there are."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from inferswarm.cli_campaign_records import (
    EVIDENCE,
    CampaignArgument,
    EvidenceOption,
    ProjectOption,
    accept,
    authorize,
    keys,
    sign,
    waive,
)
from inferswarm.cli_campaign_report import compare, report

EXIT_NOT_PASSED = 5
"""Every record was written, and not every arm that was run is a PASS; as `inferswarm verify` has it."""
EXIT_SIGNALLED = 128
"""Plus the number of the signal, as shells have it."""
campaign_app = typer.Typer(help="Campaigns: claims, arms that test them, their records.", no_args_is_help=True)
for command in (accept, waive, authorize, sign, keys, report, compare):
    campaign_app.command()(command)


@campaign_app.command("run")
def run(
    campaign: CampaignArgument,
    arm: Annotated[
        list[str] | None, typer.Option("--arm", help="Only this arm (default: all, in order). Repeat for several.")
    ] = None,
    evidence: EvidenceOption = None,
    project: ProjectOption = Path(),
) -> None:
    """Run arms, each in a process of its own with a deadline. Exit status 0: each is a PASS; 5: not each is."""
    from inferswarm.campaigns.runner import run_campaign
    from inferswarm.strategies.catalog import resolve_model

    done = run_campaign(
        campaign,
        project=project,
        evidence=evidence or project / EVIDENCE,
        say=_say,
        find_model=resolve_model,
        arms=arm or (),
    )
    for made in done.runs:
        typer.echo(f"{made.concluded.disposition:<10}  {made.arm}  {made.directory}")
    if done.stopped_by is not None:
        typer.echo(f"ended by {done.stopped_by}")
        raise typer.Exit(EXIT_SIGNALLED + signal.Signals[done.stopped_by])
    if any(made.concluded.disposition != "PASS" for made in done.runs):
        raise typer.Exit(EXIT_NOT_PASSED)


@campaign_app.command("list")
def list_campaigns(evidence: EvidenceOption = None, project: ProjectOption = Path()) -> None:
    """List the project's campaigns with what the ledger says of their arms. Nothing is verified."""
    from inferswarm.campaigns.listing import list_lines

    for line in list_lines(project, evidence or project / EVIDENCE, time.time_ns()):
        typer.echo(line)


@campaign_app.command("show")
def show(campaign: CampaignArgument, evidence: EvidenceOption = None, project: ProjectOption = Path()) -> None:
    """Show one campaign: arms, expectations, attempts. Nothing is verified."""
    from inferswarm.campaigns.listing import show_lines

    for line in show_lines(campaign, project, evidence or project / EVIDENCE, time.time_ns()):
        typer.echo(line)


def _say(arm: str, text: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {arm}: {text}")
