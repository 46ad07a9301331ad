"""A model of 4 GB comes to three Nodes that could not hold it alone, and who has how much of it in memory meanwhile.

A Llama of 4 GB in four files, whose tensors are holes with marks (`tests.sharded`), lies behind HTTP. Each Node has
memory for about half of it, so that three are needed; the Nodes and the model's cost classes are really measured,
and the plan is really decided and realized. The origin counts what leaves it: before the Nodes are asked, that is
what the façade read. Of every process the peak of its resident memory is taken (VmHWM).
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from inferswarm.artifacts.ledger_checks import check_zeros
from inferswarm.errors import EnvelopeExceeded
from inferswarm.planner import Policy, Workload
from inferswarm.planner.problem import Reservation
from inferswarm.resources import Envelope
from inferswarm.swarm import Model, Swarm
from tests.bench.couriers import peak_bytes
from tests.bench.file_server import Ports, serve_files
from tests.bench.report import conditions, write
from tests.sharded import Shape, write_sharded

LARGE = Shape(layers=28, hidden=2048, ffn=8192, vocab=32_000, files=4)
"""4.0 GB in bfloat16."""
NODES = ("amber", "birch", "cedar")
ENVELOPE_BYTES = 2_500_000_000
KEPT_FREE_BYTES = 400_000_000
"""Of each envelope, by policy: with 2.2 GB and nothing kept free, a stage of 1.88 GB was stopped as it was made."""
WORKLOAD = Workload(prompt_tokens=16, output_tokens=16)


def peaks(swarm: Swarm, what: str) -> dict[str, int]:
    """Return the peak of the one child of this kind that each Node's agent has."""
    return {
        node.name: peak_bytes(child.pid)
        for node in swarm.status().nodes
        for child in psutil.Process(node.pid).children()
        if what in " ".join(child.cmdline())
    }


def longest_file(folder: Path) -> int:
    """Return the length of the longest file below a folder."""
    return max(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(folder: Path, ports: Ports) -> dict[str, Any]:
    """Plan, acquire and realize; print what it took, and return it."""
    nodes = [Envelope(name=name, threads=1, memory_bytes=ENVELOPE_BYTES) for name in NODES]
    found: dict[str, Any] = {"model_bytes": LARGE.num_bytes}
    with Swarm.local(nodes, state=folder / "state", stores=True) as swarm:
        here, there = os.getpid(), swarm.status().pid
        idle, began = peaks(swarm, "courier_main"), (peak_bytes(here), peak_bytes(there))
        model = Model(ports.url("large/"))
        started = time.perf_counter()
        free = Policy(reservations=tuple(Reservation(name, KEPT_FREE_BYTES) for name in NODES))
        plan = swarm.plan(model, WORKLOAD, free).plan
        found["measured_and_planned_seconds"] = time.perf_counter() - started
        assert plan is not None
        found["headers_bytes"] = ports.sent()
        swarm.node_memory(reset_peak=True)
        started, arrived = time.perf_counter(), [0.0]

        def on_progress(progress: Any) -> None:
            if progress.note == "bytes acquired" and progress.done == progress.total and not arrived[0]:
                arrived[0] = time.perf_counter() - started

        try:
            swarm.realize(plan, on_progress=on_progress)
            found["realized"] = "yes"
        except EnvelopeExceeded as error:
            found["realized"] = str(error)
        moved = swarm.transfers()
        check_zeros([zero for zero in moved.zeros() if zero.value is not None])
        found["seconds"] = arrived[0]
        found["received"] = {name: moved.total("received", node=name) for name in NODES}
        found["beside"] = ports.sent() - found["headers_bytes"] - moved.total("received", source="origin")
        found["couriers"] = {name: [idle[name], peak] for name, peak in peaks(swarm, "courier_main").items()}
        found["façade"], found["Coordinator"] = [began[0], peak_bytes(here)], [began[1], peak_bytes(there)]
        charged = {memory.node_name: memory.report.charged_peak_bytes for memory in swarm.node_memory()}
        found["memory"] = {
            item.node_name: [
                (item.memory.reserved_bytes or 0) - KEPT_FREE_BYTES + item.memory.needed_bytes,
                charged.get(item.node_name),
            ]
            for item in plan.placements
        }
        found["longest"] = longest_file(folder / "state")
        found["units"] = {item.node_name: [item.first_unit, item.end_unit] for item in plan.placements}
    return found


def report(found: dict[str, Any]) -> None:
    """Print it."""
    total = sum(found["received"].values())
    print(f"a model of {found['model_bytes'] / 1e9:.2f} GB in {LARGE.files} files over {len(found['units'])} Nodes")
    print(f"  measured and planned in {found['measured_and_planned_seconds']:.0f} s; realized: {found['realized']}")
    print(f"  read before by the façade     {found['headers_bytes']:,} B: headers and text files")
    print(
        f"  acquired                      {total / 1e9:.2f} GB in {found['seconds']:.1f} s, "
        f"{total / 1e6 / found['seconds']:.0f} MB/s; sent by the origin beside it: {found['beside']:,} B"
    )
    print(f"  longest file on any Node      {found['longest'] / 1e6:.0f} MB")
    print("  VmHWM, MB                      before   after   ratio")
    processes = {f"courier of {name}": pair for name, pair in found["couriers"].items()}
    processes |= {name: found[name] for name in ("façade", "Coordinator")}
    for name, (before, after) in processes.items():
        print(f"    {name:26} {before / 1e6:8.0f} {after / 1e6:7.0f} {after / before:7.2f}")
    for name, length in found["received"].items():
        planned, charged = found["memory"].get(name, (0, None))
        said = "unknown" if charged is None else f"{charged / 1e6:,.0f} MB"
        print(
            f"  {name} has units {found['units'].get(name)} and {length / 1e9:.2f} GB; at most, as planned "
            f"{planned / 1e6:,.0f} MB of its memory, as charged {said}"
        )


def main() -> None:
    """Measure, print, keep."""
    taken = conditions()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        write_sharded(folder / "large", LARGE)
        with serve_files(folder) as ports:
            found = measure(folder, ports)
    report(found)
    write("scale", {}, found, taken)


if __name__ == "__main__":
    main()
