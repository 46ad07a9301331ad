"""`inferswarm campaign report` and `compare`: what runs came to, for people. Neither starts nor changes anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferswarm.errors import SpecError

if TYPE_CHECKING:
    from inferswarm.views.campaigns import CampaignsView, ComparisonView, RunView

RunArgument = Annotated[Path, typer.Argument(help="A run's directory.")]
ProjectOption = Annotated[
    Path | None,
    typer.Option("--project", help="Where the campaigns and their repository are (default: found above RUN)."),
]


def report(
    run: Annotated[Path, typer.Argument(help="A run's directory, or an evidence root for all campaigns.")],
    html: Annotated[Path | None, typer.Option("--html", help="Write the report as one HTML file.")] = None,
    project: ProjectOption = None,
) -> None:
    """Verify a run, or all of an evidence root, and show every expectation and what is not proven."""
    from inferswarm.campaigns.layout import RUN_ID
    from inferswarm.campaigns.verify import project_of, verify_root
    from inferswarm.views.campaigns import CampaignsView, RunView

    verdict = verify_root(run, project or project_of(run))
    is_run = RUN_ID.fullmatch(run.resolve().name) is not None
    view = RunView(run, verdict.runs[0], verdict.verifier) if is_run else CampaignsView(verdict)
    _show(view, html)


def compare(
    left: RunArgument,
    right: RunArgument,
    html: Annotated[Path | None, typer.Option("--html", help="Write the comparison as one HTML file.")] = None,
) -> None:
    """Show two runs beside each other: medians, bounds and ratios of every series, and what else differs."""
    from inferswarm.campaigns.bundle import read_run
    from inferswarm.views.campaigns import ComparisonView

    view = ComparisonView(read_run(left), read_run(right))
    _show(view, html)


def _show(view: CampaignsView | RunView | ComparisonView, html: Path | None) -> None:
    if html is None:
        typer.echo(str(view), nl=False)
        return
    try:
        html.write_text(view.html(), encoding="utf-8")
    except OSError as error:
        raise SpecError("--html", str(html), f"a file that can be written ({error.strerror})") from error
    typer.echo(f"{view!r}\nwritten to {html}")
