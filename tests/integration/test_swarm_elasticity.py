"""Nodes that come and go while a real plan serves: answers go on, memory is given back, what flaps is left alone.

Prices are given, one for each Node, so that what is decided does not hang on how busy the machine is; everything
else is as it is: memory, requests and paths are measured, newcomers are tried, plans are changed under an answer.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from itertools import permutations
from typing import Any

import pytest

from inferswarm.errors import InferSwarmError, SpecError
from inferswarm.evidence.events import Scope
from inferswarm.fabric import messages as m
from inferswarm.planner import Economics, PathCurve, PlanningProblem, ServiceCurve, Workload
from inferswarm.resources import Envelope
from inferswarm.resources.cgroups import MemoryController, find_memory_controller
from inferswarm.resources.types import ResourceGraph
from inferswarm.strategies.economics import phases_of
from inferswarm.swarm import Generation, Model, Service, Swarm
from tests.unit.fabric.processes import wait_until

pytestmark = pytest.mark.long

WORKLOAD = Workload(prompt_tokens=32, output_tokens=1500)
PROMPT = "The capital of France is"
STEP_SECONDS = {"amber": 2e-3, "birch": 1e-3, "cedar": 4e-3}
"""What a unit takes for one position on each Node."""
REQUESTS = 10_000
SOME = 16
"""Tokens of an answer before anything happens to it, and after."""
CLEAR = 0.5
"""Logits that are this far apart stay in their order when a prompt is computed in other steps."""
SHORTLY = {
    "node_measuring.BANDWIDTH_SECONDS": 0.05,
    "node_measuring.MULTIPLY_SECONDS": 0.1,
    "path_measuring.PATH_SECONDS": 0.2,
    "request_measuring.NUM_REQUESTS": 5,
}
"""What is measured is not what is tested."""


def node(name: str) -> Envelope:
    return Envelope(name=name, threads=1, memory_bytes=900_000_000)


def priced(
    store: object,
    shape: str,
    problem: PlanningProblem,
    graph: ResourceGraph,
    currency: object,
    representations: Sequence[str] | None = None,
) -> Economics:
    """Curves as if they had been measured; one for everything that is asked for."""
    names = {node.id: node.name for node in graph.nodes}
    services = tuple(
        ServiceCurve(
            compute_unit_id=unit.id,
            cost_class=cost_class,
            representation=item.representation,
            phase=phase,
            base_seconds=0.0,
            seconds_per_position=STEP_SECONDS[names[unit.node_id]],
        )
        for unit in graph.compute_units
        for item in problem.implementations
        for cost_class, phases in phases_of(problem).items()
        for phase in phases
    )
    paths = tuple(
        PathCurve(source=source, target=target, latency_seconds=1e-3, seconds_per_byte=0.0)
        for source, target in permutations(names, 2)
    )
    return Economics(services=services, paths=paths)


class Answer:
    """An answer that is under way in another thread, until some tokens after the service has moved."""

    def __init__(self, service: Service) -> None:
        """Begin it, and wait until some tokens are there."""
        self.tokens: list[int] = []
        self.session = self._position = 0
        self._error: InferSwarmError | None = None
        self._service = service
        self._epoch = service.epoch
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert wait_until(lambda: len(self.tokens) >= SOME or self._error is not None, 60.0)

    def _run(self) -> None:
        num_after = 0
        try:
            with contextlib.closing(self._stream()) as stream:
                for token in stream:
                    assert token.position == (self._position or token.position), "a token is missing or came twice"
                    self.session, self._position = token.session, token.position + 1
                    self.tokens.append(token.token)
                    num_after += self._service.epoch != self._epoch
                    if num_after == SOME:
                        return
        except InferSwarmError as error:
            self._error = error

    def _stream(self) -> Generator[m.TokenCommitted]:
        tokens = self._service.stream_tokens(PROMPT, max_tokens=WORKLOAD.output_tokens, ignore_stop=True)
        assert isinstance(tokens, Generator)
        return tokens

    def end(self) -> None:
        """Wait for the end."""
        self._thread.join(60.0)
        assert self._error is None, self._error
        assert len(self.tokens) < WORKLOAD.output_tokens, "it ended before anything changed"


def goes_on_as(service: Service, answer: Answer) -> Generation:
    """Return what the plan of now says behind all but the last tokens: the same, as far as the choice was clear."""
    record = service.record(answer.session)
    num = len(answer.tokens)
    assert record.tokens[:num] == tuple(answer.tokens)
    first = next(place for place in range(num - SOME, num) if record.margins[place] > CLEAR)
    clear = list(itertools.takewhile(lambda place: record.margins[place] > CLEAR, range(first, num)))
    prompt = (*record.prompt_ids, *answer.tokens[:first])
    again = service.generate(prompt, max_tokens=len(clear), ignore_stop=True)
    assert list(again.tokens) == [answer.tokens[place] for place in clear]
    return again


def nodes_of(service: Service) -> list[str]:
    return [placement.node_name for placement in service.plan.placements]


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("planned", "measuring"):
            patch.setattr(f"inferswarm.swarm.{module}.economics_of", priced)
        for name, value in SHORTLY.items():
            patch.setattr(f"inferswarm.swarm.{name}", value)
        with Swarm.local([node("amber")], state=tmp_path_factory.mktemp("state"), lease_seconds=1.0) as swarm:
            swarm.measure()
            yield swarm


@pytest.fixture(scope="module")
def service(swarm: Swarm) -> Iterator[Service]:
    plan = swarm.force(Model("smollm2-135m"), ["amber"], workload=WORKLOAD)
    with swarm.realize(plan) as service:
        yield service


def told(swarm: Swarm) -> list[Any]:
    return [event.document.record for event in swarm.events() if event.kind == "TransitionRecorded"]  # type: ignore[union-attr]


def test_an_answer_goes_on_under_another_plan_when_a_better_node_is_added(swarm: Swarm, service: Service) -> None:
    """Mutation: order the change before the newcomer was tried, or let `Elasticity` keep the plan in force."""
    answers: list[Answer] = []

    def on_progress(what: str, share: float) -> None:
        if what == "nodes and paths" and len(swarm.status().nodes) == 2:
            answers.append(Answer(service))

    considered = swarm.add(node("birch"), requests=REQUESTS, on_progress=on_progress)
    assert considered.changed, str(considered)
    assert nodes_of(service) == ["birch"]
    assert (service.epoch, swarm.status().epoch) == (considered.epoch, considered.epoch)
    (answer,) = answers
    answer.end()
    assert goes_on_as(service, answer).reports[0].node_id == swarm.status().nodes[1].node_id
    trusted = swarm.health.of(Scope("node", swarm.status().nodes[1].node_id))
    assert (trusted.integrity.state, trusted.availability.state) == ("trusted", "available")
    assert told(swarm)[-1].outcome.value == "ACTIVATED"


def test_a_node_that_would_be_of_no_use_joins_and_is_declined(swarm: Swarm, service: Service) -> None:
    before = service.epoch
    considered = swarm.add(node("cedar"), requests=REQUESTS)
    assert (considered.outcome, considered.epoch) == ("stayed", before)
    assert considered.reasons[0] == "the plan in force is the best one"
    assert [member.name for member in swarm.status().nodes] == ["amber", "birch", "cedar"]
    last = told(swarm)[-1]
    assert (last.outcome.value, last.detail) == ("RETAINED_CURRENT_EPOCH", "Node cedar joined")


def test_a_node_is_drained_and_its_memory_is_given_back(swarm: Swarm, service: Service) -> None:
    """Mutation: stop the agent before the plan has moved, or leave the Node declared."""
    member = next(item for item in swarm.status().nodes if item.name == "birch")
    expected = service.generate(PROMPT, max_tokens=SOME, ignore_stop=True).tokens
    considered = swarm.drain("birch")
    assert considered.changed
    assert nodes_of(service) == ["amber"]
    assert not os.path.exists(f"/proc/{member.pid}")
    controller = find_memory_controller()
    if isinstance(controller, MemoryController):
        assert list(controller.base.glob(f"inferswarm-{os.getpid()}-*-birch")) == []
    assert [item.name for item in swarm.status().nodes] == ["amber", "cedar"]
    assert service.generate(PROMPT, max_tokens=SOME, ignore_stop=True).tokens == expected
    assert swarm.health.document.alerts == ()
    assert swarm.health.of(Scope("node", member.node_id)).availability.detail == "Node birch was drained on request"
    unused = swarm.drain("cedar")
    assert (unused.outcome, unused.reasons) == ("stayed", ("it had no part in the plan in force",))
    with pytest.raises(SpecError, match="beside which there is another one"):
        swarm.drain("amber")
    assert nodes_of(service) == ["amber"]


def test_a_drained_node_comes_back_and_one_that_flaps_is_left_alone(swarm: Swarm, service: Service) -> None:
    """It was added, drained, and comes back; then it is lost, and comes back: that was too often.

    Mutation: let a recovery add no penalty, or forget what was changed on request.
    """
    back = swarm.rejoin("birch", requests=REQUESTS)
    assert back.changed, str(back)
    assert nodes_of(service) == ["birch"]
    member = next(item for item in swarm.status().nodes if item.name == "birch")
    os.kill(member.pid, signal.SIGKILL)
    assert wait_until(lambda: (swarm.status().epoch or 0) > (back.epoch or 0), 60.0), "nothing was recovered"
    again = swarm.rejoin("birch", requests=REQUESTS)
    assert again.outcome == "stayed"
    assert "suppressed after too many changes" in again.reasons[0]
    last = told(swarm)[-1]
    assert (last.outcome.value, last.detail) == ("RETAINED_BY_POLICY", "Node birch joined again")
    answer = service.generate(PROMPT, max_tokens=SOME, ignore_stop=True)
    assert [report.node_id for report in answer.reports] == [swarm.status().nodes[0].node_id]
