"""Raw samples of a run as one table, one row for each sample, and its answers, one line for each.

Both files say in themselves which run they are of. Reading is strict: what is not exactly what the writer writes
(other columns, nulls, NaN, gaps in the order, a clock that runs backwards, an answer given twice, no run) is a
DocumentError, and nothing of the file is used. A file is read once, so that the bytes that were hashed can be those
that are judged: all readers take bytes as well as a path.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import polars as pl

from inferswarm.documents import Document, DocumentType, canonical_bytes, read_document
from inferswarm.errors import DocumentError

SAMPLE_SCHEMA = pl.Schema(
    {
        "series": pl.String,  # what was observed, such as "inter-token-seconds"
        "condition": pl.String,  # under which of the arm's conditions, "" where there is only one
        "key": pl.String,  # of which thing: a prompt, a Node, a cell of a grid
        "block": pl.Int32,  # repeat that it belongs to, from 0: samples of one block correlate
        "index": pl.Int64,  # place in the order in which the run's samples were taken, from 0, without gaps
        "at_seconds": pl.Float64,  # on a monotonic clock that starts with the arm
        "value": pl.Float64,  # finite; a truth is 1 or 0 with the unit "bool"
        "unit": pl.String,
        "warm_up": pl.Boolean,  # flagged, never dropped
    }
)
"""The columns of `samples.parquet`, none of them ever null."""

TRUTH_UNIT = "bool"
"""The unit of samples that are true (1) or false (0)."""
RUN_KEY = "inferswarm.run"
"""Where the metadata of a `samples.parquet` says which run it is of."""

_NO_PARQUET = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError)
"""What the reader raises for damaged files; it panics on some, and a panic is no Exception."""


class RunIdentity(Document, frozen=True, kw_only=True):
    """Which run samples and answers are of: in the table's metadata, and the first line of `outputs.jsonl`."""

    run_id: str
    nonce: str


REHEARSED = RunIdentity(run_id="", nonce="")
"""Of what was sampled outside of any run."""


class Output(Document, frozen=True, kw_only=True):
    """One answer: a line of `outputs.jsonl`. `logits_digest` is "" where logits were not compared."""

    condition: str
    key: str
    representation: str
    prompt_ids: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    token_ids: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    logits_digest: Annotated[str, msgspec.Meta(pattern=r"^(sha256:[0-9a-f]{64})?\Z")]


def read_samples(source: Path | bytes) -> pl.DataFrame:
    """Return the samples of a `samples.parquet`, given as a path or as its bytes, in the order of their index.

    Raises DocumentError when it is missing, is no parquet file, does not say of which run it is, or breaks any
    promise of `check_samples`.
    """
    data, name = _bytes_of(source, "samples.parquet")
    try:
        frame = pl.read_parquet(io.BytesIO(data))
    except _NO_PARQUET as error:
        raise DocumentError(name, f"is not a parquet file: {error}") from error
    samples_identity(data)
    check_samples(frame, name)
    return frame


def samples_identity(source: Path | bytes) -> RunIdentity:
    """Return of which run a `samples.parquet` says it is. Raises DocumentError when it does not say so."""
    data, name = _bytes_of(source, "samples.parquet")
    try:
        metadata = pl.read_parquet_metadata(io.BytesIO(data))
    except _NO_PARQUET as error:
        raise DocumentError(name, f"is not a parquet file: {error}") from error
    if RUN_KEY not in metadata:
        raise DocumentError(name, f"does not say of which run it is ({RUN_KEY} in its metadata)")
    return read_document(RunIdentity, metadata[RUN_KEY], name)


def write_samples(path: Path, frame: pl.DataFrame, run: RunIdentity) -> None:
    """Write samples of a run to a parquet file.

    Raises DocumentError, and writes nothing, for what a reader would refuse.
    """
    check_samples(frame, path.name)
    said = {RUN_KEY: canonical_bytes(run).decode()}
    frame.write_parquet(path, compression="zstd", statistics=False, metadata=said)


