"""Measures what a plan needs to know, on the Nodes themselves and under their limits; reuses what still applies.

On each Node an empty stage is started, which is also what the runtime base is measured on. Nodes are measured one
after another: virtual Nodes share their machine, and in a plan they take turns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from inferswarm import __version__
from inferswarm.errors import FabricError, MeasurementError
from inferswarm.evidence.currency import Currency, with_facts
from inferswarm.evidence.drift import Interleaving, record_run
from inferswarm.evidence.facts import path_subject
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import Observation, make_context, now_ns
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.planner.problem import PlanningProblem
from inferswarm.resources.bandwidth import choose_set_bytes
from inferswarm.resources.discovery import HostInventory
from inferswarm.resources.disk_reading import BLOCK_BYTES, measure_disk_read
from inferswarm.resources.types import ResourceGraph
from inferswarm.strategies.chain import Description
from inferswarm.strategies.economics import PATH_METRIC
from inferswarm.strategies.overheads import SERVICE_METRIC
from inferswarm.swarm.known import (
    BANDWIDTH_METRIC,
    BASE_METRIC,
    DISK_METRIC,
    TRANSPORT,
    ProbeTarget,
    base_of,
    economics_of,
    why_unknown,
)

PROBE_STAGE = "probe"
PATH_PROTOCOL = f"{PATH_METRIC}/2"
PATH_PAYLOAD_BYTES = (64, 4096, 65536)
LARGE_PAYLOAD_BYTES = 16 * 2**20
"""Tells the goodput of a path; sent where both ends have room for some copies of it."""
_LARGE_COPIES = 8
PATH_SAMPLES = 60
PATH_PAUSE_SECONDS = 0.008
"""About as long as a participant waits for the rest of its route."""
BANDWIDTH_SECONDS = 0.5
DISK_SECONDS = 0.3
MULTIPLY_SECONDS = 1.0
MULTIPLY_BYTES = 64 * 2**20
"""What multiplying needs at least."""
UNITS_SECONDS = 6.0
"""How long the probe of one representation on one Node may take."""
UNLIMITED_BUDGET_BYTES = 400 * 10**6
"""States that the probe of a Node without an envelope may allocate at least: well past any last-level cache."""
HEADROOM = 0.85
"""Share of an envelope, less its base, that the probe may fill."""

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
    ) -> None:
        """`currency` says which records hold now, and what new ones depend on."""
        self._client = client
        self._store = store
        self._inventory = inventory
        self._targets = tuple(targets)
        self._facts = currency
        self._on_progress = on_progress

    @property
    def _currency(self) -> Currency:
        """What records are held against at this moment: also those that were made since this object was."""
        return self._facts._replace(now_ns=int(now_ns()))

    def measure_nodes(self, refresh: bool) -> None:
        """Measure base, memory bandwidth and the paths between all Nodes, where no record holds now; say why."""
        needs = [(target, why) for target in self._targets if (why := self._node_due(target, refresh))]
        pairs = [
            (source, target, why)
            for source in self._targets
            for target in self._targets
            if source is not target and (why := self._path_due(source, target, refresh))
        ]
        names = {target.node.id for target, _ in needs}
        names |= {end.node.id for source, target, _ in pairs for end in (source, target)}
        involved = [target for target in self._targets if target.node.id in names]
        endpoints: dict[str, str] = {}
        total = len(needs) + len(pairs)
        done = 0
        try:
            for target in involved:
                endpoints[target.node.id] = self._start(target)
            for target, why in needs:
                self._on_progress(f"{target.node.name}: runtime base and memory bandwidth ({why})", done / total)
                self._measure_base(target)
                self._measure_bandwidth(target)
                self._measure_multiply(target)
                done += 1
            for source, target, why in pairs:
                self._on_progress(f"path {source.node.name} → {target.node.name} ({why})", done / total)
                self._measure_path(source, target, endpoints[target.node.id])
                done += 1
        finally:
            self._stop(involved)
        if total:
            self._on_progress("nodes and paths", 1.0)

    def measure_units(
        self,
        description: Description,
        shape: str,
        problem: PlanningProblem,
        graph: ResourceGraph,
        refresh: bool,
    ) -> None:
        """Measure the cost classes of a model on each Node in each representation, where no record holds; say why."""
        representations = sorted({item.representation for item in problem.implementations})
        work = [
            (target, representation, why)
            for target in self._targets
            for representation in representations
            if (why := self._units_due(target, representation, shape, problem, graph, refresh))
        ]
        for index, (target, representation, why) in enumerate(work):
            name = f"{target.node.name}: cost classes in {representation} ({why})"
            try:
                self._start(target)  # a fresh one each time: what an allocator keeps would count against the envelope
                self._probe_units(target, representation, description, problem, name, index / len(work), len(work))
            finally:
                self._stop([target])
        if work:
            self._on_progress("cost classes", 1.0)

    def measure_disk(self, path: Path, refresh: bool) -> None:
        """Measure how fast the largest file of a model is read, for each Node, where no record holds; say why.

        It is read here: all Nodes are on this computer. What cannot be read past the cache stays unknown.
        """
        files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
        file = max(files, key=lambda item: item.stat().st_size, default=path)
        block = str(BLOCK_BYTES)
        for target in self._targets:
            node = target.node.id
            why = why_unknown(self._store, self._currency, node, DISK_METRIC, block_bytes=block, cached="no")
            why = "asked for again" if refresh else why
            if why is None:
                continue
            self._on_progress(f"{target.node.name}: reading from disk ({why})", 0.0)
            try:
                samples = measure_disk_read(file, DISK_SECONDS)
            except MeasurementError:
                return  # no gate needs it
            context = {"block_bytes": block, "cached": "no"}
            self._keep([_observation(node, DISK_METRIC, "B/s", samples, f"{DISK_METRIC}/1", **context)], "alone")

    # -- one measurement each --

    def _start(self, target: ProbeTarget) -> str:
        answer = self._on_node(target, m.StartStage(stage=PROBE_STAGE))
        if not isinstance(answer, m.StageStarted):
            raise FabricError(f"expected a started stage, got {type(answer).__name__}")
        return answer.endpoint

    def _stop(self, targets: Iterable[ProbeTarget]) -> None:
        for target in targets:
            with contextlib.suppress(FabricError):  # a Node that is gone has none left
                self._on_node(target, m.StopStage(stage=PROBE_STAGE))

    def _on_node(
        self, target: ProbeTarget, command: m.AgentCommand, on_event: Callable[[object], None] | None = None
    ) -> m.ClientAnswer:
        return self._client.ask(m.OnNode(node_id=target.node.id, command=command), on_event)

    def _on_stage(
        self, target: ProbeTarget, command: m.StageCommand, on_event: Callable[[object], None] | None = None
    ) -> m.ClientAnswer:
        return self._on_node(target, m.OnStage(stage=PROBE_STAGE, command=command), on_event)

    def _keep(
        self,
        observations: Iterable[Observation],
        interleaving: Interleaving,
        num_warm_up: int = 0,
        conditions: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Keep observations with the facts that they depend on and how their run went."""
        stated = dict(conditions)
        stamped = []
        for observation in observations:
            with_all = with_facts(observation, self._currency.facts)
            if min(observation.samples) > 0:  # of what took no time or memory, no drift can be told
                with_all = record_run(
                    with_all,
                    num_warm_up=num_warm_up,
                    interleaving=interleaving,
                    load_average=stated.get("load_average", "unknown"),
                    clocks_mhz=stated.get("clocks_mhz", "unknown"),
                )
            stamped.append(with_all)
        self._store.append(stamped)

    def _measure_base(self, target: ProbeTarget) -> None:
        self._on_stage(target, m.Warm(primitive="torch", threads=target.unit.threads))
        samples = []
        for _ in range(5):
            report = self._on_node(target, m.InspectNode())
            if not isinstance(report, m.NodeReport) or report.charged_bytes is None:
                raise MeasurementError(f"Node {target.node.name}: its mechanism does not say what it charges")
            samples.append(report.charged_bytes)
        threads = str(target.unit.threads)
        self._keep(
            [_observation(target.node.id, BASE_METRIC, "B", samples, f"{BASE_METRIC}/1", threads=threads)], "alone"
        )

    def _measure_bandwidth(self, target: ProbeTarget) -> None:
        available = UNLIMITED_BUDGET_BYTES
        if target.limit_bytes is not None:
            base = base_of(self._store, target, self._currency) or 0
            available = int(HEADROOM * max(0, target.limit_bytes - base))
        try:
            set_bytes = choose_set_bytes(self._inventory.cpu.last_level_cache_bytes, available)
        except MeasurementError:
            return  # too little memory for an honest figure: it stays unknown, and no gate needs it
        command = m.ProbeBandwidth(threads=target.unit.threads, seconds=BANDWIDTH_SECONDS, set_bytes=set_bytes)
        answer = self._on_stage(target, command)
        if isinstance(answer, m.Observed):
            self._keep(answer.observations, "alone", answer.num_warm_up, answer.conditions)

    def _measure_multiply(self, target: ProbeTarget) -> None:
        needed = "representation:"
        names = sorted(tag.removeprefix(needed) for tag in target.unit.capabilities if tag.startswith(needed))
        # the larger rest is for random numbers on their way into maps, for packing, and for what a library allocates
        budget = min(UNLIMITED_BUDGET_BYTES, self._budget_bytes(target) // 3)
        if "backend:torch" not in target.unit.capabilities or budget < MULTIPLY_BYTES or not names:
            return  # no gate needs it
        command = m.ProbeMultiply(
            representations=tuple(names),
            compute_unit_id=target.unit.id,
            threads=target.unit.threads,
            budget_bytes=budget,
            seconds=MULTIPLY_SECONDS,
        )
        answer = self._on_stage(target, command)
        if isinstance(answer, m.Observed):
            self._keep(answer.observations, "turns", answer.num_warm_up, answer.conditions)

    def _measure_path(self, source: ProbeTarget, target: ProbeTarget, endpoint: str) -> None:
        command = m.ProbePath(
            endpoint=endpoint,
            payload_bytes=self._payloads(source, target),
            num_samples=PATH_SAMPLES,
            pause_seconds=PATH_PAUSE_SECONDS,
        )
        answer = self._on_stage(source, command)
        if not isinstance(answer, m.PathSamples):
            raise FabricError(f"expected path samples, got {type(answer).__name__}")
        subject = path_subject(source.node.id, target.node.id)
        pause = f"{PATH_PAUSE_SECONDS:g}"
        records = [
            _observation(
                subject,
                PATH_METRIC,
                "s",
                samples,
                PATH_PROTOCOL,
                payload_bytes=str(size),
                pause_seconds=pause,
                transport=TRANSPORT,
            )
            for size, samples in zip(answer.payload_bytes, answer.seconds, strict=True)
        ]
        self._keep(records, "turns", answer.num_warm_up, answer.conditions)

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
            threads=target.unit.threads,
            max_positions=problem.max_positions,
            chunk_positions=problem.chunk_positions,
            budget_bytes=budget,
            seconds=UNITS_SECONDS,
        )
        answer = self._on_stage(target, command, on_event)
        if not isinstance(answer, m.Observed) or not answer.observations:
            raise MeasurementError(f"Node {target.node.name}: the probe of {representation} measured nothing")
        self._keep(answer.observations, "turns", answer.num_warm_up, answer.conditions)

    def _budget_bytes(self, target: ProbeTarget) -> int:
        """Return what the states of a probe may take: enough for the largest unit, where that can be had at all."""
        if target.limit_bytes is not None:
            base = base_of(self._store, target, self._currency) or 0
            return int(HEADROOM * max(0, target.limit_bytes - base))
        available = self._inventory.ram_available_bytes.value
        return UNLIMITED_BUDGET_BYTES if available is None else max(UNLIMITED_BUDGET_BYTES, available // 2)

    # -- what is due, and why --

    def _node_due(self, target: ProbeTarget, refresh: bool) -> str | None:
        if refresh:
            return "asked for again"
        node = target.node.id
        due = why_unknown(self._store, self._currency, node, BASE_METRIC)
        if due is None and self._store.headers(node, BANDWIDTH_METRIC):  # none: its memory may be too small for it
            due = why_unknown(self._store, self._currency, node, BANDWIDTH_METRIC)
        return due

    def _path_due(self, source: ProbeTarget, target: ProbeTarget, refresh: bool) -> str | None:
        if refresh:
            return "asked for again"
        subject = path_subject(source.node.id, target.node.id)
        for size in self._payloads(source, target):
            context = {"payload_bytes": str(size), "transport": TRANSPORT}
            due = why_unknown(self._store, self._currency, subject, PATH_METRIC, **context)
            if due is not None:
                return due
        return None

    def _payloads(self, source: ProbeTarget, target: ProbeTarget) -> tuple[int, ...]:
        room = min(self._budget_bytes(source), self._budget_bytes(target))
        large = room >= _LARGE_COPIES * LARGE_PAYLOAD_BYTES
        return (*PATH_PAYLOAD_BYTES, LARGE_PAYLOAD_BYTES) if large else PATH_PAYLOAD_BYTES

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


def _observation(
    subject: str, metric: str, unit: str, samples: Sequence[float], protocol: str, **context: str
) -> Observation:
    return Observation(
        subject=subject,
        metric=metric,
        unit=unit,
        samples=tuple(float(sample) for sample in samples),
        context=make_context(**context),
        protocol=protocol,
        taken_at_ns=now_ns(),
        producer=f"inferswarm {__version__}",
    )
