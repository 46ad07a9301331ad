"""Real processes over the null backend: answers, replays, concurrency, hostile frames, and stages that are killed."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
import xxhash
import zmq

from inferswarm.backends.partition import Partition, session_steps
from inferswarm.documents import read_document
from inferswarm.errors import AdmissionError, CommitRefused, SpecError, WireError
from inferswarm.fabric import messages as m
from inferswarm.fabric.client import Client
from inferswarm.fabric.faults import to_error
from inferswarm.fabric.frames import PROTOCOL, Address, FrameKind, encode
from inferswarm.fabric.proc import maps_torch
from inferswarm.fabric.terms import ResultBody
from inferswarm.fabric.transport import Outbox
from tests.integration.null_swarm import LongAnswer, NullSwarm, expected, listening_ports, node_id
from tests.unit.fabric.processes import all_gone, wait_until

PROMPT = tuple(range(20))
LATE = {
    "RETIRED_OR_SUPERSEDED_EPOCH",
    "NO_ACTIVE_AUTHORITY",
    "SESSION_MISMATCH",
    "MALFORMED_FRAME",
    "UNKNOWN_REALIZATION",
    "ADOPTION_REFUSED",
    "REALIZATION_NOT_READY",
    "LEASE_LAPSED",
}
"""Codes of what a lost route may still bring, and of what is tried with stages that are lost meanwhile, also while a
busy machine lets a lease be renewed late."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NullSwarm]:
    with NullSwarm(tmp_path_factory.mktemp("swarm"), ("amber", "birch", "cedar")) as swarm:
        yield swarm


@pytest.fixture
def two(swarm: NullSwarm) -> Iterator[NullSwarm]:
    """The swarm with a fresh epoch over two of its Nodes."""
    swarm.realize(("amber", "birch"))
    yield swarm
    swarm.ask(m.Retire())


class Sender:
    """Puts frames into an inbox of the swarm, as anybody on this machine could."""

    def send(self, port: int, *frames: tuple[bytes | memoryview, ...], damaged: int = 0) -> None:
        """Send frames; each of the first `damaged` over a connection of its own, which it ends."""
        outbox = Outbox(f"tcp://127.0.0.1:{port}")
        for index, parts in enumerate(frames):
            outbox.send(parts)
            if index < damaged:
                outbox.close()
        outbox.close()


@pytest.fixture
def sender() -> Sender:
    return Sender()


def results_port(swarm: NullSwarm) -> int:
    """Return the port of the Coordinator's inbox for results: the one that is not for clients."""
    (port,) = listening_ports(swarm.coordinator().pid) - {int(swarm.endpoint.rpartition(":")[2])}
    return port


def result_frame(address: Address, session: int, position: int, token: int = 7) -> tuple[bytes | memoryview, ...]:
    body = msgspec.msgpack.encode(ResultBody(token, f"{token:032x}", 1.0))
    return encode(address.header(FrameKind.RESULT, session, position=position), body)


# -- answers --


@pytest.mark.parametrize("nodes", [("amber",), ("birch", "amber"), ("cedar", "amber", "birch")], ids=len)
@pytest.mark.parametrize("run_ahead", [0, 2])
def test_every_route_gives_the_tokens_of_one_process(
    swarm: NullSwarm, nodes: tuple[str, ...], run_ahead: int
) -> None:
    swarm.realize(nodes, run_ahead=run_ahead)
    answer = swarm.generate(PROMPT, 25)
    alone = expected(PROMPT, 25)
    assert answer.record.tokens == alone.tokens
    assert answer.record.logits_digests == alone.logits_digests
    assert answer.finish_reason == "length"
    assert [report.positions for report in answer.reports] == [len(PROMPT) + 25 - 1] * len(nodes)
    assert [report.node_id for report in answer.reports] == [node_id(name) for name in nodes]
    partition = read_document(Partition, answer.record.partition, "partition")
    assert partition.steps == session_steps(len(PROMPT), 25, 8) == alone.steps
    assert answer.record.state == "COMPLETED"
    assert all(report.refusals == () for report in swarm.stage_reports())
    swarm.ask(m.Retire())


