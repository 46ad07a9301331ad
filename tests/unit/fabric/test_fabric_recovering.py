"""A lost epoch is followed by another one: with what survived, on the next plan, or not at all and with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from inferswarm.documents import digest
from inferswarm.errors import StageLost
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.authority_keeper import AuthorityKeeper
from inferswarm.fabric.holding import SessionNeed
from inferswarm.fabric.ledger import Ledger, SessionRow
from inferswarm.fabric.realizing import Realizer
from inferswarm.fabric.recovering import ATTEMPTS, MOST_FRUITLESS, Recoverer, Standing
from inferswarm.fabric.recovery_records import Trigger
from inferswarm.fabric.running import RunningPlan
from inferswarm.planner.plan import ExecutionPlan
from tests.unit.fabric.fabric_samples import join, lease
from tests.unit.fabric.test_fabric_realizing import small_assignments, small_plan

MATERIALIZED = m.Materialized(states=(), kernel="k", source_bytes=0, required_bytes=0, seconds=0.0)
SESSION = ev.SessionRequested(prompt_tokens=3, resumable=True, max_tokens=9)


class Nodes:
    """Nodes `n0` to `n2`, whose stages do as they are told; states cannot be had on a Node in `failing`."""

    def __init__(self) -> None:
        self.stages: set[tuple[str, str]] = set()
        self.failing: set[str] = set()
        self.told: list[str] = []

    def links(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(join=SimpleNamespace(node_id=f"n{index}")) for index in range(3)]

    async def call(self, node_id: str, command: m.AgentCommand, on_progress: object = None) -> m.Answer:
        await asyncio.sleep(0)
        match command:
            case m.StartStage():
                self.stages.add((node_id, command.stage))
                return m.StageStarted(pid=1, endpoint=f"tcp://{node_id}")
            case m.AdoptStage():
                self.stages.remove((node_id, command.stage))
                self.stages.add((node_id, command.renamed))
                return m.Adopted(pid=1, endpoint=f"tcp://{node_id}", materialized=MATERIALIZED, sessions=())
            case m.StopStage():
                self.stages.discard((node_id, command.stage))
        return m.Done()

    async def on_stage(
        self, node_id: str, stage: str, command: m.StageCommand, on_progress: object = None
    ) -> m.Answer:
        assert (node_id, stage) in self.stages
        self.told.append(f"{type(command).__name__} {node_id}")
        if isinstance(command, m.Materialize) and node_id in self.failing:
            raise StageLost(node_id, stage, "no memory")
        await asyncio.sleep(0)
        if isinstance(command, m.Materialize):
            return MATERIALIZED
        if isinstance(command, m.Hold):
            return m.Held(sessions=tuple(m.SessionHeld(item.session, 0, 0) for item in command.sessions))
        return m.Done()


def over(*nodes: str) -> ExecutionPlan:
    """Return the small plan on other Nodes."""
    plan = small_plan()
    placements = tuple(
        replace(item, node_id=node, node_name=node) for item, node in zip(plan.placements, nodes, strict=True)
    )
    return replace(plan, placements=placements)


def order(plan: ExecutionPlan) -> m.Fallback:
    return m.Fallback(plan=plan, assignments=small_assignments(plan), run_ahead=2)


class Scene:
    """A Coordinator's authority over fake Nodes, with one epoch in force and one session open."""

    def __init__(self, ledger: Ledger, *fallbacks: ExecutionPlan, patience_seconds: float = 0.0) -> None:
        self.nodes = Nodes()
        self.ledger = ledger
        self.served: list[RunningPlan] = []
        self.gave_up = False
        self.cleared = 0
        self.num_committed = 0
        self.keeper = AuthorityKeeper("scope", ledger, self._on_effect)
        self.realizer = Realizer("scope", self.keeper, self.nodes, "tcp://results")  # type: ignore[arg-type]
        self.recoverer = Recoverer(
            self.keeper,
            self.realizer,
            self._needs,
            lambda: self.num_committed,
            self._serve,
            self._give_up,
            self._clear_the_way,
            patience_seconds,
        )
        self.fallbacks = tuple(order(plan) for plan in fallbacks)
        self.tasks: list[asyncio.Task[None]] = []

    def _needs(self, choice: m.Fallback) -> list[SessionNeed]:
        return [SessionNeed(item.number, b"", ()) for item in self.keeper.state.sessions if item.suspended]

    async def _serve(self, running: RunningPlan) -> None:
        self.served.append(running)
        for session in self.keeper.state.sessions:
            self.keeper.demand(ev.ResumptionRequested(session=session.number))

    def _give_up(self) -> None:
        self.gave_up = True

    async def _clear_the_way(self) -> None:
        self.cleared += 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    def _on_effect(self, effect: ev.Effect) -> None:
        if isinstance(effect, ev.EpochLost):
            self.recoverer.begin(self._spawn, Trigger.PARTICIPANT_LOST, effect.reason)

    async def begin(self) -> RunningPlan:
        """Realize the plan and open a session."""
        for event in (lease(), *(join(f"n{index}") for index in range(3))):
            self.keeper.demand(event)
        plan = small_plan()
        running = await self.realizer.realize(order(plan), lambda progress: None)
        self.keeper.demand(SESSION)
        self.ledger.open_session(SessionRow(1, 1, "OPEN", "", (1, 2, 3), 9, (), b"{}", 0, 1))
        question = m.Realize(
            plan=plan,
            assignments=small_assignments(plan),
            model_path=None,
            run_ahead=2,
            fallbacks=self.fallbacks,
        )
        self.recoverer.standing = Standing(question, (1,))
        self.nodes.told.clear()
        return running

    async def finish(self) -> None:
        """Wait until nothing is being recovered."""
        while self.recoverer.is_under_way:
            await asyncio.gather(*self.tasks)

    def lose(self, running: RunningPlan, participant: str) -> None:
        """Report a stage as lost."""
        node = {item.participant: item.node_id for item in running.plan.placements}[participant]
        self.nodes.stages.discard((node, f"{running.realization}/{participant}"))
        self.keeper.demand(
            ev.ParticipantLost(realization_id=running.realization, participant=participant, reason="killed")
        )

    def records(self) -> list[dict[str, Any]]:
        """Return the last version of each change of epochs."""
        bodies = [msgspec.json.decode(body) for kind, body in self.ledger.audit() if kind == "TransitionRecorded"]
        return list({body["record"]["number"]: body["record"] for body in bodies}.values())


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger")
    yield opened
    opened.close()


