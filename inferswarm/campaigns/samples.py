"""Raw samples of a run as one table, one row for each sample, and its answers, one line for each."""

from __future__ import annotations

import polars as pl

from inferswarm.documents import Digest, Document

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


class Output(Document, frozen=True, kw_only=True):
    """One answer: a line of `outputs.jsonl`. `logits_digest` is "" where logits were not compared."""

    condition: str
    key: str
    representation: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logits_digest: Digest | str
