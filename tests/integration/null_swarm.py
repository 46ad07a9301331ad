"""A swarm of real processes over the null backend: no model, no torch, everything else as it is.

As a program (`python -m tests.integration.null_swarm DIRECTORY`) it is a façade for tests to end by signals: it
starts such a swarm, says what it started, and answers one long prompt, with a line of JSON for each step.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import psutil

from inferswarm.backends.base import StageAssignment, UnitThreads
from inferswarm.backends.direct import DirectResult, run_direct
from inferswarm.backends.null import NullExecutor
from inferswarm.documents import digest
from inferswarm.errors import InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.fabric.engines.base import Engine, NodeLaunch
from inferswarm.fabric.engines.local import LocalEngine, LocalSettings
from inferswarm.fabric.frames import Address, plan_prefix
from inferswarm.fabric.recovery_records import TransitionMode, Trigger
from inferswarm.fabric.stage_liveness import SILENT_SECONDS
from inferswarm.planner.plan import ExecutionPlan, MemoryAccount, Placement
from inferswarm.planner.problem import Workload
from inferswarm.strategies.dense.description import plain_decoder
from tests.unit.fabric.processes import Identity, descendants, identify, wait_until

NODE_NAMES = ("amber", "birch", "cedar")
LEASE_SECONDS = 1.5
LONG = 20_000
"""Tokens of an answer that is not waited for: half a minute of work."""
DESCRIPTION = plain_decoder(
    architecture="null",
    vocabulary_size=1000,
    hidden_size=64,
    feed_forward_size=64,
    num_blocks=6,
    num_heads=4,
    num_key_value_heads=4,
    head_size=16,
    context_positions=100_000,
    rope_base=10000.0,
    norm_epsilon=1e-5,
    tied_head=True,
)
NUM_UNITS = len(DESCRIPTION.unit_ids)
CUTS = {1: (), 2: (3,), 3: (2, 5)}


def node_id(name: str) -> str:
    """Return the id of the Node with that name."""
    return f"node-{name}"


def null_plan(
    nodes: Sequence[str], *, sessions: int = 2, primitive: str = "null", max_positions: int = 2 * LONG
) -> ExecutionPlan:
    """Return a plan of one stage on each Node, in the given order. Other primitives run it with random states."""
    edges = [0, *CUTS[len(nodes)], NUM_UNITS]
    account = MemoryAccount(memory_id="none", capacity_bytes=1, reserved_bytes=0, terms=())
    placements = tuple(
        Placement(
            participant=f"stage-{index}",
            node_id=node_id(name),
            node_name=name,
            compute_unit_id=f"cpu-{name}",
            threads=1,
            first_unit=edges[index],
            end_unit=edges[index + 1],
            unit_ids=DESCRIPTION.unit_ids[edges[index] : edges[index + 1]],
            states=(),
            memory=account,
        )
        for index, name in enumerate(nodes)
    )
    return ExecutionPlan(
        problem_digest="none",
        graph_digest="none",
        primitive=primitive,
        representation="fp32",
        workload=Workload(),
        chunk_positions=8,
        max_positions=max_positions,
        sessions=sessions,
        placements=placements,
        prediction=None,
    )


def assign(plan: ExecutionPlan, participant: str, first_unit: int, end_unit: int) -> StageAssignment:
    """Return the assignment of a part of a null plan."""
    return StageAssignment(
        participant=participant,
        plan_digest=digest(plan),
        primitive=plan.primitive,
        representation=plan.representation,
        description=DESCRIPTION,
        first_unit=first_unit,
        end_unit=end_unit,
        threads=(UnitThreads(first_unit, end_unit, 1),),
        requirement=None,
        max_positions=plan.max_positions,
        sessions=plan.sessions,
        chunk_positions=plan.chunk_positions,
    )


def assign_all(plan: ExecutionPlan) -> tuple[StageAssignment, ...]:
    """Return the assignments of a null plan."""
    return tuple(assign(plan, item.participant, item.first_unit, item.end_unit) for item in plan.placements)


def order_of(
    plan: ExecutionPlan,
    *,
    run_ahead: int = 2,
    text_of: Path | None = None,
    paths: tuple[m.PathUse, ...] = (),
    fallbacks: Sequence[Sequence[str]] = (),
) -> m.Realize:
    """Return the question that asks for a null plan, with null plans over other Nodes to fall back on."""
    others = [null_plan(names) for names in fallbacks]
    return m.Realize(
        plan=plan,
        assignments=assign_all(plan),
        model_path=None if text_of is None else str(text_of),
        run_ahead=run_ahead,
        paths=paths,
        fallbacks=tuple(
            m.Fallback(plan=other, assignments=assign_all(other), run_ahead=run_ahead) for other in others
        ),
    )


def expected(prompt: Sequence[int], num_tokens: int) -> DirectResult:
    """Return what the null backend answers in one process, without any fabric."""
    plan = null_plan(NODE_NAMES[:1])
    executor = NullExecutor(assign(plan, "alone", 0, NUM_UNITS))
    executor.materialize(lambda done, total: None)
    return run_direct(executor, prompt, max_tokens=num_tokens, chunk_positions=plan.chunk_positions)


class NullSwarm:
    """Coordinator, agents and a client. Use it in a `with`: the end stops everything."""

    def __init__(
        self,
        directory: Path,
        nodes: Sequence[str] = NODE_NAMES[:2],
        *,
        ledger: str = "ledger",
        scope: str = "null",
        port: int = 0,
        limit_bytes: int | None = None,
        remove_directory: bool = False,
        patience_seconds: float = 15.0,
        grace_seconds: float = 30.0,
        silent_seconds: float = SILENT_SECONDS,
        mechanism: str = "auto",
    ) -> None:
        """Start Coordinator and agents, and wait until every Node is a member."""
        self.nodes = tuple(nodes)
        self.token = secrets.token_hex(8)
        self.settings = LocalSettings(
            scope=scope,
            ledger=str(directory / ledger),
            token=self.token,
            port=port,
            lease_seconds=LEASE_SECONDS,
            remove_directory=str(directory) if remove_directory else None,
            patience_seconds=patience_seconds,
            grace_seconds=grace_seconds,
            silent_seconds=silent_seconds,
            mechanism=mechanism,
        )
        self.engine = self.make_engine()
        self.client: Client | None = None
        self.limit_bytes = limit_bytes
        self.plan: ExecutionPlan | None = None
        self.realized: m.Realized | None = None
        try:
            self.endpoint = self.engine.start_coordinator()
            self.client = Client(self.endpoint, self.token, self.engine.check)
            self.agents = {name: self.start_agent(name) for name in self.nodes}
            self.wait_for_nodes(len(self.nodes))
        except BaseException:
            self.stop()
            raise

    def make_engine(self) -> Engine:
        """Return the engine that starts everything."""
        return LocalEngine(self.settings)

    def start_agent(self, name: str) -> Identity:
        """Start the agent of a Node."""
        return identify(self.engine.start_agent(NodeLaunch(node_id(name), name, self.limit_bytes)))

    def replace_agent(self, name: str) -> Identity:
        """Start another agent for a Node whose agent has ended."""
        ended = self.engine._agents.pop(self.nodes.index(name))
        ended.let_go()
        ended.wait_until_gone(time.monotonic())
        return self.start_agent(name)

    def restart_coordinator(self) -> None:
        """Kill the Coordinator and start another one, on the same ledger and at the same endpoint."""
        os.kill(self.coordinator().pid, signal.SIGKILL)
        assert wait_until(lambda: self.engine.processes()[0].exit_status is not None, 5.0)
        assert self.engine.start_coordinator() == self.endpoint

    def wait_for_nodes(self, num_nodes: int, seconds: float = 20.0) -> m.SwarmStatus:
        """Wait until so many Nodes are members."""

        def there() -> bool:
            self.engine.check_agents()
            return len(self.status().nodes) == num_nodes

        assert wait_until(there, seconds), self.status()
        return self.status()

    def wait_for_others(self, incarnations: set[str]) -> None:
        """Wait until every Node is a member again, none of them as one of these incarnations."""

        def there() -> bool:
            found = {node.incarnation for node in self.status().nodes}
            return len(found) == len(self.nodes) and not found & incarnations

        assert wait_until(there, 20.0), self.status()

    def ask(self, question: m.Question, on_event: Callable[[object], None] | None = None) -> m.ClientAnswer:
        """Ask the Coordinator, for at most a minute."""
        assert self.client is not None
        return self.client.ask(question, on_event, timeout_seconds=60.0)

    def status(self) -> m.SwarmStatus:
        """Return the Coordinator's view."""
        answer = self.ask(m.Status())
        assert isinstance(answer, m.SwarmStatus)
        return answer

    def refusals(self) -> dict[str, int]:
        """Return how many results and requests the Coordinator has refused, by code."""
        return dict(self.status().refusals)

    def node(self, name: str) -> m.NodeStatus:
        """Return one member."""
        return next(node for node in self.status().nodes if node.name == name)

    def realize(
        self,
        nodes: Sequence[str] | None = None,
        *,
        run_ahead: int = 2,
        plan: ExecutionPlan | None = None,
        text_of: Path | None = None,
        paths: tuple[m.PathUse, ...] = (),
        fallbacks: Sequence[Sequence[str]] = (),
    ) -> m.Realized:
        """Realize a plan: the given one, or a null plan over these Nodes (all of them when none are named).

        `text_of` is a model whose tokenizer the Coordinator uses; without one it knows token ids only. `paths` are
        the addresses that messages take between Nodes. `fallbacks` are Nodes of null plans to go on with.
        """
        plan = null_plan(self.nodes if nodes is None else nodes) if plan is None else plan
        question = order_of(plan, run_ahead=run_ahead, text_of=text_of, paths=paths, fallbacks=fallbacks)
        answer = self.ask(question)
        assert isinstance(answer, m.Realized)
        self.plan, self.realized = plan, answer
        return answer

    def change(
        self,
        nodes: Sequence[str],
        *,
        plan: ExecutionPlan | None = None,
        mode: TransitionMode = TransitionMode.MAKE_BEFORE_BREAK,
        trigger: Trigger = Trigger.REQUEST,
        epoch: int | None = None,
        fallbacks: Sequence[Sequence[str]] = (),
    ) -> m.Realized:
        """Go over to a null plan over these Nodes, or the given one, from `epoch` (None: the one in force)."""
        plan = null_plan(nodes) if plan is None else plan
        if epoch is None:
            epoch = self.status().epoch
            assert epoch is not None
        order = order_of(plan, fallbacks=fallbacks)
        answer = self.ask(m.Change(order=order, epoch=epoch, mode=mode, trigger=trigger, detail="a test asks for it"))
        assert isinstance(answer, m.Realized)
        self.plan, self.realized = plan, answer
        return answer

    def address(self) -> Address:
        """Return what the frames of the epoch that was realized last carry."""
        assert self.plan is not None
        assert self.realized is not None
        realized = self.realized
        return Address(self.settings.scope, realized.epoch, realized.realization, plan_prefix(digest(self.plan)))

    def stages(self) -> tuple[Identity, ...]:
        """Return the stage processes of the epoch that was realized last, in route order."""
        assert self.realized is not None
        return tuple(identify(pid) for pid in self.realized.pids)

    def generate(
        self,
        prompt: Sequence[int],
        num_tokens: int,
        on_event: Callable[[object], None] | None = None,
        **fields: Any,
    ) -> m.Generated:
        """Answer a prompt; `fields` are further ones of the question."""
        answer = self.ask(m.Generate(token_ids=tuple(prompt), max_tokens=num_tokens, **fields), on_event)
        assert isinstance(answer, m.Generated)
        return answer

    def record(self, session: int) -> m.SessionRecord:
        """Return what the ledger holds of a session."""
        answer = self.ask(m.ShowSession(session=session))
        assert isinstance(answer, m.SessionRecord)
        return answer

    def stage_reports(self) -> tuple[m.StageReport, ...]:
        """Ask every stage what it has done."""
        answer = self.ask(m.StageReports())
        assert isinstance(answer, m.StageReportList)
        return answer.reports

    def coordinator(self) -> Identity:
        """Return the Coordinator's process."""
        return identify(next(info.pid for info in self.engine.processes() if info.role == "coordinator"))

    def processes(self) -> list[Identity]:
        """Return every process that was started, stages included."""
        own = [identify(info.pid) for info in self.engine.processes() if info.exit_status is None]
        return own + [child for process in own for child in descendants(process.pid)]

    def stop(self) -> None:
        """Stop everything."""
        if self.client is not None:
            self.client.close()
            self.client = None
        self.engine.stop()
        if self.settings.remove_directory is not None:
            shutil.rmtree(self.settings.remove_directory, ignore_errors=True)

    def __enter__(self) -> NullSwarm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class LongAnswer:
    """An answer under way in another thread, to do something to in the middle."""

    def __init__(
        self, swarm: NullSwarm, prompt: Sequence[int], num_tokens: int = LONG, *, patient: bool = False
    ) -> None:
        """Ask for it, for a minute at most; `patient`: as long as the Coordinator is the same and is there."""
        self._patient = patient
        self.session = 0
        self.tokens: list[int] = []
        self.outcome: m.Generated | InferSwarmError | None = None
        self.seconds = 0.0
        self._swarm = swarm
        self._question = m.Generate(token_ids=tuple(prompt), max_tokens=num_tokens)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            assert self._swarm.client is not None
            timeout_seconds = None if self._patient else 60.0
            answer = self._swarm.client.ask(self._question, self._seen, timeout_seconds)
            assert isinstance(answer, m.Generated)
            self.outcome = answer
        except InferSwarmError as error:
            self.outcome = error

    def _seen(self, event: object) -> None:
        if isinstance(event, m.TokenCommitted):
            self.session = event.session
            self.tokens.append(event.token)

    def wait_for(self, num_tokens: int, seed: int = 0) -> None:
        """Wait until that many tokens are committed, and then a random moment."""
        assert wait_until(lambda: len(self.tokens) >= num_tokens or self.outcome is not None, 30.0)
        assert self.outcome is None, f"ended before it was disturbed: {self.outcome}"
        pause = random.Random(seed).uniform(0.0, 0.02)
        print(f"after {num_tokens} tokens and {pause * 1000:.2f} ms (seed {seed})")
        time.sleep(pause)

    def join(self, seconds: float = 30.0) -> m.Generated:
        """Wait for the end, which must be an answer."""
        self._thread.join(seconds)
        assert isinstance(self.outcome, m.Generated), self.outcome
        return self.outcome

    def error(self, seconds: float = 20.0) -> InferSwarmError:
        """Wait for the end, which must be an error."""
        started = time.monotonic()
        self._thread.join(seconds)
        self.seconds = time.monotonic() - started
        assert not self._thread.is_alive(), "the client still waits"
        assert isinstance(self.outcome, InferSwarmError), self.outcome
        return self.outcome


def listening_ports(pid: int) -> set[int]:
    """Return the TCP ports that a process listens on."""
    connections = psutil.Process(pid).net_connections("tcp")
    return {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}


def can_be_bound(port: int) -> bool:
    """Whether nobody listens on a port of this machine's loopback any more."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def main() -> None:
    """Be a façade until the answer ends or a signal comes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    directory = Path(sys.argv[1])

    def say(**what: object) -> None:
        sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
        sys.stdout.flush()

    with NullSwarm(directory, limit_bytes=600_000_000, remove_directory=True) as swarm:
        swarm.realize()
        processes = swarm.processes()
        ports = {port for process in processes for port in listening_ports(process.pid)}
        say(processes=processes, ports=sorted(ports), pid=os.getpid())
        swarm.generate(range(20), LONG, lambda event: say(token=getattr(event, "token", None)))


if __name__ == "__main__":
    main()
