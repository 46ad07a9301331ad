"""Measures what a plan needs to know, on the Nodes themselves and under their limits; reuses what still applies.

On each Node an empty stage is started, which is also what the runtime base is measured on. Nodes are measured one
after another: virtual Nodes share their machine, and in a plan they take turns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from inferswarm import __version__
from inferswarm.errors import FabricError, MeasurementError
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import Observation, make_context, now_ns
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.planner.economics import Economics, PathCurve
from inferswarm.planner.problem import PlanningProblem, TransientTerm
from inferswarm.resources.bandwidth import choose_set_bytes
from inferswarm.resources.discovery import HostInventory
from inferswarm.resources.types import ComputeUnit, Node, ResourceGraph
from inferswarm.strategies.chain import Description
from inferswarm.strategies.economics import PATH_METRIC, make_economics, path_subject, phases_of

PROBE_STAGE = "probe"
BASE_METRIC = "runtime-base-bytes"
SCRATCH_METRIC = "step-transient-bytes"
BANDWIDTH_METRIC = "read-bandwidth"
TRANSPORT = "tcp-frames"
PATH_PAYLOAD_BYTES = (64, 4096, 65536)
PATH_SAMPLES = 60
BANDWIDTH_SECONDS = 0.5
UNITS_SECONDS = 6.0
"""How long the probe of one representation on one Node may take."""
UNLIMITED_BUDGET_BYTES = 400 * 10**6
"""States that the probe of a Node without an envelope may allocate: well past any last-level cache."""
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


class ProbeTarget(NamedTuple):
    """One Node to measure, with its Compute Unit."""

    node: Node
    unit: ComputeUnit
    limit_bytes: int | None


def newest_of_each(observations: Iterable[Observation]) -> tuple[Observation, ...]:
    """Keep, of records with equal subject, metric and context, the newest one only."""
    newest: dict[tuple[str, str, object], Observation] = {}
    for observation in observations:
        key = (observation.subject, observation.metric, observation.context)
        if key not in newest or int(newest[key].taken_at_ns) <= int(observation.taken_at_ns):
            newest[key] = observation
    return tuple(newest.values())


def base_context(target: ProbeTarget, mechanism: str, torch_version: str) -> dict[str, str]:
    """Return the context that a runtime base depends on."""
    return {"mechanism": mechanism, "threads": str(target.unit.threads), "torch": torch_version}


def base_of(store: ObservationStore, target: ProbeTarget, mechanism: str, torch_version: str) -> int | None:
    """Return the newest measured base of a Node that applies, in bytes: the highest sample. None when unknown."""
    wanted = base_context(target, mechanism, torch_version)
    found = [
        observation
        for observation in store.query(target.node.id, BASE_METRIC)
        if {item.key: item.value for item in observation.context} == wanted
    ]
    return int(max(found[-1].samples)) if found else None


def scratch_terms(observations: Sequence[Observation], shape: str) -> tuple[TransientTerm, ...]:
    """Return the backend's measured scratch, per representation: the highest of the newest samples of any Node."""
    highest: dict[str, float] = {}
    for observation in newest_of_each(observations):
        representation = observation.context_value("representation")
        if observation.metric == SCRATCH_METRIC and observation.context_value("model.shape") == shape:
            assert representation is not None
            highest[representation] = max(highest.get(representation, 0.0), *observation.samples)
    return tuple(
        TransientTerm(name="kernel scratch (measured)", representation=name, fixed_bytes=int(size))
        for name, size in sorted(highest.items())
    )


