"""What this machine offers and lacks, each with what it would enable. Looks only; changes nothing."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import sys
from typing import Literal, NamedTuple

from inferswarm.errors import SpecError
from inferswarm.fabric.envelope import available_mechanism
from inferswarm.resources.accelerators import AcceleratorProbe, probe_accelerators
from inferswarm.resources.cpuinfo import read_cpu
from inferswarm.resources.types import Fact
from inferswarm.swarm.state import default_state_directory, prepare_state_directory
from inferswarm.units import format_bytes

State = Literal["present", "missing", "unknown"]
MIN_PYTHON = (3, 11)
LOOPBACK = "127.0.0.1"


class Finding(NamedTuple):
    """One thing that was looked for."""

    name: str
    state: State
    found: str
    enables: str
    required: bool = False


def examine() -> tuple[Finding, ...]:
    """Look for everything and return one finding each. Takes a few seconds: torch is asked in another process."""
    accelerators = probe_accelerators(sys.executable, 60.0)
    return (
        _python(),
        _torch(accelerators),
        _accelerators(accelerators),
        _instruction_sets(),
        _compiler(),
        _memory_mechanism(),
        _ports(),
        _state_directory(),
        _disk(),
        *(_package(name, module, enables) for name, module, enables in _PACKAGES),
    )


_PACKAGES = (
    ("pyzmq", "pyzmq", "the fabric: Coordinator, agents and stages talk through it"),
    ("tokenizers", "tokenizers", "text in and out; without it only token ids"),
    ("gguf", "gguf", "materializing GGUF encodings"),
    ("jupyterlab", "jupyterlab", "the workbench (make lab)"),
    ("papermill", "papermill", "campaigns and notebooks without a browser"),
    ("ray", "ray", "the engine for several machines"),
    ("transformers", "transformers", "cross-checks against an independent implementation"),
    ("pygraphviz", "pygraphviz", "larger pictures with Graphviz layouts"),
)


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    state: State = "present" if sys.version_info[:2] >= MIN_PYTHON else "missing"
    return Finding("Python 3.11 or newer", state, f"{version} at {sys.executable}", "everything", required=True)


def _of_fact(name: str, fact: Fact[str], enables: str, *, required: bool = False) -> Finding:
    if fact.value is None:
        return Finding(name, "missing", fact.detail, enables, required)
    return Finding(name, "present", fact.value, enables, required)


def _torch(probe: AcceleratorProbe) -> Finding:
    return _of_fact("torch", probe.torch_version, "executing models on this machine (extra: run)")


def _accelerators(probe: AcceleratorProbe) -> Finding:
    enables = "GPU execution; without one the CPU executes"
    if probe.accelerators:
        names = ", ".join(f"{item.kind} {item.name}" for item in probe.accelerators)
        return Finding("accelerators", "present", names, enables)
    return Finding("accelerators", "missing", "none that this build of torch can use", enables)


def _instruction_sets() -> Finding:
    cpu = read_cpu()
    names = ", ".join(cpu.isa_names) or "none of those that decide kernels"
    return Finding("CPU", "present", f"{cpu.model_name.value or 'unnamed'}: {names}", "fast bf16 and int8 kernels")


def _compiler() -> Finding:
    path = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    state: State = "missing" if path is None else "present"
    return Finding("C++ compiler", state, path or "none on PATH", "native kernels, when they are built from source")


def _memory_mechanism() -> Finding:
    mechanism, detail = available_mechanism()
    state: State = "missing" if mechanism == "rlimit-data" else "present"
    enables = "memory envelopes that the kernel enforces on a whole Node; otherwise each stage's data is limited"
    return Finding("memory cgroup", state, f"{mechanism} ({detail})", enables)


def _ports() -> Finding:
    enables = "the processes of a swarm reach each other"
    try:
        with socket.socket() as listener:
            listener.bind((LOOPBACK, 0))
            port = listener.getsockname()[1]
    except OSError as error:
        return Finding("loopback ports", "missing", str(error), enables, required=True)
    return Finding("loopback ports", "present", f"{LOOPBACK}:{port} could be bound", enables, required=True)


def _state_directory() -> Finding:
    enables = "observations are kept between runs; --state names another place"
    try:
        path = prepare_state_directory(default_state_directory())
    except SpecError as error:
        return Finding("state directory", "missing", str(error), enables)
    return Finding("state directory", "present", str(path), enables)


def _disk() -> Finding:
    usage = shutil.disk_usage(os.getcwd())
    found = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}"
    return Finding("disk here", "present", found, "pictures, evidence, model files")


def _package(name: str, distribution: str, enables: str) -> Finding:
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "missing", "not installed", enables)
    return Finding(name, "present", version, enables)
