"""A stage with one thread for each CPU keeps each of them on its own; another one lets the system place them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from inferswarm.fabric import messages as m
from inferswarm.fabric.envelope import NodeEnvelope
from inferswarm.fabric.stage_main import BIND_VARIABLE
from inferswarm.fabric.stage_process import StageProcess
from inferswarm.resources.cpu_limits import allowed_cpus


def places_of_threads(announced: int) -> set[frozenset[int]]:
    """Return where the threads of a stage may run that computes on all CPUs, and was started for so many threads."""

    async def run() -> set[frozenset[int]]:
        stage = StageProcess("r1/stage-0", "amber", NodeEnvelope(), lambda which, error: None)
        await stage.start("n1", "127.0.0.1", threads=announced)
        try:
            await stage.call(m.Warm(primitive="torch", threads=len(allowed_cpus())))
            tasks = [int(path.name) for path in Path(f"/proc/{stage.pid}/task").iterdir()]
            return {frozenset(os.sched_getaffinity(task)) for task in tasks}
        finally:
            await stage.stop()

    return asyncio.run(run())


def test_as_many_threads_as_cpus_have_a_cpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BIND_VARIABLE, raising=False)
    everywhere = frozenset(os.sched_getaffinity(0))
    assert {frozenset({cpu}) for cpu in everywhere} <= places_of_threads(len(everywhere))
    assert places_of_threads(len(everywhere) + 1) == {everywhere}


def test_what_an_operator_says_of_threads_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BIND_VARIABLE, "false")
    assert places_of_threads(len(allowed_cpus())) == {frozenset(os.sched_getaffinity(0))}
