"""Whether to serve by another plan, asked while one serves: decide again, weigh, order the change or record why not.

What is remembered of earlier changes (flap damping) is kept here, for as long as the swarm object lives. A recovery
that the Coordinator made by itself counts as a change as well: it is seen by its epoch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from inferswarm.documents import digest
from inferswarm.errors import CommitRefused, FabricError, InfeasiblePlan, InferSwarmError, SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.expecting import expect
from inferswarm.planner import ChangeHistory, ChangePolicy, Inputs, after_change
from inferswarm.planner.change import decayed_penalty, is_suppressed
from inferswarm.resources.types import Node
from inferswarm.swarm.acquiring_asked import AcquiringAsked
from inferswarm.swarm.consideration import Consideration, Question, policy_among, priced_again
from inferswarm.swarm.considered import ConsideredChange
from inferswarm.swarm.ground import Ground
from inferswarm.swarm.planned import Ordered, PlannedHere
from inferswarm.swarm.service import Service
from inferswarm.swarm.weighing import BroughtUp, brought_up, is_same_work, join_texts, weigh, weigh_departure

LOOK_SECONDS = 0.1
"""How often to look whether a recovery has ended."""


class Serving(NamedTuple):
    """What has authority now."""

    epoch: int
    ordered: Ordered | None
    """None: nobody here ordered it."""


class Considering:
    """Considers changes of one swarm's serving plan."""

    def __init__(self, ground: Ground, planned: PlannedHere, clock: Callable[[], float]) -> None:
        """`clock` gives seconds, and only ever more of them."""
        self._ground = ground
        self._planned = planned
        self._clock = clock
        self._acquiring = AcquiringAsked(ground, planned)
        self._service: Service | None = None
        self._before: BroughtUp | None = None
        self._epoch: int | None = None
        self._policy = ChangePolicy()
        self.history = ChangeHistory()

    def serves(self, service: Service) -> None:
        """Hear of a plan that was ordered, and how long it took to come up."""
        self._service, self._epoch = service, service.epoch
        self._before = brought_up(service.realized, self._acquiring.took(service.realized.realization) or 0.0)

    def serving(self) -> Serving | None:
        """Return what has authority now, None when nothing has. Recoveries since the last look are remembered."""
        status = self._ground.status()
        if status.epoch is None:
            return None
        if self._epoch is not None:
            for _ in range(status.epoch - self._epoch):
                self._remember_change()
            self._epoch = max(self._epoch, status.epoch)
        return Serving(status.epoch, self._planned.ordered(status.plan_digest))

    def settled(self) -> Serving | None:
        """Return what has authority once a recovery that is under way has ended, or its patience."""
        until = self._clock() + self._ground.settings.patience_seconds
        while (found := self.serving()) is None and self._service is not None and self._service.is_open:
            if self._clock() > until:
                break
            time.sleep(LOOK_SECONDS)
        return found

    def _remember_change(self) -> None:
        self.history = after_change(self.history, self._policy, self._clock())

    # -- for the better --

    def consider(self, question: Question) -> ConsideredChange:
        """Decide again with what there is now, and change to the new plan if that is worth it.

        Representation and primitive stay: open sessions go on with the same model in the same arithmetic. What cannot
        be priced is no reason to change. A change that fails before the other plan has authority leaves this one.
        """
        self._policy = question.policy
        serving = self.serving()
        if serving is None:
            return ConsideredChange(question.detail, "nothing serves", ("no plan has authority",))
        if serving.ordered is None:
            reason = "the plan in force was not ordered by this swarm object"
            return self._retain(question, serving, (reason,), Consideration())
        now = self._clock()
        if is_suppressed(self.history, question.policy, now):
            penalty = decayed_penalty(self.history, question.policy, now)
            reason = (
                f"suppressed after too many changes: the penalty is {penalty:.2f}, at "
                f"{question.policy.reuse_at:g} changes are considered again"
            )
            return self._retain(question, serving, (reason,), Consideration(by_policy=True))
        ordered = serving.ordered
        found = self._decide(ordered)
        present = found.present or ordered.plan
        if found.proposed is None:
            return self._retain(question, serving, (*found.against, *question.notes), found)
        weighed = weigh(
            present,
            found.proposed,
            found.graph,
            self._before,
            question.requests,
            question.policy,
            self.history,
            now,
            self._acquiring.estimate(found.proposed, ordered.model, found.graph),
        )
        found = found._replace(weighed=weighed, by_policy=weighed.by_policy)
        if not weighed.go:
            return self._retain(question, serving, (*weighed.reasons, *question.notes), found)
        try:
            return self._change(question, serving.epoch, ordered, found)
        except InferSwarmError as error:
            self._remember_change()
            reason = f"the change failed: {type(error).__name__}: {error}"
            return found.as_view(question, "failed", (reason,), self._ground.status().epoch)

    def _decide(self, ordered: Ordered) -> Consideration:
        """Decide again for a plan's problem, workload and policy."""
        plan = ordered.plan
        if any(isinstance(item.representation, str) for item in plan.placements):
            return Consideration(against=("a plan that mixes representations is not considered again",))
        inputs = self._inputs(ordered)
        try:
            decision = inputs.decide()
        except SpecError as error:  # the policy names what is not there any more
            return Consideration(against=(str(error),))
        present = priced_again(plan, inputs)
        found = Consideration(present=present, inputs=inputs, decision=decision)
        if decision.plan is None:
            return found._replace(against=(f"no plan can be chosen: {decision.summary}",))
        if decision.plan.primitive != plan.primitive:
            return found._replace(against=(f"the best plan computes by {decision.plan.primitive}",))
        if is_same_work(decision.plan, plan):
            unknown = tuple(decision.missing_evidence[:1])
            return found._replace(against=("the plan in force is the best one", *unknown))
        return found._replace(proposed=decision.plan)

    def _inputs(self, ordered: Ordered, *excluded: Node) -> Inputs:
        plan = ordered.plan
        inputs = self._planned.inputs(ordered.model, plan.workload, ordered.policy)
        policy = policy_among(ordered.policy, inputs.graph)
        return inputs._replace(
            policy=replace(
                policy,
                excluded_nodes=(*policy.excluded_nodes, *(node.id for node in excluded)),
                representations=(plan.representation,),
            )
        )

    # -- because a Node goes --

    def move_away(self, question: Question, serving: Serving, node: Node) -> ConsideredChange:
        """Change to the best plan without a Node, whatever that costs.

        Raises InfeasiblePlan when there is none, SpecError when the operator demands the Node, FabricError for a plan
        that was not ordered here; then nothing was touched.
        """
        ordered = serving.ordered
        if ordered is None:
            raise FabricError(
                f"Node {node.name} is kept: the plan in force was not ordered by this swarm object, and nothing "
                "tells whether it has a part in it"
            )
        inputs = self._inputs(ordered, node)
        decision = inputs.decide()
        plan = ordered.plan
        mixes = any(isinstance(item.representation, str) for item in plan.placements)
        if decision.plan is None or decision.plan.primitive != plan.primitive or mixes:
            why = "its plan mixes representations" if mixes else decision.summary
            raise InfeasiblePlan(f"Node {node.name} is kept: no plan without it is feasible: {why}")
        present = priced_again(plan, inputs) or plan
        acquiring = self._acquiring.estimate(decision.plan, ordered.model, inputs.graph)
        weighed = weigh_departure(present, decision.plan, inputs.graph, self._before, acquiring)
        found = Consideration((), present, decision.plan, inputs, decision, weighed)
        return self._change(question, serving.epoch, ordered, found)

    # -- what comes of it --

    def _change(self, question: Question, epoch: int, ordered: Ordered, found: Consideration) -> ConsideredChange:
        proposed, inputs, weighed = found.proposed, found.inputs, found.weighed
        assert proposed is not None, "there is something to change to"
        assert inputs is not None, "it was decided from something"
        assert weighed is not None, "it was weighed"
        self._planned.decided(proposed, inputs)
        order = self._planned.order(proposed, ordered.model, inputs.graph, ordered.run_ahead, ordered.policy)
        answered = self._ground.client.ask(
            m.Change(
                order=order,
                epoch=epoch,
                mode=weighed.mode,
                trigger=question.trigger,
                detail=question.detail,
                verdict=msgspec.UNSET if weighed.verdict is None else weighed.verdict,
                decision_digest=found.decision_digest,
                snapshot_digest=digest(inputs.graph),
            )
        )
        answer = expect(m.Realized, answered, "a realization")
        self._remember_change()
        self._epoch = answer.epoch
        self._ground.watch.runs(proposed, answer.epoch, [item.plan for item in order.fallbacks])
        if self._service is not None:
            self._service.moved(proposed, answer)
        view = found.as_view(question, "changed", weighed.reasons, answer.epoch)
        return view._replace(seconds=answer.seconds, acquiring_seconds=self._acquiring.took(answer.realization))

    def _retain(
        self, question: Question, serving: Serving, reasons: tuple[str, ...], found: Consideration
    ) -> ConsideredChange:
        verdict = None if found.weighed is None else found.weighed.verdict
        with contextlib.suppress(CommitRefused):  # that epoch is over: there is nothing that could have been kept
            self._ground.client.ask(
                m.Retain(
                    epoch=serving.epoch,
                    trigger=question.trigger,
                    detail=question.detail,
                    is_policy=found.by_policy,
                    reason=join_texts(reasons),
                    plan=found.proposed,
                    verdict=msgspec.UNSET if verdict is None else verdict,
                    decision_digest=found.decision_digest,
                    snapshot_digest="" if found.inputs is None else digest(found.inputs.graph),
                )
            )
        return found.as_view(question, "stayed", reasons, serving.epoch)
