"""Looks at every process of a soak once in a while: resident memory and open descriptors, by role."""

from __future__ import annotations

import os
import threading
import time

import psutil

from tests.soak.beds import Bed, agents_of, coordinator_of, stages_of
from tests.soak.checks import Growth, Sample, growth_of
from tests.unit.fabric.processes import Identity, identify

EVERY_SECONDS = 2.0


class Watch:
    """Samples until it is stopped; remembers every process that was ever there."""

    def __init__(self, bed: Bed) -> None:
        """Begin."""
        self._bed = bed
        self._began_at = time.monotonic()
        self._stop = threading.Event()
        self.samples: dict[tuple[str, Identity], list[Sample]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look once more, and no more after that."""
        self._stop.set()
        self._thread.join()
        self.look()

    @property
    def processes(self) -> tuple[Identity, ...]:
        """Every process that was seen, without this one."""
        return tuple(process for role, process in self.samples if role != "owner")

    def growths(self) -> list[Growth]:
        """Judge every process that was watched for long enough."""
        judged = [growth_of(role, process.pid, samples) for (role, process), samples in list(self.samples.items())]
        return [growth for growth in judged if growth is not None]

    def look(self) -> None:
        """Take one sample of each process."""
        found: list[tuple[str, Identity]] = [("owner", identify(os.getpid()))]
        coordinator = coordinator_of(self._bed)
        if coordinator is not None:
            found.append(("Coordinator", coordinator))
        for agent in agents_of(self._bed).values():
            found.append(("agent", agent))
            found += [("stage", stage) for stage in stages_of(agent)]
        at = time.monotonic() - self._began_at
        for role, process in found:
            try:
                watched = psutil.Process(process.pid)
                if watched.create_time() == process.started:
                    sample = Sample(at, watched.memory_info().rss, watched.num_fds())
                    self.samples.setdefault((role, process), []).append(sample)
            except psutil.NoSuchProcess:
                continue  # it ended in this moment

    def _run(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            self.look()
