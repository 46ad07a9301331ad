"""Measures what a plan needs to know, on the Nodes themselves and under their limits; reuses what still applies.

Everything is measured in stages that are empty otherwise, one for each Compute Unit that takes part. Nodes are
measured one after another: virtual Nodes share their machine, and in a plan they take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from pathlib import Path

from inferswarm.errors import CommitRefused, MeasurementError
from inferswarm.evidence.currency import Currency, with_facts
from inferswarm.evidence.store import ObservationStore
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.planner.problem import PlanningProblem
from inferswarm.resources.address_pairs import pairs_on_one_machine
from inferswarm.resources.discovery import HostInventory
from inferswarm.resources.disk_reading import BLOCK_BYTES, measure_disk_read
from inferswarm.resources.types import ResourceGraph
from inferswarm.strategies.chain import Description
from inferswarm.strategies.overheads import OPENING_METRIC, SERVICE_METRIC, TOKEN_METRIC
from inferswarm.swarm.known import DISK_METRIC, NUM_WINDOWS, TRANSPORT, economics_of, why_unknown
from inferswarm.swarm.node_measuring import NodeProber
from inferswarm.swarm.path_measuring import PathProber, payloads_for
from inferswarm.swarm.probe_stages import ProbeStages, make_observation
from inferswarm.swarm.request_measuring import PAUSE_SECONDS as REQUEST_PAUSE_SECONDS
from inferswarm.swarm.request_measuring import PROTOCOL as REQUEST_PROTOCOL
from inferswarm.swarm.request_measuring import WARM_UP_REQUESTS, measure_requests
from inferswarm.swarm.targets import NodeTargets, ProbeTarget, by_node

DISK_SECONDS = 0.3
UNITS_SECONDS = 4.0
"""How long the probe of one representation on one Compute Unit may take."""

OnProgress = Callable[[str, float], None]
"""Called with what is being measured and the share that is done (0 to 1)."""


def each_once(show: Callable[[str], None]) -> OnProgress:
    """Return a callback that shows one plain line for each new thing that is measured."""
    seen: set[str] = set()

    def report(what: str, share: float) -> None:
        if what not in seen:
            seen.add(what)
            show(f"  [{share:4.0%}] {what}")

    return report


class Prober:
    """Measures the Nodes of one running swarm."""

    def __init__(
        self,
        client: Client,
        store: ObservationStore,
        inventory: HostInventory,
        targets: Sequence[ProbeTarget],
        currency: Currency,
        on_progress: OnProgress,
        only: frozenset[str] = frozenset(),
    ) -> None:
        """`currency` says which records hold now, and what new ones depend on.

        `only` limits what is measured to these Nodes (ids; none: to all) and to paths with one of them at an end.
        """
        self._only = only
        self._store = store
        self._targets = tuple(targets)
        self._groups = by_node(self._targets)
        self._on_progress = on_progress
        pairs = pairs_on_one_machine((target.node.id for target in targets), inventory.interfaces)
        self._paths = PathProber(store, pairs, lambda: self._currency)
        self._stages = ProbeStages(client, store, currency, self._paths.addresses_of)
        self._nodes = NodeProber(self._stages, inventory)

    @property
    def _currency(self) -> Currency:
        """What records are held against at this moment: also those that were made since this object was."""
        return self._stages.currency

    @property
    def _measured(self) -> tuple[NodeTargets, ...]:
        return tuple(group for group in self._groups if not self._only or group.node.id in self._only)

    def measure_nodes(self, refresh: bool) -> None:
        """Measure Nodes, and the paths between and within them, where no record holds now; say why."""
        needs = [(group, why) for group in self._measured if (why := self._nodes.due(group, refresh))]
        pairs = [(*ends, why) for ends in self._ends() if (why := self._path_due(*ends, refresh))]
        concerned = {group.node.id for group, _ in needs} | {end.node.id for *ends, _ in pairs for end in ends}
        total = len(needs) + len(pairs)
        done = 0
        try:
            for group in self._groups:
                if group.node.id in concerned:
                    self._stages.start(group.first)
            for group, why in needs:
                self._on_progress(f"{group.node.name}: runtime base and memory bandwidth ({why})", done / total)
                self._nodes.measure(group)
                done += 1
            for source, target, why in pairs:
                self._on_progress(f"path {source.node.name} → {target.node.name} ({why})", done / total)
                self._measure_path(source, target)
                done += 1
        finally:
            self._stages.stop()
        if total:
            self._on_progress("nodes and paths", 1.0)

    def _ends(self) -> Iterator[tuple[ProbeTarget, ProbeTarget]]:
        """Yield the ends of every path: between the first Compute Units of two Nodes, and between two of one Node."""
        for source, target in permutations(self._groups, 2):
            if source in self._measured or target in self._measured:
                yield source.first, target.first
        for group in self._measured:
            others = [target for target in group.targets if target != group.first]
            if others:
                yield group.first, group.further or others[0]

    def measure_requests(self, refresh: bool) -> None:
        """Measure what a request and a token cost beside computing, for each Node, where no record holds; say why.

        While a plan has authority this cannot be measured, and what is unknown stays so.
        """
        metrics = (OPENING_METRIC, TOKEN_METRIC)
        for group in self._measured:
            node = group.node.id
            unknown = [why for name in metrics if (why := why_unknown(self._store, self._currency, node, name))]
            if not refresh and not unknown:
                continue
            why = "asked for again" if refresh else unknown[0]
            self._on_progress(f"{group.node.name}: requests without computing ({why})", 0.0)
            try:
                samples = measure_requests(self._stages.client, group.node, group.first.unit)
            except CommitRefused:
                return
            context = {"backend": "null", "transport": TRANSPORT, "pause_seconds": f"{REQUEST_PAUSE_SECONDS:g}"}
            records = [
                make_observation(node, name, "s", found, REQUEST_PROTOCOL, **context)
                for name, found in zip(metrics, samples, strict=True)
            ]
            self._stages.keep(records, "alone", WARM_UP_REQUESTS)

    def measure_units(
        self,
        description: Description,
        shape: str,
        problem: PlanningProblem,
        graph: ResourceGraph,
        refresh: bool,
        representations: Sequence[str] = (),
    ) -> None:
        """Measure the cost classes of a model on each Compute Unit in each representation, where no record holds.

        `representations` limit them (none: all). Everything is measured in `NUM_WINDOWS` turns over all of it.
        """
        representations = representations or sorted({item.representation for item in problem.implementations})
        due = [
            (target, representation, why)
            for group in self._measured
            for target in group.targets
            for representation in representations
            if (why := self._units_due(target, representation, shape, problem, graph, refresh))
        ]
        work = due * NUM_WINDOWS
        for index, (target, representation, why) in enumerate(work):
            name = f"{target.label}: cost classes in {representation} ({why})"
            try:
                self._stages.start(target)  # a fresh one each time: what an allocator keeps would count as well
                self._probe_units(target, representation, description, problem, name, index / len(work), len(work))
            finally:
                self._stages.stop()
        if work:
            self._on_progress("cost classes", 1.0)

    def measure_disk(self, path: Path, refresh: bool) -> None:
        """Measure how fast the largest file of a model is read, for each Node, where no record holds; say why.

        It is read here: all Nodes are on this computer. What cannot be read past the cache stays unknown.
        """
        files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
        file = max(files, key=lambda item: item.stat().st_size, default=path)
        block = str(BLOCK_BYTES)
        for group in self._measured:
            node = group.node.id
            why = why_unknown(self._store, self._currency, node, DISK_METRIC, block_bytes=block, cached="no")
            why = "asked for again" if refresh else why
            if why is None:
                continue
            self._on_progress(f"{group.node.name}: reading from disk ({why})", 0.0)
            try:
                samples = measure_disk_read(file, DISK_SECONDS)
            except MeasurementError:
                return  # no gate needs it
            context = {"block_bytes": block, "cached": "no"}
            record = make_observation(node, DISK_METRIC, "B/s", samples, f"{DISK_METRIC}/1", **context)
            self._stages.keep([record], "alone")

    # -- one measurement each --

    def _measure_path(self, source: ProbeTarget, target: ProbeTarget) -> None:
        ends = (source.node.id, target.node.id)
        self._stages.start(source)
        reached = self._stages.start(target)
        command = self._paths.command(*ends, reached, self._payloads(source, target))
        answer = self._stages.on_stage(source, command)
        measured, unreached = self._paths.records(*ends, reached, answer)
        if isinstance(answer, m.PathSamples):
            self._stages.keep(measured, "turns", answer.num_warm_up, answer.conditions)
        self._store.append(with_facts(record, self._currency.facts) for record in unreached)

    def _probe_units(
        self,
        target: ProbeTarget,
        representation: str,
        description: Description,
        problem: PlanningProblem,
        name: str,
        share: float,
        parts: int,
    ) -> None:
        budget = self._budget_bytes(target)
        self._on_progress(name, share)

        def on_event(event: object) -> None:
            if isinstance(event, m.Progressed) and event.total:
                self._on_progress(name, share + event.done / event.total / parts)

        command = m.ProbeUnits(
            description=description,
            representation=representation,
            compute_unit_id=target.unit.id,
            kind=target.unit.kind,
            threads=target.unit.threads,
            max_positions=problem.max_positions,
            chunk_positions=problem.chunk_positions,
            budget_bytes=budget,
            seconds=UNITS_SECONDS / NUM_WINDOWS,
        )
        answer = self._stages.on_stage(target, command, on_event)
        if not isinstance(answer, m.Observed) or not answer.observations:
            raise MeasurementError(f"Node {target.label}: the probe of {representation} measured nothing")
        self._stages.keep(answer.observations, "turns", answer.num_warm_up, answer.conditions)

    def _budget_bytes(self, target: ProbeTarget) -> int:
        group = next(group for group in self._groups if target in group.targets)
        return self._nodes.budget_bytes(target, group)

    # -- what is due, and why --

    def _path_due(self, source: ProbeTarget, target: ProbeTarget, refresh: bool) -> str | None:
        return self._paths.due(source.node.id, target.node.id, self._payloads(source, target), refresh)

    def _payloads(self, source: ProbeTarget, target: ProbeTarget) -> tuple[int, ...]:
        room = min(self._budget_bytes(source), self._budget_bytes(target))
        return payloads_for(room // 2 if source.node.id == target.node.id else room)  # two stages share it there

    def _units_due(
        self,
        target: ProbeTarget,
        representation: str,
        shape: str,
        problem: PlanningProblem,
        graph: ResourceGraph,
        refresh: bool,
    ) -> str | None:
        if refresh:
            return "asked for again"
        economics = economics_of(self._store, shape, problem, graph, self._currency, (representation,))
        missing = [reason for reason in economics.missing if f"({target.unit.id})" in reason]
        if not missing:
            return None
        known = why_unknown(
            self._store,
            self._currency,
            target.unit.id,
            SERVICE_METRIC,
            representation=representation,
            model_shape=shape,
        )
        return known or missing[0].split(f"({target.unit.id}): ", 1)[-1]
