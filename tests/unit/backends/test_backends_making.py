"""States are made within what the planner counts for them, under every mechanism that this machine has."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from inferswarm.fabric.proc import process_memory
from inferswarm.planner import Workload
from inferswarm.planner.memory import RangeMemory
from inferswarm.resources.cgroups import MemoryController, find_memory_controller
from inferswarm.strategies.problem import TORCH, make_problem
from tests.unit.backends.backends_support import small_description

LARGE = small_description(hidden_size=1024, feed_forward_size=8192, head_size=256, num_blocks=2)
"""Blocks of 56 MB in bf16, which are packed in slices of 8 MiB."""
UNITS = (1, 3)
STAGE = """
import os, sys
if len(sys.argv) > 1:
    open(sys.argv[1], "w").write(str(os.getpid()))
from inferswarm.backends.registry import make_executor
from inferswarm.fabric.warming import warm_up
from tests.unit.backends.backends_support import assign, small_description
from tests.unit.backends.test_backends_making import LARGE, UNITS
tiny = assign(small_description(), representation="bf16")
executor = make_executor(tiny)
executor.materialize(lambda done, total: None)
warm_up(executor, tiny)
print("warm", flush=True)
sys.stdin.readline()
large = assign(LARGE, *UNITS, representation="bf16")
executor = make_executor(large)
executor.materialize(lambda done, total: None)
warm_up(executor, large)
print("made", flush=True)
"""
CONTROLLER = find_memory_controller()
MECHANISMS = ("rlimit-data", *([CONTROLLER.mechanism] if isinstance(CONTROLLER, MemoryController) else []))
Allow = Callable[[int, int], None]
"""Lets a process (pid) take so many bytes beyond what is charged for it at this moment."""


@contextmanager
def enforcing(mechanism: str) -> Iterator[tuple[list[str], Allow]]:
    """Give what a stage is started with and what limits it, as the envelope of this mechanism does."""
    if mechanism == "rlimit-data":

        def allow_data(pid: int, more: int) -> None:
            memory = process_memory(pid)
            assert memory is not None
            resource.prlimit(pid, resource.RLIMIT_DATA, (memory.data + more,) * 2)

        yield [], allow_data
        return
    assert isinstance(CONTROLLER, MemoryController)
    group = CONTROLLER.create(f"test-{os.getpid()}-{uuid.uuid4().hex[:8]}", 2**33)
    limit = group.path / ("memory.limit_in_bytes" if mechanism == "cgroup-v1" else "memory.max")

    def allow_group(pid: int, more: int) -> None:
        limit.write_text(str(group.unreclaimable_bytes() + more))

    try:
        yield [str(group.procs_path)], allow_group
    finally:
        group.remove()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_stage_makes_its_states_within_what_the_planner_counts(mechanism: str) -> None:
    """Under a limit of what is charged for it warm and empty and of the account's terms, it makes and uses them."""
    (in_bf16,) = [item for item in TORCH if item.representation == "bf16"]
    workload = Workload(prompt_tokens=192, output_tokens=64)  # 256 positions, as the assignment has
    terms = RangeMemory(make_problem(LARGE), in_bf16, workload).terms(*UNITS)
    with enforcing(mechanism) as (arguments, allow):
        stage = subprocess.Popen(
            [sys.executable, "-c", STAGE, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert stage.stdout is not None
            assert stage.stdout.readline() == "warm\n"
            allow(stage.pid, sum(term.bytes for term in terms))
            said, _ = stage.communicate("\n", timeout=60)
        finally:
            stage.kill()
            stage.wait()
    assert said == "made\n"
