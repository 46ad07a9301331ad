"""Tables of samples and answers are read strictly, and what sums them up is computed again."""

from __future__ import annotations

import random

import msgspec
import polars as pl
import pytest

from inferswarm.campaigns.laws import State
from inferswarm.campaigns.results import Result, check_result, make_result
from inferswarm.campaigns.samples import (
    RUN_KEY,
    RunIdentity,
    outputs_identity,
    read_outputs,
    read_samples,
    samples_identity,
    write_outputs,
    write_samples,
)
from inferswarm.documents import canonical_bytes, read_document, write_document
from inferswarm.errors import DocumentError
from tests.unit.campaigns.sample_runs import answer, expectation, make_samples, numbers, two_sides

WARM = numbers([0.25, 0.5, 0.125], warm_up=True)
ROWS = make_samples(*WARM, *numbers([1.0, 2.0, 3.0]), *numbers([3.0], series="b", unit="B"))
RUN = RunIdentity(run_id="run-1", nonce="00")
METADATA = {RUN_KEY: canonical_bytes(RUN).decode()}
HEAD = canonical_bytes(RUN) + b"\n"


def test_samples_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "samples.parquet"
    write_samples(path, ROWS, RUN)
    assert read_samples(path).equals(ROWS)
    assert read_samples(path.read_bytes()).equals(ROWS)
    assert samples_identity(path) == RUN


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows.with_columns(value=pl.lit(float("nan"))), "not finite"),
        (lambda rows: rows.with_columns(value=pl.lit(float("inf"))), "not finite"),
        (lambda rows: rows.with_columns(value=pl.lit(None, pl.Float64)), "nulls in value"),
        (lambda rows: rows.with_columns(key=pl.lit(None, pl.String)), "nulls in key"),
        (lambda rows: rows.reverse(), "does not count its rows"),
        (lambda rows: rows[1:], "does not count its rows"),
        (lambda rows: rows.with_columns(at_seconds=-pl.col("at_seconds")), "times that go back"),
        (lambda rows: rows.with_columns(block=pl.lit(-1, pl.Int32)), "block below 0"),
        (lambda rows: rows.with_columns(series=pl.lit("")), "without a series"),
        (lambda rows: rows.with_columns(series=pl.lit("a")), "several units"),
        (lambda rows: rows.with_columns(unit=pl.lit("bool")), "neither 1 nor 0"),
        (lambda rows: rows.with_columns(unit=pl.lit("bool"), value=pl.lit(1.0)), "a truth that is a warm-up"),
        (lambda rows: rows.with_columns(warm_up=~pl.col("warm_up")), "a warm-up that nothing judged follows"),
        (lambda rows: rows.with_columns(warm_up=pl.lit(True)), "a warm-up that nothing judged follows"),
        (lambda rows: rows.with_columns(condition=pl.col("index").cast(pl.String)), "nothing judged follows"),
        (lambda rows: rows.with_columns(block=pl.col("index").cast(pl.Int32)), "nothing judged follows"),
        (lambda rows: rows.with_columns(unit=pl.lit("")), "or a unit"),
        (lambda rows: rows.drop("warm_up"), "has the columns"),
        (lambda rows: rows.with_columns(more=pl.lit(1)), "has the columns"),
        (lambda rows: rows.with_columns(value=pl.col("value").cast(pl.Float32)), "has the columns"),
    ],
)
def test_other_tables_are_refused_when_read_and_when_written(tmp_path, change, reason):
    path = tmp_path / "samples.parquet"
    changed = change(ROWS)
    with pytest.raises(DocumentError, match=reason):
        write_samples(path, changed, RUN)
    assert not path.exists()
    changed.write_parquet(path, metadata=METADATA)
    with pytest.raises(DocumentError, match=reason):
        read_samples(path)


def test_samples_that_do_not_say_of_which_run_they_are_are_refused(tmp_path):
    path = tmp_path / "samples.parquet"
    for metadata, reason in ((None, "of which run"), ({RUN_KEY: "{}"}, "RunIdentity"), ({RUN_KEY: "run"}, "JSON")):
        ROWS.write_parquet(path, metadata=metadata)
        with pytest.raises(DocumentError, match=reason):
            read_samples(path)


