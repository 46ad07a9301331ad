"""Measures what holds of a Node whatever it executes: the memory of empty stages, reading, multiplying, copies.

The runtime base is what the Node's mechanism charges with one warm, empty stage on a CPU and one on each accelerator.
Where Compute Units share a Memory Resource, what one stage more takes is measured beside it: a second participant
there is a second process.
"""

from __future__ import annotations

from collections.abc import Iterator

from inferswarm.backends.probe import COPY_SECONDS
from inferswarm.errors import MeasurementError
from inferswarm.evidence.drift import Interleaving
from inferswarm.fabric import messages as m
from inferswarm.resources.bandwidth import choose_set_bytes
from inferswarm.resources.discovery import HostInventory
from inferswarm.resources.quantities import READ_BANDWIDTH
from inferswarm.swarm.known import BASE_METRIC, BESIDE, FURTHER_METRIC, base_of, highest_of_newest, why_unknown
from inferswarm.swarm.probe_stages import ProbeStages, make_observation
from inferswarm.swarm.targets import NodeTargets, ProbeTarget

BANDWIDTH_SECONDS = 0.25
"""How long memory is read with one number of threads."""
MULTIPLY_SECONDS = 1.0
MULTIPLY_BYTES = 64 * 2**20
"""What multiplying needs at least."""
COPYING_SECONDS = 1.0
"""How long an accelerator copies, all sizes and ways together."""
BASE_SAMPLES = 5
UNLIMITED_BUDGET_BYTES = 400 * 10**6
"""States that the probe of a Node without an envelope may allocate at least: well past any last-level cache."""
HEADROOM = 0.85
"""Share of an envelope, less its base, that a probe may fill."""


