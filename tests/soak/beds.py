"""The swarms that a soak runs on: three Nodes, over the real model or over the null backend.

Both offer the same few things: a client, questions with the answers that an undisturbed run gives, plans over every
non-empty set of Nodes, and agents and a Coordinator that can be started again after their end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from inferswarm.errors import EngineError, SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.fabric.engines.base import Engine, NodeLaunch
from inferswarm.planner import Workload
from inferswarm.resources import Envelope
from inferswarm.strategies.sampling import choose_sampling
from inferswarm.swarm import Model, Swarm
from tests.integration.null_swarm import NODE_NAMES, NullSwarm, assign_all, expected, null_plan
from tests.orders import order_over, realize_first
from tests.unit.fabric.processes import Identity, descendants, identify, wait_until

JOIN_SECONDS = 90.0
"""Within which a Node that was started again must be a member, however busy the machine is."""
PATIENCE_SECONDS = 60.0
SESSIONS = 3
ENVELOPE_BYTES = 1_500_000_000


class Wanted(NamedTuple):
    """What an answer must be, whatever happens while it is computed."""

    tokens: tuple[int, ...]
    logits_digests: tuple[str, ...]


class Bed(Protocol):
    """A running swarm with questions and what they must be answered with."""

    names: tuple[str, ...]
    client: Client
    engine: Engine
    ledger: Path
    scope: str
    choices: tuple[m.Fallback, ...]
    model_path: str | None
    questions: tuple[m.Generate, ...]
    wanted: tuple[Wanted, ...]

    def start_agent(self, name: str) -> None:
        """Start the agent of a Node whose agent has ended, without waiting for it."""

    def close(self) -> None:
        """Stop everything; the ledger stays."""


def subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return every non-empty set of Nodes, the largest first."""
    sizes = range(len(names), 0, -1)
    return [chosen for size in sizes for chosen in itertools.combinations(names, size)]


def order_of_all(bed: Bed) -> m.Realize:
    """Return the question that realizes the bed's first plan, with all others to go on with."""
    return realize_first(bed.model_path, bed.choices)


def status_of(bed: Bed) -> m.SwarmStatus:
    """Return the Coordinator's view. Raises EngineError while there is no Coordinator."""
    answer = bed.client.ask(m.Status(), timeout_seconds=10.0)
    assert isinstance(answer, m.SwarmStatus)
    return answer


def coordinator_of(bed: Bed) -> Identity | None:
    """Return the Coordinator's process; None while there is none."""
    found = [info for info in bed.engine.processes() if info.role == "coordinator" and info.exit_status is None]
    return identify(found[0].pid) if found else None


def agents_of(bed: Bed) -> dict[str, Identity]:
    """Return the agents that run, by the Node's name."""
    found = {}
    for info in bed.engine.processes():
        if info.role.startswith("agent ") and info.exit_status is None:
            try:
                found[info.role.removeprefix("agent ")] = identify(info.pid)
            except psutil.NoSuchProcess:
                continue
    return found


def stages_of(agent: Identity) -> list[Identity]:
    """Return the stages of an agent."""
    try:
        return descendants(agent.pid)
    except psutil.NoSuchProcess:
        return []


def wait_for_member(bed: Bed, name: str, *, there: bool) -> bool:
    """Wait until a Node is a member, or is none any more; False when that takes too long."""

    def is_so() -> bool:
        try:
            return (name in {node.name for node in status_of(bed).nodes}) is there
        except EngineError:
            return False  # there is no Coordinator at this moment

    return wait_until(is_so, JOIN_SECONDS)


class NullBed:
    """Three Nodes that compute nothing: what they answer is known without them."""

    def __init__(self, directory: Path) -> None:
        """Start the swarm; nothing is realized yet."""
        self.names = NODE_NAMES
        self.scope = "null"
        self.ledger = directory / "ledger"
        self._swarm = NullSwarm(directory, NODE_NAMES, patience_seconds=PATIENCE_SECONDS)
        assert self._swarm.client is not None
        self.client, self.engine = self._swarm.client, self._swarm.engine
        self.model_path = None
        plans = [null_plan(names, sessions=SESSIONS, max_positions=4096) for names in subsets(self.names)]
        self.choices = tuple(m.Fallback(plan=plan, assignments=assign_all(plan), run_ahead=2) for plan in plans)
        prompts = (tuple(range(100)), tuple(range(50, 70)), (7,), tuple(range(900, 933)))
        lengths = (300, 900, 1500, 40)
        self.questions = tuple(
            m.Generate(token_ids=prompt, max_tokens=length) for prompt, length in zip(prompts, lengths, strict=True)
        )
        answers = [expected(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
        self.wanted = tuple(Wanted(answer.tokens, answer.logits_digests) for answer in answers)

    def start_agent(self, name: str) -> None:
        self._swarm.agents[name] = self._swarm.start_agent(name)

    def close(self) -> None:
        self._swarm.stop()


class ModelBed:
    """Three Nodes of one thread each over SmolLM2; what it must answer is what it answers before anything happens."""

    def __init__(self, directory: Path) -> None:
        """Start the swarm, realize the plan over all Nodes, and answer every question once."""
        self.names = NODE_NAMES
        self.scope = "soak"
        self.ledger = directory / "soak.ledger"
        model = Model("smollm2-135m")
        nodes = [Envelope(name=name, threads=1, memory_bytes=ENVELOPE_BYTES) for name in self.names]
        self._swarm = Swarm.local(nodes, state=directory, name=self.scope)
        self.client, self.engine = self._swarm._connected(), self._swarm._engine
        self.model_path = str(model.path)
        workload = Workload(prompt_tokens=128, output_tokens=128, concurrency=SESSIONS)
        self.choices = tuple(order_over(self._swarm, model, names, workload) for names in subsets(self.names))
        drawn = choose_sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.2, seed=11, logprobs=1)
        rivers = m.ChatMessage("user", "Name three rivers in Europe and one city on each.")
        self.questions = (
            m.Generate(chat=(rivers,), max_tokens=60, ignore_stop=True),
            m.Generate(text="Zürich, 東京 und São Paulo 🌍: 你好 means " * 3, max_tokens=40, sampling=drawn),
            m.Generate(token_ids=tuple(range(100, 200)), max_tokens=24, ignore_stop=True),
            m.Generate(text="Once upon a time", max_tokens=100, ignore_stop=True, stop=("zzzz",)),
        )
        self.client.ask(order_of_all(self))
        self.wanted = tuple(self._answered(question) for question in self.questions)
        self.client.ask(m.Retire())

    def _answered(self, question: m.Generate) -> Wanted:
        answer = self.client.ask(question)
        assert isinstance(answer, m.Generated)
        return Wanted(answer.record.tokens, answer.record.logits_digests)

    def start_agent(self, name: str) -> None:
        (node,) = [node for node in self._swarm.graph.document.nodes if node.name == name]
        self.engine.start_agent(NodeLaunch(node.id, name, ENVELOPE_BYTES))

    def close(self) -> None:
        self._swarm.close()


BEDS: dict[str, Callable[[Path], Bed]] = {"null": NullBed, "smollm2": ModelBed}


def open_bed(backend: str, directory: Path) -> Bed:
    """Start the swarm of a backend. Raises SpecError for one that is not there."""
    if backend not in BEDS:
        raise SpecError("backend", backend, f"one of {sorted(BEDS)}")
    return BEDS[backend](directory)
