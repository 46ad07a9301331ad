"""Several Compute Units in one Node: two stage processes under one agent and one envelope, on the real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inferswarm.backends.assignment import unsplit_assignments
from inferswarm.backends.direct import DirectResult, materialized, run_split_direct
from inferswarm.errors import EnvelopeExceeded
from inferswarm.planner import ExecutionPlan, Workload
from inferswarm.resources import Envelope
from inferswarm.swarm import Model, Swarm, path_measuring
from inferswarm.swarm.reservations import PARTICIPANT_TERM

pytestmark = pytest.mark.long

WORKLOAD = Workload(prompt_tokens=96, output_tokens=64)
PROMPT = tuple(range(100, 180))
NUM_TOKENS = 16
NODES = ("amber:threads=1+1,memory=1600MB", "birch:threads=1,memory=1200MB")


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Model:
    return Model(smollm2_path)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(path_measuring, "PATH_SECONDS", 0.3)
        nodes = [Envelope.parse(text) for text in NODES]
        with Swarm.local(nodes, state=tmp_path_factory.mktemp("state")) as swarm:
            swarm.measure()  # bases and paths; forced plans need no cost classes
            yield swarm


def test_a_path_within_a_node_is_measured_and_a_further_stage_too(swarm: Swarm) -> None:
    graph = swarm.graph
    amber, birch = (node.id for node in graph.document.nodes)
    assert {(path.source, path.target) for path in graph.paths} == {(amber, amber), (amber, birch), (birch, amber)}
    assert all(memory.reserved_bytes.known for memory in graph.document.memory_resources)


def plan_over(swarm: Swarm, model: Model, places: tuple[int, ...], cuts: tuple[int, ...]) -> ExecutionPlan:
    units = [unit.id for unit in swarm.graph.document.compute_units]
    return swarm.force(model, [units[place] for place in places], cuts=cuts, workload=WORKLOAD)


@pytest.fixture(scope="module")
def unsplit(swarm: Swarm, model: Model) -> DirectResult:
    """What one process answers; where the chain is cut has no part in it, and all have one thread."""
    plan = plan_over(swarm, model, (0, 1), (15,))
    problem = swarm.problem(model, plan.workload)
    executors = materialized(unsplit_assignments(plan, model.description, model.opened.object, problem))
    return run_split_direct(executors, PROMPT, max_tokens=NUM_TOKENS, chunk_positions=plan.chunk_positions)


@pytest.mark.parametrize(("places", "cuts"), [((0, 1), (15,)), ((1, 2, 0), (7, 22))])
def test_participants_of_one_node_answer_as_the_unsplit_execution_within_their_account(
    swarm: Swarm, model: Model, unsplit: DirectResult, places: tuple[int, ...], cuts: tuple[int, ...]
) -> None:
    """Both processes are charged to the Node's one memory, and what the plan counts there is enough for both."""
    plan = plan_over(swarm, model, places, cuts)
    swarm.node_memory(reset_peak=True)
    with swarm.realize(plan, model) as service:
        answer = service.generate(PROMPT, max_tokens=NUM_TOKENS, ignore_stop=True)
        assert len(set(service.realized.pids)) == len(places)
        (memory,) = [item for item in swarm.node_memory() if item.node_name == "amber"]
    assert answer.tokens == unsplit.tokens
    assert answer.record.logits_digests == unsplit.logits_digests
    account = next(placement.memory for placement in plan.placements if placement.node_name == "amber")
    assert account.reserved_bytes is not None
    assert memory.report.charged_peak_bytes is not None
    process = next(term.bytes for term in account.terms if term.name == PARTICIPANT_TERM)
    counted = account.reserved_bytes + account.needed_bytes
    assert counted - process < memory.report.charged_peak_bytes <= counted


def test_stages_that_fit_one_by_one_are_stopped_together_without_a_cgroup(model: Model, tmp_path: Path) -> None:
    """Each of the two could have the envelope for itself; what one has mapped, the other cannot have."""
    node = Envelope.parse("amber:threads=1+1,memory=850MB")
    with Swarm.local([node], state=tmp_path, mechanism="rlimit-data") as swarm:
        units = [unit.id for unit in swarm.graph.document.compute_units]
        plan = swarm.force(model, units, cuts=(15,), workload=WORKLOAD)
        with pytest.raises(EnvelopeExceeded, match="rlimit-data"):
            swarm.realize(plan, model)
        (memory,) = swarm.node_memory()
    # The agent looks every 50 ms, and the two may pass the envelope in between. Held by nobody they take 1.1 times as
    # much as it has.
    assert memory.report.charged_peak_bytes is not None
    assert memory.report.charged_peak_bytes <= 1.05 * node.memory_bytes
