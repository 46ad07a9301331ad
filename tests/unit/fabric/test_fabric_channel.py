"""Messages over a socket pair: whole ones arrive, broken ones are refused, the end is news."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator

import msgspec
import pytest

from inferswarm.errors import WireError
from inferswarm.fabric import messages as m
from inferswarm.fabric.channel import MAX_MESSAGE_BYTES, Channel, frame, receive_async

MESSAGES: list[m.FromStage] = [
    m.StageHello(pid=7, endpoint="tcp://127.0.0.1:1"),
    m.StageAlive(steps=3, busy_seconds=0.5),
    m.Progressed(request=1, done=2, total=3, note="bytes"),
    m.Answered(request=1, answer=m.Done()),
]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Channel[m.FromStage]]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(5.0)
    yield ours, Channel(theirs, m.FromStage)  # type: ignore[arg-type]
    ours.close()
    theirs.close()


def read_async(data: bytes) -> m.FromStage | None:
    async def read() -> m.FromStage | None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await receive_async(reader, msgspec.msgpack.Decoder(m.FromStage))

    return asyncio.run(read())


def test_messages_arrive_whole_and_in_order(pair: tuple[socket.socket, Channel[m.FromStage]]) -> None:
    ours, channel = pair
    ours.sendall(b"".join(frame(message) for message in MESSAGES))
    assert [channel.receive() for _ in MESSAGES] == MESSAGES


def test_both_ends_understand_each_other(pair: tuple[socket.socket, Channel[m.FromStage]]) -> None:
    ours, channel = pair
    channel.send(MESSAGES[0])
    assert ours.recv(1000) == frame(MESSAGES[0])
    assert [read_async(frame(message)) for message in MESSAGES] == MESSAGES


def test_a_message_in_many_pieces_is_put_together(pair: tuple[socket.socket, Channel[m.FromStage]]) -> None:
    ours, channel = pair

    def dribble() -> None:
        for byte in frame(MESSAGES[0]):
            ours.send(bytes([byte]))

    sender = threading.Thread(target=dribble)
    sender.start()
    assert channel.receive() == MESSAGES[0]
    sender.join()


def test_a_message_longer_than_the_sockets_buffer_arrives(pair: tuple[socket.socket, Channel[m.FromStage]]) -> None:
    ours, channel = pair
    message = m.StageHello(pid=7, endpoint="x" * 3_000_000)
    sender = threading.Thread(target=ours.sendall, args=(frame(message),))
    sender.start()
    assert channel.receive() == message
    sender.join()


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 5, -1], ids="{} bytes of it".format)
def test_the_end_is_the_end_also_within_a_message(
    pair: tuple[socket.socket, Channel[m.FromStage]], kept: int
) -> None:
    ours, channel = pair
    data = frame(MESSAGES[0])[:kept]
    ours.sendall(data)
    ours.close()
    assert channel.receive() is None
    assert read_async(data) is None


@pytest.mark.parametrize("length", [MAX_MESSAGE_BYTES + 1, 2**32 - 1])
def test_an_oversized_length_is_refused_without_waiting_for_the_body(
    pair: tuple[socket.socket, Channel[m.FromStage]], length: int
) -> None:
    ours, channel = pair
    head = struct.pack("<I", length)
    ours.sendall(head)
    for receive in (channel.receive, lambda: read_async(head)):
        with pytest.raises(WireError) as caught:
            receive()
        assert caught.value.code == "MESSAGE_TOO_LONG"


def test_a_message_that_nobody_could_receive_is_not_sent() -> None:
    with pytest.raises(WireError) as caught:
        frame(m.StageHello(pid=7, endpoint="x" * MAX_MESSAGE_BYTES))
    assert caught.value.code == "MESSAGE_TOO_LONG"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"garbage",
        msgspec.msgpack.encode({"type": "StageHello"}),
        msgspec.msgpack.encode({"type": "StageHello", "pid": "7", "endpoint": ""}),
        msgspec.msgpack.encode({"type": "StageHello", "pid": 7, "endpoint": "", "more": 1}),
        msgspec.msgpack.encode({"type": "Unheard", "pid": 7}),
        msgspec.msgpack.encode(m.Stop()),
    ],
    ids=["empty", "no msgpack", "text", "missing field", "wrong type", "unknown field", "unknown kind", "not for us"],
)
def test_a_body_that_is_no_message_is_refused(pair: tuple[socket.socket, Channel[m.FromStage]], body: bytes) -> None:
    ours, channel = pair
    data = struct.pack("<I", len(body)) + body
    ours.sendall(data)
    for receive in (channel.receive, lambda: read_async(data)):
        with pytest.raises(WireError) as caught:
            receive()
        assert caught.value.code == "MALFORMED_MESSAGE"


def test_sending_to_a_peer_that_has_gone_is_an_os_error(pair: tuple[socket.socket, Channel[m.FromStage]]) -> None:
    ours, channel = pair
    ours.close()
    with pytest.raises(OSError):
        channel.send(MESSAGES[0])


def test_messages_of_several_threads_do_not_mix(pair: tuple[socket.socket, Channel[m.FromStage]]) -> None:
    ours, channel = pair
    long = m.StageHello(pid=1, endpoint="a" * 100_000)
    short = m.StageAlive(steps=1, busy_seconds=0.0)
    threads = [
        threading.Thread(target=lambda message=message: [channel.send(message) for _ in range(20)])
        for message in (long, short, long)
    ]
    for thread in threads:
        thread.start()
    received: list[m.FromStage | None] = []
    receiver = Channel[m.FromStage](ours, m.FromStage)  # type: ignore[arg-type]
    while len(received) < 60:
        received.append(receiver.receive())
    for thread in threads:
        thread.join()
    assert sorted(type(message).__name__ for message in received) == ["StageAlive"] * 20 + ["StageHello"] * 40
