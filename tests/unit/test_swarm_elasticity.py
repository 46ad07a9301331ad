"""A change of plans on paper: what it gains and takes, whether both plans fit at once, when nothing is changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from inferswarm.documents import digest
from inferswarm.errors import FabricError, InfeasiblePlan, RealizationFailed
from inferswarm.fabric import messages as m
from inferswarm.fabric.recovery_records import TransitionMode, Trigger
from inferswarm.planner import ChangeHistory, ChangePolicy, ExecutionPlan, Inputs, Policy, Throughput, Workload
from inferswarm.planner.plan import Interval, MemoryTerm
from inferswarm.swarm.consideration import Question, policy_among
from inferswarm.swarm.considered import ConsideredChange
from inferswarm.swarm.considering import Considering
from inferswarm.swarm.planned import Ordered
from inferswarm.swarm.reservations import PARTICIPANT_TERM
from inferswarm.swarm.weighing import (
    BroughtUp,
    bringing_up,
    brought_up,
    expected_requests,
    fit_beside,
    is_same_work,
    propose,
    request_seconds,
    room_beside,
    weigh,
)
from tests.unit.planner.planner_cases import AMBER, ENOUGH, make_economics, make_graph, make_problem

replace = msgspec.structs.replace
WORKLOAD = Workload(prompt_tokens=16, output_tokens=10)
BEFORE = BroughtUp(epoch=3, starting_seconds=0.5, state_bytes=8000, state_seconds=0.4)
EAGER = ChangePolicy(penalty_half_life_seconds=100.0)


def make_inputs(seconds: dict[str, float], *, workload: Workload = WORKLOAD, **policy: Any) -> Inputs:
    """What there is with these Nodes, each with its seconds for a unit."""
    economics = make_economics(seconds)
    return Inputs(make_problem(), make_graph(dict.fromkeys(seconds, ENOUGH)), workload, Policy(**policy), economics)


def best(seconds: dict[str, float], **fields: Any) -> ExecutionPlan:
    plan = make_inputs(seconds, **fields).decide().plan
    assert plan is not None
    return plan


SLOW, FAST = best({"oak": 0.01}), best({"elm": 0.005})


# -- what a change gains and takes --


def test_the_arithmetic_is_shown_and_is_that_of_the_numbers() -> None:
    """Mutation: leave a part of the preparation out, or count the sessions once whatever their number."""
    bringing = bringing_up(replace(FAST, sessions=2), BEFORE)
    assert bringing is not None
    assert FAST.prediction is not None
    request = FAST.prediction.request.point  # 4 units x 5 ms x (16 positions and 9 further tokens)
    assert request == pytest.approx(0.5)
    assert bringing.seconds == pytest.approx(0.5 + 0.4 * 4000 / 8000 + 2 * 0.5)
    change = propose(Interval(1.2, 1.3, 1.4), Interval(0.8, 0.91, 1.0), 40, bringing, interrupts=False)
    assert (change.gain_seconds * 40, change.interruption_seconds) == (pytest.approx(15.6), 0)
    view = ConsideredChange("Node elm joined", "changed", (), 4, SLOW, FAST, change, bringing)
    assert view.arithmetic == (
        "each request 1.30 s → 910 ms, 40 requests gain 15.6 s, preparation 1.70 s, confidence 1.00: stay"
    )
    assert "starting stages 500 ms as measured for epoch 3, their states (4.00 kB) 200 ms" in str(view)
    assert "amber over oak" in str(view)
    assert "Node elm joined: changed, epoch 4 serves" in view._repr_html_()
    alone = propose(Interval(1.2, 1.3, 1.4), Interval(0.8, 0.91, 1.0), 40, bringing, interrupts=True)
    assert alone.interruption_seconds == alone.preparation_seconds


def test_what_it_takes_is_measured_or_unknown() -> None:
    """Mutation: take no time for what was never measured."""
    stage = m.Materialized(
        states=(m.StateHeld(state_id="s0", representation=AMBER, bytes=500),),
        kernel="k",
        source_bytes=1,
        required_bytes=1,
        seconds=0.2,
    )
    realized = m.Realized(epoch=7, realization="r", stages=(stage, stage), pids=(), seconds=1.0)
    found = brought_up(realized)
    assert found == BroughtUp(7, pytest.approx(0.8), 1000, pytest.approx(0.4))
    assert found.seconds_for(2000) == pytest.approx(0.8)
    assert BroughtUp(7, 0.8, 0, 0.0).seconds_for(2000) is None
    unpriced = replace(FAST, prediction=None)
    graph = make_graph({"oak": ENOUGH, "elm": ENOUGH})

    def weighed(proposed: ExecutionPlan, before: BroughtUp | None) -> Any:
        return weigh(SLOW, proposed, graph, before, 1000, EAGER, ChangeHistory(), 0.0)

    assert weighed(FAST, BEFORE).go
    for found in (weighed(FAST, None), weighed(unpriced, BEFORE), weighed(FAST, BroughtUp(7, 0.8, 0, 0.0))):
        assert not found.go
        assert found.verdict is None


def test_a_request_is_counted_as_the_objective_counts_it() -> None:
    """Mutation: judge throughput by the time of a request that is alone."""
    workload = replace(WORKLOAD, concurrency=2, objective=Throughput())
    together = best({"oak": 0.01, "elm": 0.01}, workload=workload)
    assert len(together.placements) == 2
    assert together.prediction is not None
    seconds = request_seconds(together)
    assert seconds is not None
    assert seconds.point == pytest.approx(10 / together.prediction.throughput.point)  # type: ignore[union-attr]
    assert seconds.point < 0.7 * together.prediction.request.point
    assert request_seconds(SLOW) == SLOW.prediction.request  # type: ignore[union-attr]
    assert expected_requests(Interval(1, 2, 3), EAGER) == 50


# -- whether both fit --


def with_account(plan: ExecutionPlan, memory_id: str, needed: int, *, own_process: bool = False) -> ExecutionPlan:
    """The plan with another account: so many bytes, on the named Memory Resource."""
    (placement,) = plan.placements
    term = MemoryTerm(PARTICIPANT_TERM if own_process else "states", needed)
    account = replace(placement.memory, memory_id=memory_id, terms=(term,), reserved_bytes=0)
    return replace(plan, placements=(replace(placement, memory=account),))


@pytest.mark.parametrize(
    ("capacity", "reserved", "held", "own_process", "fits"),
    [
        (1000, 100, (300, 500), False, True),  # 100 + 300 + 500, and 100 for the other processes
        (999, 100, (300, 500), False, False),
        (999, 100, (300, 500), True, True),  # they count their own
        (899, 100, (300, 500), True, False),
        (None, 100, (1, 1), False, False),  # nobody knows
        (1000, None, (1, 1), False, False),
    ],
)
def test_two_plans_are_there_at_once_where_all_that_they_take_is_known_to_fit(
    capacity: int | None, reserved: int | None, held: tuple[int, int], own_process: bool, fits: bool
) -> None:
    """Mutation: count the processes of one plan only, or take an unknown amount for none."""
    graph = make_graph({"oak": capacity}, reserved=reserved)
    present, proposed = (with_account(SLOW, "mem-oak", size, own_process=own_process) for size in held)
    beside = fit_beside(present, proposed, graph)
    assert (beside.fits, bool(beside.reasons)) == (fits, not fits)
    weighed = weigh(present, proposed, graph, BEFORE, 1, EAGER, ChangeHistory(), 0.0)
    one_by_one = TransitionMode.SAFE_INTERRUPTED_CUTOVER
    assert weighed.mode is (TransitionMode.MAKE_BEFORE_BREAK if fits else one_by_one)
    assert weighed.change is not None
    assert bool(weighed.change.interruption_seconds) is not fits


def test_plans_on_different_nodes_are_not_in_each_others_way() -> None:
    graph = make_graph({"oak": 1, "elm": None})
    assert fit_beside(SLOW, FAST, graph).fits


def test_a_probe_beside_a_plan_has_what_the_plan_leaves_and_nothing_where_that_is_unknown() -> None:
    (memory,) = make_graph({"oak": 1000}, reserved=100).memory_resources
    plan = with_account(SLOW, "mem-oak", 300)
    assert (room_beside(None, memory), room_beside(plan, memory)) == (900, 500)
    assert room_beside(with_account(SLOW, "mem-oak", 900), memory) == 0
    (unknown,) = make_graph({"oak": 1000}, reserved=None).memory_resources
    assert room_beside(plan, unknown) == 0


def test_the_same_work_is_the_same_among_other_nodes() -> None:
    again = best({"oak": 0.01, "ash": 9.0})
    assert digest(again) != digest(SLOW)
    assert is_same_work(again, SLOW)
    assert not is_same_work(FAST, SLOW)


def test_a_policy_forgets_nodes_that_left_and_keeps_what_it_demands() -> None:
    graph = make_graph({"oak": 1})
    kept = policy_among(Policy(excluded_nodes=("elm", "oak"), approved_nodes=("oak", "elm")), graph)
    assert (kept.excluded_nodes, kept.approved_nodes) == (("oak",), ("oak",))
    none_there = Policy(approved_nodes=("elm",))
    assert policy_among(none_there, graph) == none_there  # nobody is approved, rather than everybody


# -- what is asked and what is remembered --


class Scope:
    """A Coordinator, a planner's inputs and a clock, on paper; the plan in force is over `oak` at first."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.epoch: int | None = 1
        self.plan = best(seconds)
        self.known = {digest(self.plan): self.plan}
        self.asked: list[Any] = []
        self.fault: FabricError | None = None
        self.num_decided = 0
        ground = SimpleNamespace(client=self, status=self.status, watch=self, has_stores=False)
        self.considering = Considering(ground, self, lambda: self.now)  # type: ignore[arg-type]
        realized = m.Realized(epoch=1, realization="r", stages=(), pids=(), seconds=0.5)
        self.service = SimpleNamespace(epoch=1, realized=realized, moved=lambda plan, realized: None)
        self.considering.serves(self.service)  # type: ignore[arg-type]
        self.considering._before = BEFORE

    def status(self) -> m.SwarmStatus:
        return m.SwarmStatus(
            scope="s", term=1, pid=1, nodes=(), epoch=self.epoch, plan_digest=digest(self.plan), refusals=()
        )

    def ask(self, question: Any) -> Any:
        self.asked.append(question)
        if isinstance(question, m.Retain):
            return m.Done()
        assert isinstance(question, m.Change)
        if self.fault is not None:
            raise self.fault
        self.plan, self.epoch = question.order.plan, (self.epoch or 0) + 1
        return m.Realized(epoch=self.epoch, realization="r", stages=(), pids=(), seconds=0.7)

    def runs(self, plan: ExecutionPlan, epoch: int, others: object) -> None:
        """Health is told."""

    # the planner's side

    def inputs(self, model: object, workload: Workload, policy: Policy) -> Inputs:
        self.num_decided += 1
        return make_inputs(self.seconds)._replace(workload=workload, policy=policy)

    def decided(self, plan: ExecutionPlan, inputs: Inputs) -> None:
        """Remembered with the order."""

    def order(self, plan: ExecutionPlan, *_: object) -> m.Realize:
        self.known[digest(plan)] = plan
        return m.Realize(plan=plan, assignments=(), model_path=None, run_ahead=2)

    def ordered(self, plan_digest: str) -> Ordered | None:
        plan = self.known.get(plan_digest)
        return None if plan is None else Ordered(plan, None, Policy(), 2)  # type: ignore[arg-type]

    def consider(self, seconds: dict[str, float], **fields: Any) -> ConsideredChange:
        self.seconds = seconds
        question = Question(Trigger.NODE_JOINED, "Node elm joined", 1000, EAGER)._replace(**fields)
        return self.considering.consider(question)

    def drain(self, name: str) -> ConsideredChange:
        serving = self.considering.serving()
        assert serving is not None
        node = next(node for node in make_inputs(self.seconds).graph.nodes if node.name == name)
        question = Question(Trigger.DRAIN, f"Node {name} drained", None, ChangePolicy())
        return self.considering.move_away(question, serving, node)


