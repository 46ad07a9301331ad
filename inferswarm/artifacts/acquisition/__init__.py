"""How bytes get into a Node's store: orders, requests, threads, outcomes. `artifacts.acquiring` puts it together."""

from inferswarm.artifacts.acquisition.orders import (
    Acquired,
    Authorize,
    BytesMoved,
    Failure,
    Limits,
    OpenSource,
    Order,
    Outcome,
    Progress,
    SourceTraffic,
    StateChanged,
    Tampered,
)

__all__ = [
    "Acquired",
    "Authorize",
    "BytesMoved",
    "Failure",
    "Limits",
    "OpenSource",
    "Order",
    "Outcome",
    "Progress",
    "SourceTraffic",
    "StateChanged",
    "Tampered",
]