def check_samples(frame: pl.DataFrame, source: str) -> None:
    """Raise DocumentError naming `source` unless a table is one of samples.

    Exactly the columns of SAMPLE_SCHEMA, no null, finite numbers, index 0..n-1 in order, times that never go back,
    blocks from 0, a name and a unit for each sample, one unit for each series, truths that are 1 or 0 and no warm-up,
    and warm-ups only before a judged sample of the same series, condition, key and block.
    """
    if list(frame.schema.items()) != list(SAMPLE_SCHEMA.items()):
        raise DocumentError(source, f"has the columns {_columns(frame.schema)}, needed {_columns(SAMPLE_SCHEMA)}")
    times, values, blocks = frame["at_seconds"], frame["value"], frame["block"]
    broken = [
        *(f"has {count} nulls in {name}" for name in frame.columns if (count := frame[name].null_count())),
        *(
            f"has a {name} that is not finite"
            for name in ("at_seconds", "value")
            if not frame[name].is_finite().all()
        ),
    ]
    if not broken:
        series = frame.group_by("series").agg(pl.col("unit").n_unique()).filter(pl.col("unit") > 1)
        truths = frame.filter(pl.col("unit") == TRUTH_UNIT)["value"]
        faults = {
            "has an index that does not count its rows from 0": not frame["index"].equals(
                pl.int_range(len(frame), eager=True)
            ),
            "has a time before the arm's start": bool((times < 0).any()),
            "has times that go back": bool((times.diff().drop_nulls() < 0).any()),
            "has a block below 0": bool((blocks < 0).any()),
            "has a sample without a series or a unit": bool(((frame["series"] == "") | (frame["unit"] == "")).any()),
            "has a series in several units": not series.is_empty(),
            "has a truth that is neither 1 nor 0": not truths.is_in([0.0, 1.0]).all(),
            "has a truth that is a warm-up": bool((frame["warm_up"] & (frame["unit"] == TRUTH_UNIT)).any()),
            "has a warm-up that nothing judged follows, or that follows what is judged": not _warm_first(frame),
        }
        broken = [what for what, wrong in faults.items() if wrong]
    if broken:
        raise DocumentError(source, f"{'; '.join(broken)} (of {len(values)} samples)")


def _warm_first(frame: pl.DataFrame) -> bool:
    """Return whether the warm-ups of each series, condition, key and block come before something that is judged."""
    if not frame["warm_up"].any():
        return True
    flags = frame.group_by("series", "condition", "key", "block").agg(
        pl.col("warm_up").last().alias("ends_warm"),
        (pl.col("warm_up").cast(pl.Int8).diff() > 0).any().alias("turns_warm"),
    )
    return not (flags["ends_warm"] | flags["turns_warm"]).any()


def read_outputs(source: Path | bytes) -> tuple[Output, ...]:
    """Return the answers of an `outputs.jsonl`, given as a path or as its bytes, in their order.

    Raises DocumentError when it is missing, a line is not the canonical bytes of what it must be (the first says of
    which run they are, each other is an answer; the last one needs its end of line too), or one condition answers a
    key twice.
    """
    lines, name = _lines_of(source)
    _read_line(RunIdentity, lines, 0, name)
    outputs = tuple(_read_line(Output, lines, index, name) for index in range(1, len(lines)))
    _refuse_twice(outputs, name)
    return outputs


def outputs_identity(source: Path | bytes) -> RunIdentity:
    """Return of which run an `outputs.jsonl` says it is. Raises DocumentError when it does not say so."""
    lines, name = _lines_of(source)
    return _read_line(RunIdentity, lines, 0, name)


def write_outputs(path: Path, outputs: Iterable[Output], run: RunIdentity) -> None:
    """Write the answers of a run, one canonical line each, after a line that says which run it is.

    Raises DocumentError when one condition answers a key twice.
    """
    given = tuple(outputs)
    _refuse_twice(given, path.name)
    path.write_bytes(b"".join(canonical_bytes(line) + b"\n" for line in (run, *given)))


def _lines_of(source: Path | bytes) -> tuple[list[bytes], str]:
    data, name = _bytes_of(source, "outputs.jsonl")
    if not data.endswith(b"\n"):
        raise DocumentError(name, "ends in the middle of a line" if data else "does not say of which run it is")
    return data.split(b"\n")[:-1], name


def _read_line(kind: type[DocumentType], lines: list[bytes], index: int, name: str) -> DocumentType:
    where = f"{name}, line {index + 1}"
    document = read_document(kind, lines[index], where)
    if canonical_bytes(document) != lines[index]:
        raise DocumentError(where, "is not in canonical form")
    return document


def _refuse_twice(outputs: Iterable[Output], source: str) -> None:
    seen = set()
    for output in outputs:
        if (which := (output.condition, output.key)) in seen:
            raise DocumentError(source, f"has the answer of condition {which[0]!r} to {which[1]!r} twice")
        seen.add(which)


def _bytes_of(source: Path | bytes, name: str) -> tuple[bytes, str]:
    if isinstance(source, bytes):
        return source, name
    try:
        return source.read_bytes(), os.fspath(source)
    except OSError as error:
        raise DocumentError(os.fspath(source), f"cannot be read: {error.strerror or error}") from error


def _columns(schema: pl.Schema) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in schema.items())
