"""`inferswarm health`: what is in force, accept what is measured now, check again what is shut or degraded."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from inferswarm.cli_options import (
    BackendOption,
    MechanismOption,
    NodeOption,
    StateOption,
    progress_printer,
    read_envelopes,
)

if TYPE_CHECKING:
    from inferswarm.swarm.health_view import HealthView

EXIT_STILL_IMPAIRED = 1
health_app = typer.Typer(help="Health of the resources: five axes, alerts, quarantines.")
JsonOption = Annotated[bool, typer.Option("--json", help="Print the health report document.")]


@health_app.callback(invoke_without_command=True)
def _default(context: typer.Context) -> None:
    """Health of the resources: five axes, alerts, quarantines. Without a command: list."""
    if context.invoked_subcommand is None:
        list_health()


@health_app.command("list")
def list_health(node: NodeOption = None, state: StateOption = None, as_json: JsonOption = False) -> None:
    """List what is in force. Starts nothing; the Nodes given are named in it."""
    from inferswarm.documents import write_document

    view = _view(node, state)
    typer.echo(write_document(view.document) if as_json else str(view), nl=False)


@health_app.command("accept")
def accept(
    reason: Annotated[str, typer.Option("--reason", help="Why this is what to expect from now on.")],
    by: Annotated[str | None, typer.Option("--by", help="Who accepts it (default: the user's name).")] = None,
    runs: Annotated[int, typer.Option("--runs", help="How many of the newest records of each question.")] = 1,
    node: NodeOption = None,
    state: StateOption = None,
    mechanism: MechanismOption = "auto",
) -> None:
    """Accept what is measured now as reference baselines. Nothing else ever moves them."""
    from inferswarm.swarm import Swarm

    with Swarm.local(read_envelopes(node), state=state, mechanism=mechanism) as swarm:
        accepted = swarm.accept_baselines(by or getpass.getuser(), reason, num_runs=runs)
    typer.echo(f"{len(accepted.baselines)} baselines accepted, {len(accepted.left_out)} questions left out")
    for text in accepted.left_out:
        typer.echo(f"  {text}")


@health_app.command("revalidate")
def revalidate(
    scope: Annotated[str, typer.Argument(help="KIND ID as `list` writes them, such as 'node node-1f…'.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="The model, where alerts are about one.")] = None,
    backend: BackendOption = None,
    node: NodeOption = None,
    state: StateOption = None,
    mechanism: MechanismOption = "auto",
) -> None:
    """Check a scope again, really. Exit status 1: something still speaks against it."""
    from inferswarm.evidence.health import exclusions
    from inferswarm.swarm import Model, Swarm
    from inferswarm.swarm.health_watch import read_scope

    wanted = read_scope(scope)
    opened = None if model is None else Model(model, backend)
    with Swarm.local(read_envelopes(node), state=state, mechanism=mechanism) as swarm:
        health = swarm.revalidate(wanted, opened, on_progress=progress_printer())
        found = exclusions(health)
        degraded = health.performance.state == "degraded"
    for item in found:
        typer.echo(f"{item.axis}: {item.reason}")
    if degraded:
        typer.echo(f"performance: {wanted} is degraded: {health.performance.detail}")
    if found or degraded:
        raise typer.Exit(EXIT_STILL_IMPAIRED)
    typer.echo(f"{wanted}: nothing speaks against it")


def _view(node: list[str] | None, state: StateOption) -> HealthView:
    """Read the journal of a state directory, with the names of this machine's Nodes or of the given ones."""
    from inferswarm.evidence.store import ObservationStore
    from inferswarm.resources.discovery import discover
    from inferswarm.resources.virtual import graph_of_envelopes, graph_of_host
    from inferswarm.swarm.health import HealthKeeper
    from inferswarm.swarm.health_view import HealthView
    from inferswarm.swarm.state import default_state_directory, prepare_state_directory

    directory = prepare_state_directory(state or default_state_directory())
    inventory = discover("local", directory, disk_paths=(directory,))
    nodes = read_envelopes(node)
    graph = graph_of_envelopes(inventory, "local", nodes, {}, "none") if nodes else graph_of_host(inventory, "local")
    keeper = HealthKeeper(directory, ObservationStore(directory / "observations"))
    return HealthView(keeper.report(), graph)
