"""What every benchmark shares: conditions, bootstrap intervals, a table, and a file with the raw samples."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from inferswarm import __version__
from inferswarm.resources.cpuinfo import read_cpu

OUT = Path("out/bench")
SEED = 20261129


def conditions() -> dict[str, Any]:
    """Return what the numbers depend on: machine, versions, load before the run."""
    cpu = read_cpu()
    return {
        "inferswarm": __version__,
        "torch": version("torch"),
        "pyzmq": version("pyzmq"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": cpu.model_name.value,
        "usable_cpus": cpu.usable_cpus.value,
        "load_average": os.getloadavg(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the median with its 95 % bootstrap interval (seeded)."""
    middle = statistics.median(samples)
    if len(samples) < 3 or min(samples) == max(samples):
        return min(samples), middle, max(samples)
    found = bootstrap(
        (np.asarray(samples),), np.median, n_resamples=2000, rng=np.random.default_rng(SEED), method="percentile"
    )
    return float(found.confidence_interval.low), middle, float(found.confidence_interval.high)


def percentile(samples: Sequence[float], share: float) -> float:
    """Return an order statistic: the smallest sample that at least `share` of all do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def write(
    name: str, samples: Mapping[str, Sequence[float]], results: Mapping[str, Any], taken: Mapping[str, Any]
) -> None:
    """Write `out/bench/NAME.json`: conditions, raw samples in the order taken, and what was derived from them."""
    OUT.mkdir(parents=True, exist_ok=True)
    record = {"name": name, "conditions": taken, "samples": samples, "results": results}
    (OUT / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"raw samples: {OUT / f'{name}.json'}\n")
