"""A stranger with the base install verifies evidence, signed or not, and nothing that runs an arm is there."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from inferswarm.campaigns.signing import make_keys, sign_run
from tests.environments import make_environment
from tests.unit.campaigns.made_runs import make_project, make_run

ABSENT = (
    "torch",
    "zmq",
    "papermill",
    "nbclient",
    "nbformat",
    "jupyter_client",
    "ipykernel",
    "IPython",
    "securesystemslib",
)
CONTROL = "scipy"
"""What is there, loaded and mapped, so that looking for it in these ways finds it."""
CODE = """
import importlib.util, json, sys
from inferswarm.cli import main
try:
    main(["verify", *sys.argv[2:]])
except SystemExit as ended:
    status = ended.code
names = json.loads(sys.argv[1])
with open("/proc/self/maps") as file:
    maps = file.read()
print()
print(json.dumps({"status": status or 0, "installed": [n for n in names if importlib.util.find_spec(n)],
                  "loaded": [n for n in names if n in sys.modules],
                  "mapped": [n for n in names if f"/{n}/" in maps or f"lib{n}" in maps]}))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a passed, signed run, its keys, and an environment of the base install alone."""
    place = tmp_path_factory.mktemp("stranger")
    project = make_project(place / "project")
    run = make_run(project, project / "evidence", "first")
    make_keys(place / "key.pem", place / "key.pub")
    sign_run(run, place / "key.pem")
    make_environment(place / "base", ())
    return place


def verify(place: Path, *arguments: str) -> tuple[dict[str, object], str, str]:
    """Verify in the base environment; return what was there and loaded, what was said, and the complaints."""
    command = [str(place / "base" / "bin" / "python"), "-c", CODE, json.dumps([*ABSENT, CONTROL]), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=place)
    said, _, last = done.stdout.rstrip("\n").rpartition("\n")
    assert last.startswith("{"), done.stderr
    return json.loads(last), said, done.stderr


def test_the_base_install_verifies_and_loads_nothing_that_runs_an_arm(place: Path) -> None:
    found, said, _ = verify(place, str(place / "project" / "evidence"), "--json")
    assert found == {"status": 6, "installed": [CONTROL], "loaded": [CONTROL], "mapped": [CONTROL]}
    verdict = json.loads(said)
    assert [run["disposition"] for run in verdict["runs"]] == ["PASS"]
    (signature,) = (item for item in verdict["runs"][0]["findings"] if item["law"] == "signature")
    assert (signature["state"], "needs the extra 'sign'" in signature["found"]) == ("UNPROVEN", True)


def test_the_base_install_finds_what_was_altered_and_says_which_law(place: Path, tmp_path: Path) -> None:
    root = shutil.copytree(place / "project" / "evidence", tmp_path / "evidence")
    (run,) = (root / "made").glob("first-*")
    samples = run / "samples.parquet"
    samples.write_bytes(samples.read_bytes()[:-1])
    found, said, _ = verify(place, str(root))
    assert found["status"] == 4
    assert "BROKEN    file-digest: samples.parquet" in said
    assert "BROKEN    seal: samples.parquet" in said


def test_who_asks_for_a_signature_without_the_extra_is_told_which(place: Path) -> None:
    found, _, complaint = verify(place, str(place / "project" / "evidence"), "--key", str(place / "key.pub"))
    assert found["status"] == 1
    assert "the extra 'sign'" in complaint
    assert "Traceback" not in complaint
