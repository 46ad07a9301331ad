"""The swarm as a user holds it: Nodes, measurements, plans, services. A client of its own processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec

from inferswarm.documents import digest
from inferswarm.errors import EngineError, FabricError, SpecError
from inferswarm.evidence.currency import Currency, Doubt
from inferswarm.evidence.events import Scope
from inferswarm.evidence.health import Health
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client, ClientEvent
from inferswarm.fabric.engines.base import Engine, NodeLaunch
from inferswarm.fabric.engines.local import LocalEngine
from inferswarm.fabric.engines.ray_engine import RayEngine
from inferswarm.fabric.envelope import available_mechanism
from inferswarm.planner import Inputs, check_drift, force_plan
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import PlanningProblem, Policy, Workload
from inferswarm.resources.network import read_interfaces
from inferswarm.resources.storage import read_disk
from inferswarm.resources.types import Envelope, Node, ResourceGraph
from inferswarm.resources.virtual import graph_of_envelopes, graph_of_host
from inferswarm.strategies.shape import shape_digest
from inferswarm.swarm.displays import DecisionView, GraphView
from inferswarm.swarm.event_log import SwarmEvent, swarm_events
from inferswarm.swarm.fallbacks import fallbacks_of, order_of
from inferswarm.swarm.health import Accepted, HealthKeeper
from inferswarm.swarm.health_view import HealthView
from inferswarm.swarm.health_watch import HealthWatch
from inferswarm.swarm.known import (
    SCRATCH_METRIC,
    currency_of,
    economics_of,
    measured_paths,
    path_reports,
    scratch_terms,
)
from inferswarm.swarm.measuring import OnProgress, Prober
from inferswarm.swarm.model import Model
from inferswarm.swarm.reservations import NOTHING_RESERVED, Reservations, reservations_of, with_participants
from inferswarm.swarm.service import NodeMemory, Service
from inferswarm.swarm.simulated import SimulatedSwarm
from inferswarm.swarm.starting import Preparation, prepare
from inferswarm.swarm.targets import ProbeTarget, targets_of

JOIN_SECONDS = 20.0
DEFAULT_RUN_AHEAD = 2
"""Positions that stages may compute beyond the committed one."""


def _silent(what: str, share: float) -> None:
    """Report nothing."""


class Swarm:
    """A swarm with its Coordinator and agents running. Close it, or use it in a `with`."""

    def __init__(self, preparation: Preparation, engine: Engine, kind: str) -> None:
        """Start Coordinator and agents; use `Swarm.local` or `Swarm.ray`."""
        settings = preparation.settings
        self.inventory = preparation.inventory
        self.envelopes = preparation.envelopes
        self.store = preparation.store
        self._keeper = HealthKeeper(self.store.directory.parent, self.store)
        self._watch: HealthWatch | None = None
        self._temporary = preparation.temporary
        self._discard = preparation.discard
        self._ledger = Path(settings.ledger)
        self._kind = kind
        self.mechanism = _mechanism(settings.mechanism) if self.envelopes else "none"
        self._engine = engine
        self._client: Client | None = None
        self._planned: dict[str, tuple[Model, PlanningProblem]] = {}
        self._decided: dict[str, Inputs] = {}
        """What was planned here, by the problem's digest."""
        try:
            graph = self._current_graph()
            endpoint = self._engine.start_coordinator()
            self._client = Client(endpoint, settings.token, self._engine.check)
            for node in graph.nodes:
                self._engine.start_agent(self._launch(node))
            self._wait_for({node.name for node in graph.nodes})
            self._watch = HealthWatch(self._keeper, self._client, lambda: self._graph_with(NOTHING_RESERVED))
            self._watch.observe()
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
        preparation = prepare(
            nodes, name=name, state=state, port=port, mechanism=mechanism, lease_seconds=lease_seconds
        )
        with preparation.kept():
            return cls(preparation, LocalEngine(preparation.settings), "local")

    @classmethod
    def ray(
        cls,
        address: str,
        nodes: Sequence[Envelope] = (),
        *,
        name: str | None = None,
        state: str | Path | None = None,
        port: int = 0,
        mechanism: str = "auto",
        lease_seconds: float = 2.0,
    ) -> Swarm:
        """Start a swarm whose agents are on the nodes of the Ray cluster at `address` (HOST:PORT).

        Each Node is on the Ray node that carries its name as the label `inferswarm-node`; all of them on this
        machine. The rest is as with `local`. Raises SpecError also where Ray is not installed and for a name that no
        live Ray node carries or several do, EngineError when there is no cluster at that address.
        """
        preparation = prepare(
            nodes, name=name, state=state, port=port, mechanism=mechanism, lease_seconds=lease_seconds
        )
        with preparation.kept():
            return cls(preparation, RayEngine(preparation.settings, address), f"ray at {address}")

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
        currency = self._currency(document)
        curves, reports = measured_paths(self.store, document, currency), path_reports(self.store, document, currency)
        return GraphView(document, curves, reports)

    def _current_graph(self) -> ResourceGraph:
        """Return the graph's document alone: what the paths were measured to be is for people to see."""
        return self._graph_with(self._reservations())

    def _reservations(self) -> Reservations:
        graph = self._graph_with(NOTHING_RESERVED)
        return reservations_of(self.store, self._targets(graph), self._currency(graph), self.mechanism)

    def _currency(self, graph: ResourceGraph) -> Currency:
        return currency_of(graph, self.mechanism, interfaces=read_interfaces())

    def _graph_with(self, reserved: Reservations) -> ResourceGraph:
        if self.envelopes:
            return graph_of_envelopes(self.inventory, "local", self.envelopes, reserved.nodes, self.mechanism)
        base = next(iter(reserved.nodes.values()), None)
        return graph_of_host(
            self.inventory, "local", reserved_bytes=base, accelerator_reserved_bytes=reserved.accelerators
        )

    def _targets(self, graph: ResourceGraph) -> tuple[ProbeTarget, ...]:
        return targets_of(graph, {envelope.name: envelope.memory_bytes for envelope in self.envelopes})

    def status(self) -> m.SwarmStatus:
        """Return members, leases, epoch and refusals, as the Coordinator sees them."""
        answer = self._connected().ask(m.Status())
        if not isinstance(answer, m.SwarmStatus):
            raise FabricError(f"expected a status, got {type(answer).__name__}")
        return answer

    def events(self, *, since_ns: int = 0, follow: bool = False) -> Iterator[SwarmEvent]:
        """Return what happened since a moment, oldest first, read as it is asked for; see `swarm_events`.

        Changes of authority and refusals come from the ledger, health from the journal. `follow`: without an end.
        """
        return swarm_events(self._ledger, self.store.directory.parent, since_ns=since_ns, follow=follow)

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

        What is known and still applies is not measured again unless `refresh`; what alerts are open about is, and
        what deviates from its accepted baseline or drifted while it was measured is measured once more at once.
        Raises EnvelopeExceeded for a Node that is too small for an empty stage.
        """
        problem = None if model is None else model.problem(workload or Workload())  # refused before any work

        def measure_once(missing: frozenset[str], doubts: tuple[Doubt, ...], is_first: bool) -> None:
            self._measure_once(model, problem, doubts, missing, refresh and is_first, on_progress)

        self._watched().settle(measure_once)
        return self.graph

    def _measure_once(
        self,
        model: Model | None,
        problem: PlanningProblem | None,
        doubts: tuple[Doubt, ...],
        missing: frozenset[str],
        refresh: bool,
        on_progress: OnProgress,
    ) -> None:
        """Measure what no record tells that holds and is not doubted, on the Nodes that are there."""
        prober = self._prober(model, doubts, missing, on_progress)
        try:
            prober.measure_nodes(refresh)
            prober.measure_requests(refresh)
            if model is not None and problem is not None:
                shape = shape_digest(model.description)
                prober.measure_disk(model.path, refresh)
                prober.measure_units(model.description, shape, problem, self._current_graph(), refresh)
        except EngineError:
            self._engine.check_agents()  # an agent that has ended says better why
            raise

    def measure_units(
        self,
        model: Model,
        workload: Workload | None = None,
        representations: Sequence[str] = (),
        *,
        on_progress: OnProgress = _silent,
    ) -> None:
        """Measure a model's cost classes again, on every Node, in these representations (none: in all of them).

        For comparisons side by side: `measure` measures what is unknown, Nodes and paths as well.
        """
        problem = model.problem(workload or Workload())
        prober = self._prober(model, (), frozenset(), on_progress)
        shape = shape_digest(model.description)
        prober.measure_units(model.description, shape, problem, self._current_graph(), True, representations)

    def _prober(
        self, model: Model | None, doubts: tuple[Doubt, ...], missing: frozenset[str], on_progress: OnProgress
    ) -> Prober:
        """Return what measures the Nodes that are not missing, against the facts of this moment."""
        graph = self._current_graph()
        disk = None if model is None else read_disk(model.path)
        inventory = msgspec.structs.replace(self.inventory, interfaces=read_interfaces())  # they come and go
        currency = currency_of(graph, self.mechanism, disk, inventory.interfaces)._replace(doubts=doubts)
        targets = tuple(target for target in self._targets(graph) if target.node.id not in missing)
        if not targets:
            self._engine.check_agents()
            raise EngineError("Nodes", "none is a member of the swarm now")
        return Prober(self._connected(), self.store, inventory, targets, currency, on_progress)

    # -- health --

    def _watched(self) -> HealthWatch:
        if self._watch is None:
            raise EngineError("swarm", "is closed")
        return self._watch

    @property
    def health(self) -> HealthView:
        """The health of every resource that anything was seen of: five axes, open alerts, quarantines."""
        self._watched().observe()
        return HealthView(self._keeper.report(), self._graph_with(NOTHING_RESERVED))

    def accept_baselines(self, accepted_by: str, reason: str, *, num_runs: int = 1) -> Accepted:
        """Accept what is measured now as what is expected from now on, until somebody accepts something else.

        The newest `num_runs` records of each question become its reference baseline. Raises SpecError for an
        acceptance by nobody or without a reason.
        """
        currency = self._currency(self._current_graph())
        return self._keeper.accept(currency, accepted_by=accepted_by, reason=reason, num_runs=num_runs)

    def revalidate(
        self,
        scope: Scope,
        model: Model | None = None,
        workload: Workload | None = None,
        *,
        on_progress: OnProgress = _silent,
    ) -> Health:
        """Check a scope again, as its quarantine, its absence or its open alerts ask for; return its health after.

        Integrity is checked by a model with a known answer, really run; performance by the probes that the alerts
        name, for which a model's cost classes need the model. Raises SpecError for a scope that cannot be checked
        here, CommitRefused while a plan has authority.
        """
        self._watched().check(scope, model)
        about = self._watched().degraded(scope, model, [item for item, _ in self._planned.values()])
        if about is not None:
            self.measure(about.model, workload, on_progress=on_progress)
        return self.health.of(scope)

    def problem(self, model: Model, workload: Workload) -> PlanningProblem:
        """Return the planning problem of a model, with what was measured of scratch and of stages' processes."""
        scratch = scratch_terms(self.store.query(metric=SCRATCH_METRIC), shape_digest(model.description))
        problem = model.problem(workload, scratch=scratch)
        problem = with_participants(problem, self._reservations().participant_bytes)
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
        health = self.health
        graph = self._current_graph()
        problem = self.problem(model, workload)
        economics = economics_of(self.store, shape_digest(model.description), problem, graph, self._currency(graph))
        in_force = self._keeper.in_force(graph)
        inputs = Inputs(problem, graph, workload, policy or Policy(), economics, health=in_force)
        decision = DecisionView(inputs.decide(), graph, problem, inputs)
        if decision.document.plan is not None:
            self._decided[digest(decision.document.plan)] = inputs
        decision.notes = health.notes()
        return decision

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
            problem,
            graph,
            workload,
            economics,
            nodes=tuple(nodes),
            cuts=tuple(cuts),
            representation=representation,
            health=self._keeper.in_force(graph),
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
        be prepared. Nothing of a failed attempt stays. Messages take the addresses that the plan was priced with;
        paths that were not measured go as the agents listen.
        """
        graph = self._current_graph()
        check_drift(plan, graph)
        known = self._planned.get(plan.problem_digest)
        if known is None and model is None:
            raise SpecError("model", None, "the model of a plan that was not made by this swarm object")
        if known is None:
            assert model is not None
            known = (model, self.problem(model, plan.workload))
        model, problem = known
        self._watched().refuse_shut(model)
        order = partial(order_of, store=self.store, model=model, problem=problem, graph=graph, run_ahead=run_ahead)

        def on_event(event: ClientEvent) -> None:
            if on_progress is not None and isinstance(event, m.Progressed):
                on_progress(event)

        question = m.Realize(
            **msgspec.structs.asdict(order(plan)),
            model_path=str(model.path),
            fallbacks=fallbacks_of(plan, self._decided.get(digest(plan)), order),
        )
        answer = self._connected().ask(question, on_event)
        if not isinstance(answer, m.Realized):
            raise FabricError(f"expected a realization, got {type(answer).__name__}")
        self._watched().runs(plan, answer.epoch)
        return Service(self._connected(), plan, answer, self.status().pid, self._watched().observe)

    # -- life --

    def _connected(self) -> Client:
        if self._client is None:
            raise EngineError("swarm", "is closed")
        return self._client

    def _launch(self, node: Node) -> NodeLaunch:
        limits = {envelope.name: envelope.memory_bytes for envelope in self.envelopes}
        return NodeLaunch(node.id, node.name, limits.get(node.name))

    def _wait_for(self, names: set[str]) -> None:
        deadline = time.monotonic() + JOIN_SECONDS
        while missing := names - {node.name for node in self.status().nodes}:
            ended = {process.role for process in self._engine.processes() if process.state == "ended"}
            if ended & {f"agent {name}" for name in missing}:
                self._engine.check_agents()
            if time.monotonic() > deadline:
                raise EngineError("agents", f"{sorted(missing)} did not join within {JOIN_SECONDS:.0f} s")
            time.sleep(0.02)

    def rejoin(self, name: str) -> None:
        """Start the agent of a Node again that is no member any more, and wait until it is one.

        Raises SpecError for a Node that was not declared or is a member, EngineError when it does not join.
        """
        lost = {node.name: node for node in self._current_graph().nodes}
        for member in self.status().nodes:
            lost.pop(member.name, None)
        if name not in lost:
            raise SpecError("node", name, f"one that is no member any more: {sorted(lost)}")
        self._engine.start_agent(self._launch(lost[name]))
        self._wait_for({name})
        self._watched().observe()

    def close(self) -> None:
        """Stop every process, and remove what was temporary. Does nothing the second time."""
        self._watch = None
        if self._client is not None:
            self._client.close()
            self._client = None
        self._engine.stop()
        self._discard()

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
        return f"Swarm({self._kind}, {state}: {names}; memory held by {self.mechanism})"


def _mechanism(wanted: str) -> str:
    return available_mechanism()[0] if wanted == "auto" else wanted