ALONE, BETTER, WORSE = {"oak": 0.01}, {"oak": 0.01, "elm": 0.004}, {"oak": 0.01, "elm": 0.02}


def test_a_better_node_is_changed_to_and_a_useless_one_declined_with_the_reason() -> None:
    """Mutation: order the change whatever the verdict, or record nothing of a change that is not made."""
    scope = Scope(ALONE)
    declined = scope.consider(WORSE)
    assert (declined.outcome, declined.reasons[0]) == ("stayed", "the plan in force is the best one")
    few = scope.consider(BETTER, requests=1)
    assert (few.outcome, few.epoch) == ("stayed", 1)
    assert "1 remaining requests gain" in few.reasons[0]
    went = scope.consider(BETTER)
    assert (went.outcome, went.epoch, went.seconds) == ("changed", 2, 0.7)
    retained, considered, changed = scope.asked
    assert (retained.epoch, retained.is_policy, retained.plan) == (1, False, None)
    assert (considered.is_policy, considered.verdict.go) == (False, False)
    assert [item.node_name for item in considered.plan.placements] == ["elm"]
    assert (changed.epoch, changed.mode, changed.verdict.go) == (1, TransitionMode.MAKE_BEFORE_BREAK, True)
    assert changed.order.plan == went.proposed


