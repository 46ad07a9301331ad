"""Files dropped, added, exchanged and cut; records that are no records; samples and answers that were edited."""

from __future__ import annotations

import os
import shutil

import polars as pl

from inferswarm.campaigns.expectations import read_expectations
from inferswarm.campaigns.results import make_result
from inferswarm.campaigns.samples import read_outputs, read_samples
from inferswarm.documents import write_document
from tests.adversarial.controls import control
from tests.adversarial.forging import Forgery


@control("file-digest")
def samples_are_dropped(forgery: Forgery) -> None:
    (forgery.run("second") / "samples.parquet").unlink()


@control("file-digest")
def samples_are_truncated(forgery: Forgery) -> None:
    path = forgery.run("second") / "samples.parquet"
    path.write_bytes(path.read_bytes()[:-1])


@control("file-digest")
def a_bit_of_the_log_is_flipped(forgery: Forgery) -> None:
    path = forgery.run("second") / "stdout.log"
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


@control("file-digest")
def an_answer_is_appended(forgery: Forgery) -> None:
    path = forgery.run("second") / "outputs.jsonl"
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[0])


@control("manifest")
def a_file_is_added(forgery: Forgery) -> None:
    (forgery.run("second") / "notes.json").write_text("{}\n")


@control("files-closed")
def a_file_is_added_and_listed(forgery: Forgery) -> None:
    run = forgery.run("second")
    (run / "notes.json").write_text("{}\n")
    forgery.carry(run)


@control("manifest")
def a_file_is_a_link(forgery: Forgery) -> None:
    path = forgery.run("second") / "plan.json"
    path.rename(forgery.root.with_name("plan.json"))
    path.symlink_to(forgery.root.with_name("plan.json"))


@control("manifest")
def the_manifest_is_dropped(forgery: Forgery) -> None:
    (forgery.run("second") / "manifest.json").unlink()


@control("manifest")
def the_manifest_lists_less(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "manifest.json", lambda record: record["files"].pop())
    forgery.statement(run)
    forgery.bind(run)


@control("manifest")
def the_manifest_is_that_of_another_run(forgery: Forgery) -> None:
    run = forgery.run("second")
    shutil.copy(forgery.run("first") / "manifest.json", run)
    forgery.bind(run)


@control("files-closed")
def a_document_of_the_arm_is_dropped_everywhere(forgery: Forgery) -> None:
    run = forgery.run("second")
    (run / "plan.json").unlink()
    forgery.carry(run, seal=True)


@control("schema")
def samples_hold_a_nan(forgery: Forgery) -> None:
    changed(
        forgery,
        lambda rows: rows.with_columns(value=pl.when(pl.col("index") == 3).then(float("nan")).otherwise("value")),
    )


@control("schema")
def samples_hold_a_null(forgery: Forgery) -> None:
    changed(forgery, lambda rows: rows.with_columns(key=pl.when(pl.col("index") == 3).then(None).otherwise("key")))


@control("schema")
def samples_are_reordered(forgery: Forgery) -> None:
    changed(forgery, lambda rows: rows.reverse())


@control("schema")
def a_sample_is_cut_out(forgery: Forgery) -> None:
    changed(forgery, lambda rows: rows.filter(pl.col("index") != 5))


@control("schema")
def times_of_samples_go_back(forgery: Forgery) -> None:
    changed(forgery, lambda rows: rows.with_columns(at_seconds=pl.col("at_seconds").reverse()))


@control("schema")
def samples_have_a_column_more(forgery: Forgery) -> None:
    changed(forgery, lambda rows: rows.with_columns(note=pl.lit("")))


