"""`inferswarm store`: what a Node's content store holds, whether it is right, and what can go."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferswarm.cli_options import StateOption
from inferswarm.errors import SpecError

if TYPE_CHECKING:
    from inferswarm.artifacts.store import Inventory

EXIT_DAMAGED = 1
STORES = "stores"
"""Below the state directory: one store for each Node of this machine."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_AGE = re.compile(r"([0-9]{1,9})([smhd])")
_AGE_NEEDED = "an age such as 30m, 12h or 7d"

store_app = typer.Typer(help="Verified model bytes that are kept on this machine.", no_args_is_help=True)
RootOption = Annotated[
    Path | None,
    typer.Option("--root", help="One store (default: every store below the state directory)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document a line, one for each store.")]


@store_app.command("ls")
def ls(root: RootOption = None, state: StateOption = None, as_json: JsonOption = False) -> None:
    """List what is published: digest, bytes, why it is kept and for whom; then its owners. Nothing is hashed."""
    from inferswarm.artifacts.store import ContentStore
    from inferswarm.artifacts.store_scopes import lives, scope_of
    from inferswarm.documents import canonical_bytes
    from inferswarm.units import format_bytes

    for place in _roots(root, state):
        with ContentStore(place, create=False) as store:
            inventory = store.inventory()
        owned = _owned(inventory)
        living = sorted({scope for scope in map(scope_of, owned) if lives(store.root, scope)})
        if as_json:
            typer.echo(canonical_bytes(inventory._asdict() | {"root": str(store.root), "living": living}))
            continue
        for blob in inventory.blobs:
            owners = ", ".join(blob.owners)
            typer.echo(f"{blob.sha256}  {format_bytes(blob.length):>8}  {blob.kind:<8}  {owners}".rstrip())
        for owner, lengths in owned.items():
            standing = "its swarm lives" if scope_of(owner) in living else "its swarm has ended"
            typer.echo(f"{owner}: {len(lengths)} blobs, {format_bytes(sum(lengths))}; {standing}")
        typer.echo(
            f"{store.root}: {len(inventory.blobs)} blobs, {format_bytes(inventory.bytes)}, "
            f"sequence {inventory.sequence}"
        )


@store_app.command("verify")
def verify(root: RootOption = None, state: StateOption = None, as_json: JsonOption = False) -> None:
    """Hash everything again. What is altered goes into quarantine, and the exit status is 1."""
    from inferswarm.artifacts.store import ContentStore
    from inferswarm.documents import canonical_bytes
    from inferswarm.units import format_bytes

    is_damaged = False
    for place in _roots(root, state):
        with ContentStore(place, create=False) as store:
            report = store.verify()
        is_damaged |= bool(report.damaged)
        if as_json:
            typer.echo(canonical_bytes(report))
            continue
        for finding in (*report.damaged, *report.strays):
            typer.echo(f"{finding.path}: {finding.reason}")
        typer.echo(
            f"{report.root}: {report.verified} blobs right ({format_bytes(report.bytes)}), "
            f"{len(report.damaged)} damaged, {len(report.strays)} files that are none"
        )
    if is_damaged:
        raise typer.Exit(EXIT_DAMAGED)


@store_app.command("gc")
def gc(
    root: RootOption = None,
    state: StateOption = None,
    free: Annotated[
        str | None, typer.Option("--free", help="Only until so much is free, such as 2GB (default: all that can go).")
    ] = None,
    partials_older_than: Annotated[
        str, typer.Option("--partials-older-than", help=f"Unfinished transfers that rest so long: {_AGE_NEEDED}.")
    ] = "1d",
    release: Annotated[
        str | None,
        typer.Option(
            "--release", help="First let go what this owner keeps, or all of a swarm; not while that lives."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove what nobody needs, the longest unused first. What is required, or kept as a replica, stays."""
    from inferswarm.artifacts.store import ContentStore
    from inferswarm.documents import canonical_bytes
    from inferswarm.units import format_bytes, parse_bytes

    wanted = None if free is None else parse_bytes(free, "free")
    age, places = _read_age(partials_older_than), _roots(root, state)
    if release is not None:
        _release(places, release, dry_run=dry_run)
    for place in places:
        with ContentStore(place, create=False) as store:
            done = store.collect(wanted, age, remove=not dry_run)
        if as_json:
            typer.echo(canonical_bytes(done))
            continue
        for sha256 in done.blobs:
            typer.echo(sha256)
        verb = "would remove" if dry_run else "removed"
        typer.echo(
            f"{done.root}: {verb} {len(done.blobs)} blobs ({format_bytes(done.blob_bytes)}) and {done.partials} "
            f"unfinished transfers ({format_bytes(done.partial_bytes)})"
        )


def _owned(inventory: Inventory) -> dict[str, list[int]]:
    """Return for each owner, in order, how long its blobs are; results of transforms belong to no swarm."""
    from inferswarm.artifacts.transforms import RESULT_OWNER

    found: dict[str, list[int]] = {}
    for blob in inventory.blobs:
        for owner in blob.owners:
            if not owner.startswith(RESULT_OWNER):
                found.setdefault(owner, []).append(blob.length)
    return dict(sorted(found.items()))


def _release(places: list[Path], wanted: str, *, dry_run: bool) -> None:
    """Let go what an owner keeps, or every owner of a swarm. Raises SpecError for one unknown, or while it lives."""
    from inferswarm.artifacts.store import ContentStore
    from inferswarm.artifacts.store_scopes import dead_scope, scope_of

    with dead_scope(places, scope_of(wanted)):
        known: dict[Path, list[str]] = {}
        for place in places:
            with ContentStore(place, create=False) as store:
                known[place] = list(_owned(store.inventory()))
        meant = {
            place: [name for name in owners if wanted in (name, scope_of(name))] for place, owners in known.items()
        }
        if not any(meant.values()):
            raise SpecError(
                "release", wanted, f"one of {sorted({name for owners in known.values() for name in owners})}"
            )
        for place, owners in meant.items():
            with ContentStore(place, create=False) as store:
                for name in owners:
                    if not dry_run:
                        store.release(name)
                    typer.echo(f"{store.root}: {'would release' if dry_run else 'released'} {name}", err=True)


def _roots(root: Path | None, state: Path | None) -> list[Path]:
    """Return the roots that are meant. Raises SpecError when there is none."""
    from inferswarm.swarm.state import default_state_directory

    if root is not None:
        return [root]
    directory = (state or default_state_directory()) / STORES
    roots = sorted(path for path in directory.glob("*") if path.is_dir())
    if not roots:
        raise SpecError("store", str(directory), "a directory with stores in it, or --root DIRECTORY")
    return roots


def _read_age(text: str) -> float:
    """Return the seconds of an age. Raises SpecError for a text that is none."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise SpecError("partials-older-than", text, _AGE_NEEDED)
    return int(found[1]) * _SECONDS[found[2]]
