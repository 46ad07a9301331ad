"""When a way counts as cut: real connections whose packets are dropped, and peers that merely take nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from inferswarm.errors import WireError
from inferswarm.fabric.connection_watch import Answering, AnswerWatch
from inferswarm.fabric.frames import Address, FrameKind, encode
from inferswarm.fabric.transport import Attention, Outbox, make_endpoint, watch_stream
from tests.unit.fabric.cut_connections import drop_what_arrives
from tests.unit.fabric.processes import wait_until

SILENT_SECONDS = 0.6
FRAME = encode(Address("scope", 1, "realization", "plan").header(FrameKind.BOUNDARY, 1), bytes(1000))

Look = tuple[float, int, float]
"""When, how many repetitions without an answer there were, and when the last answer came."""


@pytest.mark.parametrize(
    ("looks", "cut_at"),
    [
        pytest.param([(0, 0, 0), (1, 0, 0), (99, 0, 0)], None, id="nothing was sent"),
        pytest.param([(0, 0, 0), (1, 1, 0.9), (2, 2, 0.9), (11, 4, 0.9), (12, 4, 0.9)], 12, id="no answer"),
        pytest.param([(0, 0, 0), (1, 1, 0), (2, 0, 1.5), (30, 0, 1.5)], None, id="the first repetition was answered"),
        pytest.param([(0, 3, 0), (60, 3, 0), (61, 4, 60.1), (122, 4, 60.1)], None, id="rare probes, all answered"),
        pytest.param([(0, 0, 0), (60, 9, 1), (99, 9, 1), (100, 10, 1), (110, 10, 1)], 110, id="nobody looked"),
        pytest.param([(0, 1, 0), (5, 3, 0), (9, 3, 8), (20, 4, 8), (31, 5, 8)], 31, id="it begins again"),
        pytest.param([(0, 0, 0), (1, 1, 0.5), (40, 1, 0.5), (60, 2, 0.5)], None, id="one or two may be lost"),
    ],
)
def test_a_way_is_cut_when_what_was_repeated_stays_without_an_answer(looks: list[Look], cut_at: float | None) -> None:
    """Mutation: begin with whatever is unacknowledged, or leave out that an answer ends the time."""
    watch, found = AnswerWatch(10.0), None
    for now, repeats, answered_at in looks:
        try:
            watch.check(1000 + now, Answering(repeats, now - answered_at))
        except TimeoutError:
            found = now
            break
    assert found == cut_at


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def place(listener: socket.socket) -> str:
    return make_endpoint(*listener.getsockname()[:2])


def seconds_until_broken(check: Callable[[], None], longest: float) -> float | None:
    started = time.monotonic()
    while time.monotonic() - started < longest:
        try:
            check()
        except WireError:
            return time.monotonic() - started
        time.sleep(0.05)
    return None


def test_packets_that_are_dropped_are_noticed_and_a_peer_that_closes_at_once(listener: socket.socket) -> None:
    outbox = Outbox(place(listener), silent_seconds=SILENT_SECONDS)
    outbox.check()
    for ends in (drop_what_arrives, socket.socket.close):
        outbox.send(FRAME)
        peer, _ = listener.accept()
        assert wait_until(lambda peer=peer: len(peer.recv(10_000, socket.MSG_PEEK)) > 1000, 5.0)
        assert seconds_until_broken(outbox.check, SILENT_SECONDS + 0.2) is None, "idle is not cut"
        ends(peer)
        if ends is drop_what_arrives:
            outbox.send(FRAME)
        assert seconds_until_broken(outbox.check, 10.0) is not None
        outbox.check()  # nothing is connected
        peer.close()


def test_a_peer_that_takes_nothing_is_not_cut_off_until_its_packets_are_dropped(listener: socket.socket) -> None:
    """Mutation: set TCP_USER_TIMEOUT to SILENT_SECONDS; Linux then ends the connection of a peer that answers."""
    ours, theirs = socket.socketpair()
    outbox = Outbox(place(listener), "", Attention(ours.fileno(), lambda: None), SILENT_SECONDS)
    ended: list[float] = []

    def send() -> None:
        with contextlib.suppress(WireError):
            while True:
                outbox.send(FRAME)
        ended.append(time.monotonic())

    sender = threading.Thread(target=send)
    sender.start()
    peer, _ = listener.accept()
    with ours, theirs, peer:
        time.sleep(3 * SILENT_SECONDS)
        assert not ended
        drop_what_arrives(peer)
        sender.join(20.0)
    assert ended, "a way that was cut while its peer took nothing was not noticed"


def test_the_coordinator_s_connection_is_watched_in_the_same_way(listener: socket.socket) -> None:
    async def connect(ends: Callable[[socket.socket], None] | None) -> list[str]:
        reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        peer, _ = listener.accept()
        broken: list[str] = []
        watching = asyncio.create_task(
            watch_stream("the first stage", reader, writer, SILENT_SECONDS, lambda error: broken.append(str(error)))
        )
        await asyncio.sleep(0)
        if ends is None:
            writer.close()
        else:
            ends(peer)
            writer.write(b"more")
        await asyncio.wait_for(watching, 10.0)
        writer.close()
        peer.close()
        return broken

    assert "acknowledged" in asyncio.run(connect(drop_what_arrives))[0]
    assert "the first stage: " in asyncio.run(connect(socket.socket.close))[0]
    assert asyncio.run(connect(None)) == []