def test_damaged_files_are_refused_or_read_as_samples(tmp_path):
    """A flipped bit may change a number (digests are for that), but gives nothing that is no table of samples."""
    path = tmp_path / "samples.parquet"
    write_samples(path, ROWS, RUN)
    data, draw = path.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(data)
        damaged[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        try:
            assert read_samples(bytes(damaged)).schema == ROWS.schema
        except DocumentError:
            refused += 1
    assert refused > 0
    for length in (0, 3, len(data) // 2, len(data) - 1):
        with pytest.raises(DocumentError):
            read_samples(data[:length])
    with pytest.raises(DocumentError, match="cannot be read"):
        read_samples(tmp_path / "missing.parquet")


def test_answers_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "outputs.jsonl"
    answers = (answer("one", "p", (1, 2)), answer("two", "p", (1, 2), logits_digest=f"sha256:{'0' * 64}"))
    write_outputs(path, answers, RUN)
    assert read_outputs(path) == answers
    assert outputs_identity(path) == RUN
    write_outputs(path, (), RUN)
    assert read_outputs(path) == ()
    with pytest.raises(DocumentError, match="twice"):
        write_outputs(path, (answers[0], answers[0]), RUN)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda line: b"", "does not say of which run"),
        (lambda line: line, "not a RunIdentity"),
        (lambda line: HEAD + line[:-1], "middle of a line"),
        (lambda line: HEAD.replace(b":", b": ", 1) + line, "canonical"),
        (lambda line: HEAD + HEAD + line, "not a Output"),
        (lambda line: HEAD + line + b"\n", "not JSON"),
        (lambda line: HEAD + line + line, "twice"),
        (lambda line: HEAD + line.replace(b":", b": ", 1), "canonical"),
        (lambda line: HEAD + line.replace(b'"key"', b'"keys"'), "not a Output"),
        (lambda line: HEAD + line.replace(b"[1,2]", b"[1,-2]"), "not a Output"),
        (lambda line: HEAD + line.replace(b"[1,2]", b"[1,2.0]"), "not a Output"),
        (lambda line: HEAD + line.replace(b'"logits_digest":""', b'"logits_digest":"none"'), "not a Output"),
        (lambda line: HEAD + line.replace(b'{"condition"', b'{"condition":"x","condition"'), "twice"),
    ],
)
def test_other_answers_are_refused(data, reason):
    line = canonical_bytes(answer("one", "p", (1, 2))) + b"\n"
    with pytest.raises(DocumentError, match=reason):
        read_outputs(data(line))


SIDES = {"left": '{series = "a", condition = "left"}', "right": '{series = "a", condition = "right"}'}
RULES = (
    expectation("median", "performance", series='"a"', samples_min="9", at_most="2.0", confidence="0.95"),
    msgspec.structs.replace(
        expectation(
            "ratio",
            **SIDES,
            samples_min="9",
            low="0.5",
            confidence="0.95",
            resamples="999",
            seed="1",
            of='"mean"',
            paired_by='"key"',
        ),
        id="r",
    ),
)
JITTER = [1 + index % 7 / 50 for index in range(30)]
LEFT = (two_sides(JITTER, [1.0] * 30), ())
RESULT = make_result("run-1", RULES, *LEFT)


def changed(**fields: object) -> bytes:
    """Return the result with one field of its first series, or of an expectation, changed."""
    text = write_document(RESULT)
    for name, value in fields.items():
        if name in ("low", "value"):
            row = msgspec.structs.replace(RESULT.expectations[1], **{name: value})
            text = write_document(msgspec.structs.replace(RESULT, expectations=(RESULT.expectations[0], row)))
        elif name == "run_id":
            text = write_document(msgspec.structs.replace(RESULT, run_id=value))
        else:
            row = msgspec.structs.replace(RESULT.series[0], **{name: value})
            text = write_document(msgspec.structs.replace(RESULT, series=(row, *RESULT.series[1:])))
    return text.encode()


def test_a_result_sums_up_series_and_expectations():
    result = read_document(Result, write_document(RESULT), "test")
    assert result == RESULT
    first = result.series[0]
    assert (first.series, first.condition, first.num_samples, first.num_warm_up) == ("a", "left", 30, 0)
    assert (first.least, first.median, first.greatest) == (1.0, 1.06, 1.12)
    assert [(row.id, row.state, row.num_samples) for row in result.expectations] == [
        ("e", "PROVEN", 60),
        ("r", "PROVEN", 30),
    ]


def test_the_same_result_is_proven():
    assert check_result(write_document(RESULT).encode(), "run-1", RULES, *LEFT).state is State.PROVEN


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (None, State.UNPROVEN),
        (b"", State.BROKEN),
        (b"[]", State.BROKEN),
        (changed(median=1.0601), State.BROKEN),
        (changed(num_samples=29), State.BROKEN),
        (changed(run_id="run-2"), State.BROKEN),
        (changed(value=1.0), State.BROKEN),
        (changed(low=1.0), State.BROKEN),
        (changed(low=RESULT.expectations[1].low * (1 + 1e-4)), State.PROVEN),
        (changed(median=1.06 * (1 + 1e-12)), State.PROVEN),
    ],
)
def test_another_result_is_not(data, state):
    assert check_result(data, "run-1", RULES, *LEFT).state is state


def test_without_samples_there_is_nothing_to_compare_with():
    assert check_result(write_document(RESULT).encode(), "run-1", RULES, None, None).state is State.UNPROVEN
