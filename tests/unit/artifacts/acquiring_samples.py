"""Artifacts of one object, openers that note who is asked, and sums of what was said to have moved."""

from __future__ import annotations

import itertools
from collections import Counter

from inferswarm.artifacts.acquisition import BytesMoved, Limits, Order, StateChanged
from inferswarm.artifacts.store import Use
from inferswarm.errors import ArtifactError
from tests.unit.artifacts.store_samples import artifact, sample_bytes

WHOLE = sample_bytes(3_000_000)
EDGES = (0, 10, 5_000, 400_000, 400_000, 1_500_000, 2_999_999, 3_000_000)
PARTS = tuple(artifact(WHOLE, start, end) for start, end in itertools.pairwise(EDGES))
USE = Use("plan-1", "required")
ONE = Limits(connections=1, connections_per_source=1, request_bytes=10**9)


def opener(**origins):
    """Return an opener over origins by source, and the calls that it saw."""
    calls = []

    def open_source(source, uri):
        calls.append((source, uri))
        origin = origins[source]
        if isinstance(origin, ArtifactError):
            raise origin
        return origin

    open_source.calls = calls
    return open_source


def moved(events):
    """Return bytes by class; what is received must be what became of it, as the byte ledger asks."""
    sums = Counter()
    for event in events:
        if isinstance(event, BytesMoved):
            assert event.range.length == event.bytes
            sums[event.kind] += event.bytes
    ends = ("acquired", "resume_transfer", "partial_staging", "integrity_failure", "unrelated")
    assert sums["received"] == sum(sums[kind] for kind in ends)
    return {kind: count for kind, count in sums.items() if count}


def states(events, part):
    return [event.after for event in events if isinstance(event, StateChanged) and event.artifact == part.id]


def from_origin(*parts):
    return [Order.from_origin(part) for part in parts]
