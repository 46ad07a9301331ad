"""Which address pair the messages of a path take: the one that is expected to move a step's payload soonest.

A record of `message-seconds` is about one pair of addresses, and says so in its subject and in its context. Pairs are
compared by the median at 4 KB, which is what a step sends, and where the noise of the samples leaves that open, by
the median at 64 KB; what is still open is settled by the addresses themselves, alike each time. Records of several
pairs are never mixed: a curve is made of one pair, the best.

The noise of a difference of two medians is twice its standard error, with the standard error of a median taken as
1.2533 σ / √n and σ as 1.4826 times the median absolute deviation (both hold for normal samples).
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from inferswarm.errors import MeasurementError
from inferswarm.evidence.applicability import Selection
from inferswarm.evidence.facts import path_subject
from inferswarm.evidence.types import Observation
from inferswarm.strategies.overheads import Records, count_of, refuse_mixture
from inferswarm.units import format_seconds

PATH_METRIC: Final = "message-seconds"
UNREACHED_METRIC: Final = "path-unreached"
"""That a pair was tried and how it failed (context `run.reason`); its one sample counts the attempt."""
ATTEMPTS: Final = "attempts"
STEP_BYTES: Final = 4096
SECOND_BYTES: Final = 65536
LARGE_BYTES: Final = 16 * 2**20
_STANDARD_ERROR: Final = 1.2533 * 1.4826

Addresses = tuple[str, str]


class PairTimes(NamedTuple):
    """What was measured over one pair of addresses: one-way seconds by payload size, and the records it is from."""

    addresses: Addresses
    samples: dict[int, tuple[float, ...]]
    selection: Selection

    def seconds(self, payload_bytes: int) -> float | None:
        """Return the median for a payload size; None where no message of that size was measured."""
        found = self.samples.get(payload_bytes)
        return median(found) if found else None

    @property
    def left_out(self) -> str:
        """Return why the largest messages were not sent; empty when nothing says so."""
        texts = (record.context_value("run.left.out") for record in self.selection.applicable)
        return next((text for text in texts if text), "")


class PairReport(NamedTuple):
    """One pair of addresses for people: what was measured, and whether it is used, or why not."""

    addresses: Addresses
    times: PairTimes | None
    """None: no message got through, or no record of one holds now."""
    used: bool
    reason: str


class PathReport(NamedTuple):
    """All address pairs of a directed pair of Nodes (ids); the one that is used first."""

    source: str
    target: str
    pairs: tuple[PairReport, ...]


def best_pair(source: str, target: str, transport: str | None, records: Records) -> Selection:
    """Return the records of the address pair that messages take from one Node to another.

    Raises MeasurementError when none applies, or when they are of several transports.
    """
    ranked = order_pairs(source, target, transport, records)
    refuse_mixture(
        Selection(
            path_subject(source, target),
            PATH_METRIC,
            tuple(record for pair, _ in ranked for record in pair.selection.applicable),
            (),
        ),
        ("transport",),
    )
    return ranked[0][0].selection


def order_pairs(
    source: str, target: str, transport: str | None, records: Records
) -> tuple[tuple[PairTimes, str], ...]:
    """Return the pairs of which records apply, the best first, each with why it is not used (empty for the best).

    A pair that failed after it was measured is none of them. Raises MeasurementError, with the reason of those that
    come nearest, when there is none.
    """
    required = {} if transport is None else {"transport": transport}
    failed = _failures(source, target, transport, records)
    whole = path_subject(source, target)
    found: list[PairTimes] = []
    refused: list[str] = []
    for subject in records.subjects(PATH_METRIC):
        if subject != whole and not subject.startswith(f"{whole} over "):
            continue
        selection = records.select(subject, PATH_METRIC, required)
        if not selection.applicable:
            refused.append(selection.unknown_reason or "")
            continue
        stated = {_addresses(record) for record in selection.applicable}
        addresses = stated.pop() if len(stated) == 1 else None
        if addresses is None or subject != path_subject(source, target, addresses):
            refused.append("records of this path do not state the two addresses that they were measured over")
        elif not _is_after(failed.get(addresses), selection):
            found.append(PairTimes(addresses, _points(selection), selection))
    if not found and failed:
        reasons = [f"{' → '.join(addresses)}: {_reason(record)}" for addresses, record in failed.items()]
        more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        raise MeasurementError(f"no pair of addresses gets through ({'; '.join(reasons[:3])}{more})")
    if not found:
        nothing = records.select(whole, PATH_METRIC, required).unknown_reason
        raise MeasurementError(min(refused, key=lambda text: (len(text), text)) if refused else str(nothing))
    return _ranked(found)


def _failures(source: str, target: str, transport: str | None, records: Records) -> dict[Addresses, Observation]:
    """Return the newest record of each pair that says it was not reached, sorted by addresses."""
    required = {} if transport is None else {"transport": transport}
    found: dict[Addresses, Observation] = {}
    for subject in records.subjects(UNREACHED_METRIC):
        for record in records.select(subject, UNREACHED_METRIC, required, unit=ATTEMPTS).applicable:
            addresses = _addresses(record)
            if addresses is not None and subject == path_subject(source, target, addresses):
                found[addresses] = record  # oldest first
    return dict(sorted(found.items()))


def _is_after(failure: Observation | None, selection: Selection) -> bool:
    measured_at = max(int(record.taken_at_ns) for record in selection.applicable)
    return failure is not None and int(failure.taken_at_ns) > measured_at


def _reason(record: Observation) -> str:
    return record.context_value("run.reason") or "no reason was recorded"


def _addresses(record: Observation) -> Addresses | None:
    """Return the two addresses that a record states; None when one is missing, or is no address."""
    source, target = record.context_value("address.source"), record.context_value("address.target")
    try:
        ends = (str(ipaddress.ip_address(source or "")), str(ipaddress.ip_address(target or "")))
    except ValueError:
        return None
    return ends if ends == (source, target) else None


def _points(selection: Selection) -> dict[int, tuple[float, ...]]:
    points: dict[int, tuple[float, ...]] = {}
    for record in selection.applicable:
        payload = count_of(record, "payload.bytes", 0)
        points[payload] = points.get(payload, ()) + record.samples
    return points


def _ranked(pairs: Sequence[PairTimes]) -> tuple[tuple[PairTimes, str], ...]:
    order = sorted(pairs, key=lambda pair: (pair.seconds(STEP_BYTES) or math.inf, _by_address(pair)))
    level = [pair for pair in order if not _slower(pair, order[0], STEP_BYTES)]
    ahead = min(level, key=lambda pair: (pair.seconds(SECOND_BYTES) or math.inf, _by_address(pair)))
    best = min((pair for pair in level if not _slower(pair, ahead, SECOND_BYTES)), key=_by_address)
    rivals = ((STEP_BYTES, (best, order[0])), (SECOND_BYTES, (best, ahead)))
    return ((best, ""), *((pair, _why_not(pair, best, rivals)) for pair in order if pair is not best))


def _by_address(pair: PairTimes) -> tuple[tuple[bool, int, int], ...]:
    """Return what settles a draw, alike each time: loopback before others, IPv4 before IPv6, the lower number."""
    numbers = (ipaddress.ip_address(text) for text in pair.addresses)
    return tuple((not number.is_loopback, number.version, int(number)) for number in numbers)


def _slower(pair: PairTimes, other: PairTimes, payload_bytes: int) -> bool:
    """Return whether a pair is slower than another beyond the noise; one that was not measured there is."""
    mine, its = pair.seconds(payload_bytes), other.seconds(payload_bytes)
    if mine is None or its is None:
        return mine is None and its is not None
    return mine - its > _noise(pair, other, payload_bytes)


def _noise(pair: PairTimes, other: PairTimes, payload_bytes: int) -> float:
    return 2 * math.hypot(*(_error(item.samples[payload_bytes]) for item in (pair, other)))


def _error(samples: Sequence[float]) -> float:
    middle = median(samples)
    return _STANDARD_ERROR * median(abs(sample - middle) for sample in samples) / math.sqrt(len(samples))


def _why_not(pair: PairTimes, best: PairTimes, rivals: Sequence[tuple[int, Sequence[PairTimes]]]) -> str:
    """Return why a pair is not used. `rivals` are what it is held against at each size, the used one first."""
    for size, others in rivals:
        mine = pair.seconds(size)
        for other in others:
            its = other.seconds(size)
            if mine is None and its is not None:
                return f"{_size(size)}: {_without(pair, size)}"
            if mine is not None and its is not None and _slower(pair, other, size):
                than = "" if other is best else f" than {' → '.join(other.addresses)}"
                return f"median {format_seconds(mine - its)} slower at {_size(size)}{than}"
    return "no difference beyond the noise"


def _without(pair: PairTimes, payload_bytes: int) -> str:
    """Return why a size has no samples: no record, or none that holds."""
    for rejection in pair.selection.rejected:
        if rejection.observation.context_value("payload.bytes") == str(payload_bytes):
            return rejection.reasons[0]
    return "no message of this size was measured"


def _size(payload_bytes: int) -> str:
    return f"{payload_bytes // 1024} KB"


def report_path(source: str, target: str, transport: str | None, records: Records) -> PathReport:
    """Return every address pair of a path that was measured or tried: what was seen, and why it is not used."""
    try:
        ranked = order_pairs(source, target, transport, records)
    except MeasurementError:
        ranked = ()
    pairs = [PairReport(pair.addresses, pair, not why, why) for pair, why in ranked]
    measured = {pair.addresses for pair, _ in ranked}
    failures = _failures(source, target, transport, records)
    unused = {addresses: _reason(record) for addresses, record in failures.items()}
    unused |= _useless(source, target, transport, records, failures)
    pairs += (
        PairReport(addresses, None, False, why) for addresses, why in unused.items() if addresses not in measured
    )
    return PathReport(source, target, tuple(pairs))


def _useless(
    source: str, target: str, transport: str | None, records: Records, failures: dict[Addresses, Observation]
) -> dict[Addresses, str]:
    """Return why of a pair that is there and did not fail since nothing holds: all sizes drifted, or are stale."""
    required = {} if transport is None else {"transport": transport}
    found: dict[Addresses, str] = {}
    for subject in records.subjects(PATH_METRIC):
        selection = records.select(subject, PATH_METRIC, required)
        stated = {_addresses(rejection.observation) for rejection in selection.rejected}
        addresses = stated.pop() if len(stated) == 1 else None
        if addresses is None or subject != path_subject(source, target, addresses):
            continue
        nothing_holds = not selection.applicable and records.is_present(subject)
        measured = selection._replace(applicable=tuple(rejection.observation for rejection in selection.rejected))
        if nothing_holds and not _is_after(failures.get(addresses), measured):
            nothing = PairTimes(addresses, {}, selection)
            found[addresses] = f"{_size(STEP_BYTES)}: {_without(nothing, STEP_BYTES)}"
    return found