class Prober:
    """Measures the Nodes of one running swarm."""

    def __init__(
        self,
        client: Client,
        store: ObservationStore,
        inventory: HostInventory,
        targets: Sequence[ProbeTarget],
        mechanism: str,
        on_progress: OnProgress,
    ) -> None:
        """`mechanism` is what holds the Nodes to their memory."""
        self._client = client
        self._store = store
        self._inventory = inventory
        self._targets = tuple(targets)
        self._mechanism = mechanism
        self._on_progress = on_progress
        self._torch = inventory.accelerators.torch_version.value or "none"

    def measure_nodes(self, refresh: bool) -> None:
        """Measure base, memory bandwidth and the paths between all Nodes, where that is not known yet."""
        needs = [target for target in self._targets if refresh or not self._node_known(target)]
        pairs = [
            (source, target)
            for source in self._targets
            for target in self._targets
            if source is not target and (refresh or not self._path_known(source, target))
        ]
        involved = [target for target in self._targets if target in needs or any(target in pair for pair in pairs)]
        endpoints: dict[str, str] = {}
        total = len(needs) + len(pairs)
        done = 0
        try:
            for target in involved:
                endpoints[target.node.id] = self._start(target)
            for target in needs:
                self._on_progress(f"{target.node.name}: runtime base and memory bandwidth", done / total)
                self._measure_base(target)
                self._measure_bandwidth(target)
                done += 1
            for source, target in pairs:
                self._on_progress(f"path {source.node.name} → {target.node.name}", done / total)
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
        """Measure the cost classes of a model on each Node in each representation, where that is not known yet."""
        representations = sorted({item.representation for item in problem.implementations})
        work = [
            (target, representation)
            for target in self._targets
            for representation in representations
            if refresh or self._units_missing(target, representation, shape, problem, graph)
        ]
        for index, (target, representation) in enumerate(work):
            name = f"{target.node.name}: cost classes in {representation}"
            try:
                self._start(target)  # a fresh one each time: what an allocator keeps would count against the envelope
                self._probe_units(target, representation, description, problem, name, index / len(work), len(work))
            finally:
                self._stop([target])
        if work:
            self._on_progress("cost classes", 1.0)

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

    def _observe(self, subject: str, metric: str, unit: str, samples: Sequence[float], **context: str) -> None:
        observation = Observation(
            subject=subject,
            metric=metric,
            unit=unit,
            samples=tuple(float(sample) for sample in samples),
            context=make_context(**context),
            protocol=f"{metric}/1",
            taken_at_ns=now_ns(),
            producer=f"inferswarm {__version__}",
        )
        self._store.append([observation])

    def _measure_base(self, target: ProbeTarget) -> None:
        self._on_stage(target, m.Warm(primitive="torch", threads=target.unit.threads))
        samples = []
        for _ in range(5):
            report = self._on_node(target, m.InspectNode())
            if not isinstance(report, m.NodeReport) or report.charged_bytes is None:
                raise MeasurementError(f"Node {target.node.name}: its mechanism does not say what it charges")
            samples.append(report.charged_bytes)
        context = base_context(target, self._mechanism, self._torch)
        self._observe(target.node.id, BASE_METRIC, "B", samples, **context)

    def _measure_bandwidth(self, target: ProbeTarget) -> None:
        available = UNLIMITED_BUDGET_BYTES
        if target.limit_bytes is not None:
            base = base_of(self._store, target, self._mechanism, self._torch) or 0
            available = int(HEADROOM * max(0, target.limit_bytes - base))
        try:
            set_bytes = choose_set_bytes(self._inventory.cpu.last_level_cache_bytes, available)
        except MeasurementError:
            return  # too little memory for an honest figure: it stays unknown, and no gate needs it
        command = m.ProbeBandwidth(threads=target.unit.threads, seconds=BANDWIDTH_SECONDS, set_bytes=set_bytes)
        answer = self._on_stage(target, command)
        if isinstance(answer, m.Observed):
            self._store.append(answer.observations)

    def _measure_path(self, source: ProbeTarget, target: ProbeTarget, endpoint: str) -> None:
        command = m.ProbePath(endpoint=endpoint, payload_bytes=PATH_PAYLOAD_BYTES, num_samples=PATH_SAMPLES)
        answer = self._on_stage(source, command)
        if not isinstance(answer, m.PathSamples):
            raise FabricError(f"expected path samples, got {type(answer).__name__}")
        subject = path_subject(source.node.id, target.node.id)
        for size, samples in zip(answer.payload_bytes, answer.seconds, strict=True):
            context = {"payload_bytes": str(size), "transport": TRANSPORT}
            self._observe(subject, PATH_METRIC, "s", samples, **context)

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
        budget = UNLIMITED_BUDGET_BYTES
        if target.limit_bytes is not None:
            base = base_of(self._store, target, self._mechanism, self._torch) or 0
            budget = min(budget, int(HEADROOM * max(0, target.limit_bytes - base)))
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
        self._store.append(answer.observations)

    # -- what is known --

    def _node_known(self, target: ProbeTarget) -> bool:
        return base_of(self._store, target, self._mechanism, self._torch) is not None

    def _path_known(self, source: ProbeTarget, target: ProbeTarget) -> bool:
        subject = path_subject(source.node.id, target.node.id)
        found = self._store.query(subject, PATH_METRIC)
        return any(observation.context_value("transport") == TRANSPORT for observation in found)

    def _units_missing(
        self, target: ProbeTarget, representation: str, shape: str, problem: PlanningProblem, graph: ResourceGraph
    ) -> bool:
        economics = economics_of(self._store, shape, problem, graph, (representation,))
        return any(f"({target.unit.id})" in reason for reason in economics.missing)


def economics_of(
    store: ObservationStore,
    shape: str,
    problem: PlanningProblem,
    graph: ResourceGraph,
    representations: Sequence[str] | None = None,
) -> Economics:
    """Return the planner's view of everything in the store that applies."""
    names = representations or tuple(sorted({item.representation for item in problem.implementations}))
    (primitive,) = {item.primitive for item in problem.implementations}
    return make_economics(
        phases_of(problem),
        shape,
        graph,
        newest_of_each(store.query()),
        primitive=primitive,
        transport=TRANSPORT,
        representations=names,
    )


def measured_paths(store: ObservationStore, graph: ResourceGraph) -> tuple[PathCurve, ...]:
    """Return what is known of the paths between the Nodes of a graph."""
    observations = newest_of_each(store.query(metric=PATH_METRIC))
    return make_economics({}, "", graph, observations, transport=TRANSPORT, representations=()).paths
