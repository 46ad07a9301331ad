"""Samples, answers and plans of other runs, times, units and kinds; numbers too large; what is called a warm-up."""

from __future__ import annotations

import shutil

import polars as pl

from tests.adversarial.controls import control
from tests.adversarial.controls_of_files import changed, compute_again, renumbered, summed_up
from tests.adversarial.forging import Forgery

LARGE = 1.7e308
"""Two of them are more than a double holds."""


@control("samples")
def the_samples_are_those_of_another_run(forgery: Forgery) -> None:
    copied(forgery, "samples.parquet")


@control("samples")
def the_answers_are_those_of_another_run(forgery: Forgery) -> None:
    copied(forgery, "outputs.jsonl")


@control("samples")
def samples_are_of_a_time_when_it_did_not_run(forgery: Forgery) -> None:
    summed_up(forgery, lambda rows: rows.with_columns(at_seconds=pl.col("at_seconds") + 1e6))


@control("schema")
def samples_do_not_say_of_which_run_they_are(forgery: Forgery) -> None:
    run = forgery.run("second")
    pl.read_parquet(run / "samples.parquet").write_parquet(run / "samples.parquet")
    forgery.carry(run, seal=True)


@control("schema")
def answers_do_not_say_of_which_run_they_are(forgery: Forgery) -> None:
    run = forgery.run("second")
    path = run / "outputs.jsonl"
    path.write_bytes(path.read_bytes().partition(b"\n")[2])
    forgery.carry(run, seal=True)


@control("schema")
def what_failed_is_called_a_warm_up(forgery: Forgery) -> None:
    def change(rows: pl.DataFrame) -> pl.DataFrame:
        failed = rows.filter(pl.col("series") == "holds").with_columns(value=0.0, warm_up=True)
        return renumbered(pl.concat([rows, failed.with_columns(at_seconds=pl.lit(rows["at_seconds"].max()))]))

    changed(forgery, change)


@control("schema")
def what_is_judged_comes_before_its_warm_up(forgery: Forgery) -> None:
    """The warm-up of a side, and what is counted after it, in turns."""
    side = (pl.col("series") == "step-seconds") & (pl.col("condition") == "left") & (pl.col("key") == "k0")
    changed(forgery, lambda rows: rows.with_columns(warm_up=pl.when(side).then(~pl.col("warm_up")).otherwise(False)))


@control("schema")
def slow_steps_are_called_warm_ups_of_nothing(forgery: Forgery) -> None:
    slow = (pl.col("series") == "step-seconds") & (pl.col("key") == "k7")
    changed(forgery, lambda rows: rows.with_columns(warm_up=pl.col("warm_up") | slow))


@control("correctness-gate")
def a_byte_is_lost_in_a_warm_up(forgery: Forgery) -> None:
    def change(rows: pl.DataFrame) -> pl.DataFrame:
        lost = rows.filter((pl.col("series") == "bytes-lost") & (pl.col("key") == "k0"))
        warm = lost.with_columns(value=1.0, warm_up=True, at_seconds=0.0)
        return renumbered(pl.concat([warm, rows]))

    summed_up(forgery, change)


@control("correctness-gate")
def bytes_are_counted_in_another_unit(forgery: Forgery) -> None:
    summed_up(forgery, lambda rows: in_unit(rows, "bytes-lost", "GB"))


@control("performance-gate")
def steps_are_hours_instead_of_seconds(forgery: Forgery) -> None:
    summed_up(forgery, lambda rows: in_unit(rows, "step-seconds", "h"))


@control("performance-gate")
def steps_are_too_long_to_be_computed_with(forgery: Forgery) -> None:
    steps = pl.col("series") == "step-seconds"
    summed_up(forgery, lambda rows: rows.with_columns(value=pl.when(steps).then(LARGE).otherwise("value")))


@control("plan-realized")
def the_plan_is_no_plan(forgery: Forgery) -> None:
    planned(forgery, "plan.json", lambda plan: plan.clear())


@control("plan-realized")
def the_plan_places_nothing(forgery: Forgery) -> None:
    planned(forgery, "plan.json", lambda plan: plan.update(placements=[]))


@control("plan-realized")
def the_plan_was_made_for_other_resources(forgery: Forgery) -> None:
    planned(forgery, "resource_graph.json", lambda graph: graph.update(swarm_id="another"))


def copied(forgery: Forgery, name: str) -> None:
    """Put a file of the first arm's run in the place of the second's, and carry it up through the seal."""
    run = forgery.run("second")
    shutil.copy(forgery.run("first") / name, run)
    compute_again(forgery, run)


def in_unit(rows: pl.DataFrame, series: str, unit: str) -> pl.DataFrame:
    """Say that a series is in another unit."""
    return rows.with_columns(unit=pl.when(pl.col("series") == series).then(pl.lit(unit)).otherwise("unit"))


def planned(forgery: Forgery, name: str, change) -> None:
    """Change a document of the second arm, and make the seal say that the plan that is then there was realized."""
    from inferswarm.documents import digest, read_json

    run = forgery.run("second")
    forgery.record(run / name, change)
    forgery.seal(run)
    realized = digest(read_json((run / "plan.json").read_bytes(), "plan.json"))
    forgery.reseal(run, "seal.json", lambda record: record.update(realized_plans=[realized]))
    forgery.carry(run)