def test_tokens_are_seen_in_order_and_are_what_the_ledger_holds(two: NullSwarm) -> None:
    events: list[object] = []
    answer = two.generate(PROMPT, 30, events.append)
    admitted, *_ = events
    assert isinstance(admitted, m.SessionAdmitted)  # before any work
    assert admitted.session == answer.record.session
    seen = [event for event in events if isinstance(event, m.TokenCommitted)]
    assert [event.position for event in seen] == list(range(len(PROMPT), len(PROMPT) + 30))
    assert tuple(event.token for event in seen) == answer.record.tokens
    assert two.record(answer.record.session) == answer.record


def test_a_replay_is_equal_and_is_a_session_of_its_own(two: NullSwarm) -> None:
    original = two.generate(PROMPT, 20).record
    replay = two.ask(m.Replay(session=original.session))
    assert isinstance(replay, m.Generated)
    assert replay.record.logits_digests == original.logits_digests
    assert replay.record.tokens == original.tokens
    assert replay.record.replay_of == original.session
    assert replay.record.session > original.session
    longer = two.ask(m.Replay(session=original.session, max_tokens=25))
    assert isinstance(longer, m.Generated)
    assert longer.record.tokens == expected(PROMPT, 25).tokens


def test_two_clients_at_once_get_their_own_answers(two: NullSwarm) -> None:
    prompts = [(1, 2, 3), (4, 5, 6, 7)]
    seen: dict[int, list[m.TokenCommitted]] = {0: [], 1: []}
    times: dict[int, list[float]] = {0: [], 1: []}

    def ask(index: int) -> None:
        def on_event(event: object) -> None:
            if isinstance(event, m.TokenCommitted):
                seen[index].append(event)
                times[index].append(time.monotonic())

        client = Client(two.endpoint, two.token, two.engine.check)
        client.ask(m.Generate(token_ids=prompts[index], max_tokens=200), on_event)
        client.close()

    threads = [threading.Thread(target=ask, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, prompt in enumerate(prompts):
        assert tuple(event.token for event in seen[index]) == expected(prompt, 200).tokens
        assert len({event.session for event in seen[index]}) == 1
    assert seen[0][0].session != seen[1][0].session
    assert max(times[0][0], times[1][0]) < min(times[0][-1], times[1][-1]), "they did not run together"


def test_more_sessions_than_the_plan_has_room_for_are_refused(two: NullSwarm) -> None:
    answers = [LongAnswer(two, PROMPT, 700), LongAnswer(two, PROMPT, 700)]
    for answer in answers:
        answer.wait_for(1)
    with pytest.raises(AdmissionError, match="at most 2"):
        two.generate(PROMPT, 1)
    for answer in answers:
        assert answer.join().record.tokens == expected(PROMPT, 700).tokens
    assert two.generate(PROMPT, 1).finish_reason == "length"


# -- who may speak, and what is refused --


def test_a_wrong_token_is_turned_away(swarm: NullSwarm) -> None:
    client = Client(swarm.endpoint, "wrong", swarm.engine.check)
    with pytest.raises(SpecError) as refused:
        client.ask(m.Status(), timeout_seconds=10.0)
    client.close()
    assert refused.value.field == "token"
    assert swarm.token not in str(refused.value)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (m.Ask(request=1, question=m.Status()), SpecError),
        (m.Hello(token="", protocol=PROTOCOL), SpecError),
        (m.StageHello(pid=1, endpoint=""), WireError),
        (b"garbage", WireError),
    ],
    ids=["no greeting", "empty token", "not for a Coordinator", "garbage"],
)
def test_who_does_not_greet_properly_is_turned_away(swarm: NullSwarm, message: object, kind: type) -> None:
    error = to_error(turned(swarm, message).fault)
    assert type(error) is kind


