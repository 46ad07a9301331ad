"""From a plan to an epoch: assignments must be the plan's, and a failed attempt leaves nothing behind."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.documents import digest
from inferswarm.errors import CommitRefused, RealizationFailed, SpecError, StageLost
from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.authority_keeper import AuthorityKeeper
from inferswarm.fabric.ledger import Ledger
from inferswarm.fabric.realizing import Realizer
from inferswarm.fabric.running import RunningPlan, check_assignments, model_digest
from inferswarm.planner.plan import ExecutionPlan, MemoryAccount, Placement
from inferswarm.planner.problem import Workload
from inferswarm.strategies.dense.description import DecoderDescription
from tests.mixing import mix
from tests.unit.fabric.fabric_samples import PLAN, join, lease
from tests.unit.fabric.stage_ring import DESCRIPTION

NUM_UNITS = len(DESCRIPTION.unit_ids)


def small_plan() -> ExecutionPlan:
    account = MemoryAccount(memory_id="m", capacity_bytes=1, reserved_bytes=0, terms=())
    placements = tuple(
        Placement(
            participant=f"stage-{index}",
            node_id=f"n{index}",
            node_name=f"n{index}",
            compute_unit_id=f"c{index}",
            threads=1,
            first_unit=first,
            end_unit=end,
            unit_ids=DESCRIPTION.unit_ids[first:end],
            states=(),
            memory=account,
        )
        for index, (first, end) in enumerate([(0, 3), (3, NUM_UNITS)])
    )
    return ExecutionPlan(
        problem_digest="p",
        graph_digest="g",
        primitive="null",
        representation="fp32",
        workload=Workload(),
        chunk_positions=8,
        max_positions=64,
        sessions=2,
        placements=placements,
        prediction=None,
    )


def small_assignments(plan: ExecutionPlan) -> tuple[StageAssignment, ...]:
    return tuple(
        StageAssignment(
            participant=placement.participant,
            plan_digest=digest(plan),
            primitive=plan.primitive,
            representation=plan.representation,
            description=DESCRIPTION,
            first_unit=placement.first_unit,
            end_unit=placement.end_unit,
            threads=(UnitThreads(placement.first_unit, placement.end_unit, 1),),
            requirement=None,
            max_positions=plan.max_positions,
            sessions=plan.sessions,
            chunk_positions=plan.chunk_positions,
        )
        for placement in plan.placements
    )


def test_assignments_of_the_plan_are_accepted() -> None:
    plan = small_plan()
    assert check_assignments(plan, small_assignments(plan)) == digest(plan)


@pytest.mark.parametrize(
    "change",
    [
        {"participant": "stage-9"},
        {"plan_digest": PLAN},
        {"representation": "bf16"},
        {"payload_representation": "bf16"},
        {"primitive": "torch"},
        {"first_unit": 1},
        {"end_unit": 2},
    ],
    ids=str,
)
def test_an_assignment_of_something_else_is_refused(change: dict[str, object]) -> None:
    plan = small_plan()
    first, second = small_assignments(plan)
    with pytest.raises(SpecError, match="assignment of stage-0"):
        check_assignments(plan, (msgspec.structs.replace(first, **change), second))


def test_a_missing_or_reordered_assignment_is_refused() -> None:
    plan = small_plan()
    first, second = small_assignments(plan)
    for wrong in ((first,), (second, first), (first, second, second), ()):
        with pytest.raises(SpecError):
            check_assignments(plan, wrong)


def mixed(*representations: str, payload: str = "fp32") -> tuple[ExecutionPlan, tuple[StageAssignment, ...]]:
    plan = mix(small_plan(), *representations, payload=payload)
    assignments = tuple(
        msgspec.structs.replace(item, representation=representation, payload_representation=payload)
        for item, representation in zip(small_assignments(plan), representations, strict=True)
    )
    return plan, assignments


def test_each_assignment_has_the_representation_of_its_own_placement() -> None:
    plan, assignments = mixed("bf16", "fp32")
    assert check_assignments(plan, assignments) == digest(plan)
    with pytest.raises(SpecError, match="assignment of stage-0"):
        check_assignments(plan, (msgspec.structs.replace(assignments[0], representation="fp32"), assignments[1]))


def test_payloads_that_would_round_what_a_participant_computes_are_refused() -> None:
    with pytest.raises(SpecError, match="every value of fp32, in which placement stage-1 computes"):
        check_assignments(*mixed("bf16", "fp32", payload="bf16"))


def test_states_apart_from_where_a_participant_computes_are_refused() -> None:
    plan = small_plan()
    first, second = plan.placements
    moved = msgspec.structs.replace(plan, placements=(first, msgspec.structs.replace(second, states_memory_id="ram")))
    with pytest.raises(SpecError, match="placement stage-1 states_memory_id"):
        check_assignments(moved, small_assignments(moved))


def held(*states: tuple[str, str | None]) -> m.Materialized:
    kept = tuple(
        m.StateHeld(state_id=name, representation="fp32", bytes=1, source_digest=mark) for name, mark in states
    )
    return m.Materialized(states=kept, kernel="k", source_bytes=0, required_bytes=0, seconds=0.0)


def model(*stages: m.Materialized, description: DecoderDescription = DESCRIPTION) -> str:
    return model_digest(description, small_plan().placements, stages)


def test_a_model_has_one_digest_wherever_it_is_cut_and_another_one_with_another_state() -> None:
    digest = model(held(("a", "1"), ("b", "2")), held(("c", "3"), ("a", "1")))
    assert digest.startswith("sha256:")
    assert digest == model(held(("a", "1")), held(("c", "3"), ("b", "2")))
    assert digest != model(held(("a", "1")), held(("c", "4"), ("b", "2")))
    other = msgspec.structs.replace(DESCRIPTION, norm_epsilon=0.5)
    assert digest != model(held(("a", "1")), held(("c", "3"), ("b", "2")), description=other)


def test_a_model_of_which_a_state_is_not_known_has_no_digest() -> None:
    assert model(held(("a", "1")), held(("b", None))) == ""
    assert model(held(), held()) == ""


def test_nodes_that_hold_different_models_are_refused() -> None:
    with pytest.raises(RealizationFailed, match="stage-1 read another a") as refused:
        model(held(("a", "1")), held(("a", "2")))
    assert refused.value.node == "n1"


# -- attempts --


class FakeMembers:
    """Nodes whose stages do as they are told, except for the command of type `fails`."""

    def __init__(self, fails: type | None) -> None:
        self.fails = fails
        self.started: list[str] = []
        self.stopped: list[str] = []

    def links(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(join=SimpleNamespace(node_id=f"n{index}")) for index in (0, 1)]

    async def call(self, node_id: str, command: m.AgentCommand, on_progress: object = None) -> m.Answer:
        await asyncio.sleep(0)
        match command:
            case m.StartStage():
                self.started.append(command.stage)
                return m.StageStarted(pid=1, endpoint=f"tcp://{node_id}")
            case m.StopStage():
                await asyncio.sleep(0.01)
                self.stopped.append(command.stage)
        return m.Done()

    async def on_stage(
        self, node_id: str, stage: str, command: m.StageCommand, on_progress: object = None
    ) -> m.Answer:
        await asyncio.sleep(0)
        if type(command) is self.fails and node_id == "n1":
            raise StageLost("n1", "stage-1", "killed by SIGKILL")
        if isinstance(command, m.Materialize):
            return m.Materialized(states=(), kernel="k", source_bytes=0, required_bytes=0, seconds=0.0)
        return m.Done()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger")
    yield opened
    opened.close()


def attempt(ledger: Ledger, members: FakeMembers) -> RunningPlan:
    """Realize the small plan once, as the Coordinator does; what died is reclaimed in the background too."""

    async def run() -> RunningPlan:
        tasks: list[asyncio.Task[None]] = []

        def on_effect(effect: ev.Effect) -> None:
            if isinstance(effect, ev.RealizationDied):
                tasks.append(asyncio.create_task(realizer.reclaim(effect.realization_id)))

        keeper = AuthorityKeeper("scope", ledger, on_effect)
        realizer = Realizer("scope", keeper, members, "tcp://results")  # type: ignore[arg-type]
        for event in (lease(), join("n0"), join("n1")):
            keeper.demand(event)
        plan = small_plan()
        question = m.Fallback(plan=plan, assignments=small_assignments(plan), run_ahead=2)
        try:
            running = await realizer.realize(question, lambda progress: None)
            assert keeper.state.active_epoch() is not None
            with pytest.raises(CommitRefused):
                await realizer.realize(question, lambda progress: None)
            return running
        except StageLost:
            assert sorted(members.stopped) == sorted(members.started), "stages were left running"
            assert keeper.state.active_epoch() is None
            raise
        finally:
            await asyncio.gather(*tasks)

    return asyncio.run(run())


def test_a_plan_gets_authority_once_all_participants_are_ready(ledger: Ledger) -> None:
    members = FakeMembers(fails=None)
    running = attempt(ledger, members)
    assert running.epoch == 1
    assert running.endpoints == ("tcp://n0", "tcp://n1")
    assert members.stopped == []
    assert [kind for kind, _ in ledger.audit()][2:] == [
        "RealizationStarted",
        "RealizationReadied",
        "EpochRequested",
        "EpochActivated",
    ]


@pytest.mark.parametrize("fails", [m.Materialize, m.Connect, m.Activate])
def test_a_failed_attempt_is_stopped_once_and_counts_as_no_refusal(ledger: Ledger, fails: type) -> None:
    members = FakeMembers(fails)
    with pytest.raises(StageLost):
        attempt(ledger, members)
    assert len(members.stopped) == len(set(members.stopped)) == 2
    assert ledger.refusals() == {}
    reader = sqlite3.connect(ledger.path)
    epochs = reader.execute("SELECT state FROM epochs").fetchall()
    reader.close()
    assert epochs == ([("RECLAIMED",)] if fails is m.Activate else [])
