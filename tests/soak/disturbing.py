"""What happens to a swarm in a soak: processes killed, stopped and continued, Nodes that come back, plans changed.

Losses are signals to a process, and nobody is told before. Changes of plans are asked for, as a planner would, and
may be met by losses. At most one Node is away at a time, so that a plan with all of its Nodes is always left; losses
of stages, Nodes and the Coordinator may fall on each other.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable

from inferswarm.errors import CommitRefused, EngineError, InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.recovery_records import TransitionMode, Trigger
from tests.orders import realize_first
from tests.soak.beds import Bed, agents_of, coordinator_of, stages_of, status_of, wait_for_member
from tests.soak.load import Journal
from tests.unit.fabric.processes import Identity, wait_until

SERVE_SECONDS = 180.0
"""Within which something must serve again and answers go on, on a busy machine with further losses in between."""
SOME_TOKENS = 12
"""So many more are seen by clients before the next disturbance, if it waits: else no answer gets anywhere."""
MEAN_PAUSE_SECONDS = 6.0
AWAY_SECONDS = (0.0, 8.0)
"""How long a lost Node stays away: shorter than a lease, or much longer."""
PAUSE_SECONDS = (0.05, 0.6)
"""Of a stage: most of them too short to be taken for a loss, some not."""
FROZEN_SECONDS = (0.3, 5.0)
"""Of an agent or a Coordinator: shorter than its lease, or longer."""
WAITS_SHARE = 0.8
"""How often the next disturbance waits until answers go on."""


def send(process: Identity, number: signal.Signals) -> bool:
    """Send a signal to a process that may have ended; returns whether it was there."""
    if not process.runs():
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


class Disturber:
    """Disturbs one swarm, one thing after the other, as a seed says; the moments are the machine's."""

    def __init__(self, bed: Bed, journal: Journal, seed: int, mean_pause: float = MEAN_PAUSE_SECONDS) -> None:
        """Do nothing yet. The agent of one Node is never killed, so that its memory can be watched for long."""
        self._bed = bed
        self._journal = journal
        self._chance = random.Random(seed)
        self._mean_pause = mean_pause
        self._away: tuple[str, float] | None = None
        self._coordinator_kills_until = float("inf")
        self._changing: threading.Thread | None = None
        self._kinds: tuple[tuple[Callable[[], bool], str, int], ...] = (
            (self._kill_stage, "stage killed", 5),
            (self._kill_stages, "all stages killed", 1),
            (self._stop_stage, "stage stopped for good", 2),
            (self._pause_stage, "stage paused", 3),
            (self._kill_agent, "agent killed", 3),
            (self._freeze_agent, "agent stopped and continued", 2),
            (self._kill_coordinator, "Coordinator killed and started again", 3),
            (self._freeze_coordinator, "Coordinator stopped and continued", 2),
            (self._change, "another plan asked for", 3),
            (self._drain, "Node drained", 2),
        )

    def run(self, until: float, coordinator_kills_until: float, on_wait: Callable[[], bool]) -> None:
        """Disturb until a moment of the monotonic clock, or until `on_wait`, asked all the time, says to end."""
        self._coordinator_kills_until = coordinator_kills_until
        while time.monotonic() < until:
            pause_until = time.monotonic() + self._chance.expovariate(1 / self._mean_pause)
            while time.monotonic() < min(pause_until, until):
                time.sleep(0.05)
                if on_wait():
                    return
            self._bring_back(only_due=True)
            act, what, _ = self._chance.choices(self._kinds, [weight for _, _, weight in self._kinds])[0]
            if not act():
                continue
            self._journal.count(f"disturbed: {what}")
            if self._chance.random() < WAITS_SHARE and not self._goes_on(on_wait):
                self._journal.violated(f"no answer has gone on {SERVE_SECONDS:.0f} s after: {what}")
                return

    def _goes_on(self, on_wait: Callable[[], bool]) -> bool:
        """Wait until clients see tokens again; False when that takes too long."""
        before = self._journal.num_seen

        def is_so() -> bool:
            self._bring_back(only_due=True)
            return on_wait() or self._journal.num_seen >= before + SOME_TOKENS

        return wait_until(is_so, SERVE_SECONDS)

    def _serves(self) -> bool:
        try:
            return status_of(self._bed).epoch is not None
        except EngineError:
            return False

    def calm(self) -> None:
        """Bring back whoever is away, and wait until every Node is a member and something serves."""
        if self._changing is not None:
            self._changing.join(SERVE_SECONDS)
            if self._changing.is_alive():
                self._journal.violated(f"a change of plans has no answer after {SERVE_SECONDS:.0f} s")
        self._bring_back(only_due=False)
        for name in self._bed.names:
            if not wait_for_member(self._bed, name, there=True):
                self._journal.violated(f"{name} did not become a member again")
        if not wait_until(self._serves, SERVE_SECONDS):
            self._journal.violated("nothing serves after all Nodes came back")

    # -- stages --

    def _stage(self) -> Identity | None:
        found = [stage for agent in agents_of(self._bed).values() for stage in stages_of(agent)]
        return self._chance.choice(found) if found else None

    def _kill_stage(self) -> bool:
        stage = self._stage()
        return stage is not None and send(stage, signal.SIGKILL)

    def _kill_stages(self) -> bool:
        stages = [stage for agent in agents_of(self._bed).values() for stage in stages_of(agent)]
        killed = [send(stage, signal.SIGKILL) for stage in stages]
        return any(killed)

    def _stop_stage(self) -> bool:
        stage = self._stage()
        return stage is not None and send(stage, signal.SIGSTOP)

    def _pause_stage(self) -> bool:
        stage = self._stage()
        return stage is not None and self._freeze(stage, PAUSE_SECONDS)

    def _freeze(self, process: Identity, bounds: tuple[float, float]) -> bool:
        if not send(process, signal.SIGSTOP):
            return False
        time.sleep(self._chance.uniform(*bounds))
        send(process, signal.SIGCONT)
        return True

    # -- Nodes --

    def _kill_agent(self) -> bool:
        if self._away is not None:
            return False
        name = self._chance.choice(self._bed.names[1:])
        agent = agents_of(self._bed).get(name)
        if agent is None or not send(agent, signal.SIGKILL):
            return False
        self._away = (name, time.monotonic() + self._chance.uniform(*AWAY_SECONDS))
        return True

    def _bring_back(self, *, only_due: bool) -> None:
        """Start the agent of the Node that is away, when its time has come and there is a Coordinator."""
        if self._away is None or (only_due and time.monotonic() < self._away[1]):
            return
        if coordinator_of(self._bed) is None:
            return
        name, _ = self._away
        self._away = None
        self._bed.start_agent(name)
        self._journal.count("Nodes brought back")

    def _freeze_agent(self) -> bool:
        if self._away is not None:
            return False
        agents = agents_of(self._bed)
        name = self._chance.choice(self._bed.names)
        return name in agents and self._freeze(agents[name], FROZEN_SECONDS)

    # -- plans --

    def _change(self) -> bool:
        """Ask for another plan, and do not wait: what comes next may fall into it."""
        if self._changing is not None and self._changing.is_alive():
            return False
        first = self._chance.choice(self._bed.choices)
        mode = self._chance.choice((TransitionMode.MAKE_BEFORE_BREAK, TransitionMode.SAFE_INTERRUPTED_CUTOVER))
        self._changing = threading.Thread(target=self._ask_for, args=(first, mode), daemon=True)
        self._changing.start()
        return True

    def _drain(self) -> bool:
        """Have the plan move away from a Node, then end its agent."""
        if self._away is not None or (self._changing is not None and self._changing.is_alive()):
            return False
        name = self._chance.choice(self._bed.names[1:])
        without = [
            item for item in self._bed.choices if name not in {part.node_name for part in item.plan.placements}
        ]
        if not self._ask_for(self._chance.choice(without), TransitionMode.MAKE_BEFORE_BREAK):
            return False
        self._bed.engine.stop_agent(name)
        self._away = (name, time.monotonic() + self._chance.uniform(*AWAY_SECONDS))
        return True

    def _ask_for(self, first: m.Fallback, mode: TransitionMode) -> bool:
        """Ask for a change from what is in force; returns whether it was made. Losses and policy may prevent it."""
        others = [item for item in self._bed.choices if item is not first]
        try:
            epoch = status_of(self._bed).epoch
            if epoch is None:
                return False
            order = realize_first(self._bed.model_path, (first, *others))
            self._bed.client.ask(
                m.Change(order=order, epoch=epoch, mode=mode, trigger=Trigger.REQUEST, detail="the soak asks for it")
            )
        except InferSwarmError as error:
            why = error.code if isinstance(error, CommitRefused) else type(error).__name__
            self._journal.count(f"changes not made: {why}")
            return False
        self._journal.count(f"changes made: {mode.value}")
        return True

    # -- the Coordinator --

    def _kill_coordinator(self) -> bool:
        if time.monotonic() > self._coordinator_kills_until:
            return False
        process = coordinator_of(self._bed)
        if process is None or not send(process, signal.SIGKILL):
            return False
        assert wait_until(lambda: coordinator_of(self._bed) is None, 10.0)
        time.sleep(self._chance.uniform(0.0, 2.0))
        self._bed.engine.start_coordinator()
        return True

    def _freeze_coordinator(self) -> bool:
        process = coordinator_of(self._bed)
        return process is not None and self._freeze(process, FROZEN_SECONDS)
