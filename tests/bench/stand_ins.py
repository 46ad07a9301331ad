"""Stand-ins for shipped topologies on one machine: as many virtual Nodes, each able to hold as much of a model.

Carried over: which Nodes there are, their order, and how much of a model each can hold. A Node stands for its fastest
Compute Unit (the one whose nearest memory is read fastest, by the declared figures) with that memory alone: if its
free memory there holds 70 % of the states of the larger model that the topology is for, its envelope here holds 70 %
of the states of the model that is served, beside what does not shrink with a model: what its processes are measured
to take, and what any part of the chain needs for a moment. So no Node holds the whole here that does not there. The
fastest Node gets two threads, every other one: the stronger computes faster, by what threads give here.

Not carried over: how much faster it is, the Links (all paths are the loopback's), further Compute Units of a Node,
and cores of its own: all stages share this machine's. The ends of a small model's chain are a fifth of its states and
are held twice where it is split; of a large one they are hardly anything. What leaves little room to spare there, as
a 70B-like model does on `three-unlike`, therefore does not fit here at all, and is not stood in for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from inferswarm.planner import PlanningProblem, Workload
from inferswarm.planner.memory import STATES, RangeMemory
from inferswarm.resources import Envelope
from inferswarm.resources.topology import Topology
from inferswarm.strategies.dense.description import DecoderDescription
from tests.bench.bench_topologies import MODELS, decoder

STRONGEST_THREADS, OTHER_THREADS = 2, 1
"""Two cores are all that is counted on."""
THERE = "bf16"
"""What the larger model is held in, in the topology."""


class StandIn(NamedTuple):
    """A topology that is stood in for, and the model that it would be used for: its fastest Node cannot hold it."""

    topology: str
    title: str
    model: DecoderDescription


STAND_INS = (
    StandIn("home-pair", "8B-like", MODELS["8B-like"]),
    StandIn("three-unlike", "24B-like", decoder(40, 5120, 32768, 32)),
)
"""Neither Node of the first holds its model; of the second one does, the slow server."""


class Seat(NamedTuple):
    """One Node of a topology as it is stood in for."""

    name: str
    stands_for: str
    share: float
    """How much of the model its free memory holds."""
    threads: int


class Need(NamedTuple):
    """Bytes that the whole chain takes at one participant, beside its process."""

    own: int
    """States and what sessions keep."""
    passing: int
    """What is needed for a moment."""


def need_of(problem: PlanningProblem, representation: str, workload: Workload) -> Need:
    """Return what the whole chain takes."""
    (implementation,) = (item for item in problem.implementations if item.representation == representation)
    terms = RangeMemory(problem, implementation, workload).terms(0, len(problem.units))
    own = sum(term.bytes for term in terms if term.name in (STATES, "mutable state"))
    return Need(own, sum(term.bytes for term in terms) - own)


def seats_of(topology: Topology, need: Need) -> tuple[Seat, ...]:
    """Return how each Node is stood in for, where `need` is that of the larger model."""
    memories = {memory.id: memory for memory in topology.graph.memory_resources}
    found = []
    for node in topology.graph.nodes:
        speeds = []
        for unit in topology.graph.compute_units:
            figure = topology.figure(unit.memory_ids[0], "read-bandwidth")
            if unit.node_id == node.id and figure is not None and figure.value.value is not None:
                speeds.append((figure.value.value, unit))
        speed, unit = max(speeds, key=lambda item: item[0])
        memory = memories[unit.memory_ids[0]]
        assert memory.capacity_bytes.value is not None
        assert memory.reserved_bytes.value is not None
        free = memory.capacity_bytes.value - memory.reserved_bytes.value
        found.append((speed, Seat(node.name, f"{unit.name}, {memory.kind}", free / need.own, OTHER_THREADS)))
    fastest = max(speed for speed, _ in found)
    return tuple(seat._replace(threads=STRONGEST_THREADS) if speed == fastest else seat for speed, seat in found)


def envelopes_of(seats: Sequence[Seat], bases: Mapping[str, int], need: Need) -> tuple[Envelope, ...]:
    """Return the virtual Nodes: `bases` are what the Nodes' own processes take here, `need` is the served model's."""
    return tuple(
        Envelope(
            name=seat.name,
            threads=seat.threads,
            memory_bytes=bases[seat.name] + need.passing + round(seat.share * need.own),
        )
        for seat in seats
    )
