"""`inferswarm model publish`: read a model once and write its manifest, with every digest."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from inferswarm.artifacts.identity import UpstreamObject

LINES_PER_FILE = 10
"""How many lines of progress a file of weights gets at most."""


def publish(
    model: Annotated[
        str, typer.Argument(help="A known model, a GGUF file, a model directory, an hf:// id or an address.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the manifest goes.")],
    revision: Annotated[
        str | None,
        typer.Option("--revision", help="What this revision is called (default: its commit, or contents)."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the manifest of another model or of other contents.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Read every byte of a model once and write its manifest: what each of its parts is, by digest."""
    import msgspec

    from inferswarm.artifacts.describing import describe_model
    from inferswarm.artifacts.identity import Provenance
    from inferswarm.artifacts.manifest import CHECKPOINT, manifest_of
    from inferswarm.artifacts.manifest_files import check_target, save_manifest
    from inferswarm.artifacts.origins.opening import is_remote, open_origin
    from inferswarm.artifacts.publishing import content_revision, publish
    from inferswarm.strategies.catalog import model_name, resolve_headers, resolve_model
    from inferswarm.units import format_bytes

    # Of what is elsewhere the headers are enough: the pass itself reads all of it, once, from where it is.
    path = resolve_headers(model).path if is_remote(model) else resolve_model(model)
    described = describe_model(path)
    revision = revision or described.commit
    provenance = Provenance(
        model=model_name(model, path), revision=revision or "not yet known", representation=CHECKPOINT
    )
    layout = manifest_of(described.object, provenance, files=described.files, metadata=described.metadata)
    check_target(output, layout, replace=replace)  # before minutes of reading
    say = progress_lines(lambda line: typer.echo(line, file=sys.stderr if as_json else sys.stdout))
    manifest = publish(layout, lambda file: open_origin(file.uri, file), say)
    if revision is None:
        named = msgspec.structs.replace(provenance, revision=content_revision(manifest.files))
        manifest = msgspec.structs.replace(manifest, provenance=named)
    check_target(output, manifest, replace=replace)
    save_manifest(output, manifest)
    done = {
        "manifest": str(output),
        "digest": manifest.id,
        "model": manifest.provenance.model,
        "revision": manifest.provenance.revision,
        "hash_known_by": manifest.hash_known_by,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "entries": len(manifest.entries),
    }
    if as_json:
        typer.echo(json.dumps(done, indent=2))
        return
    typer.echo(
        f"{manifest.provenance.model}: {format_bytes(manifest.bytes)} read once; files: {len(manifest.files):,}, "
        f"entries: {len(manifest.entries):,}, all hashed"
    )
    typer.echo(f"revision {manifest.provenance.revision}")
    typer.echo(f"{output}: {manifest.id}")


def progress_lines(write: Callable[[str], None]) -> Callable[[UpstreamObject, int], None]:
    """Return a callback that writes a line for each tenth of a file that is read; one for a file of one piece."""
    from inferswarm.units import format_bytes

    last: dict[str, int] = {}

    def say(file: UpstreamObject, done: int) -> None:
        step = LINES_PER_FILE * done // max(file.length, 1)
        if step > last.get(file.uri, 0):
            last[file.uri] = step
            write(f"{file.uri}: {format_bytes(done)} of {format_bytes(file.length)}")

    return say
