"""Paths over real sockets: each address pair that connects is timed, one that does not is named with its reason."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from inferswarm.errors import WireError
from inferswarm.fabric import messages as m
from inferswarm.fabric import path_probe
from inferswarm.fabric.frames import FrameKind
from inferswarm.fabric.path_probe import echo_back, probe_path
from inferswarm.fabric.transport import (
    Inbox,
    Outbox,
    begin_connection,
    finish_connection,
    make_endpoint,
    parse_endpoint,
)

FIRST, SECOND = "127.0.0.1", "127.0.0.2"
SIZES = (64, 4096, 65536)


class OtherEnd:
    """A stage that answers, as far as this measurement goes; it keeps the kinds of what arrived, in order."""

    def __init__(self) -> None:
        self.inbox = Inbox(FIRST, more=(SECOND,))
        self.sizes: list[int] = []
        self._running = True
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while self._running:
            for frame in self.inbox.receive(0.02):
                assert frame.header.kind == FrameKind.ECHO
                self.sizes.append(len(frame.payload))
                with contextlib.suppress(WireError):
                    echo_back(frame)

    def stop(self) -> None:
        self._running = False
        self._thread.join()
        self.inbox.close()


@pytest.fixture
def other() -> Iterator[OtherEnd]:
    end = OtherEnd()
    yield end
    end.stop()
    for outbox in path_probe._outboxes.values():
        outbox.close()
    path_probe._outboxes.clear()


@pytest.fixture
def own() -> Iterator[Inbox]:
    inbox = Inbox(FIRST, more=(SECOND, "203.0.113.9"))
    yield inbox
    inbox.close()


def probe(own: Inbox, *ends: m.PathEnds, sizes: tuple[int, ...] = SIZES, **changes: float) -> m.PathSamples:
    fields = {"max_turns": 6, "seconds": 5.0, "pause_seconds": 0.0} | changes
    command = m.ProbePath(pairs=ends, payload_bytes=sizes, **fields)  # type: ignore[arg-type]
    return probe_path(command, own, (("load_average", "0.5"),))


def test_every_pair_that_connects_is_timed_between_its_own_addresses(own: Inbox, other: OtherEnd) -> None:
    """The echo of a pair comes back to the address that it was sent from: its connection shows which."""
    ends = [
        m.PathEnds(source, other.inbox.endpoints[target]) for source in (FIRST, SECOND) for target in (FIRST, SECOND)
    ]
    found = probe(own, *ends)
    assert [pair.ends for pair in found.pairs] == ends
    for pair in found.pairs:
        assert (pair.failure, pair.left_out, pair.payload_bytes) == ("", "", SIZES)
        assert [len(samples) for samples in pair.seconds] == [6, 6, 6]
        assert all(0 < sample < 1 for samples in pair.seconds for sample in samples)
    assert {(source, parse_endpoint(endpoint)[0]) for endpoint, source in path_probe._outboxes} == {
        (FIRST, FIRST),
        (FIRST, SECOND),
        (SECOND, FIRST),
        (SECOND, SECOND),
    }
    assert (found.num_warm_up, found.conditions) == (5, (("load_average", "0.5"),))


def test_pairs_and_sizes_take_turns(own: Inbox, other: OtherEnd) -> None:
    probe(own, *(m.PathEnds(FIRST, other.inbox.endpoints[target]) for target in (FIRST, SECOND)))
    assert other.sizes == [size for size in SIZES for _ in range(2)] * (5 + 6)


def test_a_pair_that_does_not_get_through_is_named_and_has_no_sample(
    own: Inbox, other: OtherEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: keep the samples of a pair that fails, or raise and lose those of the others."""
    monkeypatch.setattr(path_probe, "ECHO_SECONDS", 0.1)
    with socket.create_server((FIRST, 0)) as closed:
        refusing = make_endpoint(FIRST, closed.getsockname()[1])
    with socket.create_server((FIRST, 0)) as silent:
        tried = (
            m.PathEnds(FIRST, other.inbox.endpoints[FIRST]),
            m.PathEnds(FIRST, refusing),
            m.PathEnds(FIRST, make_endpoint(FIRST, silent.getsockname()[1])),
            m.PathEnds("203.0.113.9", other.inbox.endpoints[FIRST]),
            m.PathEnds("127.0.0.7", other.inbox.endpoints[FIRST]),
            m.PathEnds(FIRST, "tcp://[::1]:9"),
        )
        good, *bad = probe(own, *tried).pairs
    assert good.failure == ""
    assert [pair.failure for pair in bad[:4]] == [
        "connection refused",
        "it connects, but nothing came back within 0.1 s",
        "this end does not listen at 203.0.113.9: Cannot assign requested address",
        "this end does not listen at 127.0.0.7: it was not told to",
    ]
    assert "family" in bad[4].failure
    assert all(pair.seconds == () for pair in bad)


