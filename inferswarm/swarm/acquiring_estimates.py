"""How long the Nodes of a plan would take to acquire what they lack: from inventories, measured paths, the ledger.

An estimate for the economics of a change and for people. No gate reads it: where bytes lie never decides what is
feasible. So inventories are taken as they are said, without their receipts. What was never measured is unknown, is
named, and then there is no upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from inferswarm.artifacts.acquisition.progress import LEAST_SECONDS
from inferswarm.artifacts.delta import delta_of
from inferswarm.artifacts.inventory import Inventory, SourceIndex
from inferswarm.artifacts.participant_artifacts import PlanArtifacts
from inferswarm.artifacts.sources import ORIGIN, USUAL_POLICY, Source, SourcePolicy, is_remote_first
from inferswarm.artifacts.transfer_times import Demand, LinkSpeeds, Speed, TransferEstimate, estimate_seconds
from inferswarm.fabric.acquiring_orders import Content, content_of
from inferswarm.fabric.transfer_records import HAS_CONTENT, TransferRecord
from inferswarm.planner.economics import PathCurve
from inferswarm.units import format_bytes, format_seconds

_NANOSECONDS: Final = 1e9


class AcquiringEstimate(NamedTuple):
    """What the Nodes of a plan lack, and what it takes to acquire that."""

    missing_bytes: int | None
    """None: it cannot be told what they lack."""
    seconds: TransferEstimate
    reasons: tuple[str, ...] = ()
    """Why the seconds are unknown."""

    @property
    def upper_seconds(self) -> float | None:
        """The most that it is expected to take; None where nothing bounds it."""
        return self.seconds.high

    def __str__(self) -> str:
        """All of it, for people."""
        if self.missing_bytes == 0:
            return "acquiring nothing: its Nodes have it all"
        size = "" if self.missing_bytes is None else f" ({format_bytes(self.missing_bytes)})"
        high = self.seconds.high
        time = f"an unknown time: {'; '.join(self.reasons)}" if high is None else f"up to {format_seconds(high)}"
        return f"acquiring what its Nodes lack{size} {time}"


_UNKNOWN: Final = TransferEstimate(None, None, None, ())


def unknown_acquiring(reason: str) -> AcquiringEstimate:
    """Return the estimate where not even the bytes can be told."""
    return AcquiringEstimate(None, _UNKNOWN, (reason,))


def estimate_acquiring(
    artifacts: PlanArtifacts,
    nodes: Mapping[str, str],
    inventories: Iterable[Inventory],
    speeds: LinkSpeeds,
    names: Mapping[str, str],
    policy: SourcePolicy = USUAL_POLICY,
) -> AcquiringEstimate:
    """Return how long it takes until every Node of a plan holds what its participants require.

    `nodes` is participant → Node id, `names` Node id → name. A Node without an inventory lacks everything, and so
    does every Node under a policy that prefers what is remote. Bytes come from the peers that hold them and otherwise
    from the origin, to each Node that lacks them: what one of these might pass on to the next is not counted. Making
    states of them is not in it.
    """
    anew = is_remote_first(policy)
    by_node = {inventory.node.id: inventory for inventory in inventories}
    index = SourceIndex(by_node.values())
    wanted: dict[tuple[str, tuple[str, ...]], int] = {}
    coming: set[tuple[str, Content]] = set()
    for item in artifacts.participants:
        node = nodes[item.participant]
        inventory = by_node.get(node, Inventory(node=Source(node, "?"), store="", sequence=0, held=()))
        missing = frozenset(delta_of(item, inventory, generation=0).missing)
        for artifact in item.artifacts:
            key = (node, content_of(artifact))
            if not anew and (artifact.id not in missing or key in coming):
                continue
            coming.add(key)
            sha256 = artifact.sha256
            peers: tuple[Source, ...] = ()
            if not isinstance(sha256, msgspec.UnsetType):
                peers = index.advertisers(sha256, artifact.length)
            sources = tuple(peer.id for peer in peers if peer.id != node) or (ORIGIN,)
            wanted[node, sources] = wanted.get((node, sources), 0) + artifact.length
    if policy == "REQUIRE_LOCAL_VERIFIED" and wanted:
        return AcquiringEstimate(sum(wanted.values()), _UNKNOWN, (f"{policy} lets nothing come from elsewhere",))
    seconds = estimate_seconds((Demand(node, num, sources) for (node, sources), num in wanted.items()), speeds)
    reasons = dict.fromkeys(
        _why_unknown(node, sources, speeds, names)
        for (node, sources), num in wanted.items()
        if num and not any((source, node) in speeds.paths for source in sources)
    )
    return AcquiringEstimate(sum(wanted.values()), seconds, tuple(reasons))


def _why_unknown(node: str, sources: tuple[str, ...], speeds: LinkSpeeds, names: Mapping[str, str]) -> str:
    if sources != (ORIGIN,):
        peers = ", ".join(names.get(source, source) for source in sources)
        return f"no path to {names.get(node, node)} from {peers} was measured"
    if not any(source == ORIGIN for source, _ in speeds.paths):
        return "the origin's speed was never measured"
    return f"the origin's speed to {names.get(node, node)} was never measured"


# -- what was measured --


def link_speeds(paths: Iterable[PathCurve], records: Sequence[TransferRecord]) -> LinkSpeeds:
    """Return what is known of speeds: of paths between Nodes by measurement, of the origin by earlier acquisitions.

    A path's bounds are those of its curve; the origin's are the slowest and fastest acquisition, its single figure
    the newest. An acquisition's rate is everything that came from the origin by the time from the acquisition's
    beginning to the last byte, waiting included: less than the link carries. Both clocks, the Coordinator's and the
    Node's, are taken as one. What took less than `LEAST_SECONDS` measures nothing.
    """
    found = {
        (curve.source, curve.target): Speed(
            1 / (curve.seconds_per_byte * max(1.0, curve.high)),
            1 / curve.seconds_per_byte,
            1 / (curve.seconds_per_byte * min(1.0, curve.low)),
        )
        for curve in paths
        if curve.seconds_per_byte > 0 and curve.low > 0
    }
    to_nodes: dict[str, list[float]] = {}
    out: list[float] = []
    for record in records:
        node_of = {participant: node for participant, node, _ in record.nodes}
        arrived: dict[str, list[tuple[int, int]]] = {}
        for event in record.events:
            if event.kind == "received" and event.source == ORIGIN and event.participant in node_of:
                arrived.setdefault(node_of[event.participant], []).append((int(event.at_ns), event.bytes))
        for node, items in arrived.items():
            if (rate := _rate(record.at_ns, items)) is not None:
                to_nodes.setdefault(node, []).append(rate)
        if (rate := _rate(record.at_ns, [item for items in arrived.values() for item in items])) is not None:
            out.append(rate)
    found |= {(ORIGIN, node): Speed(min(rates), rates[-1], max(rates)) for node, rates in to_nodes.items()}
    outbound = {ORIGIN: Speed(min(out), out[-1], max(out))} if out else {}
    return LinkSpeeds(paths=found, outbound=outbound)


def limited(speeds: LinkSpeeds, bytes_per_second: float | None) -> LinkSpeeds:
    """Return the speeds where each Node receives, and gives to others, at most so much; None: without a limit."""
    if bytes_per_second is None:
        return speeds
    into: dict[str, list[Speed]] = {}
    out: dict[str, list[Speed]] = {}
    for (source, node), speed in speeds.paths.items():
        into.setdefault(node, []).append(speeds.inbound.get(node, speed))
        if source != ORIGIN:  # whoever publishes a model has no limit of ours
            out.setdefault(source, []).append(speeds.outbound.get(source, speed))

    def slower(items: list[Speed]) -> Speed:
        low, point, high = (min(bytes_per_second, max(figures)) for figures in zip(*items, strict=True))
        return Speed(low, point, high)

    inbound = {node: slower(items) for node, items in into.items()}
    outbound = {source: slower(items) for source, items in out.items()}
    return replace(speeds, inbound=inbound, outbound={**speeds.outbound, **outbound})


def _rate(began_ns: int, arrived: Sequence[tuple[int, int]]) -> float | None:
    num_bytes = sum(num for _, num in arrived)
    seconds = (max((at for at, _ in arrived), default=began_ns) - began_ns) / _NANOSECONDS
    return num_bytes / seconds if num_bytes and seconds >= LEAST_SECONDS else None


def acquired_seconds(record: TransferRecord) -> float:
    """Return how long an acquisition took, from its beginning to its last byte or hit; 0 for one without any."""
    last = max((int(event.at_ns) for event in record.events if event.kind in HAS_CONTENT), default=record.at_ns)
    return max(0.0, (last - record.at_ns) / _NANOSECONDS)
