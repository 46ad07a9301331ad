"""Raw samples of a run as one table, one row for each sample, and its answers, one line for each.

Reading is strict: what is not exactly what the writer writes (other columns, nulls, NaN, gaps in the order, a clock
that runs backwards, an answer given twice) is a DocumentError, and nothing of the file is used. A file is read once,
so that the bytes that were hashed can be those that are judged: both readers take bytes as well as a path.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import polars as pl

from inferswarm.documents import Document, canonical_bytes, read_document
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


class Output(Document, frozen=True, kw_only=True):
    """One answer: a line of `outputs.jsonl`. `logits_digest` is "" where logits were not compared."""

    condition: str
    key: str
    representation: str
    prompt_ids: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    token_ids: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    logits_digest: Annotated[str, msgspec.Meta(pattern=r"^(sha256:[0-9a-f]{64})?$")]


def read_samples(source: Path | bytes) -> pl.DataFrame:
    """Return the samples of a `samples.parquet`, given as a path or as its bytes, in the order of their index.

    Raises DocumentError when it is missing, is no parquet file or breaks any promise of `check_samples`.
    """
    data, name = _bytes_of(source, "samples.parquet")
    try:
        frame = pl.read_parquet(io.BytesIO(data))
    # The reader panics on some damaged files, and a panic is no Exception.
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        raise DocumentError(name, f"is not a parquet file: {error}") from error
    check_samples(frame, name)
    return frame


def write_samples(path: Path, frame: pl.DataFrame) -> None:
    """Write samples to a parquet file. Raises DocumentError, and writes nothing, for what a reader would refuse."""
    check_samples(frame, path.name)
    frame.write_parquet(path, compression="zstd", statistics=False)


def check_samples(frame: pl.DataFrame, source: str) -> None:
    """Raise DocumentError naming `source` unless a table is one of samples.

    Exactly the columns of SAMPLE_SCHEMA, no null, finite numbers, index 0..n-1 in order, times that never go back,
    blocks from 0, a name and a unit for each sample, one unit for each series, truths that are 1 or 0.
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
        }
        broken = [what for what, wrong in faults.items() if wrong]
    if broken:
        raise DocumentError(source, f"{'; '.join(broken)} (of {len(values)} samples)")


def read_outputs(source: Path | bytes) -> tuple[Output, ...]:
    """Return the answers of an `outputs.jsonl`, given as a path or as its bytes, in their order.

    Raises DocumentError when it is missing, a line is not the canonical bytes of an answer (the last one needs its
    end of line too), or one condition answers a key twice.
    """
    data, name = _bytes_of(source, "outputs.jsonl")
    if data and not data.endswith(b"\n"):
        raise DocumentError(name, "ends in the middle of a line")
    outputs = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        output = read_document(Output, line, f"{name}, line {number}")
        if canonical_bytes(output) != line:
            raise DocumentError(f"{name}, line {number}", "is not in canonical form")
        outputs.append(output)
    _refuse_twice(outputs, name)
    return tuple(outputs)


def write_outputs(path: Path, outputs: Iterable[Output]) -> None:
    """Write answers, one canonical line each. Raises DocumentError when one condition answers a key twice."""
    given = tuple(outputs)
    _refuse_twice(given, path.name)
    path.write_bytes(b"".join(canonical_bytes(output) + b"\n" for output in given))


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