def test_what_nobody_here_ordered_is_left_alone() -> None:
    scope = Scope(ALONE)
    scope.known.clear()
    assert scope.consider(BETTER).outcome == "stayed"
    with pytest.raises(FabricError, match="not ordered by this swarm object"):
        scope.drain("oak")
    scope.epoch = None
    assert scope.consider(BETTER).outcome == "nothing serves"
    assert [type(item) for item in scope.asked] == [m.Retain]


def test_a_node_that_flaps_moves_the_plan_a_few_times_and_then_nothing_is_even_decided() -> None:
    """Each joining changes, each loss is recovered by the Coordinator alone; then calm is asked for, and comes.

    Mutation: let recoveries add no penalty, or decide before looking at the penalty.
    """
    scope = Scope(ALONE)
    alone = scope.plan
    outcomes = []
    for _ in range(5):
        outcomes.append(scope.consider(BETTER).outcome)
        if outcomes[-1] == "changed":
            scope.plan, scope.epoch = alone, (scope.epoch or 0) + 1  # lost: a fallback serves
        scope.now += 1.0
    assert outcomes == ["changed", "changed", "stayed", "stayed", "stayed"]
    assert scope.num_decided == 2
    last = scope.asked[-1]
    assert (type(last), last.is_policy) == (m.Retain, True)
    assert "suppressed after too many changes" in last.reason
    scope.now += 3 * EAGER.penalty_half_life_seconds
    assert scope.consider(BETTER).outcome == "changed"


def test_a_change_that_fails_leaves_the_plan_and_counts_against_the_next() -> None:
    scope = Scope(ALONE)
    scope.fault = RealizationFailed("elm", "no room")
    failed = scope.consider(BETTER)
    assert (failed.outcome, failed.epoch, failed.proposed is None) == ("failed", 1, False)
    assert "no room" in failed.reasons[0]
    assert scope.considering.history.penalty == EAGER.penalty_per_change


def test_a_node_that_is_drained_is_left_whatever_that_costs_unless_no_plan_can_do_without_it() -> None:
    """Mutation: judge a drain by its gain, or order something where nothing is feasible."""
    scope = Scope(BETTER)
    left = scope.drain("elm")
    assert (left.outcome, left.epoch) == ("changed", 2)
    (changed,) = scope.asked
    assert (changed.trigger, changed.verdict.go) == (Trigger.DRAIN, True)
    assert [item.node_name for item in changed.order.plan.placements] == ["oak"]
    assert "whatever it gains" in left.arithmetic
    only = Scope(ALONE)
    with pytest.raises(InfeasiblePlan, match="Node oak is kept"):
        only.drain("oak")
    assert only.asked == []
