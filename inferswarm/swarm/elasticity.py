"""Nodes that come and go while a plan serves: a newcomer is tried, measured and considered; one that goes is drained.

The order of these steps is here. Whether another plan is worth a change is asked in `considering`. What is done
here is done one thing after the other, by this swarm object: another process that changes the same scope meanwhile
is not covered, except that a change decided for an epoch that is over is refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from inferswarm.errors import InferSwarmError, SpecError
from inferswarm.evidence.events import HealthEvent, Scope
from inferswarm.evidence.health import health_of
from inferswarm.fabric.recovery_records import Trigger
from inferswarm.planner import ChangePolicy
from inferswarm.resources.types import Envelope, Node
from inferswarm.swarm.consideration import Question
from inferswarm.swarm.considered import ConsideredChange
from inferswarm.swarm.considering import Considering, Serving
from inferswarm.swarm.declared import DeclaredNodes
from inferswarm.swarm.ground import Ground
from inferswarm.swarm.measuring import OnProgress
from inferswarm.swarm.planned import Ordered, PlannedHere
from inferswarm.swarm.service import Service
from inferswarm.swarm.surveying import Surveyor
from inferswarm.swarm.trial import try_newcomer
from inferswarm.swarm.weighing import uses


class Elasticity:
    """Adds and drains the Nodes of one running swarm."""

    def __init__(
        self,
        ground: Ground,
        planned: PlannedHere,
        surveyor: Surveyor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing has changed yet. `clock` is flap damping's."""
        self._ground = ground
        self._planned = planned
        self._surveyor = surveyor
        self._considering = Considering(ground, planned, clock)
        self._drained: dict[str, Envelope] = {}
        self._lock = threading.RLock()

    def serves(self, service: Service) -> None:
        """Hear which plan was ordered."""
        self._considering.serves(service)

    def add(
        self, envelope: Envelope, requests: float | None, policy: ChangePolicy, on_progress: OnProgress
    ) -> ConsideredChange:
        """Take a new virtual Node in; see `Swarm.add`."""
        with self._lock:
            nodes = self._ground.nodes.adding(envelope)
            return self._take_in(nodes, nodes.node(envelope.name), "joined", requests, policy, on_progress)

    def rejoin(
        self, name: str, requests: float | None, policy: ChangePolicy, on_progress: OnProgress
    ) -> ConsideredChange:
        """Take a Node in that was lost or drained; see `Swarm.rejoin`."""
        with self._lock:
            nodes = self._ground.nodes
            if name in self._drained:
                nodes = nodes.adding(self._drained[name])
            else:
                lost = {node.name for node in nodes.bare_graph.nodes}
                lost -= {member.name for member in self._ground.status().nodes}
                if name not in lost:
                    known = sorted(lost | set(self._drained))
                    raise SpecError("node", name, f"one that is no member any more: {known}")
            return self._take_in(nodes, nodes.node(name), "joined again", requests, policy, on_progress)

    def reconsider(self, requests: float | None, policy: ChangePolicy) -> ConsideredChange:
        """Consider another plan with the Nodes that there are; see `Swarm.reconsider`."""
        with self._lock:
            question = Question(Trigger.REQUEST, "another plan was asked for", requests, policy)
            return self._considering.consider(question)

    def _take_in(
        self,
        nodes: DeclaredNodes,
        node: Node,
        how: str,
        requests: float | None,
        policy: ChangePolicy,
        on_progress: OnProgress,
    ) -> ConsideredChange:
        ground = self._ground
        ordered = self._ordered()
        if ordered is not None:
            self._try(nodes, node, ordered, on_progress)
        before = ground.nodes
        ground.nodes = nodes
        try:
            ground.engine.start_agent(nodes.launch(node))
            ground.wait_for({node.name})
        except BaseException:
            ground.engine.stop_agent(node.name)
            ground.nodes = before
            raise
        self._drained.pop(node.name, None)
        missing = ground.watch.observe().missing
        notes: tuple[str, ...] = ()
        ordered = self._ordered()  # a recovery may have changed the plan meanwhile
        if ordered is not None:
            try:
                notes = self._surveyor.measure_paths(node, ordered.plan, missing, on_progress)
            except InferSwarmError as error:  # the Node is a member: what is unknown of it counts against it
                notes = (f"not everything could be measured: {type(error).__name__}: {error}",)
        detail = f"Node {node.name} {how}"
        return self._considering.consider(Question(Trigger.NODE_JOINED, detail, requests, policy, notes))

    def _ordered(self) -> Ordered | None:
        serving = self._considering.serving()
        return None if serving is None else serving.ordered

    def _try(self, nodes: DeclaredNodes, node: Node, ordered: Ordered, on_progress: OnProgress) -> None:
        """Have a Node prove itself where it was not checked, or where something is unknown that it can show alone."""
        plan = ordered.plan
        inputs = self._planned.inputs(ordered.model, plan.workload, ordered.policy, nodes)
        units = [unit.id for unit in inputs.graph.compute_units if unit.node_id == node.id]
        unknown = [
            reason
            for reason in inputs.economics.missing
            if plan.representation in reason and any(unit in reason for unit in units)
        ]
        integrity = health_of(Scope("node", node.id), self._ground.keeper.events()).integrity.state
        if unknown or integrity != "trusted":
            try_newcomer(self._ground, nodes, node, ordered.model, inputs.problem, plan.representation, on_progress)

    # -- leaving --

    def drain(self, name: str) -> ConsideredChange:
        """Let a Node go; see `Swarm.drain`."""
        with self._lock:
            ground = self._ground
            rest = ground.nodes.removing(name)
            node = ground.nodes.node(name)
            serving = self._considering.settled()
            question = Question(Trigger.DRAIN, f"Node {name} drained", None, ChangePolicy())
            considered = self._move_away(question, serving, node)
            self._drained[name] = next(item for item in ground.nodes.envelopes if item.name == name)
            ground.nodes = rest  # from here on its absence is nobody's loss
            event = HealthEvent(
                kind="left",
                implicated=(Scope("node", node.id),),
                at_ns=str(ground.keeper.clock()),
                detail=f"Node {name} was drained on request",
            )
            ground.keeper.note([event])
            ground.engine.stop_agent(name)
            ground.wait_until_gone(node.id)
            return considered

    def _move_away(self, question: Question, serving: Serving | None, node: Node) -> ConsideredChange:
        if serving is None:
            return ConsideredChange(question.detail, "nothing serves", ("no plan has authority",))
        ordered = serving.ordered
        if ordered is not None and not uses(ordered.plan, node.id):
            reason = "it had no part in the plan in force"
            return ConsideredChange(question.detail, "stayed", (reason,), serving.epoch, ordered.plan)
        return self._considering.move_away(question, serving, node)