@control("seal")
def samples_are_edited_and_every_digest_but_the_seals_is_fixed(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.samples(run, faster)
    forgery.carry(run)


@control("summaries-recomputed")
def samples_are_edited_and_every_digest_is_fixed(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.samples(run, faster)
    forgery.carry(run, seal=True)


@control("summaries-recomputed")
def the_result_is_edited_and_every_digest_is_fixed(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "result.json", lambda record: record["series"][0].update(median=0.05))
    forgery.carry(run, seal=True)


@control("summaries-recomputed")
def the_result_claims_an_expectation_more(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "result.json", lambda record: record["expectations"].append(record["expectations"][0]))
    forgery.carry(run, seal=True)


@control("correctness-gate")
def a_truth_is_false_and_all_is_computed_again(forgery: Forgery) -> None:
    one = (pl.col("series") == "holds") & (pl.col("key") == "k7")
    summed_up(forgery, lambda rows: rows.with_columns(value=pl.when(one).then(0.0).otherwise("value")))


@control("correctness-gate")
def too_few_truths_are_left_and_all_is_computed_again(forgery: Forgery) -> None:
    one = (pl.col("series") == "holds") & (pl.col("key") == "k7")
    summed_up(forgery, lambda rows: renumbered(rows.filter(~one)))


@control("correctness-gate")
def a_series_is_renamed_and_all_is_computed_again(forgery: Forgery) -> None:
    summed_up(forgery, lambda rows: rows.with_columns(series=pl.col("series").replace("bytes-lost", "bytes-found")))


@control("schema")
def all_truths_are_called_warm_ups(forgery: Forgery) -> None:
    changed(forgery, lambda rows: rows.with_columns(warm_up=pl.col("warm_up") | (pl.col("series") == "holds")))


@control("performance-gate")
def steps_are_slow_and_all_is_computed_again(forgery: Forgery) -> None:
    slow = pl.col("series") == "step-seconds"
    summed_up(
        forgery, lambda rows: rows.with_columns(value=pl.when(slow).then(pl.col("value") * 3).otherwise("value"))
    )


@control("performance-gate")
def only_one_side_is_left_of_a_ratio(forgery: Forgery) -> None:
    summed_up(forgery, lambda rows: renumbered(rows.filter(pl.col("condition") != "right")))


@control("correctness-gate")
def a_token_is_edited_and_all_is_computed_again(forgery: Forgery) -> None:
    answered(forgery, lambda lines: [lines[0].replace("[42,43]", "[42,44]"), *lines[1:]])


@control("correctness-gate")
def an_answer_is_dropped_and_all_is_computed_again(forgery: Forgery) -> None:
    answered(forgery, lambda lines: lines[:-1])


@control("correctness-gate")
def logits_are_withheld_and_all_is_computed_again(forgery: Forgery) -> None:
    def without(line: str) -> str:
        start = line.index('"logits_digest":"') + len('"logits_digest":"')
        return line[:start] + line[line.index('"', start) :]

    answered(forgery, lambda lines: [without(line) for line in lines])


@control("schema")
def one_question_is_answered_twice(forgery: Forgery) -> None:
    answered(forgery, lambda lines: [*lines, lines[0]], computed=False)


@control("schema")
def an_answer_is_written_in_another_form(forgery: Forgery) -> None:
    answered(forgery, lambda lines: [lines[0].replace(":", ": ", 1), *lines[1:]], computed=False)


@control("schema")
def a_key_is_there_twice(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.text(run / "outcome.json", '"end": "exited"', '"end": "deadline", "end": "exited"')
    forgery.carry(run)


@control("schema")
def a_duration_is_no_number(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.text(run / "outcome.json", '"survivors": 0', '"survivors": NaN')
    forgery.carry(run)


@control("schema")
def a_record_has_a_field_more(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.reseal(run, "seal.json", lambda record: record.update(note="all well"))
    forgery.carry(run)


@control("schema")
def a_record_is_of_another_version(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "outcome.json", lambda record: record.update(schema=2))
    forgery.carry(run)


@control("schema")
def a_record_is_empty(forgery: Forgery) -> None:
    run = forgery.run("second")
    (run / "environment.json").write_bytes(b"")
    forgery.carry(run)


@control("arms-closed")
def a_file_lies_in_the_root(forgery: Forgery) -> None:
    (forgery.root / "summary.json").write_text('{"all": "PASS"}\n')


@control("arms-closed")
def a_campaign_is_a_link(forgery: Forgery) -> None:
    os.symlink(forgery.campaign, forgery.root / "another")


def changed(forgery: Forgery, change) -> None:
    """Change the second arm's samples, and carry it up through the seal."""
    run = forgery.run("second")
    forgery.samples(run, change)
    forgery.carry(run, seal=True)


def summed_up(forgery: Forgery, change) -> None:
    """Change the second arm's samples, compute its result again, and carry it up through the seal."""
    run = forgery.run("second")
    forgery.samples(run, change)
    compute_again(forgery, run)


def answered(forgery: Forgery, change, computed: bool = True) -> None:
    """Change the lines of the second arm's answers, and everything above them."""
    run = forgery.run("second")
    path = run / "outputs.jsonl"
    head, *lines = path.read_text().splitlines()
    path.write_text("".join(f"{line}\n" for line in (head, *change(lines))))
    if computed:
        compute_again(forgery, run)
    else:
        forgery.carry(run, seal=True)


def compute_again(forgery: Forgery, run) -> None:
    """Write the result and the seal as an arm that had seen this would have."""
    samples, outputs = read_samples(run / "samples.parquet"), read_outputs(run / "outputs.jsonl")
    expected = read_expectations(run / "expectations.toml").of_arm("second")
    (run / "result.json").write_text(write_document(make_result(run.name, expected, samples, outputs)))
    counts = {"num_samples": len(samples), "num_outputs": len(outputs)}
    forgery.reseal(run, "seal.json", lambda record: record.update(counts))
    forgery.carry(run, seal=True)


def faster(rows: pl.DataFrame) -> pl.DataFrame:
    """Every step takes half of its time."""
    steps = pl.col("series") == "step-seconds"
    return rows.with_columns(value=pl.when(steps).then(pl.col("value") / 2).otherwise("value"))


def renumbered(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows that are left, as if no others had been there."""
    return rows.with_columns(index=pl.int_range(pl.len(), dtype=pl.Int64))
