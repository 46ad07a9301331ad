"""Samples and answers written by hand, for tests of what is judged by them."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from inferswarm.campaigns.expectations import Expectation, parse_expectations
from inferswarm.campaigns.samples import SAMPLE_SCHEMA, Output


def make_samples(*rows: dict[str, object]) -> pl.DataFrame:
    """Return rows as a table of samples; what a row leaves out is usual."""
    usual = {"series": "a", "condition": "", "key": "", "block": 0, "value": 1.0, "unit": "s", "warm_up": False}
    made = [{**usual, "index": index, "at_seconds": index * 0.5, **row} for index, row in enumerate(rows)]
    return pl.DataFrame(made, schema=SAMPLE_SCHEMA, orient="row")


def truths(*values: bool) -> pl.DataFrame:
    """Return a series of truths, each of its own key."""
    return make_samples(
        *({"key": f"k{index}", "value": float(value), "unit": "bool"} for index, value in enumerate(values))
    )


def numbers(values: Iterable[float], **fields: object) -> list[dict[str, object]]:
    """Return one row for each value, each of its own key."""
    return [{"key": f"k{index}", "value": value, **fields} for index, value in enumerate(values)]


def two_sides(left: Iterable[float], right: Iterable[float]) -> pl.DataFrame:
    """Return the series "a" under the conditions "left" and "right", paired by key and by block."""
    rows = [*numbers(left, condition="left"), *numbers(right, condition="right")]
    return make_samples(*({**row, "block": int(str(row["key"])[1:])} for row in rows))


def answer(condition: str, key: str, tokens: Iterable[int], **fields: object) -> Output:
    """Return an answer to a usual prompt."""
    usual = {"representation": "fp32", "prompt_ids": (1, 2), "logits_digest": ""}
    return Output(condition=condition, key=key, token_ids=tuple(tokens), **{**usual, **fields})


def expectation(statistic: str, gate: str = "correctness", **fields: str) -> Expectation:
    """Return an expectation as a file would say it; fields are TOML. Its unit, if it is not given, is usual."""
    if statistic != "tokens-equal":
        fields = {"unit": '"bool"' if statistic in ("all-true", "proportion") else '"s"', **fields}
    lines = [f'id = "e"\narm = "arm"\ngate = "{gate}"\nclaim = "c"\nstatistic = "{statistic}"']
    lines += [f"{name} = {value}" for name, value in fields.items()]
    text = 'campaign = "c"\nedition = 1\n[[expect]]\n' + "\n".join(lines)
    return parse_expectations(text.encode(), "test").expect[0]