@pytest.mark.parametrize(
    ("num_pairs", "round_trip", "large", "expected"),
    [
        (1, 0.002, 0.0, (60, 61)),  # 3 sizes of 10 ms each: 100 turns would fit, 60 are asked for
        (4, 0.002, 0.0, (25, 26)),
        (8, 0.002, 0.0, (12, 13)),
        (8, 0.500, 0.0, (5, 6)),  # however slow, as many as make a measurement
        (4, 0.002, 0.042, (20, 7)),  # three of four large ones, 50 ms each: at most a quarter of the time is theirs
    ],
)
def test_more_pairs_have_fewer_turns_in_the_same_seconds(
    num_pairs: int, round_trip: float, large: float, expected: tuple[int, int]
) -> None:
    ways = []
    for _ in range(num_pairs):
        way = path_probe._Way(m.PathEnds(FIRST, "tcp://127.0.0.1:9"))
        way.warm = {size: [round_trip / 2] for size in SIZES} | ({2**24: [large / 2]} if large else {})
        ways.append(way)
    command = m.ProbePath(pairs=(), payload_bytes=SIZES, max_turns=60, seconds=3.0, pause_seconds=0.008)
    assert path_probe._schedule(ways, command) == expected


def test_a_path_too_slow_for_the_largest_message_says_so(
    own: Inbox, other: OtherEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = m.PathEnds(FIRST, other.inbox.endpoints[FIRST])
    (quick,) = probe(own, ends, sizes=(4096, 2 * 2**20)).pairs
    assert quick.payload_bytes == (4096, 2 * 2**20)
    assert 2 <= len(quick.seconds[1]) <= 6
    monkeypatch.setattr(path_probe, "LARGE_SECONDS", 1e-9)
    (slow,) = probe(own, ends, sizes=(4096, 2 * 2**20)).pairs
    assert slow.payload_bytes == (4096,)
    assert slow.left_out.startswith("2,097,152 B would take ")


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert make_endpoint("fd00::2", 7) == "tcp://[fd00::2]:7"
    assert parse_endpoint("tcp://[fd00::2]:7") == ("fd00::2", 7)
    assert parse_endpoint("tcp://[fe80::2%eth0]:7") == ("fe80::2%eth0", 7)
    with pytest.raises(WireError):
        parse_endpoint("tcp://fd00::2:7")


def test_an_inbox_says_where_it_cannot_listen_and_receives_everywhere_else(own: Inbox) -> None:
    assert list(own.endpoints) == [FIRST, SECOND]
    assert own.unbound == {"203.0.113.9": "Cannot assign requested address"}
    assert own.endpoint == own.endpoints[FIRST]


def test_an_outbox_sends_from_the_address_that_it_was_told(own: Inbox) -> None:
    with socket.create_server((FIRST, 0)) as listener:
        outbox = Outbox(make_endpoint(FIRST, listener.getsockname()[1]), "127.0.0.3")
        outbox.send((b"head", b"", b"12345678"))
        connection, peer = listener.accept()
        connection.close()
        outbox.close()
    assert peer[0] == "127.0.0.3"


def test_a_connection_that_nobody_answers_ends_with_its_time() -> None:
    with socket.socket() as full:
        full.bind((FIRST, 0))
        full.listen(0)
        endpoint = make_endpoint(*full.getsockname())
        waiting = [begin_connection(endpoint) for _ in range(4)]  # more than the kernel lets wait
        outcomes = [finish_connection(connection, 0.1) for connection in waiting]
        for connection in waiting:
            connection.close()
    assert outcomes[0] is None
    assert isinstance(outcomes[-1], TimeoutError)
