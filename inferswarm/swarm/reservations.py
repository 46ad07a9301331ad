"""What is taken of each Memory Resource before any state, from what was measured: reservations, a stage's share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from inferswarm.evidence.currency import Currency
from inferswarm.evidence.store import ObservationStore
from inferswarm.planner.modes import ADDRESSABLE
from inferswarm.planner.problem import PlanningProblem, TransientTerm
from inferswarm.resources.types import Fact, observed
from inferswarm.swarm.known import BASE_METRIC, FURTHER_METRIC, base_of, highest_of_newest
from inferswarm.swarm.targets import NodeTargets, ProbeTarget, by_node

ON_THEIR_WAY_BYTES = 16 * 2**20
"""What a courier takes while it acquires beyond what it takes idle: at most 16 MiB at once by its limits
(`fabric/courier.py`); after 127 MB had come, 13 MB more of its own pages were measured."""
_ON_WAY = f"{ON_THEIR_WAY_BYTES:,} B more for model bytes on their way"
PARTICIPANT_TERM = "process of a stage (measured)"


class Reservations(NamedTuple):
    """What is taken of Memory Resources before any state, as far as it was measured."""

    nodes: Mapping[str, Fact[int]]
    """Of a Node's RAM, by the Node's name: agent, empty stages, less what participants count there for themselves."""
    accelerators: Mapping[str, Fact[int]]
    """Of accelerators' memory, by its id."""
    participant_bytes: int
    """What every participant counts for its own process: 0 where no two of them can share a Memory Resource."""


NOTHING_RESERVED = Reservations({}, {}, 0)
"""What is known before anything was measured."""


def reservations_of(
    store: ObservationStore, targets: Sequence[ProbeTarget], currency: Currency, mechanism: str
) -> Reservations:
    """Return the reservations that follow from what was measured and holds now.

    A Node's base is measured with one empty stage. Where Compute Units share a Memory Resource, a further
    participant there needs a further process. The planner adds up participants, and so what a further stage takes
    becomes a term of every participant, and the same amount goes off the reservation of the memory where each counts
    it, which is the one nearest to its Compute Unit: one participant is charged the measured base, two the base and
    the measured addition. The term is the largest of all Nodes; where it is smaller, the second is charged more than
    it takes, never less. RAM on which something may lie without a participant that counts it there keeps its whole
    reservation. A Node whose further stage was not measured has no known reservation.
    """
    groups = by_node(targets)
    measured = {group.node.id: _further_of(store, group, currency) for group in groups}
    each = max((size for size in measured.values() if size is not None), default=0)
    nodes: dict[str, Fact[int]] = {}
    accelerators: dict[str, Fact[int]] = {}
    for group in groups:
        base = base_of(store, group.first, currency, group.num_empty_stages)
        if base is not None and (group.further is None or measured[group.node.id] is not None):
            off = each if _all_counted_on_ram(group) else 0
            nodes[group.node.name] = _reserved(base, off, f"measured as {mechanism} charges it")
        for target in group.accelerators:
            own = highest_of_newest(store.query(target.memory_id, BASE_METRIC), currency)
            if own is not None:
                accelerators[target.memory_id] = _reserved(own, each, "measured on the accelerator")
    return Reservations(nodes, accelerators, each)


def with_spares(reserved: Reservations) -> Reservations:
    """Return reservations in whose RAM each Node also keeps one warm, empty stage.

    It is counted as all that was measured beside the participants, agent included: more than it takes, never less.
    """
    nodes = {
        name: fact if fact.value is None else observed(2 * fact.value + reserved.participant_bytes, _spare(fact))
        for name, fact in reserved.nodes.items()
    }
    return reserved._replace(nodes=nodes)


def with_stores(reserved: Reservations) -> Reservations:
    """Return reservations in whose RAM a courier that was measured idle also has the bytes on their way."""
    nodes = {
        name: fact if fact.value is None else observed(fact.value + ON_THEIR_WAY_BYTES, f"{fact.detail}; {_ON_WAY}")
        for name, fact in reserved.nodes.items()
    }
    return reserved._replace(nodes=nodes)


def _spare(fact: Fact[int]) -> str:
    return f"{fact.detail}; as much again for a spare stage"


def _all_counted_on_ram(group: NodeTargets) -> bool:
    """Whether whatever lies on a Node's RAM comes with a participant that counts its process there.

    A participant on an accelerator counts its process on the accelerator's memory, wherever its states are.
    """
    has_cpu = any(target.unit.kind == "cpu" for target in group.targets)
    return has_cpu and not any(ADDRESSABLE in target.unit.capabilities for target in group.accelerators)


def _reserved(base: int, each: int, detail: str) -> Fact[int]:
    less = f", less {each:,} B that every participant counts for its own process" if each else ""
    return observed(max(0, base - each), f"{detail}{less}")


def _further_of(store: ObservationStore, group: NodeTargets, currency: Currency) -> int | None:
    if group.further is None:
        return None
    return highest_of_newest(store.query(group.node.id, FURTHER_METRIC), currency)


def with_participants(problem: PlanningProblem, participant_bytes: int) -> PlanningProblem:
    """Return a problem in which every participant needs so many bytes for its own process, beside all else."""
    if not participant_bytes:
        return problem
    terms = tuple(
        TransientTerm(name=PARTICIPANT_TERM, representation=name, fixed_bytes=participant_bytes)
        for name in dict.fromkeys(item.representation for item in problem.implementations)
    )
    return msgspec.structs.replace(problem, transients=(*problem.transients, *terms))
