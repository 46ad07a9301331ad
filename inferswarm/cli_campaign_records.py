"""`inferswarm campaign accept`, `waive`, `authorize`, `sign` and `keys`: what people say about runs."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from inferswarm.campaigns.layout import NANOSECONDS
from inferswarm.errors import SpecError

CampaignArgument = Annotated[str, typer.Argument(help="A campaign's name: its folder below experiments/.")]
EVIDENCE = Path("out/evidence")
"""Below the project: where nothing that is committed changes by accident."""
EvidenceOption = Annotated[
    Path | None, typer.Option("--evidence", help="Where records are kept (default: PROJECT/out/evidence).")
]
ProjectOption = Annotated[Path, typer.Option("--project", help="The directory with experiments/ and notebooks/.")]
AuthorOption = Annotated[str | None, typer.Option("--by", help="Who says it (default: the user's name).")]
ExpiresOption = Annotated[str, typer.Option("--expires", help="The last day on which it holds (UTC), YYYY-MM-DD.")]


def accept(
    campaign: CampaignArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why these runs are taken as they are.")],
    by: AuthorOption = None,
    evidence: EvidenceOption = None,
    project: ProjectOption = Path(),
) -> None:
    """Accept a campaign's runs as they are, up to the ledger's last line. Changes no disposition, allows nothing."""
    from inferswarm.campaigns.saying import accept_campaign, saying

    said = saying(by or getpass.getuser(), reason)
    typer.echo(accept_campaign(evidence or project / EVIDENCE, campaign, project, said))


def waive(
    campaign: CampaignArgument,
    arm: Annotated[str, typer.Argument(help="The arm that others need not wait for.")],
    reason: Annotated[str, typer.Option("--reason", help="Why its PASS is not waited for.")],
    expires: ExpiresOption,
    by: AuthorOption = None,
    evidence: EvidenceOption = None,
    project: ProjectOption = Path(),
) -> None:
    """Go on without an arm's PASS for a while: WAIVED, never PASS."""
    from inferswarm.campaigns.saying import saying, waive_arm

    said = saying(by or getpass.getuser(), reason)
    typer.echo(waive_arm(evidence or project / EVIDENCE, campaign, arm, project, end_of_day(expires), said))


def authorize(
    campaign: CampaignArgument,
    acceptance: Annotated[str, typer.Option("--acceptance", help="Digest of the acceptance that it rests on.")],
    allows: Annotated[str, typer.Option("--allows", help="What is allowed, in words.")],
    expires: ExpiresOption,
    by: AuthorOption = None,
    evidence: EvidenceOption = None,
    project: ProjectOption = Path(),
) -> None:
    """Allow something on the strength of an acceptance whose arms all passed or were waived."""
    from inferswarm.campaigns.saying import authorize as make_authorization
    from inferswarm.campaigns.saying import saying

    said = saying(by or getpass.getuser(), allows)
    root = evidence or project / EVIDENCE
    typer.echo(make_authorization(root, campaign, acceptance, end_of_day(expires), said))


def sign(
    run: Annotated[Path, typer.Argument(help="A run's directory.")],
    key: Annotated[Path, typer.Option("--key", help="The private key, as PEM.")],
) -> None:
    """Sign a finished run's statement with a local key (extra `sign`)."""
    from inferswarm.campaigns.signing import sign_run

    typer.echo(sign_run(run, key))


def keys(
    private: Annotated[Path, typer.Option("--private", help="Where the private key goes.")],
    public: Annotated[Path, typer.Option("--public", help="Where the public key goes.")],
) -> None:
    """Make a new Ed25519 key pair for signing runs (extra `sign`); print the key's id."""
    from inferswarm.campaigns.signing import make_keys

    typer.echo(make_keys(private, public))


def end_of_day(text: str) -> int:
    """Return the end of a day in UTC, in nanoseconds since 1970. Raises SpecError for what is no date."""
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError as error:
        raise SpecError("--expires", text, "a date as YYYY-MM-DD") from error
    return (int(day.timestamp()) + 24 * 3600) * NANOSECONDS
