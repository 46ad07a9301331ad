"""Acquiring over real HTTP and by real processes: what the server logged is what moved, and a kill loses little."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time

import pytest

from inferswarm.artifacts.acquiring import acquire
from inferswarm.artifacts.acquisition import Limits, Order
from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.origins.http import HttpOrigin
from inferswarm.artifacts.origins.http_client import HttpClient, HttpSettings
from inferswarm.artifacts.store import ContentStore, Use, partial_identity
from inferswarm.documents import read_document, write_document
from tests.origin_server import Fault, serve_origin
from tests.unit.artifacts.store_samples import artifact, sample_bytes

WHOLE = sample_bytes(2_000_000)
OPENING_BYTES = 1
"""What opening an HTTP origin asks for, to see whether ranges work."""
HASTY = HttpSettings(connect_seconds=2, silence_seconds=5, attempts=1, first_wait_seconds=0.01)


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "model").write_bytes(WHOLE)
    with serve_origin(folder) as running:
        yield running


@pytest.fixture
def store(tmp_path):
    with ContentStore(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def open_source():
    with HttpClient(HASTY) as client:
        yield lambda source, uri: HttpOrigin(uri, client=client)


def parts(server, *edges):
    """Return the artifacts between edges, as somebody who looked at the server describes them."""
    url = server.url("model")
    with HttpOrigin(url) as origin:
        version = origin.described.version
    server.clear()
    return [
        artifact(WHOLE, start, end, uri=url, version=version)
        for start, end in zip(edges[::2], edges[1::2], strict=True)
    ]


def test_exactly_the_missing_bytes_leave_the_server(server, store, open_source):
    first, second, third = parts(server, 0, 300_000, 300_000, 700_000, 1_500_000, 1_600_000)
    acquire([Order.from_origin(first)], store, open_source, use=Use("plan-1", "required"))
    server.clear()
    limits = Limits(connections_per_source=1)
    done = acquire([Order.from_origin(part) for part in (first, second, third)], store, open_source, limits=limits)
    assert [outcome.how for outcome in done.outcomes] == ["cache-hit", "acquired", "acquired"]
    assert server.bytes_sent() == 500_000 + OPENING_BYTES
    asked = [(request.range.start, request.range.end) for request in server.log if request.method == "GET"]
    assert asked == [(0, 1), (300_000, 700_000), (1_500_000, 1_600_000)]
    assert sum(traffic.bytes_read for traffic in done.traffic) == server.bytes_sent()


def test_a_byte_flipped_on_the_way_is_refused_and_had_elsewhere(server, store, open_source, tmp_path):
    (part,) = parts(server, 500_000, 1_500_000)
    server.inject("model", Fault(flip_at=700_000))
    (failed,) = acquire([Order.from_origin(part)], store, open_source).outcomes
    assert (failed.failure.side, failed.failure.code) == ("source", "INTEGRITY_DIGEST_MISMATCH")
    assert store.inventory().blobs == ()
    (tmp_path / "served" / "blob").write_bytes(WHOLE[500_000:1_500_000])
    order = Order.from_peer(part, "node-2", server.url("blob"))
    (outcome,) = acquire([order], store, open_source).outcomes
    assert (outcome.how, outcome.source, outcome.transferred_bytes) == ("acquired", "node-2", 1_000_000)


def test_a_connection_that_drops_is_resumed_at_its_byte(server, store, open_source):
    (part,) = parts(server, 0, 2_000_000)
    server.inject("model", Fault(drop_after=900_000, after=1, times=1), Fault(status=503, after=1))
    (failed,) = acquire([Order.from_origin(part)], store, open_source).outcomes
    assert failed.failure.code == "SOURCE_OBJECT_UNAVAILABLE"
    assert 0 < failed.kept_bytes <= 900_000
    server.inject("model")
    server.clear()
    (outcome,) = acquire([Order.from_origin(part)], store, open_source).outcomes
    assert outcome.resumed_bytes == failed.kept_bytes
    assert server.bytes_sent() == 2_000_000 - failed.kept_bytes + OPENING_BYTES


def test_a_silent_server_does_not_hold_up_a_cancellation(server, store, open_source):
    (part,) = parts(server, 0, 2_000_000)
    server.inject("model", Fault(silent_seconds=3.2, after=1))
    cancelled = threading.Event()
    timer = threading.Timer(0.2, cancelled.set)
    timer.start()
    began = time.monotonic()
    (outcome,) = acquire([Order.from_origin(part)], store, open_source, cancelled=cancelled).outcomes
    assert time.monotonic() - began < 3.0  # before the server says anything
    assert outcome.how == "cancelled"
    timer.join()


CHILD = """
import sys
from inferswarm.artifacts.acquiring import acquire
from inferswarm.artifacts.acquisition import Order
from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.origins.opening import open_origin
from inferswarm.artifacts.store import ContentStore
from inferswarm.documents import read_document
record = read_document(Artifact, open(sys.argv[2]).read(), "record")
with ContentStore(sys.argv[1]) as store:
    print("ready", flush=True)
    done = acquire([Order.from_origin(record)], store, lambda source, uri: open_origin(uri))
    peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(done.is_complete, done.outcomes[0].sha256, peak)
"""


def start(root, record: Artifact, path):
    path.write_text(write_document(record))
    command = [sys.executable, "-c", CHILD, str(root), str(path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    return child


def test_a_killed_process_loses_no_more_than_what_was_on_its_way(server, open_source, tmp_path):
    (part,) = parts(server, 0, 2_000_000)
    server.inject("model", Fault(bytes_per_second=1_500_000, after=1))
    child = start(tmp_path / "store", part, tmp_path / "record")
    place = tmp_path / "store" / "partials" / f"{partial_identity(part).name}.part"
    until = time.monotonic() + 20
    while not (place.exists() and place.stat().st_size > 300_000) and time.monotonic() < until:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    server.inject("model")
    server.clear()
    with ContentStore(tmp_path / "store") as store:
        kept = store.held_bytes(partial_identity(part))
        assert kept > 300_000
        (outcome,) = acquire([Order.from_origin(part)], store, open_source).outcomes
        assert (outcome.how, outcome.resumed_bytes) == ("acquired", kept)
        assert server.bytes_sent() == 2_000_000 - kept + OPENING_BYTES


def test_memory_does_not_grow_with_the_artifact(tmp_path):
    """Two artifacts of one sparse file, one 66 times as long: the peaks differ by less than 24 MiB."""
    peaks = []
    for number, length in enumerate((3_000_000, 200_000_000)):
        path = tmp_path / f"sparse-{number}"
        with path.open("wb") as file:
            file.truncate(length)
        record = artifact(b"", 0, 0)
        fields = json.loads(write_document(record))
        fields["origin"] |= {"uri": str(path), "length": length, "version": f"modified:{path.stat().st_mtime_ns}"}
        fields |= {"length": length, "range": {"start": 0, "end": length}}
        del fields["sha256"]
        (tmp_path / "record").write_text(json.dumps(fields))
        record = read_document(Artifact, json.dumps(fields), "record")
        said = start(tmp_path / f"store-{number}", record, tmp_path / "record").communicate(timeout=120)[0].split()
        assert said[0] == "True"
        peaks.append(int(said[2]) * 1024)
    assert peaks[1] - peaks[0] < 24 * 2**20
