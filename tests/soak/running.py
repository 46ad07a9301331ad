"""One soak from start to end: load, losses, watching, and every check that must hold during it and after it."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from inferswarm.errors import AdmissionError, InferSwarmError
from inferswarm.fabric import messages as m
from inferswarm.fabric.audit import RefusedWork, read_refusals
from inferswarm.fabric.ledger import Ledger
from tests.soak.beds import SESSIONS, Bed, open_bed, order_of_all, status_of
from tests.soak.checks import Growth, Sample, check_ended, check_gone, check_refusals, transitions_of
from tests.soak.disturbing import MEAN_PAUSE_SECONDS, Disturber
from tests.soak.ledger_replay import replay_ledger
from tests.soak.load import SILENT_SECONDS, Journal, LoadClient
from tests.soak.watching import Watch
from tests.unit.fabric.processes import all_gone, wait_until

PROGRESS_SECONDS = 15.0
ENOUGH_VIOLATIONS = 20
"""After so many the soak ends: there is something to look at."""
END_SECONDS = 15.0
"""Within which every process is gone once the swarm is closed."""
COORDINATOR_SHARE = 0.4
"""Of the time, in which the Coordinator is killed; in the rest of it one is watched for long."""
JUDGED_FROM_MINUTES = 5.0
"""A soak at least so long must have judged the memory of a Coordinator and of an agent."""
NUM_REPLAYS = 3
MOST_FINDINGS = 5
"""Of a replayed ledger: what is behind the first ones follows from them."""


class Soaked(NamedTuple):
    """What a soak came to."""

    seconds: float
    counts: Counter[str]
    transitions: Counter[str]
    refusals: Counter[str]
    growths: tuple[Growth, ...]
    samples: Mapping[str, tuple[Sample, ...]]
    """All looks at each process, by role and process id."""
    undetermined: tuple[str, ...]
    violations: tuple[str, ...]
    num_events: int
    num_commits: int


def recorded_refusals(bed: Bed) -> Counter[str]:
    """Count what the ledger says was refused, by code."""
    items = [entry.item for entry in read_refusals(bed.ledger)]
    return Counter(item.code for item in items if isinstance(item, RefusedWork))


def soak(
    backend: str,
    seconds: float,
    seed: int,
    say: Callable[[str], None],
    *,
    mean_pause: float = MEAN_PAUSE_SECONDS,
    kept_ledger: Path | None = None,
) -> Soaked:
    """Run one; where something was violated its ledger is copied to `kept_ledger`.

    Raises SpecError for an unknown backend, and whatever keeps the swarm from starting.
    """
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        bed = open_bed(backend, Path(directory))
        try:
            soaked = _soak(bed, seconds, seed, say, mean_pause)
        finally:
            bed.close()
        if soaked.violations and kept_ledger is not None:
            kept_ledger.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(bed.ledger, kept_ledger)
    return soaked


def _soak(bed: Bed, seconds: float, seed: int, say: Callable[[str], None], mean_pause: float) -> Soaked:
    journal, chance = Journal(), random.Random(seed)
    bed.client.ask(order_of_all(bed))
    disturber = Disturber(bed, journal, chance.randrange(2**32), mean_pause)
    earlier: Counter[str] = Counter()
    began_at = time.monotonic()
    until = began_at + seconds
    watch = Watch(bed)
    clients = [LoadClient(bed, journal, chance.randrange(2**32)) for _ in range(SESSIONS)]
    told_at = began_at

    def should_end() -> bool:
        nonlocal told_at
        if time.monotonic() - told_at > PROGRESS_SECONDS:
            told_at = time.monotonic()
            say(_progress(journal, until - told_at))
            earlier.update({code: n - earlier[code] for code, n in recorded_refusals(bed).items()})
        stuck = [f"an answer does not go on: {client}" for client in clients if client.is_stuck]
        journal.violated(*stuck)
        return bool(stuck) or len(journal.violations) >= ENOUGH_VIOLATIONS

    disturber.run(until, began_at + COORDINATOR_SHARE * seconds, should_end)
    say("calm: every Node comes back, open answers end")
    for client in clients:
        client.stop()
    disturber.calm()
    for client in clients:
        if not client.join(SILENT_SECONDS):
            journal.violated(f"an answer does not end: {client}")
    _replay_answers(bed, journal, chance)
    reported: dict[str, int] = {}

    def agree() -> bool:
        reported.clear()
        reported.update(status_of(bed).refusals)
        return reported == recorded_refusals(bed)

    wait_until(agree, 5.0)
    refusals = recorded_refusals(bed)
    journal.violated(*check_refusals(reported, refusals, earlier))
    bed.client.ask(m.Retire())
    watch.stop()
    growths = watch.growths()
    bed.close()
    all_gone(watch.processes, END_SECONDS)
    journal.violated(*check_gone(watch.processes), *check_ended(bed.ledger))
    replayed = replay_ledger(bed.ledger, bed.scope)
    journal.violated(
        *replayed.findings[:MOST_FINDINGS], *(finding for growth in growths for finding in growth.findings)
    )
    undetermined = _undetermined(growths, seconds)
    if seconds >= 60 * JUDGED_FROM_MINUTES:
        journal.violated(*undetermined)
    return Soaked(
        seconds=time.monotonic() - began_at,
        counts=journal.counts,
        transitions=transitions_of(bed.ledger),
        refusals=refusals,
        growths=tuple(growths),
        samples={f"{role} {process.pid}": tuple(seen) for (role, process), seen in watch.samples.items()},
        undetermined=undetermined,
        violations=tuple(journal.violations),
        num_events=replayed.num_events,
        num_commits=replayed.num_commits,
    )


def _progress(journal: Journal, left: float) -> str:
    counts = journal.counts
    disturbed = sum(number for what, number in counts.items() if what.startswith("disturbed"))
    return (
        f"{max(0, int(left)) // 60}:{max(0, int(left)) % 60:02} left: {counts['answers']} answers, "
        f"{counts['tokens']} tokens, {disturbed} disturbances, {len(journal.violations)} violations"
    )


def _undetermined(growths: list[Growth], seconds: float) -> tuple[str, ...]:
    """Name the roles whose memory was not judged."""
    missing = [role for role in ("Coordinator", "agent", "owner") if role not in {growth.role for growth in growths}]
    return tuple(f"no {role} was watched for long enough in {seconds:.0f} s to judge its memory" for role in missing)


def _replay_answers(bed: Bed, journal: Journal, chance: random.Random) -> None:
    """Have some answers of the soak computed again, step by step as they were recorded."""
    opened = Ledger(bed.ledger)
    try:
        rows = opened._db.execute("SELECT number FROM sessions WHERE state='COMPLETED' AND replay_of=0").fetchall()
    finally:
        opened.close()
    numbers = [int(number) for (number,) in rows]
    for number in chance.sample(numbers, min(NUM_REPLAYS, len(numbers))):
        try:
            bed.client.ask(m.Replay(session=number))
            journal.count("answers replayed from their record")
        except AdmissionError as error:
            journal.count(f"answers whose record another plan would have to replay ({error.field})")
        except InferSwarmError as error:
            journal.violated(f"the replay of session {number} ended with {type(error).__name__}: {error}")
