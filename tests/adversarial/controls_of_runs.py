"""What a run leaves beside its records: what it ran in, what it printed, what was noted of it, what was half done."""

from __future__ import annotations

import json
import shutil
from typing import Any

from tests.adversarial.controls import control
from tests.adversarial.controls_of_witnesses import executed, outcome
from tests.adversarial.forging import Forgery

SEALED = "sealed: sha256:"


def cells_of_code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@control("environment")
def both_environments_are_of_another_commit(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.environments(run, lambda record: record["repository"].update(commit="f" * 40, dirty=True))
    forgery.carry(run)


@control("environment")
def the_kernel_found_a_changed_project(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "environment.json", lambda record: record["repository"].update(dirty=True))
    forgery.carry(run)


@control("environment")
def the_kernel_had_other_caches(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "environment.json", lambda record: record["cpu"]["cores"].update(value=77))
    forgery.carry(run)


@control("environment")
def the_environment_of_the_parent_is_edited(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "environment.parent.json", lambda record: record.update(captured_at="1"))
    forgery.carry(run)


@control("environment")
def the_environment_of_the_parent_is_of_another_run(forgery: Forgery) -> None:
    run = forgery.run("second")
    shutil.copy(forgery.run("first") / "environment.parent.json", run)
    forgery.carry(run)


@control("chronology")
def the_environment_of_the_parent_is_older_than_the_request(forgery: Forgery) -> None:
    run = forgery.run("second")
    before = json.loads((forgery.run("first") / "environment.parent.json").read_bytes())["captured_at"]
    forgery.environments(run, lambda record: record.update(captured_at=before))
    forgery.carry(run)


@control("outcome")
def the_parent_had_something_to_say_of_a_good_end(forgery: Forgery) -> None:
    outcome(forgery, lambda record: record.update(reason="the process was ended by SIGKILL"))


@control("witnesses-agree")
def the_notebook_shows_two_seals(forgery: Forgery) -> None:
    more = {"output_type": "stream", "name": "stdout", "text": [f"{SEALED}{'0' * 64}\n"]}
    executed(forgery, lambda notebook: notebook["cells"][-1]["outputs"].insert(0, more))


@control("witnesses-agree")
def the_seal_is_shown_by_an_earlier_cell(forgery: Forgery) -> None:
    def change(notebook: dict[str, Any]) -> None:
        cells = cells_of_code(notebook)
        cells[-2]["outputs"] += cells[-1]["outputs"]
        cells[-1]["outputs"] = []

    executed(forgery, change)


@control("witnesses-agree")
def the_seal_is_only_in_the_metadata(forgery: Forgery) -> None:
    def change(notebook: dict[str, Any]) -> None:
        notebook["metadata"]["note"] = notebook["cells"][-1]["outputs"]
        notebook["cells"][-1]["outputs"] = []

    executed(forgery, change)


@control("witnesses-agree")
def the_printed_output_is_that_of_another_run(forgery: Forgery) -> None:
    run = forgery.run("second")
    shutil.copy(forgery.run("first") / "stdout.log", run)
    forgery.carry(run)


@control("witnesses-agree")
def the_printed_output_is_lost(forgery: Forgery) -> None:
    run = forgery.run("second")
    (run / "stdout.log").write_text("")
    forgery.carry(run)


@control("notebook-scan")
def a_traceback_was_printed(forgery: Forgery) -> None:
    run = forgery.run("second")
    (run / "stderr.log").write_text("Traceback (most recent call last):\nAssertionError: a gate\n")
    forgery.carry(run)


@control("notebook-scan")
def papermill_saw_an_exception_in_a_cell(forgery: Forgery) -> None:
    executed(forgery, lambda notebook: notebook["cells"][3]["metadata"]["papermill"].update(exception=True))


@control("notebook-scan")
def papermills_times_are_of_another_year(forgery: Forgery) -> None:
    old = {"start_time": "1999-01-01T00:00:00+00:00", "end_time": "1999-01-02T00:00:00+00:00"}
    executed(forgery, lambda notebook: notebook["metadata"]["papermill"].update(old))


@control("notebook-scan")
def a_cell_has_no_times(forgery: Forgery) -> None:
    executed(forgery, lambda notebook: notebook["cells"][3]["metadata"]["papermill"].pop("start_time"))


@control("notebook-scan")
def an_output_is_of_an_unknown_type(forgery: Forgery) -> None:
    odd = {"output_type": "Error ", "ename": "AssertionError"}
    executed(forgery, lambda notebook: notebook["cells"][3]["outputs"].append(odd))


@control("manifest")
def a_half_written_file_lies_in_a_concluded_run(forgery: Forgery) -> None:
    (forgery.run("second") / ".manifest.json.partial").write_text("{")
