"""The simulated swarm: one fault at a time with what it must lead to, then thousands of faults at random."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from inferswarm.fabric import events as ev
from inferswarm.fabric.authority import AuthorityState, RealizationState, RefusalCode, SessionState
from inferswarm.fabric.machine.step import Transition
from inferswarm.fabric.simulation import Choices, SimulatedSwarm
from inferswarm.fabric.simulation.authority import Apply, Hooks
from inferswarm.fabric.simulation.ledger import SimulatedLedger
from inferswarm.fabric.simulation.network import simulated_token
from inferswarm.fabric.simulation.nodes import Agent
from inferswarm.fabric.transitions import apply
from tests.unit.fabric.recovery_observer import Seen, check, may_commit, watch
from tests.unit.fabric.test_fabric_recovery_interleavings import changing, forcing


class ObservedSwarm(SimulatedSwarm):
    """A simulated swarm each step of which is compared with what an observer knows."""

    def __init__(
        self, num_nodes: int = 3, choices: Choices | None = None, *, seed: int = 0, applied: Apply = apply
    ) -> None:
        self.seen = Seen()
        super().__init__(num_nodes, choices, seed=seed, hooks=Hooks(applied, self._observe, self._observe_restart))

    def _observe(self, before: AuthorityState, event: ev.Event, transition: Transition, now: float) -> None:
        refused = any(isinstance(effect, ev.Refused) for effect in transition.effects)
        if isinstance(event, ev.ResultArrived):
            assert may_commit(self.seen, event, before.lease_until >= now) is not refused, (event, transition)
        if not refused:
            self.seen = watch(self.seen, event, transition.effects)
            check(transition.state, self.seen)

    def _observe_restart(self, transition: Transition) -> None:
        self.seen = watch(self.seen, None, transition.effects)._replace(members=frozenset())
        check(transition.state, self.seen)

    def finish(self) -> None:
        super().finish()
        for number, log in self.ledger.sessions.items():
            tokens = [token for token, _ in log.tokens]
            assert tokens == [simulated_token(number, log.prompt_tokens + index) for index in range(len(tokens))]
            epochs = [epoch for _, epoch in log.tokens]
            assert epochs == sorted(epochs), "a token of an earlier epoch follows one of a later epoch"
            assert log.state is not SessionState.COMPLETED or len(tokens) == log.max_tokens
            assert log.state is not SessionState.FAILED or log.reason
        assert all(record.outcome.value != "PREPARING" for record in self.ledger.records)
        assert [record.number for record in self.ledger.records] == list(range(1, len(self.ledger.records) + 1))


def serving(choices: Choices | None = None, applied: Apply = apply) -> ObservedSwarm:
    """Two long answers under way, over n3 and n2; n1 has nothing to do."""
    swarm = ObservedSwarm(choices=choices, applied=applied)
    swarm.submit(3, 90)
    swarm.submit(5, 90)
    swarm.run(2.5)
    assert [len(log.tokens) > 5 for log in swarm.ledger.sessions.values()] == [True, True]
    return swarm


Fault = Callable[[ObservedSwarm], None]
FAULTS: list[tuple[str, Fault, str]] = [
    ("a stage is killed", lambda swarm: swarm.agents["n2"].kill_stage(0), "REBUILD_ONE_STAGE"),
    ("a stage hangs", lambda swarm: next(iter(swarm.agents["n2"].stages.values())).hang(9.0), "REBUILD_ONE_STAGE"),
    ("an agent is killed", lambda swarm: swarm.agents["n2"].kill(), "REBUILD_ONE_STAGE"),
    ("both Nodes freeze", lambda swarm: [swarm.agents[name].freeze(4.0) for name in ("n2", "n3")], "REPLAY"),
    ("a Node is cut off", lambda swarm: swarm.cut_off("n2", 4.0), "REBUILD_ONE_STAGE"),
    ("the route is cut one way", lambda swarm: swarm.cut("n3", "n2", 1.0), "READOPTION"),
    ("frames are corrupted", lambda swarm: swarm.disturb("n3", "n2", ["corrupt"] * 4), "READOPTION"),
    ("the Coordinator is killed", lambda swarm: swarm.kill_coordinator(), "READOPTION"),
    ("the Coordinator is paused", lambda swarm: swarm.pause_coordinator(5.0), "READOPTION"),
    ("a Node is drained", lambda swarm: swarm.drain("n3"), "MAKE_BEFORE_BREAK"),
]


@pytest.mark.parametrize(("name", "fault", "mode"), FAULTS, ids=[row[0] for row in FAULTS])
def test_after_a_fault_every_answer_is_whole(name: str, fault: Fault, mode: str) -> None:
    swarm = serving()
    fault(swarm)
    swarm.run(12.0)
    swarm.finish()
    assert [log.state for log in swarm.ledger.sessions.values()] == [SessionState.COMPLETED] * 2
    assert all(len({epoch for _, epoch in log.tokens}) > 1 for log in swarm.ledger.sessions.values())
    activated = [record.mode.value for record in swarm.ledger.records if record.mode and record.new_epoch]
    assert mode in activated[1:]


def test_where_both_do_not_fit_a_drain_is_a_cold_cutover() -> None:
    swarm = serving(Choices(overlap_fits=False))
    swarm.drain("n3")
    swarm.run(5.0)
    (record,) = (item for item in swarm.ledger.records if item.old_epoch == 1 and item.new_epoch == 2)
    assert record.mode is not None
    assert record.mode.value == "SAFE_INTERRUPTED_COLD_CUTOVER"
    assert not swarm.agents["n3"].stages
    swarm.finish()


def test_a_node_that_is_not_worth_the_change_changes_nothing() -> None:
    swarm = ObservedSwarm(choices=Choices(worth_a_change=False))
    swarm.agents["n3"].kill()
    swarm.submit(3, 90)
    swarm.run(2.5)
    swarm.agents["n3"].restart()
    swarm.run(3.0)
    assert swarm.ledger.records[-1].outcome.value == "RETAINED_BY_POLICY"
    assert {epoch for _, epoch in swarm.ledger.sessions[1].tokens} == {1}


def test_without_any_node_sessions_fail_with_a_reason_after_a_while() -> None:
    swarm = serving()
    for agent in swarm.agents.values():
        agent.kill()
    swarm.run(30.0)
    assert {(log.state.value, log.reason) for log in swarm.ledger.sessions.values()} == {
        ("FAILED", "no Node came back in time")
    }
    swarm.finish()


def test_what_a_frozen_node_still_sends_is_refused_and_counted_by_stages_and_coordinator() -> None:
    swarm = serving()
    swarm.agents["n2"].freeze(4.0)
    swarm.run(10.0)
    assert swarm.ledger.refusals["RETIRED_OR_SUPERSEDED_EPOCH"] > 0
    assert swarm.network.refused["RETIRED_OR_SUPERSEDED_EPOCH"] > 0
    swarm.finish()
    assert [log.state for log in swarm.ledger.sessions.values()] == [SessionState.COMPLETED] * 2


def test_an_order_that_arrives_after_its_node_began_again_starts_nothing() -> None:
    swarm = serving()
    swarm.agents["n2"].kill()
    while not any(len(places) == 2 for places in orders_for(swarm, "n1")):
        swarm.network.delay["coordinator-1", "n1"] = 1.5
        swarm.run(0.1)
    swarm.agents["n1"].kill()
    swarm.agents["n1"].restart()
    swarm.run(8.0)
    assert swarm.network.refused["OTHER_INCARNATION"] > 0
    swarm.finish()


def orders_for(swarm: ObservedSwarm, node: str) -> list[tuple[tuple[str, str], ...]]:
    """Return the places of realizations that are being prepared on a Node."""
    return [
        item.participants
        for item in swarm.coordinator.state.realizations
        if item.state is RealizationState.PREPARING and node in dict(item.participants).values()
    ]


NODES = st.integers(1, 3).map("n{}".format)
NAMES = st.sampled_from(["n1", "n2", "n3", "coordinator-1", "coordinator-2"])
SECONDS = st.sampled_from([0.3, 1.0, 2.2, 4.0, 9.0])


class RandomSchedule(RuleBasedStateMachine):
    """Any fault at any time. Every rule lets some time pass first."""

    @initialize(
        fits=st.booleans(),
        ahead=st.integers(0, 4),
        worth=st.booleans(),
        seed=st.integers(0, 9),
        nodes=st.integers(2, 3),
    )
    def begin(self, fits: bool, ahead: int, worth: bool, seed: int, nodes: int) -> None:
        self.swarm = ObservedSwarm(nodes, Choices(fits, ahead, worth), seed=seed)
        self.swarm.submit(3, 25)
        self.swarm.run(1.7)

    @rule(seconds=st.sampled_from([0.05, 0.11, 0.4, 1.3, 2.6]))
    def time_passes(self, seconds: float) -> None:
        self.swarm.run(seconds)

    @rule(prompt=st.integers(1, 5), answer=st.integers(1, 40))
    def a_client_asks(self, prompt: int, answer: int) -> None:
        if len(self.swarm.coordinator.wanted) < 3:
            self.swarm.submit(prompt, answer)

    @rule(session=st.integers(1, 4))
    def a_client_leaves(self, session: int) -> None:
        self.swarm.cancel(session)

    @rule(node=NODES, index=st.integers(0, 2))
    def a_stage_is_killed(self, node: str, index: int) -> None:
        self.pass_time(index).agent(node).kill_stage(index)

    @rule(node=NODES, seconds=SECONDS)
    def a_stage_hangs(self, node: str, seconds: float) -> None:
        for stage in list(self.agent(node).stages.values())[:1]:
            stage.hang(seconds)

    @rule(node=NODES)
    def an_agent_is_killed(self, node: str) -> None:
        self.agent(node).kill()

    @rule(node=NODES)
    def an_agent_comes_back(self, node: str) -> None:
        self.agent(node).restart()

    @rule(node=NODES, seconds=SECONDS)
    def a_node_freezes(self, node: str, seconds: float) -> None:
        self.agent(node).freeze(seconds)

    @rule(node=NODES, seconds=SECONDS)
    def a_node_is_cut_off(self, node: str, seconds: float) -> None:
        self.swarm.cut_off(node, seconds)

    @rule(sender=NAMES, receiver=NAMES, seconds=SECONDS)
    def a_direction_is_cut(self, sender: str, receiver: str, seconds: float) -> None:
        self.swarm.cut(sender, receiver, seconds)

    @rule(sender=NAMES, receiver=NAMES, seconds=st.sampled_from([0.0, 0.1, 0.7]))
    def a_direction_is_slow(self, sender: str, receiver: str, seconds: float) -> None:
        self.swarm.network.delay[sender, receiver] = seconds

    @rule(
        sender=NAMES,
        receiver=NAMES,
        faults=st.lists(st.sampled_from(["duplicate", "reorder", "corrupt", ""]), min_size=1, max_size=6),
    )
    def frames_are_disturbed(self, sender: str, receiver: str, faults: list[str]) -> None:
        self.swarm.disturb(sender, receiver, faults)

    @rule(node=NODES)
    def a_node_is_drained(self, node: str) -> None:
        self.swarm.drain(node)

    @rule()
    def the_coordinator_is_killed(self) -> None:
        if len(self.swarm.coordinators) < 5:
            self.swarm.kill_coordinator()

    @rule(seconds=SECONDS)
    def the_coordinator_is_paused(self, seconds: float) -> None:
        if len(self.swarm.coordinators) < 5:
            self.swarm.pause_coordinator(seconds)

    def pass_time(self, steps: int) -> RandomSchedule:
        self.swarm.run(0.07 * steps)
        return self

    def agent(self, node: str) -> Agent:
        return self.swarm.agents.get(node) or self.swarm.agents["n1"]

    def teardown(self) -> None:
        if hasattr(self, "swarm"):
            self.swarm.finish()


SCHEDULES = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


def test_no_random_schedule_of_faults_breaks_a_rule() -> None:
    run_state_machine_as_test(RandomSchedule, settings=settings(SCHEDULES, max_examples=150, stateful_step_count=15))


@pytest.mark.slow
def test_no_long_random_schedule_of_faults_breaks_a_rule() -> None:
    run_state_machine_as_test(RandomSchedule, settings=settings(SCHEDULES, max_examples=2000, stateful_step_count=30))


DEFECTS: dict[str, tuple[Apply, Fault]] = {
    "late results are committed": (
        forcing(RefusalCode.RETIRED_OR_SUPERSEDED_EPOCH),
        lambda swarm: swarm.drain("n3"),
    ),
    "sessions resume one position late": (
        changing(ev.SessionResumed, lambda effect: ev.SessionResumed(
            session=effect.session, epoch=effect.epoch, position=effect.position + 1)),
        lambda swarm: swarm.agents["n2"].kill_stage(0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda name: name.replace(" ", "_"))
def test_a_defect_of_the_machine_is_noticed(defect: str) -> None:
    applied, fault = DEFECTS[defect]
    swarm = serving(applied=applied)
    fault(swarm)
    with pytest.raises((AssertionError, ValueError)):
        swarm.run(6.0)


def test_a_ledger_that_takes_any_write_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedLedger, "check", lambda *_: None)
    swarm = serving()
    swarm.pause_coordinator(5.0)
    with pytest.raises((AssertionError, ValueError)):
        swarm.run(12.0)
