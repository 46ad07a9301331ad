"""Where bytes lie, changed on purpose: what then changes in the price of a transition, and that nothing else does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from inferswarm.arms.gates import gates_of
from inferswarm.artifacts.store import ContentStore
from inferswarm.campaigns.arm import Arm
from inferswarm.documents import Document, canonical_bytes, digest, digest_bytes
from inferswarm.planner.plan import Decision, ExecutionPlan
from inferswarm.planner.problem import Workload
from inferswarm.swarm import Model, Swarm
from inferswarm.swarm.state import stores_directory


class Moved(Document, frozen=True, kw_only=True):
    """What one state of the inventories comes to."""

    moment: str
    decision_digest: str
    gates_digest: str
    missing_bytes: tuple[tuple[str, int], ...]
    """What each plan's Nodes would have to acquire."""
    acquiring_seconds: tuple[tuple[str, float], ...]
    """The most that this is expected to take; a plan is left out where nothing bounds it."""
    order: tuple[str, ...]
    """The plans, the one that lacks least first."""


class Kept(NamedTuple):
    """The first decision, byte for byte: what all later ones are held against."""

    decision: bytes
    gates: bytes


class Inventories:
    """Looks at one swarm while its stores change. `moments` has what was seen."""

    def __init__(
        self,
        arm: Arm,
        swarm: Swarm,
        model: Model,
        workload: Workload,
        plans: Mapping[str, ExecutionPlan],
    ) -> None:
        """Nothing was looked at yet; `plans` are the transitions that might be made."""
        self._arm, self._swarm, self._model, self._workload = arm, swarm, model, workload
        self._plans = dict(plans)
        self._first: Kept | None = None
        self.moments: list[Moved] = []

    def look(self, moment: str) -> Decision:
        """Decide again, ask what each transition would acquire, and keep both.

        Series: `decision-bytes-differing` and `gate-bytes-differing` (from the first decision's canonical bytes),
        `missing-bytes` and `acquiring-seconds` by moment and plan.
        """
        decision = self._swarm.plan(self._model, self._workload, measure=False).document
        mine = Kept(canonical_bytes(decision), canonical_bytes(gates_of(decision)))
        first = self._first = self._first or mine
        pairs = (("decision", first.decision, mine.decision), ("gate", first.gates, mine.gates))
        for name, before, after in pairs:
            self._arm.sample(f"{name}-bytes-differing", differing_bytes(before, after), "B", key=moment)
        missing, seconds = {}, {}
        for name, plan in self._plans.items():
            estimate = self._swarm.acquiring(plan, self._model)
            if estimate is not None and estimate.missing_bytes is not None:
                missing[name] = estimate.missing_bytes
                self._arm.sample("missing-bytes", estimate.missing_bytes, "B", condition=moment, key=name)
            if estimate is not None and estimate.upper_seconds is not None:
                seconds[name] = estimate.upper_seconds
                self._arm.sample("acquiring-seconds", estimate.upper_seconds, "s", condition=moment, key=name)
        self.moments.append(
            Moved(
                moment=moment,
                decision_digest=digest(decision),
                gates_digest=digest_bytes(mine.gates),
                missing_bytes=tuple(missing.items()),
                acquiring_seconds=tuple(seconds.items()),
                order=tuple(sorted(missing, key=lambda name: (missing[name], name))),
            )
        )
        return decision


def differing_bytes(before: bytes, after: bytes) -> int:
    """Return at how many places two texts differ; what only one of them has differs."""
    return sum(a != b for a, b in zip(before, after, strict=False)) + abs(len(before) - len(after))


def empty_stores(state: Path, nodes: Sequence[str]) -> dict[str, int]:
    """Remove everything that nobody needs from Nodes' stores; return the bytes that went, by Node.

    Call it while nothing serves: what a plan in force needs is required, and stays.
    """
    gone = {}
    for node in nodes:
        with ContentStore(stores_directory(state) / node) as store:
            gone[node] = store.collect().blob_bytes
    return gone
