"""`inferswarm events`: what happened in a swarm, oldest first, while it runs or after."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Annotated

import typer

from inferswarm.cli_options import StateOption
from inferswarm.errors import SpecError

_AGO = re.compile(r"([0-9]{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NEEDED = "an age such as 90s, 10m, 2h or 1d, or a time with its zone such as 2026-01-31T12:00:00Z"


def events(
    name: Annotated[str | None, typer.Argument(help="The swarm's name (default: health alone).")] = None,
    since: Annotated[str | None, typer.Option("--since", help=f"Only what is not older: {_NEEDED}.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")] = False,
    state: StateOption = None,
) -> None:
    """Print what happened: changes of authority and refusals of a named swarm, and of health. Starts nothing."""
    from inferswarm.documents import canonical_bytes
    from inferswarm.swarm.event_log import swarm_events
    from inferswarm.swarm.state import default_state_directory, ledger_of, prepare_state_directory

    directory = prepare_state_directory(state or default_state_directory())
    ledger = None if name is None else ledger_of(directory, name)
    if ledger is not None and not ledger.is_file():
        known = sorted(path.stem for path in directory.glob("*.ledger"))
        raise SpecError("name", name, f"a swarm whose ledger is in {directory}: {known}")
    try:
        for event in swarm_events(ledger, directory, since_ns=read_since(since), follow=follow):
            typer.echo(canonical_bytes(event) if as_json else str(event))
    except KeyboardInterrupt:
        return


def read_since(text: str | None, now_ns: int | None = None) -> int:
    """Return the moment that is meant, in nanoseconds since 1970; 0 for None.

    Raises SpecError for a text that names none, and for a time without its zone.

    >>> read_since("2h", 7200 * 10**9), read_since("1970-01-01T00:00:01Z")
    (0, 1000000000)
    """
    if text is None:
        return 0
    if (ago := _AGO.fullmatch(text)) is not None:
        now = time.time_ns() if now_ns is None else now_ns
        return max(0, now - int(ago[1]) * _SECONDS[ago[2]] * 10**9)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise SpecError("since", text, _NEEDED) from error
    if moment.tzinfo is None:
        raise SpecError("since", text, _NEEDED)
    return max(0, int(moment.timestamp()) * 10**9 + moment.microsecond * 1000)