def play(scene: Scene, disturb: Callable[[Scene, RunningPlan], None]) -> None:
    async def run() -> None:
        running = await scene.begin()
        disturb(scene, running)
        await scene.finish()

    asyncio.run(run())


def leave(scene: Scene, running: RunningPlan) -> None:
    """Lose a Node with everything on it."""
    scene.nodes.stages = {item for item in scene.nodes.stages if item[0] != "n1"}
    scene.keeper.demand(ev.NodeLeft(node_id="n1", reason="gone"))


def test_what_survived_is_adopted_and_only_what_was_lost_is_made_anew(ledger: Ledger) -> None:
    scene = Scene(ledger)
    play(scene, lambda scene, running: scene.lose(running, "stage-1"))
    (running,) = scene.served
    assert running.epoch == 2
    assert [line for line in scene.nodes.told if line.startswith("Materialize")] == ["Materialize n1"]
    assert scene.nodes.stages == {("n0", f"{running.realization}/stage-0"), ("n1", f"{running.realization}/stage-1")}
    assert scene.nodes.told.index("Hold n0") < scene.nodes.told.index("Activate n0")
    (record,) = scene.records()
    assert (record["outcome"], record["mode"], record["old_epoch"]) == ("ACTIVATED", "REBUILD_ONE_STAGE", 1)
    assert record["committed"] == [{"session": 1, "position": 3}]
    (session,) = scene.keeper.state.sessions
    assert (session.epoch, session.suspended) == (2, False)
    assert [item.number for item in scene.keeper.state.epochs] == [2], "the lost epoch was not reclaimed"


def test_a_plan_whose_node_is_gone_makes_way_for_the_best_one_that_has_its_nodes(ledger: Ledger) -> None:
    scene = Scene(ledger, over("n1", "n2"), over("n0", "n2"), over("n2", "n0"))
    play(scene, leave)
    (running,) = scene.served
    assert running.plan_digest == digest(over("n0", "n2"))
    assert {node for node, _ in scene.nodes.stages} == {"n0", "n2"}
    (record,) = scene.records()
    assert (record["mode"], record["plan_digest"]) == ("REBUILD_ONE_STAGE", running.plan_digest)


