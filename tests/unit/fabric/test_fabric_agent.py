"""An agent and its Coordinators: whom it obeys, what it keeps when one ends, and what it stops when none comes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from inferswarm.errors import AuthorityUncertain, SpecError, StageLost
from inferswarm.fabric import messages as m
from inferswarm.fabric.faults import to_error
from tests.unit.fabric.fake_coordinator import LEASE_SECONDS, FakeCoordinator, RunningAgent
from tests.unit.fabric.processes import all_gone, identify
from tests.unit.fabric.test_fabric_stage_process import assignment

STAGE, RENAMED = "realization-1-a/stage-0", "realization-2-b/stage-0"


def played(work: Callable[[], Awaitable[None]]) -> None:
    """Run a test's story in an event loop."""

    async def run() -> None:
        await work()

    asyncio.run(run())


async def start_stage(coordinator: FakeCoordinator, name: str = STAGE) -> m.StageStarted:
    answer = await coordinator.orders(m.StartStage(stage=name))
    assert isinstance(answer, m.StageStarted)
    return answer


def test_lower_terms_and_orders_for_another_incarnation_are_refused_also_by_the_next_agent(tmp_path: Path) -> None:
    async def story() -> None:
        with FakeCoordinator(term=3) as coordinator:
            async with RunningAgent(coordinator.endpoint, tmp_path):
                first = await coordinator.welcomes()
                assert (first.highest_term, first.stages) == (0, ())
                await coordinator.orders(m.InspectNode())
                with pytest.raises(AuthorityUncertain, match="term 2; this Node has seen term 3"):
                    await coordinator.orders(m.InspectNode(), term=2)
                with pytest.raises(AuthorityUncertain, match="incarnation of-before"):
                    await coordinator.orders(m.InspectNode(), incarnation="of-before")
                await coordinator.says(m.Void(term=2, reason="an old Coordinator believes so"))
                await coordinator.orders(m.InspectNode())  # of the same incarnation
                await coordinator.says(m.Void(term=3, reason="its lease ran out"))
                second = await coordinator.welcomes()
                assert second.incarnation != first.incarnation
            async with RunningAgent(coordinator.endpoint, tmp_path):
                again = await coordinator.welcomes()
                assert again.highest_term == 3
                assert again.incarnation not in (first.incarnation, second.incarnation)
        with FakeCoordinator(term=2) as old:
            async with RunningAgent(old.endpoint, tmp_path) as running:
                await old.welcomes()
                with pytest.raises(AuthorityUncertain, match="a Coordinator of term 2"):
                    await running.task

    played(story)


def test_stages_outlive_a_coordinator_and_are_adopted_by_the_next_one_under_another_name(tmp_path: Path) -> None:
    async def story() -> None:
        with FakeCoordinator(term=1) as coordinator:
            port = coordinator.port
            running = RunningAgent(coordinator.endpoint, tmp_path)
            await running.__aenter__()
            first = await coordinator.welcomes()
            started = await start_stage(coordinator)
            materialize = m.Materialize(assignment=assignment(), scope="scope", realization="realization-1-a")
            built = await coordinator.orders(m.OnStage(stage=STAGE, command=materialize))
        process = identify(started.pid)
        await asyncio.sleep(2 * LEASE_SECONDS)
        with FakeCoordinator(term=2, port=port) as successor:
            await successor.hears(m.Message)  # type: ignore[type-abstract]
            await successor.says(m.Greet(term=2))
            join = await successor.welcomes()
            assert join.incarnation == first.incarnation
            assert [(held.stage, held.pid, held.plan_digest) for held in join.stages] == [
                (STAGE, started.pid, assignment().plan_digest)
            ]
            adopt = m.Adopt(assignment=assignment(), scope="scope", realization="realization-2-b")
            adopted = await successor.orders(m.AdoptStage(stage=STAGE, renamed=RENAMED, command=adopt))
            assert isinstance(adopted, m.Adopted)
            assert (adopted.pid, adopted.endpoint) == (started.pid, started.endpoint)
            assert (adopted.materialized, adopted.sessions) == (built, ())
            with pytest.raises(SpecError, match="realization-1-a"):
                await successor.orders(m.OnStage(stage=STAGE, command=m.Report()))

            os.kill(started.pid, signal.SIGSTOP)
            gone = await successor.hears(m.StageGone)
            error = to_error(gone.fault)
            assert isinstance(error, StageLost)
            assert gone.stage == RENAMED
            assert "stopped and gave no sign of life" in error.reason
            assert all_gone([process], 1.0)
            with pytest.raises(StageLost, match="stopped and gave no sign of life"):
                await successor.orders(m.OnStage(stage=RENAMED, command=m.Report()))
            await running.__aexit__(None, None, None)

    played(story)


