"""What must hold in a soak, as functions of what was seen: answers, memory and descriptors, refusals, the ledger.

Each returns its findings as sentences; none means that it holds. What was not seen for long enough is said to be
undetermined by whoever asks, never taken to hold.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from inferswarm.fabric import events as ev
from inferswarm.fabric import messages as m
from inferswarm.fabric.audit import read_audit
from inferswarm.fabric.ledger import Ledger
from tests.soak.beds import Wanted
from tests.unit.fabric.processes import Identity

WARM_UP_SECONDS = 45.0
"""Of a process, before its memory is judged: allocators and caches fill."""
LEAST_SECONDS = 90.0
"""So long after its warm-up a process must have been watched for a judgement."""
GROWTH_SHARE = 0.1
GROWTH_BYTES = 6 * 2**20
"""Memory is flat when its median grows by no more than the larger of the two: sampling and free lists wander."""
GROWTH_DESCRIPTORS = 6
"""As many as the connections of one more route of stages, which may be there at one time and not at another."""
LATE = frozenset(
    {
        "LEASE_LAPSED",
        "NO_ACTIVE_AUTHORITY",
        "RETIRED_OR_SUPERSEDED_EPOCH",
        "SESSION_MISMATCH",
        "SESSION_SUSPENDED",
        "WRONG_REALIZATION",
    }
)
"""Codes of results that came after their epoch or session had ended: what kills and pauses bring about."""
OVERTAKEN = frozenset(
    {"ADOPTION_REFUSED", "NODE_NOT_A_MEMBER", "REALIZATION_NOT_READY", "TRANSITION_UNDER_WAY", "UNKNOWN_REALIZATION"}
)
"""Codes of what a Coordinator began, or a Node asked for, when a loss in the same moment had made it pointless."""


class Sample(NamedTuple):
    """One look at a process: seconds since the soak began, bytes resident, open descriptors."""

    at: float
    resident_bytes: int
    descriptors: int


class Growth(NamedTuple):
    """How a process's medians grew from the first to the last third of the time after its warm-up."""

    role: str
    pid: int
    seconds: float
    bytes_before: int
    bytes_after: int
    descriptors_before: int
    descriptors_after: int

    @property
    def findings(self) -> tuple[str, ...]:
        """Say what is not flat."""
        found = []
        allowed = max(GROWTH_BYTES, GROWTH_SHARE * self.bytes_before)
        if self.bytes_after - self.bytes_before > allowed:
            before, after = self.bytes_before / 2**20, self.bytes_after / 2**20
            found.append(
                f"{self.role} ({self.pid}) grew from {before:.1f} to {after:.1f} MiB in {self.seconds:.0f} s"
            )
        if self.descriptors_after - self.descriptors_before > GROWTH_DESCRIPTORS:
            counts = f"{self.descriptors_before} to {self.descriptors_after}"
            found.append(f"{self.role} ({self.pid}): open descriptors went from {counts} in {self.seconds:.0f} s")
        return tuple(found)


def growth_of(role: str, pid: int, samples: Sequence[Sample]) -> Growth | None:
    """Judge one process; None when it was not watched for long enough."""
    warm = [sample for sample in samples if sample.at - samples[0].at >= WARM_UP_SECONDS]
    if not warm or warm[-1].at - warm[0].at < LEAST_SECONDS:
        return None
    third = (warm[-1].at - warm[0].at) / 3
    first = [sample for sample in warm if sample.at <= warm[0].at + third]
    last = [sample for sample in warm if sample.at >= warm[-1].at - third]

    def middle(part: Sequence[Sample], field: int) -> int:
        return int(statistics.median(sample[field] for sample in part))

    return Growth(
        role, pid, warm[-1].at - warm[0].at, middle(first, 1), middle(last, 1), middle(first, 2), middle(last, 2)
    )


def check_answer(wanted: Wanted, record: m.SessionRecord, seen: Mapping[int, int], *, whole: bool) -> list[str]:
    """Compare a session with its undisturbed reference, and with what its client saw of it, position by position.

    Unless it is `whole`, as after its client has left, it may end early; what there is must be equal.
    """
    name, count = f"session {record.session}", len(record.tokens)
    found = []
    if whole and (record.state, count) != ("COMPLETED", len(wanted.tokens)):
        found.append(f"{name} is {record.state} with {count} of {len(wanted.tokens)} tokens: {record.reason}")
    if record.tokens != wanted.tokens[:count] or record.logits_digests != wanted.logits_digests[:count]:
        pairs = zip(record.tokens, record.logits_digests, wanted.tokens, wanted.logits_digests, strict=False)
        first = next((index for index, (a, b, c, d) in enumerate(pairs) if (a, b) != (c, d)), count)
        found.append(f"{name} is another answer from token {first} on")
    start = len(record.prompt_ids)
    if sorted(seen) != list(range(start, start + len(seen))) or (whole and len(seen) != count):
        found.append(f"{name}: its client saw {len(seen)} positions, not each of {count} once")
    elif tuple(seen[position] for position in sorted(seen)) != record.tokens[: len(seen)]:
        found.append(f"{name}: its client saw other tokens than the ledger has")
    return found


def check_refusals(reported: Mapping[str, int], recorded: Mapping[str, int], earlier: Mapping[str, int]) -> list[str]:
    """Compare counts that the Coordinator reports with the recorded refusals, and with what it reported before."""
    unexplained = sorted({*recorded} - LATE - OVERTAKEN)
    found = [f"refused for {code}, which no loss explains: {recorded[code]}" for code in unexplained]
    if dict(reported) != dict(recorded):
        found.append(f"the Coordinator counts {dict(reported)}, its ledger has {dict(recorded)}")
    fallen = [code for code, count in earlier.items() if recorded.get(code, 0) < count]
    if fallen:
        found.append(f"counts of refusals went down: {', '.join(fallen)}")
    return found


def check_ended(ledger: Path) -> list[str]:
    """Look for sessions and epochs that a swarm which has ended left open."""
    opened = Ledger(ledger)
    try:
        found = [f"session {number} is open after the end" for number, _ in opened.open_sessions()]
        states = opened._db.execute("SELECT number, state FROM epochs").fetchall()
    finally:
        opened.close()
    return found + [f"epoch {number} is {state} after the end" for number, state in states if state == "ACTIVE"]


def check_gone(processes: Iterable[Identity]) -> list[str]:
    """Look for processes that are still there."""
    return [f"process {process.pid} is left" for process in processes if process.runs()]


def transitions_of(ledger: Path) -> Counter[str]:
    """Count the recorded changes of epochs by what asked for them, mode and outcome."""
    last = {
        entry.item.record.number: entry.item.record
        for entry in read_audit(ledger)
        if isinstance(entry.item, ev.TransitionRecorded)
    }
    return Counter(
        f"{record.trigger.value} {record.mode.value if record.mode else '-'} {record.outcome.value}"
        for record in last.values()
    )
