"""Frames over TCP: whole and in order, whatever the pieces; what makes no sense is refused and costs nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from inferswarm.errors import EngineError, WireError
from inferswarm.fabric.frames import MAX_FRAME_BYTES, Address, Frame, FrameKind, decode, encode
from inferswarm.fabric.transport import (
    MAX_HEADER_BYTES,
    Attention,
    Inbox,
    Outbox,
    pack,
    parse_endpoint,
    receive_frame,
)

ADDRESS = Address("scope", 1, "realization", "0" * 12)


def make_frame(number: int, payload: bytes = b"") -> tuple[bytes, bytes | memoryview, bytes]:
    return encode(ADDRESS.header(FrameKind.BOUNDARY, 7, position=number), payload)


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    made = Inbox("127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def raw(inbox: Inbox) -> Iterator[socket.socket]:
    connection = socket.create_connection(parse_endpoint(inbox.endpoint))
    yield connection
    connection.close()


def receive(inbox: Inbox, count: int, seconds: float = 5.0) -> list[Frame]:
    frames: list[Frame] = []
    deadline = time.monotonic() + seconds
    while len(frames) < count and time.monotonic() < deadline:
        frames += inbox.receive(0.05)
    return frames


def wait_for_refusal(inbox: Inbox) -> WireError:
    deadline = time.monotonic() + 5.0
    while not inbox.refusals:
        assert time.monotonic() < deadline
        assert inbox.receive(0.05) == []
    return inbox.refusals.popleft()


@pytest.mark.parametrize("size", [0, 1, 4096, 65_537, 3_000_001])
def test_frames_arrive_whole_and_in_order(inbox: Inbox, size: int) -> None:
    outbox = Outbox(inbox.endpoint)
    payloads = [bytes([number]) * size for number in range(3)]

    def send() -> None:
        for number, payload in enumerate(payloads):
            outbox.send(make_frame(number, payload))

    sender = threading.Thread(target=send)
    sender.start()
    frames = receive(inbox, 3)
    sender.join()
    outbox.close()
    assert [frame.header.position for frame in frames] == [0, 1, 2]
    assert [bytes(frame.payload) for frame in frames] == payloads
    assert not inbox.refusals


def test_a_frame_that_arrives_byte_by_byte_is_one_frame(inbox: Inbox, raw: socket.socket) -> None:
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b"".join(bytes(part) for part in pack(make_frame(3, b"payload"))):
        raw.sendall(bytes([byte]))
        inbox.receive(0.0)
    raw.sendall(b"".join(bytes(part) for part in pack(make_frame(4))))
    assert [frame.header.position for frame in receive(inbox, 1)][-1:] == [4]


def test_several_senders_do_not_mix(inbox: Inbox) -> None:
    outboxes = [Outbox(inbox.endpoint) for _ in range(5)]
    for number in range(20):
        for index, outbox in enumerate(outboxes):
            outbox.send(make_frame(number, bytes([index]) * 1000))
    frames = receive(inbox, 100)
    for index in range(5):
        assert [frame.header.position for frame in frames if frame.payload[0] == index] == list(range(20))
    for outbox in outboxes:
        outbox.close()


@pytest.mark.parametrize(
    ("head", "payload"), [(MAX_HEADER_BYTES + 1, 0), (10, MAX_FRAME_BYTES + 1), (2**32 - 1, 2**32 - 1)]
)
def test_lengths_that_make_no_sense_end_the_connection(
    inbox: Inbox, raw: socket.socket, head: int, payload: int
) -> None:
    raw.sendall(struct.pack("<II8s", head, payload, bytes(8)) + b"more")
    assert wait_for_refusal(inbox).code == "FRAME_TOO_LONG"
    raw.settimeout(5.0)
    with contextlib.suppress(ConnectionResetError):  # closed with unread bytes behind it
        assert raw.recv(1) == b""
    outbox = Outbox(inbox.endpoint)
    outbox.send(make_frame(1))
    assert [frame.header.position for frame in receive(inbox, 1)] == [1]
    outbox.close()


def test_a_damaged_frame_is_refused_and_ends_its_connection(inbox: Inbox, raw: socket.socket) -> None:
    """Whoever sent it must hear that something is missing: else it waits for ever for what follows.

    Mutation: keep the connection, and only count.
    """
    head, _, checksum = make_frame(1, b"payload")
    damaged = b"".join(bytes(part) for part in pack((head, b"pAyload", checksum)))
    raw.sendall(b"".join(bytes(part) for part in pack(make_frame(7))) + damaged)
    assert [frame.header.position for frame in receive(inbox, 1)] == [7]
    assert wait_for_refusal(inbox).code == "CHECKSUM_MISMATCH"
    raw.settimeout(5.0)
    with contextlib.suppress(ConnectionResetError):
        assert raw.recv(1) == b""
    outbox = Outbox(inbox.endpoint)
    outbox.send(make_frame(1))
    assert [frame.header.position for frame in receive(inbox, 1)] == [1]
    outbox.close()


def test_a_sender_that_ends_in_the_middle_of_a_frame_leaves_nothing(inbox: Inbox, raw: socket.socket) -> None:
    raw.sendall(b"".join(bytes(part) for part in pack(make_frame(1, b"payload")))[:-3])
    assert receive(inbox, 1, 0.2) == []
    raw.close()
    assert receive(inbox, 1, 0.2) == []
    assert not inbox.refusals


def test_sending_to_nobody_is_an_error_that_names_the_place() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(WireError, match=f"127.0.0.1:{port}") as caught:
        Outbox(f"tcp://127.0.0.1:{port}").send(make_frame(1))
    assert caught.value.code == "PEER_NOT_RECEIVING"


def test_a_peer_that_is_slow_is_waited_for_and_one_that_breaks_off_is_an_error() -> None:
    payload = bytes(64 * 2**20)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        outbox = Outbox(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        sent: list[object] = []

        def send() -> None:
            try:
                outbox.send(make_frame(1, payload))
                sent.append("first")
                outbox.send(make_frame(2, payload))
            except WireError as error:
                sent.append(error.code)

        sender = threading.Thread(target=send)
        sender.start()
        peer, _ = listener.accept()
        time.sleep(0.3)
        assert sent == []
        left = sum(len(part) for part in pack(make_frame(1, payload)))
        while left:
            left -= len(peer.recv(min(left, 2**20)))
        peer.close()
        sender.join(10.0)
    assert sent == ["first", "PEER_NOT_RECEIVING"]


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_sender_that_waits_looks_after_its_commands_and_gives_up_when_one_says_so(gives_up: bool) -> None:
    frame = make_frame(1, bytes(range(256)) * 2**15)
    ours, theirs = socket.socketpair()
    attended, sent = threading.Semaphore(0), list[object]()

    def attend() -> None:
        if ours.recv(1) == b"x":
            outbox.close()
        attended.release()

    with socket.create_server(("127.0.0.1", 0)) as listener, ours, theirs:
        outbox = Outbox(f"tcp://127.0.0.1:{listener.getsockname()[1]}", attention=Attention(ours.fileno(), attend))

        def send() -> None:
            try:
                outbox.send(frame)
                sent.append("whole")
            except WireError as error:
                sent.append(error.code)

        sender = threading.Thread(target=send)
        sender.start()
        peer, _ = listener.accept()
        for command in b"rr", b"x" if gives_up else b"r":
            theirs.sendall(command)
            for _ in command:
                assert attended.acquire(timeout=5.0)
        wire = b"".join(pack(frame))
        received = bytearray()
        with peer:
            while len(received) < len(wire) and (part := peer.recv(2**20)):
                received += part
        sender.join(10.0)
        outbox.close()
    assert sent == ["PEER_NOT_RECEIVING" if gives_up else "whole"]
    assert wire.startswith(received)
    assert (len(received) < len(wire)) == gives_up


@pytest.mark.parametrize(
    "endpoint", ["", "127.0.0.1:80", "tcp://:80", "tcp://host", "tcp://h:0", "tcp://h:65536", "ipc://x:1"]
)
def test_a_malformed_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(WireError) as caught:
        Outbox(endpoint)
    assert caught.value.code == "MALFORMED_ENDPOINT"


def test_a_port_in_use_is_named(inbox: Inbox) -> None:
    port = parse_endpoint(inbox.endpoint)[1]
    with pytest.raises(EngineError, match=str(port)):
        Inbox("127.0.0.1", port)


def test_an_asyncio_reader_takes_the_same_frames() -> None:
    async def run() -> list[int]:
        reader = asyncio.StreamReader()
        for number in range(3):
            for part in pack(make_frame(number, b"x" * 1000)):
                reader.feed_data(bytes(part))
        reader.feed_data(b"\x01\x02")
        reader.feed_eof()
        positions = []
        while (parts := await receive_frame(reader)) is not None:
            positions.append(decode(parts).header.position)
        return positions

    assert asyncio.run(run()) == [0, 1, 2]


def test_an_asyncio_reader_refuses_lengths_that_make_no_sense() -> None:
    async def run() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(struct.pack("<II8s", 2**31, 0, bytes(8)))
        await receive_frame(reader)

    with pytest.raises(WireError) as caught:
        asyncio.run(run())
    assert caught.value.code == "FRAME_TOO_LONG"
