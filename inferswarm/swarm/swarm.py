"""The swarm as a user holds it: Nodes, measurements, plans, services. A client of its own processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

from inferswarm.artifacts.pinning import HashPolicy
from inferswarm.artifacts.reconciling import ServedLine
from inferswarm.artifacts.sources import USUAL_POLICY, SourcePolicy
from inferswarm.evidence.currency import Doubt
from inferswarm.evidence.events import Scope
from inferswarm.evidence.health import Health
from inferswarm.evidence.store import ObservationStore
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client, ClientEvent
from inferswarm.fabric.engines.base import Engine
from inferswarm.fabric.engines.local import LocalEngine
from inferswarm.fabric.engines.ray_engine import RayEngine
from inferswarm.fabric.expecting import expect
from inferswarm.fabric.transfer_records import read_transfers
from inferswarm.planner import ChangePolicy, check_drift, force_plan
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.planner.problem import PlanningProblem, Policy, Workload
from inferswarm.resources.discovery import HostInventory
from inferswarm.resources.types import Envelope, ResourceGraph
from inferswarm.swarm.acquiring_asked import AcquiringAsked
from inferswarm.swarm.acquiring_estimates import AcquiringEstimate
from inferswarm.swarm.considered import ConsideredChange
from inferswarm.swarm.displays import DecisionView, GraphView
from inferswarm.swarm.elasticity import Elasticity
from inferswarm.swarm.event_log import SwarmEvent, swarm_events
from inferswarm.swarm.ground import Ground, MakeEngine
from inferswarm.swarm.health import Accepted
from inferswarm.swarm.health_view import HealthView
from inferswarm.swarm.health_watch import HealthWatch
from inferswarm.swarm.known import measured_paths, path_reports
from inferswarm.swarm.measuring import OnProgress
from inferswarm.swarm.model import Model
from inferswarm.swarm.planned import PlannedHere
from inferswarm.swarm.service import NodeMemory, Service
from inferswarm.swarm.simulated import SimulatedSwarm
from inferswarm.swarm.starting import Preparation, prepare
from inferswarm.swarm.surveying import Surveyor
from inferswarm.swarm.transfers_view import Transfers

DEFAULT_RUN_AHEAD = 2
"""Positions that stages may compute beyond the committed one."""


def _silent(what: str, share: float) -> None:
    """Report nothing."""


class Swarm:
    """A swarm with its Coordinator and agents running. Close it, or use it in a `with`."""

    def __init__(
        self, preparation: Preparation, engine: Engine, kind: str, make_engine: MakeEngine = LocalEngine
    ) -> None:
        """Start Coordinator and agents; use `Swarm.local` or `Swarm.ray`."""
        self._ground = Ground(preparation, engine, make_engine)
        self._planned = PlannedHere(self._ground)
        self._surveyor = Surveyor(self._ground)
        self._elasticity = Elasticity(self._ground, self._planned, self._surveyor)
        self._engine, self._keeper = engine, self._ground.keeper
        self._temporary = preparation.temporary
        self._kind = kind
        try:
            self._ground.start()
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
        spares: bool = False,
        stores: bool = False,
        store_quota_bytes: int | None = None,
        transfer_bytes_per_second: float | None = None,
        hash_policy: HashPolicy = "pinning",
        source_policy: SourcePolicy = USUAL_POLICY,
        keep_results: bool = False,
    ) -> Swarm:
        """Start a swarm on this machine: one Node that is the machine, or the given virtual Nodes.

        `name` makes a swarm whose ledger is kept in the state directory; without one it ends with this object.
        `state` is the state directory (default: XDG_STATE_HOME or ~/.local/state). `port` is the Coordinator's
        (0: a free one). `mechanism` holds virtual Nodes to their memory: auto, cgroup-v1, cgroup-v2 or rlimit-data.
        With `spares` each Node keeps one warm, empty stage, so that a lost one is replaced at once; its memory is
        reserved on every Node. With `stores` each Node keeps verified model bytes in `stores/NAME` below the state
        directory, at most `store_quota_bytes` (None: as much as the disk holds), and acquires exactly what its stages
        need, from other Nodes or from where the model is; `hash_policy` `strict` refuses bytes whose digest nobody
        published, `pinning` takes the first that came from a version. `transfer_bytes_per_second` bounds what each
        Node receives, and what it gives to others (None: neither). `source_policy` says from whom bytes may come
        (`SourcePolicy`); with `keep_results` stages keep in the stores what they decode, and read it the next time.
        Raises SpecError for impossible Nodes or an unwritable state directory, EngineError for a port in use,
        AuthorityUncertain while another process runs the swarm of that name.
        """
        preparation = prepare(
            nodes,
            name=name,
            state=state,
            port=port,
            mechanism=mechanism,
            lease_seconds=lease_seconds,
            spares=spares,
            stores=stores,
            store_quota_bytes=store_quota_bytes,
            transfer_bytes_per_second=transfer_bytes_per_second,
            hash_policy=hash_policy,
            source_policy=source_policy,
            keep_results=keep_results,
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
        spares: bool = False,
        stores: bool = False,
        store_quota_bytes: int | None = None,
        transfer_bytes_per_second: float | None = None,
        hash_policy: HashPolicy = "pinning",
        source_policy: SourcePolicy = USUAL_POLICY,
        keep_results: bool = False,
    ) -> Swarm:
        """Start a swarm whose agents are on the nodes of the Ray cluster at `address` (HOST:PORT).

        Each Node is on the Ray node that carries its name as the label `inferswarm-node`; all of them on this
        machine. The rest is as with `local`. Raises SpecError also where Ray is not installed and for a name that no
        live Ray node carries or several do, EngineError when there is no cluster at that address.
        """
        preparation = prepare(
            nodes,
            name=name,
            state=state,
            port=port,
            mechanism=mechanism,
            lease_seconds=lease_seconds,
            spares=spares,
            stores=stores,
            store_quota_bytes=store_quota_bytes,
            transfer_bytes_per_second=transfer_bytes_per_second,
            hash_policy=hash_policy,
            source_policy=source_policy,
            keep_results=keep_results,
        )
        with preparation.kept():
            make_engine = partial(RayEngine, address=address)
            return cls(preparation, make_engine(preparation.settings), f"ray at {address}", make_engine)

    @staticmethod
    def simulated(topology: str | Path) -> SimulatedSwarm:
        """Return a swarm that exists on paper, to plan for: the one that a topology file declares.

        Raises DocumentError or SpecError naming what is wrong with the file.
        """
        return SimulatedSwarm.load(topology)

    # -- what there is --

    @property
    def inventory(self) -> HostInventory:
        """What was found on this machine as the swarm started."""
        return self._ground.nodes.inventory

    @property
    def envelopes(self) -> tuple[Envelope, ...]:
        """The virtual Nodes that are declared now; none where the Node is this machine."""
        return self._ground.nodes.envelopes

    @property
    def mechanism(self) -> str:
        """What holds virtual Nodes to their memory."""
        return self._ground.nodes.mechanism

    @property
    def store(self) -> ObservationStore:
        """Everything that was measured."""
        return self._ground.store

    @property
    def graph(self) -> GraphView:
        """The resource graph, with each Node's reservation as it was last measured (unknown before that)."""
        document = self._current_graph()
        currency = self._ground.nodes.currency(document)
        curves, reports = measured_paths(self.store, document, currency), path_reports(self.store, document, currency)
        return GraphView(document, curves, reports)

    def _current_graph(self) -> ResourceGraph:
        """Return the graph's document alone: what the paths were measured to be is for people to see."""
        return self._ground.nodes.graph

    def status(self) -> m.SwarmStatus:
        """Return members, leases, epoch and refusals, as the Coordinator sees them."""
        return self._ground.status()

    def events(self, *, since_ns: int = 0, follow: bool = False) -> Iterator[SwarmEvent]:
        """Return what happened since a moment, oldest first, read as it is asked for; see `swarm_events`.

        Changes of authority and refusals come from the ledger, health from the journal. `follow`: without an end.
        """
        return swarm_events(self._ground.ledger, self._ground.state_directory, since_ns=since_ns, follow=follow)

    def transfers(self) -> Transfers:
        """Return every model byte that moved for what was realized, by class and source, and what must be 0."""
        names = {node.id: node.name for node in self._ground.nodes.bare_graph.nodes}
        return Transfers(read_transfers(self._ground.ledger), names)

    def acquiring(self, plan: ExecutionPlan, model: Model) -> AcquiringEstimate | None:
        """Return what a plan's Nodes would have to acquire now, and how long that would take; changes nothing.

        None in a swarm without stores. No gate and no price of a plan reads it.
        """
        return AcquiringAsked(self._ground, self._planned).estimate(plan, model, self._current_graph())

    def served(self) -> tuple[ServedLine, ...]:
        """Return what the Nodes' stores gave to peers, by their own logs, each since its courier began.

        For `Transfers.reconcile`; very old lines are dropped. Raises SpecError in a swarm without stores.
        """
        return self._ground.served()

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
            self._surveyor.measure_once(model, problem, doubts, missing, refresh and is_first, on_progress)

        self._watched().settle(measure_once)
        return self.graph

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
        self._surveyor.measure_units(model, problem, representations, on_progress)

    # -- health --

    def _watched(self) -> HealthWatch:
        return self._ground.watch

    @property
    def health(self) -> HealthView:
        """The health of every resource that anything was seen of: five axes, open alerts, quarantines."""
        self._watched().observe()
        return HealthView(self._keeper.report(), self._ground.nodes.bare_graph)

    def accept_baselines(self, accepted_by: str, reason: str, *, num_runs: int = 1) -> Accepted:
        """Accept what is measured now as what is expected from now on, until somebody accepts something else.

        The newest `num_runs` records of each question become its reference baseline. Raises SpecError for an
        acceptance by nobody or without a reason.
        """
        currency = self._ground.nodes.currency(self._current_graph())
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
        about = self._watched().degraded(scope, model, self._planned.models)
        if about is not None:
            self.measure(about.model, workload, on_progress=on_progress)
        return self.health.of(scope)

    def problem(self, model: Model, workload: Workload) -> PlanningProblem:
        """Return the planning problem of a model, with what was measured of scratch and of stages' processes."""
        return self._planned.problem(model, workload)

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
        inputs = self._planned.inputs(model, workload, policy or Policy())
        decision = DecisionView(inputs.decide(), inputs.graph, inputs.problem, inputs)
        if decision.document.plan is not None:
            self._planned.decided(decision.document.plan, inputs)
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
        inputs = self._planned.inputs(model, workload or Workload(), Policy())
        return force_plan(
            inputs.problem,
            inputs.graph,
            inputs.workload,
            inputs.economics,
            nodes=tuple(nodes),
            cuts=tuple(cuts),
            representation=representation,
            health=inputs.health,
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

        def on_event(event: ClientEvent) -> None:
            if on_progress is not None and isinstance(event, m.Progressed):
                on_progress(event)

        question = self._planned.order(plan, model, graph, run_ahead)
        answer = expect(m.Realized, self._connected().ask(question, on_event), "a realization")
        self._watched().runs(plan, answer.epoch, [item.plan for item in question.fallbacks])
        service = Service(self._connected(), plan, answer, self.status().pid, self._watched().observe)
        self._elasticity.serves(service)
        return service

    # -- Nodes that come and go --

    def add(
        self,
        envelope: Envelope,
        *,
        requests: float | None = None,
        policy: ChangePolicy | None = None,
        on_progress: OnProgress = _silent,
    ) -> ConsideredChange:
        """Add a virtual Node to the running swarm, and change to a plan with it if that is worth it.

        While a plan serves, the newcomer is tried first, in a scope of its own: it gives a known answer and is
        measured; then it joins, its paths are measured, and the planner decides again for the same model, workload
        and policy. `requests` are those expected to come (None: as many as the present plan answers in the half-life
        of flap damping); `policy` says how much better a plan must be. Without a serving plan it just joins.
        Raises SpecError for a Node that is impossible beside the others, EnvelopeExceeded for one too small for an
        empty stage, FabricError for one that answers wrongly, EngineError for one that does not join; then it is not
        declared. A change that fails says so in what is returned, and the plan in force goes on.
        """
        return self._elasticity.add(envelope, requests, policy or ChangePolicy(), on_progress)

    def drain(self, name: str) -> ConsideredChange:
        """Let a Node go: what serves moves to the best plan without it, then its agent is stopped.

        Its memory is free and it is no member when this returns. `rejoin` brings it back. Raises InfeasiblePlan when
        no plan without it is feasible, SpecError for an unknown Node, the only one, or one that the plan's policy
        demands, and what a failed change raises; then nothing was touched.
        """
        return self._elasticity.drain(name)

    def rejoin(
        self,
        name: str,
        *,
        requests: float | None = None,
        policy: ChangePolicy | None = None,
        on_progress: OnProgress = _silent,
    ) -> ConsideredChange:
        """Start the agent of a Node again that was lost or drained; consider a plan with it as for `add`.

        Raises SpecError for a Node that was not declared or is a member, and otherwise as `add`.
        """
        return self._elasticity.rejoin(name, requests, policy or ChangePolicy(), on_progress)

    def reconsider(self, *, requests: float | None = None, policy: ChangePolicy | None = None) -> ConsideredChange:
        """Consider another plan with the Nodes that there are, as `add` does: nothing is measured, nobody joins.

        For when something else has changed: what was measured, what is expected, or what made an earlier change fail.
        """
        return self._elasticity.reconsider(requests, policy or ChangePolicy())

    # -- life --

    def _connected(self) -> Client:
        return self._ground.client

    def close(self) -> None:
        """Stop every process, and remove what was temporary. Does nothing the second time."""
        self._ground.close()

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
        state = "closed" if self._ground.is_closed else "running"
        names = ", ".join(envelope.name for envelope in self.envelopes) or "this machine"
        return f"Swarm({self._kind}, {state}: {names}; memory held by {self.mechanism})"
