"""How fast a Node's courier brings verified bytes into its store, in how much memory, and what tokens feel of it.

Goodput: a model of 256 MB in 56 tensors of random bytes, acquired by a courier from an HTTP origin and from another
courier, hashed, synced, read back from the disk and published; against the same bytes over one bare TCP connection
that throws them away. All three once as fast as they go, and once with the sending side limited to 125 MB/s, which
stands in for a link of 1 Gb/s: nothing but the rate of such a link is in it, and sender and receiver share the CPUs.
All three have the same bucket of tokens, a quarter of a second of which goes at once. What bounds them without a
limit is measured in the same rounds: bare TCP; the disk alone, which is one thread that writes 256 MB, syncs them,
has the kernel forget them and reads them back; one thread that hashes them once. The target is of the lowest of the
three. Two more figures say what is behind them: the disk alone with a file for each tensor, synced and renamed by
several threads, and what the CPUs would give if nobody ever waited, by the CPU time that the courier took.

Memory: a model of 4 GB in four files that hold nothing but headers and marks (the rest is holes), described over
HTTP by its headers in one process, and a quarter of its layers acquired by one courier.

Tokens: a stream of SmolLM2-135M over two stages of this machine, idle, while a courier acquires at a limited rate,
and at full speed. The limit is what costs a tenth of one CPU, by the CPU time of the first part.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from inferswarm.artifacts.deriving import derive_artifacts
from inferswarm.artifacts.exactness import Need
from inferswarm.artifacts.identity import Artifact
from inferswarm.artifacts.origins.opening import open_origin
from inferswarm.artifacts.participant_artifacts import PlanArtifacts
from inferswarm.artifacts.publishing import publish
from inferswarm.artifacts.store.hashing import forget_pages
from inferswarm.artifacts.store.layout import sync_directory
from inferswarm.documents import digest_bytes, read_document, write_document
from inferswarm.errors import EngineError
from inferswarm.fabric import messages as m
from inferswarm.planner import Workload
from inferswarm.resources import Envelope
from inferswarm.strategies.chain import state_tensors
from inferswarm.strategies.requirement import declare
from inferswarm.swarm import Model, Swarm
from tests.bench.couriers import Courier, Loop, at, courier, from_origin, from_peer, peak_bytes
from tests.bench.file_server import Ports, serve_files
from tests.bench.report import SEED, conditions, median_interval, percentile, write
from tests.orders import order_over, realize_first
from tests.sharded import Shape, write_sharded

LINK_BYTES_PER_SECOND = 125e6
"""What a link of 1 Gb/s carries in a second."""
TARGET = 0.8
"""Of the goodput of bare TCP where the sender is limited, else of the lowest of the ceilings."""
CEILINGS = ("bare TCP", "disk alone", "sha256 alone")
BLOB_THREADS = 8
"""As many as publish at a time (`Limits.publishing`)."""
ROUNDS = 3
STREAMS = 3
NUM_TOKENS = 120
TARGET_TOKENS = 1.5
"""The p95 between tokens while a limited courier acquires, over that of an idle machine."""
CPU_SHARE = 0.1
"""Of one CPU: what a courier may cost while tokens are computed."""
ENVELOPE_BYTES = 2_000_000_000
PLAN = digest_bytes(b"no plan: a benchmark")
PROMPT = "Write a short story about a lighthouse keeper who"


SMALL = Shape(layers=6, hidden=1024, ffn=4096, vocab=26_624, files=1)
"""256 MB in bfloat16."""
LARGE = Shape(layers=28, hidden=2048, ffn=8192, vocab=32_000, files=4)
"""4.0 GB in bfloat16."""


# -- models --


def derived(url: str, end: int | None, *, published: bool = False) -> PlanArtifacts:
    """Return what one participant with the first units acquires (None: with all), if wished with digests."""
    model = Model(url)
    manifest, opened = model.manifest, model.opened
    if published:
        manifest = publish(manifest, lambda file: open_origin(file.uri))
    end = len(model.description.unit_ids) if end is None else end
    problem = model.problem(Workload(prompt_tokens=16, output_tokens=16))
    need = Need(opened.requirement(problem, "stage-0", 0, end), declare(opened.description, 0, end))
    return derive_artifacts(manifest, opened.object, PLAN, [need], tuple(state_tensors(opened.description)))


def describe(url: str, end: int) -> None:
    """Be the process that describes: print what it took and the artifacts."""
    base, began_at = peak_bytes(os.getpid()), time.perf_counter()
    plan = derived(url, end)
    seconds = time.perf_counter() - began_at
    print(json.dumps([base, peak_bytes(os.getpid()), seconds, write_document(plan)]))


# -- goodput --


class Taken(NamedTuple):
    """One acquisition."""

    bytes_per_second: float
    cpu_seconds: float


def over_tcp(ports: Ports, name: str, length: int) -> Taken:
    """Receive a file over a bare connection and throw it away."""
    buffer = bytearray(2**20)
    began_at, cpu = time.perf_counter(), time.process_time()
    with socket.create_connection(("127.0.0.1", ports.tcp)) as connection:
        connection.sendall(f"{name}\n".encode())
        left = length
        while left and (count := connection.recv_into(buffer)):
            left -= count
    if left:
        raise AssertionError(f"{left:,} B of {name} did not come")
    return Taken(length / (time.perf_counter() - began_at), time.process_time() - cpu)


def over_disk(folder: Path, length: int) -> Taken:
    """Write bytes, make them durable, and read them back from the disk, without hashing them."""
    piece, path = bytearray(os.urandom(2**20)), folder / "alone"
    began_at, cpu = time.perf_counter(), time.process_time()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        for _ in range(length // len(piece)):
            os.write(descriptor, piece)
        os.fsync(descriptor)
        forget_pages(descriptor)
        position = 0
        while count := os.preadv(descriptor, [piece], position):
            position += count
    finally:
        os.close(descriptor)
        path.unlink()
    return Taken(position / (time.perf_counter() - began_at), time.process_time() - cpu)


def over_disk_in_files(folder: Path, lengths: Sequence[int]) -> Taken:
    """Write a file for each length, make it and its name durable, and read it back, by several threads."""
    piece, room = os.urandom(max(lengths)), folder / "files"
    room.mkdir()

    def one(number: int) -> None:
        path, buffer = room / f"{number}.part", bytearray(2**18)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.write(descriptor, memoryview(piece)[: lengths[number]])
            os.fsync(descriptor)
            forget_pages(descriptor)
            position = 0
            while count := os.preadv(descriptor, [buffer], position):
                position += count
            path.rename(room / f"{number}.blob")
            sync_directory(room)
        finally:
            os.close(descriptor)

    began_at, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(BLOB_THREADS) as threads:
        list(threads.map(one, range(len(lengths))))
    taken = Taken(sum(lengths) / (time.perf_counter() - began_at), time.process_time() - cpu)
    shutil.rmtree(room)
    return taken


def over_sha256(length: int) -> Taken:
    """Hash bytes once, in one thread."""
    piece, state = os.urandom(2**18), hashlib.sha256()
    began_at, cpu = time.perf_counter(), time.process_time()
    for _ in range(length // len(piece)):
        state.update(piece)
    return Taken(length / (time.perf_counter() - began_at), time.process_time() - cpu)


def acquired(loop: Loop, folder: Path, orders: Sequence[m.AcquisitionOrder]) -> Taken:
    """Have a new courier with an empty store acquire what is ordered."""
    with courier(loop, folder, "taker") as taker:
        cpu, began_at = taker.cpu_seconds, time.perf_counter()
        answer = taker.acquire(orders)
        seconds = time.perf_counter() - began_at
        cpu = taker.cpu_seconds - cpu
    if any(outcome.how != "acquired" for outcome in answer.outcomes):
        failed = next(outcome for outcome in answer.outcomes if outcome.how != "acquired")
        raise AssertionError(f"not acquired: {failed}")
    return Taken(sum(order.artifact.length for order in orders) / seconds, cpu)


def measure_goodput(loop: Loop, folder: Path) -> tuple[dict[str, list[float]], float]:
    """Return goodput by way and limit, in the order taken, and CPU seconds for a byte from the origin."""
    write_sharded(folder / "small", SMALL, filled_with=SEED)
    os.sync()  # else the disk would still be writing it while the first rounds are measured
    samples: dict[str, list[float]] = {}
    cpu: list[float] = []
    with (
        serve_files(folder) as free,
        serve_files(folder, LINK_BYTES_PER_SECOND) as limited,
        courier(loop, folder, "giver") as giver,
    ):
        artifacts = derived(free.url("small/"), None, published=True).participants[0].artifacts
        total = sum(item.length for item in artifacts)
        name = "small/model.safetensors"
        length = (folder / name).stat().st_size
        giver.acquire(from_origin(artifacts))
        for _ in range(ROUNDS):
            for what, ports, rate in (("", free, None), (", limited", limited, LINK_BYTES_PER_SECOND)):
                giver.call(m.LimitTransfers(bytes_per_second=rate))
                ways = {
                    f"bare TCP{what}": over_tcp(ports, name, length),
                    f"origin{what}": acquired(loop, folder, from_origin(at(artifacts, ports))),
                    f"peer{what}": acquired(loop, folder, from_peer(artifacts, giver.source, "taker")),
                }
                for way, taken in ways.items():
                    samples.setdefault(way, []).append(taken.bytes_per_second)
                if rate is None:
                    alone = {
                        "disk alone": over_disk(folder, length),
                        "sha256 alone": over_sha256(length),
                        "disk, many files": over_disk_in_files(folder, [item.length for item in artifacts]),
                    }
                    for way, taken in alone.items():
                        samples.setdefault(way, []).append(taken.bytes_per_second)
                    cpu.append(ways["origin"].cpu_seconds / total)
    return samples, median_interval(cpu)[1]


def report_goodput(samples: Mapping[str, Sequence[float]], cpu_per_byte: float) -> dict[str, Any]:
    """Print goodput and its ratio to what bounds it, round by round; return the results."""
    results: dict[str, Any] = {}
    lowest = [min(rates) for rates in zip(*(samples[way] for way in CEILINGS), strict=True)]
    print(f"goodput of 256 MB, MB/s ({ROUNDS} rounds; acquired: hashed, synced and read back)")
    print(f"{'':18}  {'p50':>7}  {'(interval)':>17}  {'÷ TCP':>6}  {'÷ lowest':>8}  target {TARGET:.0%}")
    for way, values in samples.items():
        low, middle, high = (value / 1e6 for value in median_interval(values))
        is_limited = "limited" in way
        bare = samples["bare TCP, limited" if is_limited else "bare TCP"]
        of_tcp = median_interval([mine / other for mine, other in zip(values, bare, strict=True)])
        of_lowest = median_interval([mine / other for mine, other in zip(values, lowest, strict=True)])
        ratio = of_tcp if is_limited else of_lowest
        verdict = "" if not way.startswith(("origin", "peer")) else "met" if ratio[1] >= TARGET else "MISSED"
        results[way] = {"MB/s": [low, middle, high], "of TCP": of_tcp, "of lowest": of_lowest, "target": verdict}
        second = "" if is_limited else f"{of_lowest[1]:.2f}"
        print(f"{way:18}  {middle:7.1f}  ({low:7.1f}–{high:7.1f})  {of_tcp[1]:6.2f}  {second:>8}  {verdict}")
    cores = os.cpu_count() or 1
    most = cores / cpu_per_byte / 1e6
    print(f"the courier took {cpu_per_byte * 1e9:.1f} ns of CPU a byte: at most {most:,.0f} MB/s of {cores} CPUs")
    return results


# -- memory --


def measure_memory(loop: Loop, folder: Path, ports: Ports) -> tuple[dict[str, Any], PlanArtifacts]:
    """Describe the large model by its headers, and have a courier acquire its first quarter."""
    first_units = 1 + LARGE.layers // 4
    command = [sys.executable, "-m", "tests.bench.bench_artifacts", "describe", ports.url("large/"), str(first_units)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    base, peak, seconds, text = json.loads(done.stdout)
    plan = read_document(PlanArtifacts, text, "the describing process")
    artifacts = plan.participants[0].artifacts
    with courier(loop, folder, "taker") as taker:
        idle, began_at = peak_bytes(taker.pid), time.perf_counter()
        answer = taker.acquire(from_origin(artifacts))
        taken = time.perf_counter() - began_at
        courier_peak = peak_bytes(taker.pid)
    if any(outcome.how != "acquired" for outcome in answer.outcomes):
        raise AssertionError("not all was acquired")
    total = sum(item.length for item in artifacts)
    print(f"\nmemory (VmHWM, MB): a model of {4.0} GB in {LARGE.files} files with holes for tensors")
    print(f"  described by headers over HTTP   {base / 1e6:6.0f} before, {peak / 1e6:6.0f} after, {seconds:5.1f} s")
    print(
        f"  {total / 1e9:.2f} GB of it acquired           {idle / 1e6:6.0f} before, {courier_peak / 1e6:6.0f} after",
        end="",
    )
    print(f", {taken:5.1f} s")
    results = {
        "described": {"base": base, "peak": peak, "seconds": seconds},
        "acquired": {"bytes": total, "base": idle, "peak": courier_peak, "seconds": taken},
    }
    return results, plan


# -- tokens --


def gaps_of(client: Any, question: m.Generate) -> list[float]:
    """Return the seconds between the tokens of one stream, as the client sees them."""
    times: list[float] = []
    with closing(client.events(question)) as events:
        for event in events:
            if isinstance(event, m.TokenCommitted):
                times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times)]


def measure_tokens(loop: Loop, folder: Path, ports: Ports, rate: float) -> dict[str, list[list[float]]]:
    """Return the gaps of every stream: idle, and beside a courier at `rate` and at full speed, taking turns."""
    artifacts = derived(ports.url("large/"), None).participants[0].artifacts
    model = Model("smollm2-135m")
    prompt = tuple(model.opened.text.codec.encode(PROMPT))
    question = m.Generate(token_ids=prompt, max_tokens=NUM_TOKENS, ignore_stop=True)
    envelopes = [Envelope(name=name, threads=1, memory_bytes=ENVELOPE_BYTES) for name in ("left", "right")]
    found: dict[str, list[list[float]]] = {"idle": [], "limited": [], "full speed": []}
    with tempfile.TemporaryDirectory() as state, Swarm.local(envelopes, state=state) as swarm:
        order = order_over(
            swarm, model, ("left", "right"), Workload(prompt_tokens=len(prompt), output_tokens=NUM_TOKENS)
        )
        client = swarm._connected()
        client.ask(realize_first(str(model.path), [order]))
        gaps_of(client, question)
        for _ in range(STREAMS):
            for what, limit in (("idle", None), ("limited", rate), ("full speed", None)):
                if what == "idle":
                    found[what].append(gaps_of(client, question))
                    continue
                with courier(loop, folder, "taker") as taker:
                    taker.call(m.LimitTransfers(bytes_per_second=limit))
                    beside = threading.Thread(target=_acquire_until_stopped, args=(taker, artifacts), daemon=True)
                    beside.start()
                    found[what].append(gaps_of(client, question))
                    if not beside.is_alive():
                        raise AssertionError("the courier was done before the stream was")
    return found


def _acquire_until_stopped(taker: Courier, artifacts: Sequence[Artifact]) -> None:
    with contextlib.suppress(EngineError):  # the courier is ended in the middle of it
        taker.acquire(from_origin(artifacts))


def report_tokens(found: Mapping[str, Sequence[Sequence[float]]], rate: float) -> dict[str, Any]:
    """Print the p95 of each stream and its ratio to the idle one of its round; return the results."""
    print(f"\ntokens: SmolLM2-135M over two stages of one thread, ms ({STREAMS} streams of {NUM_TOKENS} tokens)")
    print(f"limited: {rate / 1e6:.1f} MB/s, which cost {CPU_SHARE:.0%} of one CPU")
    print(f"{'':12}  {'p50':>6}  {'p95':>6}  {'(interval)':>15}  {'÷ idle':>6}  target {TARGET_TOKENS:g}")
    results: dict[str, Any] = {"rate": rate}
    idle = [percentile(gaps, 0.95) for gaps in found["idle"]]
    for what, streams in found.items():
        p95 = [percentile(gaps, 0.95) for gaps in streams]
        low, middle, high = (1e3 * value for value in median_interval(p95))
        half = 1e3 * percentile([gap for gaps in streams for gap in gaps], 0.5)
        ratio = median_interval([mine / other for mine, other in zip(p95, idle, strict=True)])
        verdict = "" if what != "limited" else "met" if ratio[1] <= TARGET_TOKENS else "MISSED"
        results[what] = {"p50": half, "p95": [low, middle, high], "ratio": ratio, "target": verdict}
        print(f"{what:12}  {half:6.1f}  {middle:6.1f}  ({low:6.1f}–{high:6.1f})  {ratio[1]:6.2f}  {verdict}")
    return results


def main() -> None:
    """Measure the three parts, print their tables, keep the samples."""
    taken = conditions()
    loop = Loop()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        goodput, cpu_per_byte = measure_goodput(loop, folder)
        results: dict[str, Any] = {
            "goodput": report_goodput(goodput, cpu_per_byte),
            "cpu_seconds_per_byte": cpu_per_byte,
        }
        write_sharded(folder / "large", LARGE)
        with serve_files(folder) as ports:
            results["memory"], _ = measure_memory(loop, folder, ports)
            rate = CPU_SHARE / cpu_per_byte
            streams = measure_tokens(loop, folder, ports, rate)
        results["tokens"] = report_tokens(streams, rate)
    loop.close()
    gaps = {f"gaps, {what}": [gap for one in found for gap in one] for what, found in streams.items()}
    write("artifacts", {**goodput, **gaps}, results, taken)


if __name__ == "__main__":
    if sys.argv[1:2] == ["describe"]:
        describe(sys.argv[2], int(sys.argv[3]))
    else:
        main()