class NodeProber:
    """Measures one Node after the other in stages of its Compute Units."""

    def __init__(self, stages: ProbeStages, inventory: HostInventory) -> None:
        """`inventory` is of the computer that all Nodes are on."""
        self._stages = stages
        self._inventory = inventory

    def due(self, group: NodeTargets, refresh: bool) -> str | None:
        """Return why a Node has to be measured, or None when everything that it needs is known and holds."""
        if refresh:
            return "asked for again"
        return next((reason for reason in self._reasons(group) if reason is not None), None)

    def measure(self, group: NodeTargets) -> None:
        """Measure a Node, whose only stages are its first CPU's and its accelerators'; one more may be left running.

        Raises MeasurementError when the mechanism does not say what it charges, EnvelopeExceeded when the Node has no
        room for the stages that it must hold at once.
        """
        self._measure_memory(group)
        for target, threads in group.readers:
            self._measure_bandwidth(target, threads, group)
        for target in group.targets:
            if target in (group.first, *group.accelerators):
                self._measure_multiply(target, group)
        for target in group.accelerators:
            self._measure_accelerator(target)
        if group.further is not None:
            self._measure_further(group, group.further)

    def budget_bytes(self, target: ProbeTarget, group: NodeTargets) -> int:
        """Return what the states of a probe may take: enough for the largest unit, where that can be had at all."""
        if target.unit.kind != "cpu":
            records = self._stages.store.query(target.memory_id, BASE_METRIC)
            taken = highest_of_newest(records, self._stages.currency)
            if target.memory_bytes is None or taken is None:
                return UNLIMITED_BUDGET_BYTES
            return int(HEADROOM * max(0, target.memory_bytes - taken))
        if target.limit_bytes is not None:
            base = base_of(self._stages.store, group.first, self._stages.currency, group.num_empty_stages) or 0
            return int(HEADROOM * max(0, target.limit_bytes - base))
        available = self._inventory.ram_available_bytes.value
        return UNLIMITED_BUDGET_BYTES if available is None else max(UNLIMITED_BUDGET_BYTES, available // 2)

    # -- what is due --

    def _reasons(self, group: NodeTargets) -> Iterator[str | None]:
        store, currency = self._stages.store, self._stages.currency
        yield why_unknown(store, currency, group.node.id, BASE_METRIC, **_beside(group))
        if base_of(store, group.first, currency, group.num_empty_stages) is None:
            yield "not measured yet with the processes that this swarm's Nodes have"
        if group.further is not None:
            yield why_unknown(store, currency, group.node.id, FURTHER_METRIC)
        for target in group.accelerators:
            yield why_unknown(store, currency, target.memory_id, BASE_METRIC)
            yield why_unknown(store, currency, target.unit.id, COPY_SECONDS)
        for target, most in group.readers:
            if self._bandwidth_set(target, group) is not None:  # otherwise its memory is too small for it
                for threads in _thread_counts(most):
                    yield why_unknown(store, currency, group.read_as(target), READ_BANDWIDTH, threads=str(threads))

    # -- one measurement each --

    def _charged(self, target: ProbeTarget) -> list[int]:
        samples = []
        for _ in range(BASE_SAMPLES):
            report = self._stages.on_node(target, m.InspectNode())
            if not isinstance(report, m.NodeReport) or report.charged_bytes is None:
                raise MeasurementError(f"Node {target.node.name}: its mechanism does not say what it charges")
            samples.append(report.charged_bytes)
        return samples

    def _warm(self, target: ProbeTarget) -> None:
        unit = target.unit
        self._stages.start(target)
        self._stages.on_stage(
            target, m.Warm(primitive="torch", threads=unit.threads, compute_unit_id=unit.id, kind=unit.kind)
        )

    def _measure_memory(self, group: NodeTargets) -> None:
        for target in (group.first, *group.accelerators):
            self._warm(target)
        self._keep_memory(group, BASE_METRIC, self._charged(group.first), **_beside(group))

    def _measure_further(self, group: NodeTargets, further: ProbeTarget) -> None:
        """Measure what one stage more takes: what is charged with it, less the most that is charged without."""
        before = max(self._charged(group.first))
        self._warm(further)
        samples = [charged - before for charged in self._charged(group.first)]
        if min(samples) <= 0:
            raise MeasurementError(
                f"Node {group.node.name}: with one stage more its mechanism charges {min(samples) + before:,} B, "
                f"without it {before:,} B"
            )
        self._keep_memory(group, FURTHER_METRIC, samples)

    def _keep_memory(self, group: NodeTargets, metric: str, samples: list[int], **context: str) -> None:
        record = make_observation(
            group.node.id, metric, "B", samples, f"{metric}/1", threads=group.threads, **context
        )
        self._stages.keep([record], "alone")

    def _bandwidth_set(self, target: ProbeTarget, group: NodeTargets) -> int | None:
        """Return how much memory is read, or None where there is too little for an honest figure."""
        available = UNLIMITED_BUDGET_BYTES if target.limit_bytes is None else self.budget_bytes(target, group)
        try:
            return choose_set_bytes(self._inventory.cpu.last_level_cache_bytes, available)
        except MeasurementError:
            return None

    def _measure_bandwidth(self, target: ProbeTarget, most: int, group: NodeTargets) -> None:
        set_bytes = self._bandwidth_set(target, group)
        if set_bytes is None:
            return  # it stays unknown, and no gate needs it
        self._stages.start(target)
        for threads in _thread_counts(most):
            command = m.ProbeBandwidth(
                subject=group.read_as(target), threads=threads, seconds=BANDWIDTH_SECONDS, set_bytes=set_bytes
            )
            self._keep(self._stages.on_stage(target, command), "alone")

    def _measure_multiply(self, target: ProbeTarget, group: NodeTargets) -> None:
        needed = "representation:"
        names = sorted(tag.removeprefix(needed) for tag in target.unit.capabilities if tag.startswith(needed))
        # the larger rest is for random numbers on their way into maps, for packing, and for what a library allocates
        budget = min(UNLIMITED_BUDGET_BYTES, self.budget_bytes(target, group) // 3)
        if "backend:torch" not in target.unit.capabilities or budget < MULTIPLY_BYTES or not names:
            return  # no gate needs it
        command = m.ProbeMultiply(
            representations=tuple(names),
            compute_unit_id=target.unit.id,
            kind=target.unit.kind,
            threads=target.unit.threads,
            budget_bytes=budget,
            seconds=MULTIPLY_SECONDS,
        )
        self._keep(self._stages.on_stage(target, command), "turns")

    def _measure_accelerator(self, target: ProbeTarget) -> None:
        command = m.ProbeAccelerator(
            compute_unit_id=target.unit.id, kind=target.unit.kind, memory_id=target.memory_id, seconds=COPYING_SECONDS
        )
        self._keep(self._stages.on_stage(target, command), "turns")

    def _keep(self, answer: m.ClientAnswer, interleaving: Interleaving) -> None:
        if isinstance(answer, m.Observed):
            self._stages.keep(answer.observations, interleaving, answer.num_warm_up, answer.conditions)


def _thread_counts(most: int) -> tuple[int, ...]:
    """Return the numbers of threads that memory is read with: 1, 2, 4 … and all of a Compute Unit's.

    >>> _thread_counts(6)
    (1, 2, 4, 6)
    """
    doubled = [1]
    while doubled[-1] * 2 < most:
        doubled.append(doubled[-1] * 2)
    return tuple(sorted({*doubled, most}))


def _beside(group: NodeTargets) -> dict[str, str]:
    """Return what there is while a Node's base is measured, beside its agent and one empty stage."""
    stages = {"num_stages": str(group.num_empty_stages)} if group.num_empty_stages > 1 else {}
    return stages | ({"courier": BESIDE} if group.first.has_store else {})
