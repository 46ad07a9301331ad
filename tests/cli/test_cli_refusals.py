"""Bad input on the command line: a typed error that names it, a status that is not 0, nothing left behind."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models import write_small_llama

SMALL_NODE = ("--node", "a:threads=1,memory=600MB")


MARK = f"REFUSALS_OF={os.getpid()}"
"""In the environment of every process that is started here: another one's swarms may run beside these tests."""
started: list[int] = []


def run_cli(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from inferswarm.cli import main; main()", *arguments]
    name, _, value = MARK.partition("=")
    marked = {**(os.environ if env is None else env), name: value}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=marked, cwd=cwd, **pipes) as process:
        started.append(process.pid)
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def leftovers() -> set[str]:
    """Return what a swarm of these tests could leave: processes, temporary directories, cgroups."""
    found = {f"process {pid}" for pid in os.listdir("/proc") if pid.isdigit() and is_ours(pid)}
    for owner in started:
        found |= {str(path) for path in Path("/tmp").glob(f"inferswarm-{owner}-*")}
        found |= {str(path) for path in Path("/sys/fs/cgroup").glob(f"**/inferswarm-{owner}-*")}
    return found


def is_ours(pid: str) -> bool:
    try:
        return MARK.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    started.clear()
    yield
    assert leftovers() == set()


