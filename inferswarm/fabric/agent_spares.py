"""One warm, empty stage that an agent keeps beside those that work, so that a lost one is replaced at once.

Loading a backend takes longer than everything else of a small recovery. The spare is started like the last stage that
was materialized here (addresses, CPUs, backend), some time after that: while a stage is being replaced, the machine
has better things to do. What it takes is in no plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from inferswarm.backends.base import StageAssignment
from inferswarm.errors import InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.stage_process import StageProcess

PAUSE_SECONDS = 5.0
"""How long after a stage's states were built a spare is begun: a recovery of one loss is over by then."""
SPARE = "spare"
"""Its name, until it has that of a participant."""

Make = Callable[[str], StageProcess]
Start = Callable[[StageProcess, m.StartStage], Awaitable[None]]
"""Starts a stage as an order says; the name in the order is not looked at."""


class _Shape(NamedTuple):
    """What a spare must be like to stand in."""

    order: m.StartStage
    warm: m.Warm


class Spare:
    """The spare of one agent. Where there is none, `take` gives nothing, and a stage is started as ever."""

    def __init__(self, make: Make, start: Start, pause_seconds: float = PAUSE_SECONDS) -> None:
        """Keep none before something was materialized."""
        self._make = make
        self._start = start
        self._pause_seconds = pause_seconds
        self._wanted: _Shape | None = None
        self._made: _Shape | None = None
        self._task: asyncio.Task[None] | None = None
        self.stage: StageProcess | None = None
        """The one that is ready, or is being made ready."""

    def like(self, assignment: StageAssignment, order: m.StartStage) -> None:
        """Keep a spare for a stage with such an assignment and order, just built, instead of one for another."""
        unit = assignment.compute_unit
        warm = m.Warm(
            primitive=assignment.primitive,
            threads=assignment.threads[0].threads,
            compute_unit_id="" if isinstance(unit, msgspec.UnsetType) else unit.id,
            kind=assignment.kind,
        )
        self._wanted = _Shape(replace(order, stage=SPARE), warm)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._prepare())

    async def _prepare(self) -> None:
        await asyncio.sleep(self._pause_seconds)
        if (shape := self._wanted) is None or self._made == shape:
            return
        if self.stage is not None:
            await self.stop()
            self._wanted = shape
        stage = self.stage = self._make(SPARE)
        try:
            await self._start(stage, shape.order)
            await stage.call(shape.warm)
        except (InferSwarmError, OSError):
            pass  # one that has started has loaded what can be loaded; everything works without one
        if self.stage is stage:
            self.stage, self._made = (stage, shape) if stage.endpoint else (None, None)

    def take(self, order: m.StartStage) -> StageProcess | None:
        """Give the spare away under the ordered name, if there is one that listens and is bound as ordered."""
        stage, made = self.stage, self._made
        if stage is None or made is None or (made.order.cpus, made.order.threads) != (order.cpus, order.threads):
            return None
        if not set(order.addresses) <= set(dict(stage.endpoints)):
            return None
        self.stage = self._made = None
        stage.rename(order.stage)
        return stage

    def gone(self, stage: StageProcess) -> bool:
        """Return whether a stage that has ended was the spare; then there is none any more."""
        if stage is not self.stage:
            return False
        self.stage = self._made = None
        return True

    async def stop(self) -> None:
        """End the spare, and keep none until something is materialized again."""
        stage, self.stage, self._made, self._wanted = self.stage, None, None, None
        if stage is not None:
            await stage.stop()

    async def close(self) -> None:
        """End the spare for good."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.stop()
