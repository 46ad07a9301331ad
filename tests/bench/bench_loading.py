"""From start to first token, and the memory that loading takes, for each file format of one and the same model.

Every run is a fresh process that opens a model, builds its text side, materializes the whole chain in bf16 on one
thread and computes the first token of a short prompt; formats take turns. Times count from before the process was
started: interpreter and libraries are in them. Memory is VmHWM of that process, from after its imports on. What
loading adds beyond what the model occupies afterwards is its staging: no format may hold the file.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from inferswarm.strategies.dense.model import DenseModel
from tests.bench.report import conditions, median_interval, write
from tests.checkpoints import whole_assignment, write_llama_directory

ROUNDS = 5
MODEL = "smollm2-135m"
PROMPT = "The capital of France is"
HOSTED = "… by transformers"
TIMES = ("imported", "opened", "text", "materialized", "first token")


def child(path: str, backend: str, started: float) -> None:
    """Load the model at `path` in this process, and print seconds since `started` and bytes as JSON."""
    seconds: dict[str, float] = {}

    def note(name: str) -> None:
        seconds[name] = time.time() - started

    from inferswarm.backends.registry import make_executor
    from inferswarm.backends.torch_backend.bench import reset_peak, resident_bytes
    from inferswarm.swarm.opening import open_model

    reset_peak()
    base = resident_bytes("VmRSS")
    note("imported")
    model = open_model(path, backend)
    note("opened")
    ids = model.text.codec.encode(PROMPT)
    note("text")
    executor = make_executor(whole_assignment(model, "bf16", max_positions=128))
    states = sum(state.bytes for state in executor.materialize(lambda done, total: None))
    note("materialized")
    loaded, peak = resident_bytes("VmRSS"), resident_bytes("VmHWM")
    executor.open("bench")
    payload = b"".join(token.to_bytes(4, "little") for token in ids)
    token = executor.step("bench", 0, len(ids), payload, sample=True).token
    note("first token")
    print(
        json.dumps(
            {
                "seconds": seconds,
                "token": token,
                "file_bytes": model.object.length,
                "state_bytes": states,
                "base_bytes": base,
                "loaded_bytes": loaded,
                "peak_bytes": peak,
            }
        )
    )


def _run(path: Path, backend: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.bench.bench_loading", str(path), backend, repr(time.time())]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main() -> None:
    """Write the formats, load each in turns, print the table, keep the samples."""
    taken = conditions()
    with tempfile.TemporaryDirectory() as folder:
        source = DenseModel.open(MODEL)
        bf16 = write_llama_directory(source, Path(folder, "bf16"), dtype=torch.bfloat16)
        paths = {
            "GGUF Q4_1": source.path,
            "safetensors bf16": bf16,
            "safetensors fp32": write_llama_directory(source, Path(folder, "fp32"), dtype=torch.float32),
            "4 safetensors bf16": write_llama_directory(
                source, Path(folder, "parts"), dtype=torch.bfloat16, num_files=4
            ),
            HOSTED: bf16,
        }
        runs: dict[str, list[dict[str, object]]] = {name: [] for name in paths}
        for _ in range(ROUNDS):
            for name, path in paths.items():
                runs[name].append(_run(path, "transformers" if name == HOSTED else "torch"))
    _report(runs, taken)


def _report(runs: dict[str, list[dict[str, object]]], taken: dict[str, object]) -> None:
    print(f"loading {MODEL} as bf16 on one thread, fresh processes, {ROUNDS} interleaved rounds (medians)")
    heading = f"{'':20}  {'file, MB':>9}  {'imports, s':>10}  {'text, s':>8}  {'ready, s':>9}  {'first token, s':>24}"
    print(f"{heading}  {'peak - kept, MB':>16}")
    samples: dict[str, list[float]] = {}
    results: dict[str, object] = {}
    tokens = set()
    for name, found in runs.items():
        for moment in TIMES:
            samples[f"{name}: {moment}, s"] = [run["seconds"][moment] for run in found]  # type: ignore[index]
        staging = [run["peak_bytes"] - run["loaded_bytes"] for run in found]  # type: ignore[operator]
        samples[f"{name}: peak - kept, B"] = staging
        for kind in ("peak_bytes", "base_bytes", "loaded_bytes", "state_bytes"):
            samples[f"{name}: {kind}"] = [run[kind] for run in found]  # type: ignore[misc]
        if name != HOSTED:
            tokens |= {run["token"] for run in found}
        low, middle, high = median_interval(samples[f"{name}: first token, s"])
        imports = statistics.median(samples[f"{name}: imported, s"])
        text = statistics.median(samples[f"{name}: text, s"])
        ready = statistics.median(samples[f"{name}: materialized, s"])
        size = found[0]["file_bytes"] / 1e6  # type: ignore[operator]
        kept = statistics.median(staging) / 1e6
        results[name] = {"first_token_seconds": middle, "low": low, "high": high, "staging_bytes": kept * 1e6}
        total = f"{middle:8.2f} ({low:.2f}–{high:.2f})"
        print(f"{name:20}  {size:9.1f}  {imports:10.2f}  {text:8.2f}  {ready:9.2f}  {total}  {kept:16.1f}")
    results["the first tokens agree"] = len(tokens) == 1
    write("loading", samples, results, taken)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1], sys.argv[2], float(sys.argv[3]))
    else:
        main()
