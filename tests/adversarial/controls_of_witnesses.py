"""What the parent, the seal, the notebook and the environment say: copied, edited, made to contradict each other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

from tests.adversarial.controls import control
from tests.adversarial.forging import Forgery

SECOND = 1_000_000_000


def outcome(forgery: Forgery, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the parent saw of the second arm."""
    run = forgery.run("second")
    forgery.record(run / "outcome.json", change)
    forgery.carry(run)


def seal(forgery: Forgery, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the second arm's last cell said, and the executed notebook with it."""
    run = forgery.run("second")
    forgery.reseal(run, "seal.json", change)
    forgery.carry(run)


def executed(forgery: Forgery, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the second arm's executed notebook."""
    run = forgery.run("second")
    path = run / "executed.ipynb"
    notebook = json.loads(path.read_bytes())
    change(notebook)
    path.write_text(json.dumps(notebook, indent=1) + "\n")
    forgery.carry(run)


@control("outcome")
def the_outcome_is_dropped_everywhere(forgery: Forgery) -> None:
    run = forgery.run("second")
    (run / "outcome.json").unlink()
    forgery.carry(run)


@control("outcome")
def the_outcome_is_that_of_another_run(forgery: Forgery) -> None:
    run = forgery.run("second")
    shutil.copy(forgery.run("first") / "outcome.json", run)
    forgery.carry(run)


@control("outcome")
def the_deadline_ended_it(forgery: Forgery) -> None:
    outcome(forgery, lambda record: record.update(end="deadline", exit_status=None, signal=9))


@control("outcome")
def it_exited_with_an_error(forgery: Forgery) -> None:
    outcome(forgery, lambda record: record.update(exit_status=1))


@control("outcome")
def a_process_was_left_over(forgery: Forgery) -> None:
    outcome(forgery, lambda record: record.update(survivors=1))


@control("outcome")
def it_took_longer_than_it_might(forgery: Forgery) -> None:
    outcome(forgery, lambda record: record.update(seconds=500.0))


@control("chronology")
def it_ended_before_it_started(forgery: Forgery) -> None:
    outcome(forgery, lambda record: record.update(started_at=record["ended_at"], ended_at=record["started_at"]))


@control("chronology")
def the_clock_of_the_day_and_the_duration_disagree(forgery: Forgery) -> None:
    outcome(forgery, lambda record: record.update(seconds=record["seconds"] + 3))


@control("chronology")
def it_was_sealed_before_it_started(forgery: Forgery) -> None:
    seal(forgery, lambda record: record.update(sealed_at=str(int(record["sealed_at"]) - 3600 * SECOND)))


@control("witnesses-agree")
def the_parent_watched_another_process(forgery: Forgery) -> None:
    outcome(forgery, lambda record: record.update(kernel_pid=record["kernel_pid"] + 1))


@control("witnesses-agree")
def another_package_was_sealed(forgery: Forgery) -> None:
    seal(forgery, lambda record: record.update(package_digest=f"sha256:{'0' * 64}"))


@control("witnesses-agree")
def the_notebook_shows_no_seal(forgery: Forgery) -> None:
    executed(forgery, lambda notebook: notebook["cells"][-1]["outputs"].clear())


@control("seal")
def the_seal_is_dropped_everywhere(forgery: Forgery) -> None:
    run = forgery.run("second")
    (run / "seal.json").unlink()
    forgery.carry(run)


@control("seal")
def the_seal_is_copied_from_another_run(forgery: Forgery) -> None:
    run, other = forgery.run("second"), forgery.run("first")
    shutil.copy(other / "seal.json", run)
    shutil.copy(other / "executed.ipynb", run)
    forgery.carry(run)


@control("seal")
def more_samples_were_sealed(forgery: Forgery) -> None:
    seal(forgery, lambda record: record.update(num_samples=record["num_samples"] + 1))


@control("seal")
def a_file_less_was_sealed(forgery: Forgery) -> None:
    seal(forgery, lambda record: record["files"].pop())


@control("background-failures")
def a_thread_failed(forgery: Forgery) -> None:
    seal(forgery, lambda record: record.update(background_failures=[{"where": "a thread", "error": "ValueError"}]))


@control("plan-realized")
def the_plan_is_edited_and_every_digest_is_fixed(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "plan.json", lambda record: record.update(chunk_positions=4))
    forgery.carry(run, seal=True)


@control("plan-realized")
def another_plan_was_realized_too(forgery: Forgery) -> None:
    seal(forgery, lambda record: record["realized_plans"].append(f"sha256:{'1' * 64}"))


@control("plan-realized")
def no_plan_was_realized(forgery: Forgery) -> None:
    seal(forgery, lambda record: record["realized_plans"].clear())


@control("parameters")
def other_parameters_were_sealed(forgery: Forgery) -> None:
    seal(forgery, lambda record: record["parameters"][0].update(value=43))


@control("parameters")
def a_parameter_is_of_another_type(forgery: Forgery) -> None:
    seal(forgery, lambda record: record["parameters"][0].update(value="42"))


@control("notebook-scan")
def the_executed_notebook_is_dropped_everywhere(forgery: Forgery) -> None:
    run = forgery.run("second")
    (run / "executed.ipynb").unlink()
    forgery.carry(run)


@control("notebook-scan")
def a_cell_was_not_executed(forgery: Forgery) -> None:
    executed(forgery, lambda notebook: notebook["cells"][3].update(execution_count=None))


@control("notebook-scan")
def cells_were_executed_in_another_order(forgery: Forgery) -> None:
    def change(notebook: dict[str, Any]) -> None:
        notebook["cells"][3]["execution_count"], notebook["cells"][4]["execution_count"] = 5, 4

    executed(forgery, change)


@control("notebook-scan")
def a_cell_was_told_to_be_skipped(forgery: Forgery) -> None:
    executed(forgery, lambda notebook: notebook["cells"][3]["metadata"].update(tags=["skip-execution"]))


@control("notebook-scan")
def a_cell_shows_an_error(forgery: Forgery) -> None:
    error = {"output_type": "error", "ename": "AssertionError", "evalue": "", "traceback": []}
    executed(forgery, lambda notebook: notebook["cells"][3]["outputs"].append(error))


@control("notebook-scan")
def papermill_saw_an_exception(forgery: Forgery) -> None:
    executed(forgery, lambda notebook: notebook["metadata"]["papermill"].update(exception=True))


@control("notebook-scan")
def papermill_saw_no_end(forgery: Forgery) -> None:
    executed(forgery, lambda notebook: notebook["metadata"]["papermill"].update(end_time=None))


@control("notebook-source")
def a_gate_was_cut_out_of_the_executed_notebook(forgery: Forgery) -> None:
    executed(forgery, lambda notebook: notebook["cells"][3].update(source="holds = True\n"))


@control("parameters")
def another_parameter_was_injected(forgery: Forgery) -> None:
    def change(notebook: dict[str, Any]) -> None:
        cell = next(cell for cell in notebook["cells"] if "injected-parameters" in cell["metadata"].get("tags", ()))
        cell["source"] = "".join(cell["source"]).replace("42", "43")

    executed(forgery, change)


@control("environment")
def the_kernels_environment_is_dropped_everywhere(forgery: Forgery) -> None:
    run = forgery.run("second")
    (run / "environment.json").unlink()
    forgery.carry(run)


@control("environment")
def the_kernel_had_other_packages(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "environment.json", lambda record: record["packages"][0].update(version="0.0.1"))
    forgery.carry(run)


@control("environment")
def the_kernel_was_another_interpreter(forgery: Forgery) -> None:
    run = forgery.run("second")
    forgery.record(run / "environment.json", lambda record: record.update(executable="/usr/bin/python3"))
    forgery.carry(run)
