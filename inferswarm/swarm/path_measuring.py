"""Measuring paths: every directed pair of Nodes, over every pair of their addresses, and what is due of it.

The address pairs of a path are measured in one run, taking turns, because they are compared. The seconds of a run are
for all pairs together: with more of them, each has fewer samples. A pair that does not connect is kept as what it is,
a failed attempt with its reason, and never as a time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from inferswarm import __version__
from inferswarm.errors import FabricError
from inferswarm.evidence.currency import Currency
from inferswarm.evidence.drift import DRIFT_KEY, unusable_drift
from inferswarm.evidence.facts import path_subject
from inferswarm.evidence.store import ObservationStore
from inferswarm.evidence.types import Observation, RecordHeader, make_context, newest_of_each, now_ns
from inferswarm.fabric import messages as m
from inferswarm.fabric.transport import make_endpoint, parse_endpoint
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.resources.address_pairs import AddressPair
from inferswarm.strategies.paths import ATTEMPTS, LARGE_BYTES, PATH_METRIC, SECOND_BYTES, STEP_BYTES, UNREACHED_METRIC
from inferswarm.swarm.known import TRANSPORT, why_unknown

PATH_PROTOCOL: Final = f"{PATH_METRIC}/3"
UNREACHED_PROTOCOL: Final = f"{UNREACHED_METRIC}/1"
PATH_PAYLOAD_BYTES: Final = (64, STEP_BYTES, SECOND_BYTES)
LARGE_COPIES: Final = 8
"""The largest message is sent where both ends have room for so many copies of it."""
MAX_TURNS: Final = 60
PATH_SECONDS: Final = 2.0
"""How long the samples of one directed pair of Nodes may take, all address pairs together."""
PATH_PAUSE_SECONDS: Final = 0.008
"""About as long as a participant waits for the rest of its route."""
MAX_PAIRS: Final = 24
"""More address pairs of one path are not tried: they would leave too few samples to each."""

PairsByPath = Mapping[tuple[str, str], Sequence[AddressPair]]


def payloads_for(room_bytes: int) -> tuple[int, ...]:
    """Return the sizes of the messages that are sent where both ends have so much room."""
    large = room_bytes >= LARGE_COPIES * LARGE_BYTES
    return (*PATH_PAYLOAD_BYTES, LARGE_BYTES) if large else PATH_PAYLOAD_BYTES


class PathProber:
    """Knows the address pairs between Nodes, asks stages to measure them, and makes records of the answers."""

    def __init__(self, store: ObservationStore, pairs: PairsByPath, currency: Callable[[], Currency]) -> None:
        """`pairs` are by the ids of the Nodes; `currency` tells which records hold at the moment of asking."""
        self._store = store
        self._pairs = pairs
        self._currency = currency

    def addresses_of(self, node_id: str) -> tuple[str, ...]:
        """Return every address that a stage of this Node listens at while paths are measured, as it writes them."""
        ends = [
            address.local
            for nodes, pairs in self._pairs.items()
            for pair in pairs
            for node, address in zip(nodes, pair, strict=True)
            if node == node_id
        ]
        return tuple(dict.fromkeys(ends))

    def due(self, source: str, target: str, payload_bytes: Sequence[int], refresh: bool) -> str | None:
        """Return why a path has to be measured, or None when its pairs are known, each by its times or its failure.

        A path of which no pair gets through is due each time. One that drifted too far to be used is measured again
        only when no other pair can be: the more pairs, the likelier that a busy machine disturbs one of them.
        """
        if refresh:
            return "asked for again"
        pairs = self._pairs.get((source, target), ())
        subjects = {pair: path_subject(source, target, pair.addresses) for pair in pairs}
        failed = {pair for pair, subject in subjects.items() if self._has_failed(subject)}
        reasons = {
            pair: why
            for pair, subject in subjects.items()
            if pair not in failed and (why := self._pair_due(subject, payload_bytes)) is not None
        }
        if not reasons:
            return "no address pair got through" if pairs and len(failed) == len(pairs) else None
        known = len(pairs) - len(failed) - len(reasons)
        if known and all(self._has_drifted(subjects[pair], payload_bytes) for pair in reasons):
            return None
        pair, why = next(iter(reasons.items()))
        return why if len(reasons) == len(pairs) else f"{' → '.join(pair.addresses)}: {why}"

    def _has_failed(self, subject: str) -> bool:
        """Return whether the last that is known of a pair, and holds, is that it was not reached."""
        newest, failure = self._newest(subject, PATH_METRIC), self._newest(subject, UNREACHED_METRIC)
        if failure is None or (newest is not None and int(newest.taken_at_ns) > int(failure.taken_at_ns)):
            return False
        return not self._currency().refusals(failure)

    def _has_drifted(self, subject: str, payload_bytes: Sequence[int]) -> bool:
        """Return whether all that a pair lacks is that its run was steady."""
        currency = self._currency()
        found = newest_of_each(self._store.headers(subject, PATH_METRIC))
        drifted_only = all(
            finding.key == DRIFT_KEY or (finding.key == "health" and unusable_drift(header) is not None)
            for header in found
            for finding in currency.standing(header).findings
            if finding.differs
        )
        sizes = {header.context_value("payload.bytes") for header in found}
        return drifted_only and all(str(size) in sizes for size in self._needed(subject, payload_bytes))

    def _pair_due(self, subject: str, payload_bytes: Sequence[int]) -> str | None:
        currency = self._currency()
        for size in self._needed(subject, payload_bytes):
            context = {"payload_bytes": str(size), "transport": TRANSPORT}
            if (why := why_unknown(self._store, currency, subject, PATH_METRIC, **context)) is not None:
                return why
        return None

    def _needed(self, subject: str, payload_bytes: Sequence[int]) -> tuple[int, ...]:
        """Leave out the largest size where it would take too long, as the last run said."""
        newest = self._newest(subject, PATH_METRIC)
        left_out = newest is not None and newest.context_value("run.left.out")
        return tuple(size for size in payload_bytes if not (left_out and size == LARGE_BYTES))

    def _newest(self, subject: str, metric: str) -> RecordHeader | None:
        headers = self._store.headers(subject, metric)
        return headers[-1] if headers else None

    def command(self, source: str, target: str, reached: m.StageStarted, payload_bytes: Sequence[int]) -> m.ProbePath:
        """Return what the stage of the source has to do; `reached` is what the stage of the target listens at."""
        endpoints = dict(reached.endpoints)
        return m.ProbePath(
            pairs=tuple(
                m.PathEnds(pair.source.local, _toward(pair, endpoints[pair.target.local]))
                for pair in self._tried(source, target)
                if pair.target.local in endpoints
            ),
            payload_bytes=tuple(payload_bytes),
            max_turns=MAX_TURNS,
            seconds=PATH_SECONDS,
            pause_seconds=PATH_PAUSE_SECONDS,
        )

    def _tried(self, source: str, target: str) -> Sequence[AddressPair]:
        return self._pairs.get((source, target), ())[:MAX_PAIRS]

    def records(
        self, source: str, target: str, reached: m.StageStarted, answer: m.ClientAnswer
    ) -> tuple[list[Observation], list[Observation]]:
        """Return what was measured, a record for each pair and size, and a record for each pair that failed.

        Raises FabricError for an answer to something else than was asked.
        """
        endpoints, unbound = dict(reached.endpoints), dict(reached.unbound)
        tried = self._tried(source, target)
        asked = [pair for pair in tried if pair.target.local in endpoints]
        if not isinstance(answer, m.PathSamples) or len(answer.pairs) != len(asked):
            raise FabricError(f"expected samples of {len(asked)} address pairs, got {type(answer).__name__}")
        measured: list[Observation] = []
        failures = {
            pair: f"nothing listens at {pair.target.local}: {unbound.get(pair.target.local, 'it was not told to')}"
            for pair in tried
            if pair not in asked
        }
        too_many = self._pairs.get((source, target), ())[MAX_PAIRS:]
        failures |= dict.fromkeys(too_many, f"not tried: {MAX_PAIRS} other address pairs come first")
        for pair, seen in zip(asked, answer.pairs, strict=True):
            if seen.failure:
                failures[pair] = seen.failure
            else:
                measured += _measured(source, target, pair, seen)
        return measured, [_unreached(source, target, pair, reason) for pair, reason in failures.items()]


def _toward(pair: AddressPair, endpoint: str) -> str:
    return make_endpoint(pair.destination, parse_endpoint(endpoint)[1])


def _measured(source: str, target: str, pair: AddressPair, seen: m.PairSamples) -> Iterator[Observation]:
    more = {"run_left_out": seen.left_out} if seen.left_out else {}
    for size, samples in zip(seen.payload_bytes, seen.seconds, strict=True):
        yield Observation(
            subject=path_subject(source, target, pair.addresses),
            metric=PATH_METRIC,
            unit="s",
            samples=samples,
            context=make_context(
                payload_bytes=size, pause_seconds=f"{PATH_PAUSE_SECONDS:g}", **_context(pair), **more
            ),
            protocol=PATH_PROTOCOL,
            taken_at_ns=now_ns(),
            producer=f"inferswarm {__version__}",
        )


def _unreached(source: str, target: str, pair: AddressPair, reason: str) -> Observation:
    return Observation(
        subject=path_subject(source, target, pair.addresses),
        metric=UNREACHED_METRIC,
        unit=ATTEMPTS,
        samples=(1.0,),
        context=make_context(run_reason=reason, **_context(pair)),
        protocol=UNREACHED_PROTOCOL,
        taken_at_ns=now_ns(),
        producer=f"inferswarm {__version__}",
    )


def _context(pair: AddressPair) -> dict[str, str]:
    """Return the addresses, which are part of the question, and the interfaces' names and speeds, which are not."""
    context = {"transport": TRANSPORT}
    for end, address in (("source", pair.source), ("target", pair.target)):
        context[f"address_{end}"] = address.address
        context[f"run_interface_{end}"] = address.interface
        if address.bits_per_second.value is not None:
            context[f"run_speed_{end}"] = str(address.bits_per_second.value)
    return context


def _local(header: RecordHeader, end: str) -> str:
    """Return an address of a record as its own Node writes it: a link-local one with its interface."""
    address = header.context_value(f"address.{end}") or ""
    link_local = ipaddress.ip_address(address).is_link_local
    return f"{address}%{header.context_value(f'run.interface.{end}')}" if link_local else address


def addresses_of_plan(store: ObservationStore, plan: ExecutionPlan) -> tuple[m.PathUse, ...]:
    """Return the addresses of the records that a plan was priced with, for each path that its messages take.

    In route order: from each participant to the next, and from the last back to the first. A path that was priced
    with no record is left out.
    """
    if plan.prediction is None or len(plan.placements) < 2:
        return ()
    rests_on = set(plan.prediction.evidence_ids)
    nodes = [placement.node_id for placement in plan.placements]
    found: list[m.PathUse] = []
    for source, target in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
        prefix = path_subject(source, target)
        for header in store.headers(metric=PATH_METRIC):
            if header.id in rests_on and header.subject.startswith(f"{prefix} over "):
                found.append(m.PathUse(source, target, _local(header, "source"), _local(header, "target")))
                break
    return tuple(dict.fromkeys(found))
