"""The swarm as a user holds it: Nodes, measurements, plans, services. A client of its own processes."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from inferswarm.backends.assignment import make_assignments
from inferswarm.documents import digest
from inferswarm.errors import EngineError, FabricError, SpecError
from inferswarm.evidence.currency import Currency
from inferswarm.evidence.store import ObservationStore
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.fabric.engines.base import NodeLaunch
from inferswarm.fabric.engines.local import LocalEngine, LocalSettings
from inferswarm.fabric.envelope import available_mechanism, refuse_unavailable
from inferswarm.planner import check_drift, decide, force_plan
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import PlanningProblem, Policy, Workload
from inferswarm.resources.discovery import HostInventory, discover
from inferswarm.resources.storage import read_disk
from inferswarm.resources.types import Envelope, Fact, ResourceGraph, observed
from inferswarm.resources.virtual import graph_of_envelopes, graph_of_host
from inferswarm.strategies.shape import shape_digest
from inferswarm.swarm.displays import DecisionView, GraphView
from inferswarm.swarm.known import (
    SCRATCH_METRIC,
    ProbeTarget,
    base_of,
    currency_of,
    economics_of,
    measured_paths,
    scratch_terms,
)
from inferswarm.swarm.measuring import OnProgress, Prober
from inferswarm.swarm.model import Model
from inferswarm.swarm.service import NodeMemory, Service
from inferswarm.swarm.simulated import SimulatedSwarm
from inferswarm.swarm.state import default_state_directory, prepare_state_directory

_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
JOIN_SECONDS = 20.0
DEFAULT_RUN_AHEAD = 2
"""Positions that stages may compute beyond the committed one."""
MECHANISMS = ("auto", "cgroup-v1", "cgroup-v2", "rlimit-data")


def _silent(what: str, share: float) -> None:
    """Report nothing."""


class Swarm:
    """A swarm of local Nodes, with its Coordinator and agents running. Close it, or use it in a `with`."""

    def __init__(
        self,
        inventory: HostInventory,
        envelopes: Sequence[Envelope],
        settings: LocalSettings,
        store: ObservationStore,
        temporary: Path | None,
    ) -> None:
        """Start Coordinator and agents; use `Swarm.local`."""
        self.inventory = inventory
        self.envelopes = tuple(envelopes)
        self.store = store
        self._temporary = temporary
        self.mechanism = _mechanism(settings.mechanism) if envelopes else "none"
        self._engine = LocalEngine(settings)
        self._client: Client | None = None
        self._planned: dict[str, tuple[Model, PlanningProblem]] = {}
        """What was planned here, by the problem's digest."""
        try:
            graph = self._current_graph()
            endpoint = self._engine.start_coordinator()
            self._client = Client(endpoint, settings.token, self._engine.check)
            limits = {envelope.name: envelope.memory_bytes for envelope in self.envelopes}
            for node in graph.nodes:
                self._engine.start_agent(NodeLaunch(node.id, node.name, limits.get(node.name)))
            self._wait_for(len(graph.nodes))
        except BaseException:
            self.close()
            raise

    @classmethod
    def local(
        cls,
        nodes: Sequence[Envelope] = (),
        *,
        name: str | None = None,
        state: str | Path | None = None,
        port: int = 0,
        mechanism: str = "auto",
        lease_seconds: float = 2.0,
    ) -> Swarm:
        """Start a swarm on this machine: one Node that is the machine, or the given virtual Nodes.

        `name` makes a swarm whose ledger is kept in the state directory; without one it ends with this object.
        `state` is the state directory (default: XDG_STATE_HOME or ~/.local/state). `port` is the Coordinator's
        (0: a free one). `mechanism` holds virtual Nodes to their memory: auto, cgroup-v1, cgroup-v2 or rlimit-data.
        Raises SpecError for impossible Nodes or an unwritable state directory, EngineError for a port in use,
        AuthorityUncertain while another process runs the swarm of that name.
        """
        if mechanism not in MECHANISMS:
            raise SpecError("mechanism", mechanism, f"one of {list(MECHANISMS)}")
        refuse_unavailable(mechanism)
        if name is not None and not _NAME.fullmatch(name):
            raise SpecError("name", name, "1 to 40 letters, digits, '-' or '_'")
        if not 0 <= port <= 65535:
            raise SpecError("port", port, "0 to 65535")
        directory = prepare_state_directory(Path(state) if state is not None else default_state_directory())
        store = ObservationStore(directory / "observations")
        salt = name or "local"
        inventory = discover(salt, directory, disk_paths=(directory,))
        if nodes:
            graph_of_envelopes(inventory, salt, nodes, {}, "none")  # refuses impossible ones before anything starts
        _remove_abandoned_directories()
        temporary = None if name else Path(tempfile.mkdtemp(prefix=f"inferswarm-{os.getpid()}-"))
        ledger = directory / f"{name}.ledger" if temporary is None else temporary / "swarm.ledger"
        settings = LocalSettings(
            scope=name or f"local-{secrets.token_hex(4)}",
            ledger=str(ledger),
            token=secrets.token_hex(32),
            port=port,
            mechanism=mechanism,
            lease_seconds=lease_seconds,
            remove_directory=None if temporary is None else str(temporary),
        )
        try:
            return cls(inventory, nodes, settings, store, temporary)
        except BaseException:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            raise

    @staticmethod
    def simulated(topology: str | Path) -> SimulatedSwarm:
        """Return a swarm that exists on paper, to plan for: the one that a topology file declares.

        Raises DocumentError or SpecError naming what is wrong with the file.
        """
        return SimulatedSwarm.load(topology)

    # -- what there is --

    @property
    def graph(self) -> GraphView:
        """The resource graph, with each Node's reservation as it was last measured (unknown before that)."""
        document = self._current_graph()
        return GraphView(document, measured_paths(self.store, document, self._currency(document)))

    def _current_graph(self) -> ResourceGraph:
        """Return the graph's document alone: what the paths were measured to be is for people to see."""
        graph = self._graph_with({})
        reserved: dict[str, Fact[int]] = {}
        currency = self._currency(graph)
        for target in self._targets(graph):
            base = base_of(self.store, target, currency)
            if base is not None:
                reserved[target.node.name] = observed(base, f"measured as {self.mechanism} charges it")
        return self._graph_with(reserved)

    def _currency(self, graph: ResourceGraph) -> Currency:
        return currency_of(graph, self.mechanism)

    def _graph_with(self, reserved: dict[str, Fact[int]]) -> ResourceGraph:
        if self.envelopes:
            return graph_of_envelopes(self.inventory, "local", self.envelopes, reserved, self.mechanism)
        base = next(iter(reserved.values()), None)
        return graph_of_host(self.inventory, "local", reserved_bytes=base)

    def _targets(self, graph: ResourceGraph) -> tuple[ProbeTarget, ...]:
        limits = {envelope.name: envelope.memory_bytes for envelope in self.envelopes}
        cpus = {unit.node_id: unit for unit in graph.compute_units if unit.kind == "cpu"}
        return tuple(ProbeTarget(node, cpus[node.id], limits.get(node.name)) for node in graph.nodes)

    def status(self) -> m.SwarmStatus:
        """Return members, leases, epoch and refusals, as the Coordinator sees them."""
        answer = self._connected().ask(m.Status())
        if not isinstance(answer, m.SwarmStatus):
            raise FabricError(f"expected a status, got {type(answer).__name__}")
        return answer

    def node_memory(self, *, reset_peak: bool = False) -> tuple[NodeMemory, ...]:
        """Return the memory of every Node's processes, now and at its peak; `reset_peak` starts new peaks after."""
        memories = []
        for node in self.status().nodes:
            command = m.InspectNode(reset_peak=reset_peak)
            answer = self._connected().ask(m.OnNode(node_id=node.node_id, command=command))
            if isinstance(answer, m.NodeReport):
                memories.append(NodeMemory(node.name, answer))
        return tuple(memories)

    # -- measure, plan, realize --

    def measure(
        self,
        model: Model | None = None,
        workload: Workload | None = None,
        *,
        refresh: bool = False,
        on_progress: OnProgress = _silent,
    ) -> GraphView:
        """Measure Nodes and paths, and a model's cost classes when one is given; return the graph.

        What is known and still applies is not measured again unless `refresh`. Raises EnvelopeExceeded for a Node
        that is too small for an empty stage.
        """
        problem = None if model is None else model.problem(workload or Workload())  # refused before any work
        graph = self._current_graph()
        disk = None if model is None else read_disk(model.path)
        targets, currency = self._targets(graph), currency_of(graph, self.mechanism, disk)
        prober = Prober(self._connected(), self.store, self.inventory, targets, currency, on_progress)
        try:
            prober.measure_nodes(refresh)
            if model is not None and problem is not None:
                shape = shape_digest(model.description)
                prober.measure_disk(model.path, refresh)
                prober.measure_units(model.description, shape, problem, self._current_graph(), refresh)
        except EngineError:
            self._engine.check_agents()  # an agent that has ended says better why
            raise
        return self.graph

    def problem(self, model: Model, workload: Workload) -> PlanningProblem:
        """Return the planning problem of a model, the measured scratch of the backend included."""
        scratch = scratch_terms(self.store.query(metric=SCRATCH_METRIC), shape_digest(model.description))
        problem = model.problem(workload, scratch=scratch)
        self._planned[digest(problem)] = (model, problem)
        return problem

    def plan(
        self,
        model: Model,
        workload: Workload | None = None,
        policy: Policy | None = None,
        *,
        measure: bool = True,
        on_progress: OnProgress = _silent,
    ) -> DecisionView:
        """Decide how to run a model: a plan, or a truthful refusal.

        With `measure`, what is not known yet is measured first; without, what is unknown stays unknown.
        """
        workload = workload or Workload()
        if measure:
            self.measure(model, workload, on_progress=on_progress)
        graph = self._current_graph()
        problem = self.problem(model, workload)
        economics = economics_of(self.store, shape_digest(model.description), problem, graph, self._currency(graph))
        return DecisionView(decide(problem, graph, workload, policy or Policy(), economics), graph, problem)

    def force(
        self,
        model: Model,
        nodes: Sequence[str],
        *,
        cuts: Sequence[int] = (),
        representation: str = "bf16",
        workload: Workload | None = None,
    ) -> ExecutionPlan:
        """Build the plan over exactly these Nodes with exactly these cuts, even when its memory does not fit.

        For controls and experiments. A cut is the index of the first unit behind it. Raises SpecError for unknown
        Nodes and illegal cuts.
        """
        workload = workload or Workload()
        graph = self._current_graph()
        problem = self.problem(model, workload)
        economics = economics_of(self.store, shape_digest(model.description), problem, graph, self._currency(graph))
        return force_plan(
            problem, graph, workload, economics, nodes=tuple(nodes), cuts=tuple(cuts), representation=representation
        )

    def realize(
        self,
        plan: ExecutionPlan,
        model: Model | None = None,
        *,
        run_ahead: int = DEFAULT_RUN_AHEAD,
        on_progress: Callable[[m.Progressed], None] | None = None,
    ) -> Service:
        """Turn a plan into running stages. The model is the one that the plan was made for, unless it is given.

        Raises SpecError when the graph changed since the decision or the plan was made for no model known here,
        EnvelopeExceeded when a Node's limit stops it, another FabricError or ArtifactError when a participant cannot
        be prepared. Nothing of a failed attempt stays.
        """
        check_drift(plan, self._current_graph())
        known = self._planned.get(plan.problem_digest)
        if known is None and model is None:
            raise SpecError("model", None, "the model of a plan that was not made by this swarm object")
        if known is None:
            assert model is not None
            known = (model, self.problem(model, plan.workload))
        model, problem = known
        assignments = make_assignments(plan, model.description, model.opened.object, problem)

        def on_event(event: m.Progressed | m.TokenCommitted) -> None:
            if on_progress is not None and isinstance(event, m.Progressed):
                on_progress(event)

        question = m.Realize(plan=plan, assignments=assignments, model_path=str(model.path), run_ahead=run_ahead)
        answer = self._connected().ask(question, on_event)
        if not isinstance(answer, m.Realized):
            raise FabricError(f"expected a realization, got {type(answer).__name__}")
        return Service(self._connected(), plan, answer, self.status().pid)

    # -- life --

    def _connected(self) -> Client:
        if self._client is None:
            raise EngineError("swarm", "is closed")
        return self._client

    def _wait_for(self, num_nodes: int) -> None:
        deadline = time.monotonic() + JOIN_SECONDS
        while len(self.status().nodes) < num_nodes:
            self._engine.check_agents()
            if time.monotonic() > deadline:
                raise EngineError("agents", f"{num_nodes} Nodes did not join within {JOIN_SECONDS:.0f} s")
            time.sleep(0.02)

    def close(self) -> None:
        """Stop every process, and remove what was temporary. Does nothing the second time."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._engine.stop()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Swarm:
        """Return the swarm."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the swarm."""
        self.close()

    def __repr__(self) -> str:
        """One honest line."""
        state = "closed" if self._client is None else "running"
        names = ", ".join(envelope.name for envelope in self.envelopes) or "this machine"
        return f"Swarm(local, {state}: {names}; memory held by {self.mechanism})"


def _mechanism(wanted: str) -> str:
    return available_mechanism()[0] if wanted == "auto" else wanted


def _remove_abandoned_directories() -> None:
    """Remove what swarms of this user left whose every process was killed; the names hold their owners' pids."""
    for path in Path(tempfile.gettempdir()).glob("inferswarm-*-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}") and path.stat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
