"""What each extra promises, in environments that really lack the rest."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.environments import make_environment

BASE_IMPORTS = """
import importlib, json, sys
for name in ("documents", "units", "resources", "evidence.store", "planner", "artifacts.origin",
             "strategies.economics", "strategies.dense.model", "cli"):
    importlib.import_module(f"inferswarm.{name}")
import inferswarm
try:
    import torch
except ModuleNotFoundError:
    absent = True
else:
    absent = False
from inferswarm.strategies.dense.model import DenseModel
model = DenseModel.open(sys.argv[1])
print(json.dumps({"torch_absent": absent, "blocks": model.description.num_blocks,
                  "units": len(model.problem(max_positions=64).units)}))
"""

COORDINATOR = """
import json, secrets, sys, time
from pathlib import Path
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.fabric.engines.base import NodeLaunch
from inferswarm.fabric.engines.local import LocalEngine, LocalSettings
from inferswarm.fabric.proc import maps_torch
from inferswarm.fabric.text_side import TextSide

settings = LocalSettings(scope="bare", ledger=str(Path(sys.argv[2]) / "ledger"), token=secrets.token_hex(16))
engine = LocalEngine(settings)
try:
    endpoint = engine.start_coordinator()
    client = Client(endpoint, settings.token, engine.check)
    engine.start_agent(NodeLaunch("node-1", "bare", None))
    deadline = time.monotonic() + 20
    while not client.ask(m.Status()).nodes:
        engine.check_agents()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pids = [process.pid for process in engine.processes()]
    torch_mapped = [maps_torch(pid) for pid in pids]
finally:
    engine.stop()
ids = TextSide(sys.argv[1]).prompt_ids("Hello", raw=False)
print(json.dumps({"processes": len(pids), "torch_mapped": torch_mapped, "prompt_tokens": len(ids)}))
"""


def run(python: Path, code: str, *arguments: str) -> dict[str, object]:
    done = subprocess.run([python, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_base_install_reads_models_and_plans_without_torch(tmp_path: Path, smollm2_path: Path) -> None:
    python = make_environment(tmp_path / "base", ())
    found = run(python, BASE_IMPORTS, str(smollm2_path))
    assert found == {"torch_absent": True, "blocks": 30, "units": 32}


def test_a_coordinator_and_an_agent_run_where_torch_is_not_installed(tmp_path: Path, smollm2_path: Path) -> None:
    python = make_environment(tmp_path / "fabric", ("fabric",))
    absent = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, timeout=60)
    assert "ModuleNotFoundError" in absent.stderr
    found = run(python, COORDINATOR, str(smollm2_path), str(tmp_path))
    assert found["torch_mapped"] == [False, False]
    assert found["prompt_tokens"] == 31


@pytest.mark.parametrize("command", ["discover", "doctor"])
def test_the_base_install_looks_at_the_machine(tmp_path: Path, command: str) -> None:
    python = make_environment(tmp_path / "base", ())
    code = f"from inferswarm.cli import main; main({[command]!r})"
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "torch" in done.stdout
    assert "CPU" in done.stdout


@pytest.mark.parametrize("command", ["run", "serve", "demo"])
def test_a_command_whose_extra_is_missing_says_which(tmp_path: Path, command: str) -> None:
    python = make_environment(tmp_path / "base", ())
    arguments = ["x"] if command == "run" else []
    code = f"from inferswarm.cli import main; main({[command, *arguments]!r})"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 1
    assert "needs an extra" in done.stderr
    assert "Traceback" not in done.stderr
