"""Health that acts: a Node is made really slower, and what follows is printed as ratios.

Two virtual Nodes on this machine, one with two threads and one with one. What is measured is accepted; then the Node
with two threads is confined to one CPU, which busy processes share: its threads wait for each other, so that every
sample takes longer, and not only some. Everything is measured again and another plan is made. When that has ended,
the degraded Compute Unit is revalidated. Each step says what held. On a machine that does other things meanwhile the
samples may not tell, and then nothing is concluded: alerts are then neither raised nor cleared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

from inferswarm.evidence.alerts import Alert
from inferswarm.evidence.events import Scope
from inferswarm.planner import Workload
from inferswarm.resources import Envelope
from inferswarm.swarm import Model, Swarm
from inferswarm.swarm.displays import DecisionView
from tests.bench.report import conditions, write

NUM_BUSY = 2
"""Processes beside the stages of the slower Node on their one CPU."""
ENVELOPE_BYTES = 1_500_000_000
MAX_REVALIDATIONS = 3
BUSY = "while True: pass"
Result = TypeVar("Result")


def times_worse(alert: Alert) -> float:
    """Return how many times worse than accepted an alert's records were."""
    ratio = alert.comparison.ratio
    assert ratio is not None
    return ratio if alert.comparison.better == "lower" else 1 / ratio


def main() -> None:
    """Run the steps, print the ratios, keep them."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        print("health: needs two CPUs")
        return
    taken = conditions()
    model, workload = Model("smollm2-135m"), Workload(prompt_tokens=64, output_tokens=64)
    threads = {"birch": 2, "oak": 1}
    nodes = [Envelope(name=name, threads=num, memory_bytes=ENVELOPE_BYTES) for name, num in threads.items()]
    held: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as state, Swarm.local(nodes, state=state) as swarm:
        before = timed("measured and planned", lambda: swarm.plan(model, workload))
        accepted = swarm.accept_baselines("bench", "measured on a calm machine")
        slowed = nodes[0].name
        unit = unit_of(before, slowed)
        print(f"  {len(accepted.baselines)} baselines accepted; plan: {nodes_of(before)}; {slowed} is made slower")
        (agent,) = [node.pid for node in swarm.status().nodes if node.name == slowed]
        busy = start_busy(cpus[0])
        try:
            confine(agent, {cpus[0]})
            timed("measured again under load", lambda: swarm.measure(model, workload, refresh=True))
            alerts = swarm.health.document.alerts
            during = swarm.plan(model, workload, measure=False)
        finally:
            stop_busy(busy)
            confine(agent, set(cpus))
        about = [times_worse(alert) for alert in alerts if alert.subject == unit.id]
        others = [
            times_worse(alert) for alert in alerts if alert.metric == "unit-seconds" and alert.subject != unit.id
        ]
        held["alerts about the slower Node"] = bool(about)
        held["its health is degraded, its integrity is not touched"] = (
            swarm.health.of(unit).performance.state == "degraded"
            and swarm.health.of(unit).integrity.state != "quarantined"
        )
        held["the plan changed, or says why it did not"] = nodes_of(during) != nodes_of(before) or bool(during.notes)
        if about:
            print(
                f"  {len(about)} alerts about {slowed}: {min(about):.2f} to {max(about):.2f} times worse, median "
                f"{median(about):.2f}; {len(others)} about the other Node's cost classes"
            )
        print(f"  plan under load: {nodes_of(during)}")
        left = timed("revalidated", lambda: revalidate(swarm, unit, model, workload))
        after = swarm.plan(model, workload, measure=False)
        held["the alerts about it ended"] = not left
        print(f"  {len(left)} alerts about {slowed} left; plan: {nodes_of(after)}")
    for what, was in held.items():
        print(f"  {'held' if was else 'FAILED'}: {what}")
    results = {"held": held, "plans": [nodes_of(before), nodes_of(during), nodes_of(after)]}
    write("health", {"times worse": about, "times worse, others": others}, results, taken)


def timed(what: str, work: Callable[[], Result]) -> Result:
    """Run it, and print how long it took."""
    started = time.monotonic()
    found = work()
    print(f"health: {what} in {time.monotonic() - started:.0f} s", flush=True)
    return found


def nodes_of(decision: DecisionView) -> str:
    """Return the route of a decision's plan and what it computes in."""
    plan = decision.document.plan
    if plan is None:
        return decision.document.outcome
    return f"{' → '.join(item.node_name for item in plan.placements)} in {plan.representation}"


def unit_of(decision: DecisionView, name: str) -> Scope:
    """Return the Compute Unit of a Node."""
    node = next(node for node in decision.graph.nodes if node.name == name)
    return Scope("compute-unit", next(unit.id for unit in decision.graph.compute_units if unit.node_id == node.id))


def confine(pid: int, cpus: set[int]) -> None:
    """Keep a process, every thread of it and every process that it starts from now on to these CPUs."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), cpus)


def start_busy(cpu: int) -> list[subprocess.Popen[bytes]]:
    """Start processes that compute on one CPU until they are stopped."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(NUM_BUSY)]
    for process in busy:
        os.sched_setaffinity(process.pid, {cpu})
    return busy


def stop_busy(busy: Sequence[subprocess.Popen[bytes]]) -> None:
    """End them."""
    for process in busy:
        process.kill()
    for process in busy:
        process.wait()


def revalidate(swarm: Swarm, unit: Scope, model: Model, workload: Workload) -> list[Alert]:
    """Revalidate until no alert about a Compute Unit is open, a few times at most; return those that are."""
    for _ in range(MAX_REVALIDATIONS):
        swarm.revalidate(unit, model, workload)
        left = [alert for alert in swarm.health.document.alerts if alert.subject == unit.id]
        if not left:
            break
    return left