def test_attempts_that_fail_lead_to_the_next_plan_in_the_same_change(ledger: Ledger) -> None:
    scene = Scene(ledger, over("n2", "n0"))

    def disturb(scene: Scene, running: RunningPlan) -> None:
        scene.nodes.failing.add("n1")
        scene.lose(running, "stage-1")

    play(scene, disturb)
    (running,) = scene.served
    assert running.plan_digest == digest(over("n2", "n0"))
    (record,) = scene.records()
    assert [item["mode"] for item in record["attempts"]] == ["REBUILD_ONE_STAGE", "REBUILD_ONE_STAGE", "REPLAY"]
    assert {node for node, _ in scene.nodes.stages} == {"n0", "n2"}, "a failed attempt left a stage"


def test_when_every_plan_was_tried_the_session_fails_with_the_reason_and_nothing_is_left(ledger: Ledger) -> None:
    scene = Scene(ledger)

    def disturb(scene: Scene, running: RunningPlan) -> None:
        scene.nodes.failing.add("n1")
        scene.lose(running, "stage-1")

    play(scene, disturb)
    assert scene.served == []
    assert scene.gave_up
    (record,) = scene.records()
    assert (record["outcome"], len(record["attempts"])) == ("FAILED_COLD_REALIZATION", ATTEMPTS)
    row = ledger.session(1)
    assert (row.state, "no memory" in row.reason) == ("FAILED", True)
    assert scene.nodes.stages == set()
    assert (scene.keeper.state.realizations, scene.keeper.state.epochs) == ((), ())


def test_sessions_wait_for_a_node_and_fail_when_none_comes_in_time(ledger: Ledger) -> None:
    scene = Scene(ledger, patience_seconds=0.05)
    play(scene, leave)
    assert (scene.served, scene.gave_up, ledger.session(1).state) == ([], True, "FAILED")
    (record,) = scene.records()
    assert record["outcome"] == "ABORTED_PLANNING"

    async def back_in_time(scene: Scene) -> None:
        leave(scene, await scene.begin())
        await asyncio.sleep(0.01)
        assert scene.recoverer.is_under_way
        scene.keeper.demand(join("n1", "second"))
        scene.recoverer.node_joined()
        await scene.finish()

    patient = Scene(Ledger(ledger.path.with_name("other")), patience_seconds=30.0)
    asyncio.run(back_in_time(patient))
    assert [running.epoch for running in patient.served] == [2]
    assert patient.ledger.session(1).state == "OPEN"
    patient.ledger.close()


def test_a_loss_while_another_is_repaired_is_repaired_too(ledger: Ledger) -> None:
    scene = Scene(ledger)
    lost_again: list[RunningPlan] = []
    serve = scene._serve

    async def serve_and_lose(running: RunningPlan) -> None:
        await serve(running)
        if not lost_again:
            lost_again.append(running)
            scene.lose(running, "stage-0")

    scene.recoverer._serve = serve_and_lose
    play(scene, lambda scene, running: scene.lose(running, "stage-1"))
    assert [running.epoch for running in scene.served] == [2, 3]
    assert [record["outcome"] for record in scene.records()] == ["ACTIVATED", "ACTIVATED"]
    assert len(scene.nodes.stages) == 2


@pytest.mark.parametrize("commits", [False, True])
def test_a_plan_that_is_lost_again_and_again_before_it_commits_is_given_up(ledger: Ledger, commits: bool) -> None:
    scene = Scene(ledger)

    async def run() -> None:
        running = await scene.begin()
        for _ in range(MOST_FRUITLESS + 2):
            scene.lose(running, "stage-0")
            await scene.finish()
            if scene.gave_up:
                return
            running = scene.served[-1]
            scene.num_committed += commits

    asyncio.run(run())
    assert scene.gave_up is not commits
    assert (ledger.session(1).state == "FAILED") is not commits
    assert len(scene.served) == (MOST_FRUITLESS + 2 if commits else MOST_FRUITLESS)


def test_what_is_retired_while_it_is_recovered_stays_away(ledger: Ledger) -> None:
    scene = Scene(ledger, patience_seconds=30.0)

    async def run() -> None:
        leave(scene, await scene.begin())
        await asyncio.sleep(0.01)
        await scene.recoverer.cancel("retired on request")

    asyncio.run(run())
    assert (scene.served, scene.nodes.stages) == ([], set())
    assert (ledger.session(1).state, ledger.session(1).reason) == ("FAILED", "retired on request")
    assert scene.keeper.state.transition is None
