"""Run a soak: `python -m tests.soak [--minutes 20] [--seed N] [--backend smollm2]`. A violation is exit status 1."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.bench.report import conditions
from tests.soak.beds import BEDS
from tests.soak.running import Soaked, soak

OUT = Path("out/soak")


def main() -> int:
    """Run it, print progress and a table, write out/soak/SEED.json, and SEED.ledger after a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long it is disturbed (default: 20)")
    parser.add_argument("--seed", type=int, help="of what happens, but not of when (default: a random one)")
    parser.add_argument("--backend", choices=sorted(BEDS), default="smollm2", help="what computes (default: smollm2)")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    taken = conditions()
    say(f"soak of {arguments.minutes:g} minutes over {arguments.backend}, seed {seed}")
    ledger = OUT / f"{seed}.ledger"
    soaked = soak(arguments.backend, 60 * arguments.minutes, seed, say, kept_ledger=ledger)
    print(table(soaked))
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{seed}.json"
    asked = {"backend": arguments.backend, "minutes": arguments.minutes, "seed": seed}
    record = {**asked, "conditions": taken, **soaked._asdict()}
    record["growths"] = [growth._asdict() for growth in soaked.growths]
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {path}")
    return 1 if soaked.violations else 0


def say(line: str) -> None:
    """Print a line of progress with the time of day, at once."""
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


def table(soaked: Soaked) -> str:
    """Return what a soak came to, for people."""
    lines = [f"{soaked.seconds:.0f} s with the calm at the end"]
    sections: tuple[tuple[str, Mapping[str, int]], ...] = (
        ("seen", soaked.counts),
        ("changes of epochs", soaked.transitions),
        ("refused, as late or overtaken by a loss", soaked.refusals),
    )
    for title, counts in sections:
        lines.append(title)
        lines += [f"  {number:8}  {what}" for what, number in sorted(counts.items())]
    lines.append(f"ledger: {soaked.num_events} events and {soaked.num_commits} commits replayed")
    lines.append("memory after warm-up, first and last third, MiB and descriptors")
    for growth in soaked.growths:
        before, after = growth.bytes_before / 2**20, growth.bytes_after / 2**20
        lines.append(
            f"  {growth.role:<12} {growth.pid:>7}  {before:7.1f} → {after:7.1f}  "
            f"{growth.descriptors_before:3} → {growth.descriptors_after:3}  in {growth.seconds:.0f} s"
        )
    lines += [f"  undetermined: {what}" for what in soaked.undetermined]
    lines.append(f"violations: {len(soaked.violations)}")
    lines += [f"  {what}" for what in soaked.violations]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
