"""What is refused of an arm's notebook, and what an executed copy shows."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from inferswarm.campaigns.laws import State
from inferswarm.campaigns.notebooks import parameters_of, scan_executed, scan_source
from inferswarm.campaigns.records import Parameter, Request
from inferswarm.documents import digest_bytes
from inferswarm.errors import DocumentError
from tests.campaigns.campaigns_support import make_notebook

DIGEST = digest_bytes(b"")
IMPORT = "from inferswarm.campaigns.arm import Arm"


def encoded(notebook: dict[str, Any]) -> bytes:
    return json.dumps(notebook).encode()


def with_cell(text: str, *tags: str) -> dict[str, Any]:
    return make_notebook([text], {"n": 1}, tags={2: tags} if tags else None)


def changed(change: str, **options: Any) -> dict[str, Any]:
    """Return a good notebook after a statement that changes it as `n`."""
    notebook = make_notebook(["x = 1"], {"count": 1}, **options)
    exec(change, {"n": notebook})
    return notebook


def source_of(number: int, text: str) -> dict[str, Any]:
    notebook = make_notebook(["x = 1"], {"count": 1})
    notebook["cells"][number]["source"] = text
    return notebook


REFUSED = {
    "skipped cell": (with_cell("assert False", "skip-execution"), "skip-execution"),
    "forgiven error": (with_cell("assert False", "raises-exception"), "raises-exception"),
    "removed cell": (with_cell("x = 1", "remove-cell"), "remove-cell"),
    "injected cell": (with_cell("x = 1", "injected-parameters"), "injected-parameters"),
    "no parameters": (changed("n['cells'][1]['metadata'] = {}"), "has 0 cells tagged"),
    "two cells of parameters": (with_cell("x = 1", "parameters"), "has 2 cells tagged"),
    "shell line": (with_cell("!false"), "no plain Python"),
    "shell line behind": (with_cell("x = !ls"), "no plain Python"),
    "magic": (with_cell("%time 1"), "no plain Python"),
    "cell magic": (with_cell("%%bash\nfalse"), "no plain Python"),
    "help": (with_cell("len?"), "no plain Python"),
    "magic by name": (with_cell("get_ipython().system('false')"), "get_ipython"),
    "shell by name": (with_cell("import os\nos.system('false')"), "os.system"),
    "raw cell with a tag": (changed("n['cells'][0]['metadata'] = {'tags': ['parameters']}"), "parameters"),
    "other kernel": (changed("n['metadata']['kernelspec']['name'] = 'julia'"), "'julia'"),
    "no language": (changed("del n['metadata']['language_info']"), "None"),
    "executed before": (changed("n['metadata']['papermill'] = {}"), "papermill"),
    "an output": (changed("n['cells'][3]['outputs'] = [{'output_type': 'stream'}]"), "strip"),
    "an execution count": (changed("n['cells'][3]['execution_count'] = 1"), "strip"),
    "no cells": (changed("n['cells'] = []"), "has 0 cells tagged"),
    "old format": (changed("n['nbformat'] = 3"), "format 3.5"),
    "format without ids": (changed("n['nbformat_minor'] = 4"), "format 4.4"),
    "a cell without id": (changed("del n['cells'][2]['id']"), "has no id"),
    "one id twice": (changed("n['cells'][2]['id'] = n['cells'][3]['id']"), "one id"),
    "no literal": (source_of(1, 'run = ""  # r\ncount = 1 + 1  # c'), "line 2"),
    "a tuple": (source_of(1, 'run = ""  # r\ncount = (1, 2)  # c'), "line 2"),
    "none": (source_of(1, 'run = ""  # r\ncount = None  # c'), "line 2"),
    "bytes": (source_of(1, 'run = ""  # r\ncount = b"1"  # c'), "line 2"),
    "a list": (source_of(1, 'run = ""  # r\ncount = []  # c'), "line 2"),
    "no comment": (source_of(1, 'run = ""  # r\ncount = 1'), "needs a comment"),
    "a name twice": (source_of(1, 'run = ""  # r\ncount = 1  # c\ncount = 2  # c'), "its own name"),
    "no run": (source_of(1, "count = 1  # c"), "first parameter"),
    "another default of run": (source_of(1, 'run = "x"  # r\ncount = 1  # c'), "first parameter"),
    "an arm that is not opened": (source_of(2, "x = 1"), "another text"),
    "a parameter that is not passed": (source_of(2, "arm = Arm.open(run)"), "another text"),
    "a value of its own": (source_of(2, "arm = Arm.open(run, count=2)"), "another text"),
    "no finish": (source_of(4, "x = 2"), "another text"),
    "work after the finish": (source_of(4, "arm.finish()\nx = 2"), "another text"),
    "work before the finish": (source_of(4, "x = 2\narm.finish()"), "another text"),
    "finish of something else": (source_of(4, "other.finish()"), "another text"),
    "a finish before": (with_cell("import threading\nthreading.Thread(target=arm.finish).start()"), "another text"),
    "an arm opened in a branch": (
        source_of(2, f"{IMPORT}\nif count:\n    arm = Arm.open(run, count=count)"),
        "another",
    ),
    "another Arm": (source_of(2, "from x import Arm\narm = Arm.open(run, count=count)"), "another text"),
}
IMPORT_FAULT, CALL_FAULT = "may not be imported", "does not say how it ended"
HIDDEN = {
    "from subprocess import run": IMPORT_FAULT,
    "import subprocess as sp": IMPORT_FAULT,
    "from IPython.display import clear_output": IMPORT_FAULT,
    "from IPython import get_ipython as g": IMPORT_FAULT,
    "import inferswarm.campaigns.results as r": IMPORT_FAULT,
    "from inferswarm.campaigns.arm import Arm as B": IMPORT_FAULT,
    "import builtins": IMPORT_FAULT,
    "import atexit": IMPORT_FAULT,
    "from os import *": "cannot be read here",
    "from os import _exit as leave\nleave(0)": CALL_FAULT,
    "import os as o\no.spawnlp(0, 'false', 'false')": CALL_FAULT,
    "import os\nf = os.system": CALL_FAULT,
    "import os\nos.kill(os.getpid(), 9)": CALL_FAULT,
    "import asyncio as a\np = await a.create_subprocess_shell('false')": CALL_FAULT,
    "import contextlib\nwith contextlib.suppress(Exception):\n    assert False": CALL_FAULT,
    "getattr(x, 'system')": "getattr",
    "exec('x = 1')": "exec",
    "globals()['n'] = 7": "globals",
    "try:\n    assert False\nexcept AssertionError:\n    pass": "passed over",
    "n = 7": "n is the run's",
    "for run in (1,):\n    print(run)": "run is the run's",
    "def arm():\n    return 1": "arm is the run's",
    "from x import y as Arm": "Arm is the run's",
    "del n": "n is the run's",
    "[(n := 2) for _ in (1,)]": "n is the run's",
    "\uff4e = 7": "n is the run's",
    "arm.truth = print": "arm.truth may not",
    "Arm.truth = print": "Arm.truth may not",
    "o = arm._observe": "_observe is private",
    "import threading\nthreading.excepthook = print": "threading.excepthook may not",
    "import os\nx = os.environ['INFERSWARM_RUN_DIRECTORY']": "written by the arm only",
}


@pytest.mark.parametrize("text", HIDDEN)
def test_code_that_reaches_behind_the_arm_is_found_out(text):
    findings = scan_source(encoded(with_cell(text)))
    assert {finding.state for finding in findings} == {State.BROKEN}
    assert HIDDEN[text] in " ".join(finding.found for finding in findings)


@pytest.mark.parametrize("name", REFUSED)
def test_a_notebook_that_could_deceive_is_found_out_before_it_runs(name):
    notebook, fault = REFUSED[name]
    findings = scan_source(encoded(notebook))
    assert {finding.state for finding in findings} == {State.BROKEN}
    assert fault in " ".join(finding.found for finding in findings)


@pytest.mark.parametrize(
    "cell",
    [
        "try:\n    x = 1\nexcept ValueError as error:\n    print(error)",
        "holder.arm = 1\narm.truth('works', True)",
        "await something()",
        "text = '''\n!not a shell line\n%nor a magic\n'''",
        "x = (7\n % 3)",
    ],
)
def test_plain_python_may_run(cell):
    (finding,) = scan_source(encoded(with_cell(cell)))
    assert finding.state is State.PROVEN


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"cells": 1}', b"\xff", b'{"nbformat": 4, "nbformat": 4}'])
def test_what_is_no_notebook_is_broken(data):
    (finding,) = scan_source(data)
    assert finding.state is State.BROKEN
    with pytest.raises(DocumentError):
        parameters_of(data)


def test_parameters_keep_their_types():
    notebook = make_notebook([], {"a": 1, "b": 1.0, "c": True, "d": "1", "größe": -2})
    assert [(item.name, type(item.value)) for item in parameters_of(encoded(notebook))] == [
        ("a", int),
        ("b", float),
        ("c", bool),
        ("d", str),
        ("größe", int),
    ]


# What an executed copy shows.

REQUEST = Request(
    schema=1,
    campaign="tiny",
    edition=1,
    arm="good",
    run_id="good-20260101T000000Z-00000000",
    nonce="0" * 32,
    parameters=(Parameter("count", 3), Parameter("rate", 1.0)),
    deadline_seconds=1.0,
    requested_at="1",
    attempt=1,
    campaign_digest=DIGEST,
    expectations_digest=DIGEST,
    notebook_digest=DIGEST,
    package_digest=DIGEST,
    package_version="0",
    commit="",
    dirty=False,
    predecessors=(),
)
SOURCE = make_notebook(["x = 1"], {"count": 1, "rate": 0.5})


def executed() -> dict[str, Any]:
    """Return the source as papermill leaves it when all went well."""
    notebook = deepcopy(SOURCE)
    injected = deepcopy(notebook["cells"][1])
    injected |= {
        "id": "injected",
        "metadata": {"tags": ["injected-parameters"]},
        "source": f'# Parameters\nrun = "{REQUEST.run_id}"\ncount = 3\nrate = 1.0\n',
    }
    notebook["cells"].insert(2, injected)
    for number, cell in enumerate(notebook["cells"][1:], start=1):
        cell["execution_count"] = number
        cell["metadata"]["papermill"] = {"status": "completed", "exception": False}
    notebook["metadata"]["papermill"] = {
        "end_time": "2026-01-01T00:00:00",
        "exception": None,
        "parameters": {"run": REQUEST.run_id, "count": 3, "rate": 1.0},
    }
    return notebook


def scanned(change: str) -> dict[str, set[State]]:
    notebook = executed()
    exec(change, {"n": notebook, "cells": notebook["cells"], "papermill": notebook["metadata"]["papermill"]})
    states: dict[str, set[State]] = {}
    for finding in scan_executed(encoded(notebook), encoded(SOURCE), REQUEST):
        states.setdefault(finding.law, set()).add(finding.state)
    return states


def test_a_copy_of_which_every_cell_ran_proves_three_laws():
    assert scanned("pass") == {
        "notebook-scan": {State.PROVEN},
        "notebook-source": {State.PROVEN},
        "parameters": {State.PROVEN},
    }


ERROR_CELL = "{'cell_type': 'markdown', 'id': 'e', 'metadata': {'tags': ['papermill-error-cell-tag']}, 'source': 'x'}"


@pytest.mark.parametrize(
    ("change", "law", "state"),
    [
        ("cells[3]['execution_count'] = None", "notebook-scan", State.UNPROVEN),
        ("cells[3]['execution_count'] = 9", "notebook-scan", State.UNPROVEN),
        ("cells[4]['execution_count'] = 3", "notebook-scan", State.UNPROVEN),
        ("cells[4]['outputs'] = [{'output_type': 'error'}]", "notebook-scan", State.UNPROVEN),
        ("cells[4]['outputs'] = [{'output_type': 'Error '}]", "notebook-scan", State.UNPROVEN),
        ("cells[4]['metadata']['papermill']['exception'] = True", "notebook-scan", State.UNPROVEN),
        ("cells[4]['metadata']['papermill']['status'] = 'pending'", "notebook-scan", State.UNPROVEN),
        ("del cells[4]['metadata']['papermill']", "notebook-scan", State.UNPROVEN),
        ("papermill['end_time'] = None", "notebook-scan", State.UNPROVEN),
        ("papermill['exception'] = True", "notebook-scan", State.UNPROVEN),
        (f"cells.insert(0, {ERROR_CELL})", "notebook-scan", State.UNPROVEN),
        ("cells[4]['metadata']['tags'] = ['skip-execution']", "notebook-scan", State.BROKEN),
        ("cells[4]['source'] = 'x = 2'", "notebook-source", State.BROKEN),
        ("cells[0]['source'] = 'another claim'", "notebook-source", State.BROKEN),
        ("del cells[4]", "notebook-source", State.BROKEN),
        ("cells.append(dict(cells[-1], id='more', execution_count=6))", "notebook-source", State.BROKEN),
        ("cells[3], cells[4] = cells[4], cells[3]", "notebook-source", State.BROKEN),
        ("del cells[2]", "parameters", State.UNPROVEN),
        ("cells[2]['source'] = cells[2]['source'].replace('3', '4')", "parameters", State.BROKEN),
        ("cells[2]['source'] += 'more = 1\\n'", "parameters", State.BROKEN),
        ("cells[2]['source'] += 'import os\\n'", "parameters", State.BROKEN),
        ("cells[2]['source'] = cells[2]['source'].replace('3', 'True')", "parameters", State.BROKEN),
        ("papermill['parameters']['count'] = 4", "parameters", State.BROKEN),
        ("del papermill['parameters']['rate']", "parameters", State.BROKEN),
        ("papermill['parameters']['rate'] = True", "parameters", State.BROKEN),
        ("cells.insert(1, cells.pop(2))", "parameters", State.BROKEN),
        ("n['nbformat'] = 3", "notebook-scan", State.UNPROVEN),
    ],
)
def test_what_did_not_happen_or_was_changed_shows_in_the_copy(change, law, state):
    assert state in scanned(change)[law]
