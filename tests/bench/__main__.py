"""Run all benchmarks, or those named: `python -m tests.bench [hop] [split]`."""

import importlib
import sys
from pathlib import Path


def main() -> None:
    """Import and run each `bench_NAME.py` beside this file."""
    names = sys.argv[1:] or sorted(
        path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")
    )
    for name in names:
        importlib.import_module(f"tests.bench.bench_{name}").main()


if __name__ == "__main__":
    main()