def test_another_protocol_is_turned_away(swarm: NullSwarm) -> None:
    error = to_error(turned(swarm, m.Hello(token=swarm.token, protocol=PROTOCOL + 1)).fault)
    assert isinstance(error, WireError)
    assert error.code == "PROTOCOL_MISMATCH"


def test_a_beat_of_a_stranger_is_turned_away(swarm: NullSwarm) -> None:
    asked = told(swarm, m.Beat(node_id=node_id("amber"), incarnation="stolen"))
    assert asked == m.Greet(term=swarm.status().term), "it is asked who it is, and nothing else happens"
    assert len(swarm.status().nodes) == 3


def turned(swarm: NullSwarm, message: object) -> m.Turned:
    """Send one message to the Coordinator and return its refusal."""
    answer = told(swarm, message)
    assert isinstance(answer, m.Turned)
    return answer


def told(swarm: NullSwarm, message: object) -> object:
    """Send one message to the Coordinator and return its answer."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(swarm.endpoint)
    socket.send(message if isinstance(message, bytes) else msgspec.msgpack.encode(message))
    assert socket.poll(10_000)
    answer: object = msgspec.msgpack.decode(socket.recv(), type=m.Turned | m.Greet)
    context.destroy(linger=0)
    return answer


def test_a_late_result_of_a_retired_epoch_changes_nothing(swarm: NullSwarm, sender: Sender) -> None:
    swarm.realize(("amber", "birch"))
    old, old_session = swarm.address(), swarm.generate(PROMPT, 3).record
    swarm.ask(m.Retire())
    swarm.realize(("amber", "birch"))
    answer = LongAnswer(swarm, PROMPT, 600)
    answer.wait_for(5)
    before = swarm.refusals()
    ahead = len(PROMPT) + 600
    sender.send(
        results_port(swarm),
        result_frame(old, old_session.session, len(PROMPT) + 3),
        *(result_frame(old, answer.session, position) for position in range(len(PROMPT), ahead, 50)),
    )
    assert answer.join().record.tokens == expected(PROMPT, 600).tokens
    assert swarm.record(old_session.session) == old_session
    assert wait_until(lambda: swarm.refusals() != before, 5.0)
    grown = {code: count - before.get(code, 0) for code, count in swarm.refusals().items()}
    assert {code: count for code, count in grown.items() if count} == {"RETIRED_OR_SUPERSEDED_EPOCH": 13}
    swarm.ask(m.Retire())


def test_hostile_frames_at_the_coordinator_are_counted_and_it_serves_on(two: NullSwarm, sender: Sender) -> None:
    here, port, before = two.address(), results_port(two), two.refusals()
    answer = LongAnswer(two, PROMPT, 1000)
    answer.wait_for(5)
    body = msgspec.msgpack.encode(ResultBody(7, "0", 1.0))
    wrong_plan, wrong_realization = here._replace(plan="0" * 12), here._replace(realization="another")
    head, payload, checksum = result_frame(here, answer.session, len(PROMPT))
    far = len(PROMPT) + 999
    sender.send(
        port,
        (head, payload, bytes(8)),
        (b"\xc1", payload, xxhash.xxh3_64_digest(b"\xc1" + bytes(payload))),
        result_frame(wrong_plan, answer.session, far),
        result_frame(wrong_realization, answer.session, far),
        result_frame(here, answer.session, far),
        result_frame(here, answer.session, 0),
        result_frame(here, 9999, far),
        encode(here.header(FrameKind.RESULT, answer.session, position=far), b"\xc1"),
        encode(here.header(FrameKind.FAULT, answer.session), b"\xc1"),
        encode(here.header(FrameKind.CLOSED, answer.session), b"\xc1"),
        encode(wrong_realization.header(FrameKind.FAULT, answer.session), body),
        encode(here.header(99, answer.session)),  # type: ignore[arg-type]
        encode(here.header(99, 9999)),  # type: ignore[arg-type]
        encode(here.header(FrameKind.FAULT, 9999), body),
        damaged=2,
    )
    assert answer.join().record.tokens == expected(PROMPT, 1000).tokens
    assert checksum != bytes(8)

    def grown() -> dict[str, int]:
        return {code: count - before.get(code, 0) for code, count in two.refusals().items()}

    assert wait_until(lambda: sum(grown().values()) == 14, 5.0), grown()
    assert {code: count for code, count in grown().items() if count} == {
        "CHECKSUM_MISMATCH": 1,
        "MALFORMED_FRAME": 1,
        "PLAN_DIGEST_MISMATCH": 1,
        "WRONG_REALIZATION": 2,
        "NON_NEXT_COMMIT_POSITION": 1,
        "MALFORMED_POSITION": 1,
        "MALFORMED_PAYLOAD": 3,
        "UNKNOWN_OPERATION": 2,
        "SESSION_MISMATCH": 2,
    }


def test_corrupted_frames_at_a_stage_are_refused_and_the_answer_is_right(two: NullSwarm, sender: Sender) -> None:
    here = two.address()
    ports = [port for process in two.stages() for port in listening_ports(process.pid)]
    answer = LongAnswer(two, PROMPT, 1000)
    answer.wait_for(5)
    for index, port in enumerate(ports):
        kind = FrameKind.BOUNDARY if index else FrameKind.INPUT
        good = encode(here.header(kind, answer.session, position=len(PROMPT) + 990, count=1, sample=True), bytes(256))
        flipped = bytearray(good[1])
        flipped[17] ^= 4
        stale = encode(here._replace(epoch=here.epoch - 1).header(kind, answer.session), bytes(256))
        echo = encode(Address("probe", 0, "tcp://127.0.0.1:9", "").header(FrameKind.ECHO, 0), bytes(256))
        no_header = (b"\xc1", good[1], xxhash.xxh3_64_digest(b"\xc1" + bytes(good[1])))
        sender.send(port, (good[0], bytes(flipped), good[2]), no_header, stale, good, echo, damaged=2)
        with socket.create_connection(("127.0.0.1", port)) as noise:
            noise.sendall(b"\xff" * 64)  # lengths that make no sense
    assert answer.join().record.tokens == expected(PROMPT, 1000).tokens
    for report in two.stage_reports():
        assert dict(report.refusals) == {
            "CHECKSUM_MISMATCH": 1,
            "FRAME_TOO_LONG": 1,
            "MALFORMED_FRAME": 1,
            "RETIRED_OR_SUPERSEDED_EPOCH": 1,
            "NON_NEXT_POSITION": 1,
            "WRONG_SCOPE": 1,
        }


def test_a_second_epoch_beside_an_active_one_is_refused(two: NullSwarm) -> None:
    before = two.status()
    with pytest.raises(CommitRefused) as refused:
        two.realize(("cedar",))
    assert refused.value.code == "SCOPE_ALREADY_OWNED"
    assert two.status().epoch == before.epoch
    assert two.generate(PROMPT, 5).record.tokens == expected(PROMPT, 5).tokens


def test_no_process_of_the_fabric_has_loaded_torch(two: NullSwarm) -> None:
    assert [maps_torch(process.pid) for process in two.processes()] == [False] * 6


# -- stages that die --


@pytest.mark.parametrize(("victims", "seed"), [((0,), 1), ((1,), 2), ((2,), 3), ((2, 0), 4), ((0, 1, 2), 5)], ids=str)
def test_an_answer_goes_on_as_if_nothing_had_happened_when_stages_are_killed(
    swarm: NullSwarm, victims: tuple[int, ...], seed: int
) -> None:
    epoch = swarm.realize(("cedar", "amber", "birch")).epoch
    stages, before = swarm.stages(), swarm.refusals()
    answers = [LongAnswer(swarm, PROMPT, 1500), LongAnswer(swarm, PROMPT[:3], 1400)]
    for answer in answers:
        answer.wait_for(3 + 20 * seed, seed)
    for victim in victims:
        os.kill(stages[victim].pid, signal.SIGKILL)
    for answer, prompt, num_tokens in zip(answers, (PROMPT, PROMPT[:3]), (1500, 1400), strict=True):
        record = answer.join().record
        assert record.tokens == tuple(answer.tokens) == expected(prompt, num_tokens).tokens
        assert record.logits_digests == expected(prompt, num_tokens).logits_digests
        assert (record.state, record.epoch) == ("COMPLETED", epoch)
    serving = swarm.status().epoch
    assert serving is not None
    assert serving > epoch
    assert {code for code, count in swarm.refusals().items() if count > before.get(code, 0)} <= LATE
    assert swarm.generate(PROMPT, 5, epoch=epoch).record.epoch == serving, "the service is the same one"
    swarm.ask(m.Retire(epoch=epoch))
    assert swarm.status().epoch is None
    assert all_gone(stages, 5.0), "a stage was not reclaimed"


def test_a_stage_killed_while_nothing_is_asked_is_replaced(swarm: NullSwarm) -> None:
    epoch = swarm.realize().epoch
    stages = swarm.stages()
    os.kill(stages[1].pid, signal.SIGKILL)
    assert wait_until(lambda: swarm.status().epoch == epoch + 1, 10.0)
    assert swarm.generate(PROMPT, 5).record.tokens == expected(PROMPT, 5).tokens
    swarm.ask(m.Retire())
    assert all_gone(stages, 5.0)
    assert len(swarm.status().nodes) == 3


def test_a_stage_that_falls_silent_is_taken_for_lost_and_replaced(swarm: NullSwarm) -> None:
    swarm.realize()
    stages = swarm.stages()
    answer = LongAnswer(swarm, PROMPT, 1500)
    answer.wait_for(10, seed=31)
    os.kill(stages[1].pid, signal.SIGSTOP)  # all its sockets stay open, and it says nothing any more
    assert answer.join().record.tokens == expected(PROMPT, 1500).tokens
    assert all_gone([stages[1]], 0.0)
    swarm.ask(m.Retire())
    assert all_gone(stages, 5.0)


def test_retiring_stops_the_stages_and_keeps_the_nodes(swarm: NullSwarm) -> None:
    swarm.realize()
    stages = swarm.stages()
    swarm.ask(m.Retire())
    assert all_gone(stages, 0.5), "retiring returned before the stages had gone"
    assert swarm.status().epoch is None
    assert len(swarm.status().nodes) == 3
    swarm.ask(m.Retire())


def test_retiring_in_the_middle_of_an_answer_cancels_it_and_keeps_what_was_committed(swarm: NullSwarm) -> None:
    swarm.realize()
    answer = LongAnswer(swarm, PROMPT)
    answer.wait_for(10)
    swarm.ask(m.Retire())
    error = answer.error()
    assert isinstance(error, CommitRefused)
    assert error.code == "RETIRED_OR_SUPERSEDED_EPOCH"
    record = swarm.record(answer.session)
    assert (record.state, record.reason) == ("CANCELLED", "retired on request")
    assert record.tokens == expected(PROMPT, len(record.tokens)).tokens
    assert len(record.tokens) >= 10
    assert f"{len(record.tokens)} committed tokens are kept" in str(error)
    partition = read_document(Partition, record.partition, "partition")
    assert partition.steps == session_steps(len(PROMPT), len(record.tokens), 8)


def test_a_preparation_that_fails_leaves_nothing_behind(swarm: NullSwarm) -> None:
    before = {process.pid for process in swarm.processes()}
    with pytest.raises(CommitRefused) as refused:
        swarm.realize(("amber", "dogwood"))
    assert refused.value.code == "NODE_NOT_A_MEMBER"
    assert wait_until(lambda: {process.pid for process in swarm.processes()} == before, 5.0)
    assert swarm.realize(("amber", "birch")).epoch > 0
    swarm.ask(m.Retire())