def assert_refused(done: subprocess.CompletedProcess[str], kind: str, pattern: str) -> None:
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr, done.stderr
    assert f"inferswarm: {kind}: " in done.stderr, done.stderr
    assert re.search(pattern, done.stderr), done.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    good = directory / "good.gguf"
    write_small_llama(good, seed=1)
    data = good.read_bytes()
    (directory / "truncated.gguf").write_bytes(data[: len(data) // 2])
    (directory / "header-cut.gguf").write_bytes(data[:200])
    (directory / "garbage.gguf").write_bytes(b"GGUF" + os.urandom(5000))
    (directory / "not-a-model.gguf").write_bytes(b"hello" * 100)
    (directory / "empty.gguf").write_bytes(b"")
    (directory / "other.gguf").write_bytes(data.replace(b"llama", b"mamba"))
    return {path.stem: path for path in directory.iterdir()}


@pytest.mark.parametrize(
    ("name", "kind", "pattern"),
    [
        ("truncated", "ModelError", "truncated.gguf"),
        ("header-cut", "ModelError", "header-cut.gguf"),
        ("garbage", "(ModelError|UnsupportedModel)", "garbage.gguf"),
        ("not-a-model", "(SpecError|ModelError)", "not-a-model.gguf"),
        ("empty", "(SpecError|ModelError)", "empty.gguf"),
        ("other", "UnsupportedModel", "general.architecture"),
    ],
)
def test_a_file_that_is_no_model_is_named(
    files: dict[str, Path], tmp_path: Path, name: str, kind: str, pattern: str
) -> None:
    done = run_cli("plan", "-m", str(files[name]), "--state", str(tmp_path))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert re.search(rf"inferswarm: {kind}: .*{pattern}", done.stderr), done.stderr


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    assert_refused(
        run_cli("run", "-m", "/nowhere/model.gguf", "x", "--state", str(tmp_path)), "SpecError", "/nowhere/model.gguf"
    )


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    done = run_cli("run", "-m", "gpt-17", "x", "--state", str(tmp_path))
    assert_refused(done, "SpecError", "smollm2-135m")


@pytest.mark.parametrize("prompt", ["", "--raw="])
def test_an_empty_prompt_is_refused_before_anything_starts(tmp_path: Path, prompt: str) -> None:
    arguments = ["run", "", "--state", str(tmp_path)] + (["--raw"] if prompt else [])
    assert_refused(run_cli(*arguments), "AdmissionError", "prompt")


def test_a_prompt_over_the_context_is_refused_before_any_work(tmp_path: Path) -> None:
    done = run_cli("run", "word " * 9000, "--state", str(tmp_path), *SMALL_NODE)
    assert_refused(done, "SpecError", r"8,?192")


@pytest.mark.parametrize(
    ("node", "pattern"),
    [
        ("a:threads=1,memory=0", "memory"),
        ("a:threads=0,memory=1GB", "threads"),
        ("a:threads=1", "NAME:threads=N,memory=SIZE"),
        ("a b:threads=1,memory=1GB", "node name"),
        ("a:threads=1,memory=lots", "memory"),
        ("a:threads=4096,memory=1GB", "cores"),
        ("a:threads=1,memory=900TB", "memory of all nodes"),
    ],
)
def test_an_impossible_node_is_named(tmp_path: Path, node: str, pattern: str) -> None:
    assert_refused(run_cli("measure", "--node", node, "--state", str(tmp_path)), "SpecError", pattern)


def test_two_nodes_with_one_name_are_refused(tmp_path: Path) -> None:
    done = run_cli("measure", *SMALL_NODE, *SMALL_NODE, "--state", str(tmp_path))
    assert_refused(done, "SpecError", "node names")


def test_a_node_too_small_for_an_empty_stage_is_stopped_and_named(tmp_path: Path) -> None:
    done = run_cli("measure", "--node", "tiny:threads=1,memory=30MB", "--state", str(tmp_path))
    assert done.returncode == 1
    assert re.search(r"inferswarm: (EnvelopeExceeded|EngineError): .*tiny", done.stderr), done.stderr


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = run_cli("run", "x", "--state", str(tmp_path), "--port", str(port))
    assert_refused(done, "EngineError", str(port))


def test_an_unwritable_state_directory_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert_refused(run_cli("measure", "--state", str(blocked / "state")), "SpecError", "state directory")


def test_without_home_the_state_directory_must_be_named(tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_STATE_HOME")}
    assert_refused(run_cli("measure", env=env, cwd=tmp_path), "SpecError", "--state DIRECTORY")


def test_an_output_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    done = run_cli("demo", "--out", str(blocked / "out"), "--state", str(tmp_path / "state"))
    assert_refused(done, "SpecError", "out")


def test_an_unknown_mechanism_is_named(tmp_path: Path) -> None:
    done = run_cli("measure", *SMALL_NODE, "--state", str(tmp_path), "--mechanism", "wishes")
    assert_refused(done, "SpecError", "wishes")


@pytest.mark.parametrize(
    ("arguments", "kind", "pattern"),
    [
        (("run", "x", "--max-tokens", "0"), "SpecError", "output_tokens"),
        (("run", "x", "--max-tokens", "-5"), "SpecError", "output_tokens"),
        (("run", "x", "-r", "int4"), "SpecError", "int4"),
        (("run", "x", "--temperature", "-1"), "SpecError", "temperature"),
        (("run", "x", "--seed", str(2**64)), "SpecError", "seed"),
        (("run", "x", "--logit-bias", "7"), "SpecError", "ID=VALUE"),
        (("run", "x", "--logit-bias", "49152=1"), "SpecError", "49152"),
        (("run", "x", "--stop", ""), "AdmissionError", "stop"),
        (("plan", "-r", "int4"), "SpecError", "int4"),
        (("plan", "--picture", "/nonexistent/directory/x"), "SpecError", "picture"),
        (("demo", "--prompt", ""), "AdmissionError", "prompt"),
    ],
)
def test_what_can_be_known_to_be_impossible_is_refused_at_once(
    tmp_path: Path, arguments: tuple[str, ...], kind: str, pattern: str
) -> None:
    done = run_cli(*arguments, "--state", str(tmp_path), cwd=tmp_path)
    assert_refused(done, kind, pattern)
    assert not (tmp_path / "observations").exists()  # nothing was started, so nothing was measured


@pytest.mark.long
def test_a_plan_that_does_not_exist_says_no_in_numbers(tmp_path: Path) -> None:
    done = run_cli("plan", "--node", "a:threads=1,memory=250MB", "--state", str(tmp_path), "--output-tokens", "8")
    assert done.returncode == 3
    assert "technically infeasible" in done.stdout
    assert re.search(r"needs? [0-9.]+ MB", done.stdout), done.stdout