def test_an_agent_that_is_ended_while_its_stages_are_ending_waits_for_them(tmp_path: Path) -> None:
    async def story() -> None:
        with FakeCoordinator(term=1) as coordinator:
            async with RunningAgent(coordinator.endpoint, tmp_path):
                await coordinator.welcomes()
                process = identify((await start_stage(coordinator)).pid)
                os.kill(process.pid, signal.SIGSTOP)  # so that ending it takes a while
                await coordinator.says(m.Farewell(term=1))
                await asyncio.sleep(0.2)
                os.kill(process.pid, signal.SIGCONT)
            assert all_gone([process], 0.0)

    played(story)


def test_stages_that_nobody_adopts_end_after_the_grace(tmp_path: Path) -> None:
    grace = 1.0

    async def story() -> None:
        with FakeCoordinator(term=1) as coordinator:
            port = coordinator.port
            running = RunningAgent(coordinator.endpoint, tmp_path, grace_seconds=grace)
            await running.__aenter__()
            first = await coordinator.welcomes()
            process = identify((await start_stage(coordinator)).pid)
        with FakeCoordinator(term=2, port=port) as successor:
            join = await successor.welcomes()
            assert [held.stage for held in join.stages] == [STAGE]
            gone = await successor.hears(m.StageGone, beating=True)  # a member, of whose stage nothing is ordered
            assert "it was not adopted" in str(to_error(gone.fault))
            assert all_gone([process], 1.0)
            kept = identify((await start_stage(successor)).pid)
        loop = asyncio.get_running_loop()
        ended = await loop.run_in_executor(None, all_gone, [kept], grace + 5.0)
        assert ended, "a stage went on without a Coordinator"
        with FakeCoordinator(term=3, port=port) as third:
            assert (await third.welcomes()).incarnation != first.incarnation
            await running.__aexit__(None, None, None)

    played(story)


def test_a_spare_stands_in_for_a_lost_stage_and_is_nobody_s_before(tmp_path: Path) -> None:
    async def build(coordinator: FakeCoordinator, stage: str) -> None:
        materialize = m.Materialize(assignment=assignment(), scope="scope", realization=stage.partition("/")[0])
        await coordinator.orders(m.OnStage(stage=stage, command=materialize))

    async def story() -> None:
        with FakeCoordinator(term=1) as coordinator:
            async with RunningAgent(coordinator.endpoint, tmp_path, spares=True) as running:
                agent = running.agent
                await coordinator.welcomes()
                lost = await start_stage(coordinator)
                await build(coordinator, STAGE)
                async with asyncio.timeout(20.0):
                    while agent._spare._made is None:
                        await asyncio.sleep(0.05)
                spare = agent._spare.stage
                assert spare is not None
                assert [held.stage for held in agent._introduction().stages] == [STAGE]
                os.kill(lost.pid, signal.SIGKILL)
                await coordinator.hears(m.StageGone)
                assert (await start_stage(coordinator, RENAMED)).pid == spare.pid
                await build(coordinator, RENAMED)
                assert [held.stage for held in agent._introduction().stages] == [RENAMED]

    played(story)
