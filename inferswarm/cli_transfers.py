"""`inferswarm transfers`: what moved of models in a named swarm, by class and source, while it runs or after."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferswarm.cli_options import StateOption
from inferswarm.errors import SpecError


def transfers(
    name: Annotated[str, typer.Argument(help="The swarm's name.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line: each event.")] = False,
    picture: Annotated[Path | None, typer.Option("--picture", help="Write FILE.svg and FILE.png.")] = None,
    state: StateOption = None,
) -> None:
    """Show the byte ledger of a swarm. Starts nothing. Exit status 1: a number that must be 0 is not known to be."""
    from inferswarm.documents import canonical_bytes
    from inferswarm.fabric.transfer_records import read_transfers
    from inferswarm.swarm.state import default_state_directory, ledger_of
    from inferswarm.swarm.transfers_view import Transfers

    directory = state or default_state_directory()
    ledger = ledger_of(directory, name)
    if not ledger.is_file():
        known = sorted(path.stem for path in directory.glob("*.ledger"))
        raise SpecError("name", name, f"a swarm whose ledger is in {directory}: {known}")
    found = Transfers(read_transfers(ledger))
    if as_json:
        for record in found.records:
            for event in record.events:
                line = {"realization": record.realization, "generation": record.generation}
                typer.echo(canonical_bytes(line | {"event": event}))
    else:
        typer.echo(str(found), nl=False)
    if picture is not None:
        found.draw(picture.with_suffix(".svg"), picture.with_suffix(".png"))
    found.check()
