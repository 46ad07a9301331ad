"""Results of decoding in a running Node: its agent says whether they are kept, and no plan can."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from inferswarm.artifacts.store import ContentStore
from inferswarm.artifacts.store_scopes import lives
from inferswarm.artifacts.types import KeptResults, StoredBlobs
from inferswarm.fabric import messages as m
from inferswarm.fabric.agent import Agent, AgentSpec
from inferswarm.fabric.envelope import NodeEnvelope
from inferswarm.strategies.dense.model import DenseModel
from tests.models import write_small_llama
from tests.unit.backends.backends_support import assign
from tests.unit.backends.test_backends_required_bytes import keep
from tests.unit.fabric.fake_coordinator import FakeCoordinator


def specification(coordinator: str, root: Path, *, keeps_results: bool) -> AgentSpec:
    """An agent of a Node whose store is at `root`."""
    return AgentSpec(
        node_id="n1",
        name="amber",
        address="127.0.0.1",
        coordinator=coordinator,
        token="secret",
        group="",
        limit_bytes=None,
        mechanism="none",
        scope="scope",
        state_directory=str(root.parent / "state"),
        store_directory=str(root),
        store_quota_bytes=10_000_000,
        keeps_results=keeps_results,
    )


def order(tmp_path: Path, results: KeptResults | msgspec.UnsetType) -> m.Materialize:
    """The order to build one block from the store, in which results are or are not spoken of."""
    model = DenseModel.open(write_small_llama(tmp_path / "small.gguf", num_blocks=2))
    requirement = keep(model.requirement(model.problem(), "part", 1, 2), tmp_path / "store")
    requirement = msgspec.structs.replace(requirement, stored=StoredBlobs("", requirement.stored.blobs, results))
    part = assign(model.description, 1, 2, requirement=requirement)
    return m.Materialize(assignment=part, scope="scope", realization="realization-1-a")


def test_a_stage_of_a_node_that_keeps_results_keeps_them(tmp_path: Path) -> None:
    command, root = order(tmp_path, msgspec.UNSET), tmp_path / "store"

    async def story() -> m.Answer:
        with FakeCoordinator(term=1) as coordinator:
            agent = Agent(specification(coordinator.endpoint, root, keeps_results=True), NodeEnvelope())
            running = asyncio.create_task(agent.run())
            await coordinator.welcomes()
            await coordinator.orders(m.StartStage(stage="realization-1-a/stage-0"))
            answer = await coordinator.orders(m.OnStage(stage="realization-1-a/stage-0", command=command))
            assert lives(root, "scope")  # and what it keeps there is released by nobody else
            agent.stop()
            await running
            assert not lives(root, "scope")
            return answer

    answer = asyncio.run(story())
    assert isinstance(answer, m.Materialized)
    assert command.assignment.requirement is not None
    assert answer.source_bytes == answer.required_bytes == command.assignment.requirement.bytes
    with ContentStore(root) as store:
        owners = [owner for blob in store.inventory().blobs for owner in blob.owners]
    assert sum(owner.startswith("transform:") for owner in owners) == 7


def test_a_node_that_keeps_none_is_not_told_to_by_an_order(tmp_path: Path) -> None:
    """The Coordinator knows neither the store nor its room."""
    command = order(tmp_path, KeptResults(quota_bytes=None))
    for keeps_results in (False, True):
        spec = specification("tcp://127.0.0.1:1", tmp_path / "store", keeps_results=keeps_results)
        agent = Agent(spec, NodeEnvelope())
        passed_on = agent._with_root(command)
        agent._context.destroy()  # it never runs
        assert isinstance(passed_on, m.Materialize)
        assert passed_on.assignment.requirement is not None
        stored = passed_on.assignment.requirement.stored
        assert isinstance(stored, StoredBlobs)
        assert stored.results == (KeptResults(quota_bytes=10_000_000) if keeps_results else msgspec.UNSET)
