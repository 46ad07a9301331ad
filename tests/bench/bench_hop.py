"""Software time of one hop on loopback: the fabric's frames over pyzmq, beside the same frames over plain TCP.

Half a round trip between two processes: encode, checksum, send, receive, verify. The plain TCP twin bounds what
another transport could gain. The two transports alternate.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import time

import zmq

from inferswarm.fabric.frames import Address, FrameKind, decode, encode
from inferswarm.fabric.sockets import bind_inbox, connect_outbox
from tests.bench.report import conditions, median_interval, percentile, write

SIZES = (64, 4096, 65536, 1048576)
ROUNDS = 400
WARM_UP = 50
ADDRESS = Address("bench", 1, "bench", "0" * 12)
_LENGTHS = struct.Struct("<III")


def _receive_exactly(connection: socket.socket, length: int) -> bytes:
    parts = bytearray(length)
    view = memoryview(parts)
    while view:
        view = view[connection.recv_into(view) :]
    return bytes(parts)


def send_tcp(connection: socket.socket, parts: tuple[bytes, bytes | memoryview, bytes]) -> None:
    """Send a frame's three parts behind their lengths."""
    connection.sendall(_LENGTHS.pack(*(len(part) for part in parts)) + b"".join(parts))


def receive_tcp(connection: socket.socket) -> tuple[bytes, bytes, bytes]:
    """Receive a frame's three parts."""
    lengths = _LENGTHS.unpack(_receive_exactly(connection, _LENGTHS.size))
    first, second, third = (_receive_exactly(connection, length) for length in lengths)
    return first, second, third


def echo(zmq_endpoint: str, tcp_port: int) -> None:
    """Be the other process: verify each frame and send its payload back on the transport that it came on."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox, endpoint = bind_inbox(context, "127.0.0.1")
    outbox = connect_outbox(context, zmq_endpoint)
    connection = socket.create_connection(("127.0.0.1", tcp_port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(endpoint.encode().ljust(64))
    poller = zmq.Poller()
    poller.register(inbox, zmq.POLLIN)
    poller.register(connection, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if inbox in ready:
            frame = decode(inbox.recv_multipart())
            outbox.send_multipart(encode(ADDRESS.header(FrameKind.ECHOED, 0), frame.payload))
        if connection.fileno() in ready:
            if not connection.recv(1, socket.MSG_PEEK):
                return
            frame = decode(receive_tcp(connection))
            send_tcp(connection, encode(ADDRESS.header(FrameKind.ECHOED, 0), frame.payload))


def main() -> None:
    """Measure, print the table, keep the samples."""
    taken = conditions()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inbox, endpoint = bind_inbox(context, "127.0.0.1")
    listener = socket.create_server(("127.0.0.1", 0))
    code = f"from tests.bench.bench_hop import echo; echo({endpoint!r}, {listener.getsockname()[1]})"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        outbox = connect_outbox(context, _receive_exactly(connection, 64).decode().strip())
        samples = _measure(inbox, outbox, connection)
        connection.close()
    finally:
        child.terminate()
        child.wait()
        context.destroy(linger=0)
    _print(samples, taken)


def _measure(
    inbox: zmq.Socket[bytes], outbox: zmq.Socket[bytes], connection: socket.socket
) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {f"{kind} {size}": [] for size in SIZES for kind in ("pyzmq", "tcp")}
    for size in SIZES:  # one size after the other: freeing a large message would burden the small one behind it
        payload = bytes(size)
        for number in range(ROUNDS + WARM_UP):
            started = time.perf_counter()
            outbox.send_multipart(encode(ADDRESS.header(FrameKind.ECHO, 0), payload))
            inbox.poll()
            decode(inbox.recv_multipart())
            over_zmq = time.perf_counter() - started
            started = time.perf_counter()
            send_tcp(connection, encode(ADDRESS.header(FrameKind.ECHO, 0), payload))
            decode(receive_tcp(connection))
            over_tcp = time.perf_counter() - started
            if number >= WARM_UP:
                samples[f"pyzmq {size}"].append(over_zmq / 2)
                samples[f"tcp {size}"].append(over_tcp / 2)
    return samples


def _print(samples: dict[str, list[float]], taken: dict[str, object]) -> None:
    print(f"hop: software time one way on loopback, µs ({ROUNDS} round trips each, halved)")
    print(f"{'payload':>10}  {'transport':9}  {'p50':>8}  {'95 % interval':>17}  {'p95':>8}  {'p99':>8}  pyzmq/tcp")
    results = {}
    for size in SIZES:
        medians = {}
        for kind in ("pyzmq", "tcp"):
            values = samples[f"{kind} {size}"]
            low, middle, high = median_interval(values)
            medians[kind] = middle
            results[f"{kind} {size}"] = {"p50": middle, "low": low, "high": high, "p99": percentile(values, 0.99)}
            ratio = f"{medians['pyzmq'] / middle:9.2f}" if kind == "tcp" else ""
            print(
                f"{size:>10}  {kind:9}  {middle * 1e6:8.1f}  {low * 1e6:8.1f}–{high * 1e6:8.1f}  "
                f"{percentile(values, 0.95) * 1e6:8.1f}  {percentile(values, 0.99) * 1e6:8.1f}  {ratio}"
            )
    write("hop", samples, results, taken)


if __name__ == "__main__":
    main()
