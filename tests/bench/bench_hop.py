"""Software time of one hop on loopback: the fabric's transport beside the same frames over ZeroMQ.

One process sends a frame, another checks it and sends it back; both stamp the moment before encoding and the moment
after checking, on one clock. *busy*: back to back. *as in decoding*: each side computes for 8 ms before it sends, so
that the receiver has gone to sleep, as a stage has between its steps. The two transports alternate.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import zmq

from inferswarm.fabric.frames import Address, Frame, FrameKind, decode, encode
from inferswarm.fabric.transport import Inbox, Outbox
from tests.bench.report import conditions, median_interval, percentile, write

SIZES = (64, 4096, 65536, 1048576)
ROUNDS = 200
WARM_UP = 20
STEP_SECONDS = 0.008
ADDRESS = Address("bench", 1, "bench", "0" * 12)
Send = Callable[[bytes, float, int], None]
Receive = Callable[[], Frame]


class OverTcp:
    """The fabric's own transport."""

    name = "fabric"

    def __init__(self) -> None:
        self._inbox = Inbox("127.0.0.1")
        self.endpoint = self._inbox.endpoint
        self._outbox: Outbox | None = None

    def connect(self, endpoint: str) -> None:
        self._outbox = Outbox(endpoint)

    def send(self, payload: bytes | memoryview, step_seconds: float, earlier_hop_ns: int) -> None:
        compute(step_seconds)
        header = ADDRESS.header(FrameKind.ECHO, earlier_hop_ns, sent_ns=time.monotonic_ns())
        assert self._outbox is not None
        self._outbox.send(encode(header, payload))

    def receive(self) -> Frame:
        while True:
            if frames := self._inbox.receive(None):
                return frames[0]


class OverZeroMq:
    """PUSH and PULL, as a comparison."""

    name = "pyzmq"

    def __init__(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._inbox = context.socket(zmq.PULL)
        self._inbox.bind("tcp://127.0.0.1:*")
        self.endpoint = str(self._inbox.getsockopt_string(zmq.LAST_ENDPOINT))
        self._outbox = context.socket(zmq.PUSH)

    def connect(self, endpoint: str) -> None:
        self._outbox.connect(endpoint)

    def send(self, payload: bytes | memoryview, step_seconds: float, earlier_hop_ns: int) -> None:
        compute(step_seconds)
        header = ADDRESS.header(FrameKind.ECHO, earlier_hop_ns, sent_ns=time.monotonic_ns())
        self._outbox.send_multipart(encode(header, payload))

    def receive(self) -> Frame:
        self._inbox.poll()
        return decode(self._inbox.recv_multipart())


def compute(seconds: float) -> None:
    """Keep this core busy, as a step does."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def hop_ns(frame: Frame) -> int:
    """Return how long a frame that has just been received took."""
    return time.monotonic_ns() - frame.header.sent_ns


def schedule() -> list[tuple[str, int, float]]:
    """Return (transport, payload, step) of every exchange, in order; both processes follow it."""
    exchanges = []
    for step_seconds, sizes in ((0.0, SIZES), (STEP_SECONDS, (4096,))):
        for size in sizes:
            exchanges += [(name, size, step_seconds) for _ in range(ROUNDS + WARM_UP) for name in ("fabric", "pyzmq")]
    return exchanges


def echo(endpoints: dict[str, str]) -> None:
    """Be the other process."""
    sides = {side.name: side for side in (OverTcp(), OverZeroMq())}
    for name, side in sides.items():
        side.connect(endpoints[name])
    print(sides["fabric"].endpoint, sides["pyzmq"].endpoint, flush=True)
    for name, _, step_seconds in schedule():
        frame = sides[name].receive()
        sides[name].send(frame.payload, step_seconds, hop_ns(frame))


def main() -> None:
    """Measure, print the table, keep the samples."""
    taken = conditions()
    sides = {side.name: side for side in (OverTcp(), OverZeroMq())}
    endpoints = {name: side.endpoint for name, side in sides.items()}
    code = f"from tests.bench.bench_hop import echo; echo({endpoints!r})"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for side, endpoint in zip(sides.values(), child.stdout.readline().split(), strict=True):
        side.connect(endpoint)
    samples: dict[str, list[float]] = {}
    seen: dict[str, int] = {}
    for name, size, step_seconds in schedule():
        sides[name].send(bytes(size), step_seconds, 0)
        frame = sides[name].receive()
        there_and_back = (frame.header.session / 1e9, hop_ns(frame) / 1e9)
        key = f"{name} {size}" + (" as in decoding" if step_seconds else " busy")
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > WARM_UP:
            samples.setdefault(key, []).extend(there_and_back)
    child.wait(10)
    _print(samples, taken)


def _print(samples: dict[str, list[float]], taken: dict[str, object]) -> None:
    print(f"hop: software time one way on loopback, µs ({2 * ROUNDS} hops each)")
    print(
        f"{'payload and state':24}  {'transport':9}  {'p50':>8}  {'95 % interval':>17}  {'p95':>8}  {'p99':>8}  ratio"
    )
    results = {}
    for key in [key for key in samples if key.startswith("fabric")]:
        what = key.removeprefix("fabric ")
        ours = median_interval(samples[key])[1]
        for name in ("fabric", "pyzmq"):
            values = samples[f"{name} {what}"]
            low, middle, high = median_interval(values)
            results[f"{name} {what}"] = {"p50": middle, "low": low, "high": high, "p99": percentile(values, 0.99)}
            print(
                f"{what:24}  {name:9}  {middle * 1e6:8.1f}  {low * 1e6:8.1f}–{high * 1e6:8.1f}  "
                f"{percentile(values, 0.95) * 1e6:8.1f}  {percentile(values, 0.99) * 1e6:8.1f}  {middle / ours:5.2f}"
            )
    write("hop", samples, results, taken)


if __name__ == "__main__":
    main()
