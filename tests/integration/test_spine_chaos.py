"""The real model over three Nodes, four sessions at once, and something lost at every position of their answers.

Each answer must be, bit for bit, that of a run that nothing happened to, and each of its tokens must come once.
Losses are signals from outside, sent the moment a client has seen its n-th token, or while prompts are computed. A
sample runs always, every position and every kind with `-m slow`.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest

from inferswarm.documents import digest
from inferswarm.errors import InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.recovery_records import TransitionMode, Trigger
from inferswarm.planner import Workload
from inferswarm.resources import Envelope
from inferswarm.strategies.sampling import choose_sampling
from inferswarm.swarm import Model, Service, Swarm
from tests.orders import order_over, realize_first
from tests.unit.fabric.processes import wait_until

pytestmark = pytest.mark.long

NODE_NAMES = ("amber", "birch", "cedar")
CUTS = (9, 20)
NUM_TOKENS = 48
SPACING = 12
"""Tokens between two losses of one round: more than a session gets before a loss is noticed."""
CHANGES, CHANGED_TOKENS = 6, 160
CHANGE_SECONDS = 15.0
"""About what a change takes."""
WORKLOAD = Workload(prompt_tokens=128, output_tokens=NUM_TOKENS, concurrency=4)
DRAWN = choose_sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.2, seed=11, logprobs=1)
QUESTIONS = (
    m.Generate(text="Name three rivers in Europe. " * 16, max_tokens=NUM_TOKENS, ignore_stop=True),
    m.Generate(text="The capital of France is", max_tokens=NUM_TOKENS, ignore_stop=True, sampling=DRAWN),
    m.Generate(token_ids=tuple(range(100, 164)), max_tokens=NUM_TOKENS, ignore_stop=True),
    m.Generate(text="Zürich, 東京 und São Paulo 🌍: 你好 means", max_tokens=NUM_TOKENS, ignore_stop=True),
)
"""The first prompt takes several chunks; its client is the one that what is lost is timed by."""


class Lost(NamedTuple):
    """What was really lost, and how many tokens the first client had seen then."""

    kind: str
    node: str
    seen: int


class Rig:
    """A served plan, and the ways to lose something of it."""

    def __init__(self, swarm: Swarm, service: Service | None, chance: random.Random) -> None:
        self.swarm = swarm
        self.service = service
        self.chance = chance
        self.lost: list[Lost] = []

    def stage_on(self, node: str) -> psutil.Process:
        """Return the one stage on a Node, as soon as what an earlier epoch left there has ended."""
        (agent,) = [item.pid for item in self.swarm.status().nodes if item.name == node]

        def stages() -> list[psutil.Process]:
            return [item for item in psutil.Process(agent).children() if item.status() != psutil.STATUS_ZOMBIE]

        assert wait_until(lambda: len(stages()) == 1, 30.0), stages()
        return stages()[0]

    def lose(self, kind: str, node: str, seen: int) -> None:
        """Lose a stage, two at once, or an agent with its stage, which is started again."""
        self.lost.append(Lost(kind, node, seen))
        if kind == "agent":
            (child,) = [item for item in self.swarm._engine._agents if item.role == f"agent {node}"]
            os.kill(child.process.pid, signal.SIGKILL)
            child.process.wait()
            assert child.launch is not None
            self.swarm._engine.start_agent(child.launch)
            return
        nodes = [node]
        if kind == "two":
            nodes.append(NODE_NAMES[(NODE_NAMES.index(node) + 1) % len(NODE_NAMES)])
        for stage in [self.stage_on(name) for name in nodes]:
            os.kill(stage.pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)

    def any_stage(self) -> psutil.Process:
        """Return one of the stages of all Nodes, of whichever plan."""
        agents = [psutil.Process(item.pid) for item in self.swarm.status().nodes]
        found = [stage for agent in agents for stage in agent.children() if stage.status() != psutil.STATUS_ZOMBIE]
        return self.chance.choice(found)

    def answer_all(
        self, on_first: Callable[[int], None] = lambda seen: None, questions: Sequence[m.Generate] = QUESTIONS
    ) -> tuple[list[m.Generated], list[list[m.TokenCommitted]]]:
        """Ask all questions at once; `on_first` hears how many tokens the first client has, at first none."""
        client, seen = self.swarm._connected(), [list[m.TokenCommitted]() for _ in QUESTIONS]
        admitted = threading.Semaphore(0)

        def heard(event: object, index: int) -> None:
            if isinstance(event, m.SessionAdmitted):
                admitted.release()
                if index == 0:
                    on_first(0)
            elif isinstance(event, m.TokenCommitted):
                seen[index].append(event)
                if index == 0:
                    on_first(len(seen[0]))

        with ThreadPoolExecutor(len(QUESTIONS)) as pool:
            asked = []
            for index in (1, 2, 3, 0):  # the first comes last: the others are under way
                asked.append(pool.submit(client.ask, questions[index], lambda event, i=index: heard(event, i), 300.0))
                assert admitted.acquire(timeout=60.0)
            answers = [item.result(300.0) for item in (asked[3], *asked[:3])]
        assert all(isinstance(answer, m.Generated) for answer in answers)
        return answers, seen


def play(rig: Rig, kind: str, at: Sequence[int], wanted: Sequence[m.Generated]) -> None:
    """Answer all once, with a loss at each of the positions `at`; 0 is a moment while the prompt is computed."""
    epoch, due = rig.swarm.status().epoch, list(at)
    assert epoch is not None

    def on_first(seen: int) -> None:
        if due and seen == due[0]:
            if seen == 0:
                time.sleep(rig.chance.uniform(0.0, 0.1))
            node = NODE_NAMES[(due.pop(0) + len(rig.lost)) % len(NODE_NAMES)]
            rig.lose(kind, node, seen)

    answers, seen = rig.answer_all(on_first)
    assert not due, f"{len(due)} losses did not happen"
    assert_undisturbed(answers, seen, wanted)
    assert wait_until(lambda: (rig.swarm.status().epoch or 0) >= epoch + len(at), 60.0), "a loss was not noticed"


def assert_undisturbed(
    answers: Sequence[m.Generated], seen: Sequence[Sequence[m.TokenCommitted]], wanted: Sequence[m.Generated]
) -> None:
    """Each answer is the wanted one, bit for bit, and each of its tokens came once."""
    for answer, before, events in zip(answers, wanted, seen, strict=True):
        record = answer.record
        assert record.state == "COMPLETED"
        assert [event.position for event in events] == list(
            range(len(record.prompt_ids), len(record.prompt_ids) + len(before.record.tokens))
        ), "a token came twice, or not at all"
        assert tuple(event.token for event in events) == record.tokens == before.record.tokens
        assert record.logits_digests == before.record.logits_digests
        assert (record.logprobs, answer.text) == (before.record.logprobs, before.text)


def rounds() -> list[tuple[int, ...]]:
    """Return positions so that each of an answer is in one round, and those of a round are far apart."""
    return [tuple(range(begin, NUM_TOKENS + 1, SPACING)) for begin in range(1, SPACING + 1)]


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Model:
    return Model(smollm2_path)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    nodes = [Envelope(name=name, threads=1, memory_bytes=1_200_000_000) for name in NODE_NAMES]
    with Swarm.local(nodes, state=tmp_path_factory.mktemp("state")) as swarm:
        yield swarm  # nothing is measured: forced plans need no prices


slow = pytest.mark.slow
THIRDS = [rounds()[first::3] for first in range(3)]
CASES = [
    pytest.param("bf16", "kill", [(20,)], id="a sample"),
    *(
        pytest.param(representation, kind, third, id=f"{representation}-{kind}-every position-{number}", marks=slow)
        for representation in ("bf16", "fp32")
        for kind in ("kill", "stop")
        for number, third in enumerate(THIRDS, 1)
    ),
    *(
        pytest.param(representation, kind, [(0,)] * 8, id=f"{representation}-{kind}-prompts", marks=slow)
        for representation, kind in (("bf16", "kill"), ("fp32", "stop"))
    ),
    pytest.param("bf16", "two", [(0, 12, 30), (5, 24, 48)], id="two at once", marks=slow),
    pytest.param("bf16", "agent", [(0, 12, 30), (5, 24, 48)], id="agents", marks=slow),
]


def test_every_position_is_in_one_round() -> None:
    assert sorted(position for third in THIRDS for at in third for position in at) == [*range(1, NUM_TOKENS + 1)]


@pytest.mark.parametrize(("representation", "kind", "wanted_at"), CASES)
@pytest.mark.timeout(1800)
def test_four_answers_are_those_of_an_undisturbed_run_wherever_something_is_lost(
    swarm: Swarm, model: Model, representation: str, kind: str, wanted_at: list[tuple[int, ...]]
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    plan = swarm.force(model, NODE_NAMES, cuts=CUTS, representation=representation, workload=WORKLOAD)
    with swarm.realize(plan, model) as service:
        rig = Rig(swarm, service, random.Random(seed))
        wanted, _ = rig.answer_all()
        for number, at in enumerate(wanted_at):
            started = time.monotonic()
            play(rig, kind, at, wanted)
            print(f"round {number}: {kind} at {at} in {time.monotonic() - started:.1f} s", flush=True)
    assert Counter(item.seen for item in rig.lost) == Counter(position for at in wanted_at for position in at)
    told = Counter(item.node for item in rig.lost)
    print(f"{len(rig.lost)} losses ({kind}, {representation}), by Node {dict(told)}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_four_answers_are_those_of_an_undisturbed_run_when_stages_are_lost_during_changes(
    swarm: Swarm, model: Model
) -> None:
    """Two plans to and fro, each time with a signal to some stage, of either plan, at the cut-over or before it."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    questions = [msgspec.structs.replace(question, max_tokens=CHANGED_TOKENS) for question in QUESTIONS]
    workload = Workload(prompt_tokens=128, output_tokens=CHANGED_TOKENS, concurrency=len(QUESTIONS))
    orders = [
        realize_first(str(model.path), [order_over(swarm, model, nodes, workload, cuts=cuts)])
        for nodes, cuts in ((NODE_NAMES, CUTS), (NODE_NAMES[:2], (15,)))
    ]
    client = swarm._connected()
    client.ask(orders[0])
    rig = Rig(swarm, None, random.Random(seed))
    wanted, _ = rig.answer_all(questions=questions)
    told: Counter[str] = Counter()
    for number in range(CHANGES):
        order, outcomes = orders[swarm.status().plan_digest == digest(orders[0].plan)], list[str]()

        def change(order: m.Realize = order, outcomes: list[str] = outcomes) -> None:
            epoch = swarm.status().epoch
            assert epoch is not None
            mode, trigger = TransitionMode.MAKE_BEFORE_BREAK, Trigger.REQUEST
            try:
                client.ask(m.Change(order=order, epoch=epoch, mode=mode, trigger=trigger, detail="a test asks"))
                outcomes.append("made")
            except InferSwarmError as error:
                outcomes.append(f"not made: {error}")

        def disturb(epoch: int | None = swarm.status().epoch, at_cut_over: bool = number % 2 == 0) -> None:
            if at_cut_over:
                wait_until(lambda: swarm.status().epoch != epoch, 4 * CHANGE_SECONDS)
            time.sleep(rig.chance.uniform(0.0, 0.2 if at_cut_over else CHANGE_SECONDS))
            stage = rig.any_stage()
            os.kill(stage.pid, rig.chance.choice((signal.SIGKILL, signal.SIGSTOP)))

        threads = [threading.Thread(target=change), threading.Thread(target=disturb)]

        def on_first(seen: int, threads: list[threading.Thread] = threads) -> None:
            if seen == 10:
                for thread in threads:
                    thread.start()

        answers, seen = rig.answer_all(on_first, questions)
        for thread in threads:
            thread.join(120.0)
        print(f"round {number}: {outcomes}", flush=True)
        assert_undisturbed(answers, seen, wanted)
        assert len(outcomes) == 1, "whoever asked for the change was never told"
        told[outcomes[0].partition(":")[0]] += 1
        assert wait_until(lambda: swarm.status().epoch is not None, 60.0), "nothing serves"
    client.ask(m.Retire())
    print(dict(told))
