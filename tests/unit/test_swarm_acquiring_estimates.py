"""How long another plan's Nodes would acquire: what they lack, at measured speeds; unknown is named, and no zero."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from inferswarm.artifacts.byte_ledger import LedgerEvent
from inferswarm.artifacts.inventory import Inventory
from inferswarm.artifacts.participant_artifacts import PlanArtifacts
from inferswarm.artifacts.sources import ORIGIN
from inferswarm.artifacts.transfer_times import LinkSpeeds, TransferEstimate
from inferswarm.artifacts.types import ByteRange
from inferswarm.documents import digest_bytes
from inferswarm.errors import FabricError, SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.acquiring_orders import with_known_digests
from inferswarm.fabric.ledger import Ledger
from inferswarm.fabric.transfer_records import TransferRecord, known_digests, pin_place
from inferswarm.planner import ChangeHistory, PathCurve
from inferswarm.planner.plan import Interval
from inferswarm.swarm.acquiring_asked import AcquiringAsked
from inferswarm.swarm.acquiring_estimates import (
    AcquiringEstimate,
    acquired_seconds,
    estimate_acquiring,
    limited,
    link_speeds,
)
from inferswarm.swarm.considered import ConsideredChange
from inferswarm.swarm.weighing import Weighed, bringing_up, brought_up, propose, weigh, weigh_departure
from tests.unit.artifacts.artifacts_support import Rig, make_rig
from tests.unit.fabric.fake_couriers import Bed
from tests.unit.planner.planner_cases import ENOUGH, make_graph
from tests.unit.test_swarm_elasticity import BEFORE, EAGER, FAST, SLOW

NODES = ("amber", "birch", "cedar")
NAMES = {f"id-{name}": name for name in NODES}
SECOND = 10**9


@pytest.fixture(scope="module")
def rig(tmp_path_factory) -> Rig:
    return make_rig(tmp_path_factory.mktemp("model"))


@pytest.fixture
def bed(rig, tmp_path) -> Bed:
    return Bed(rig, tmp_path, *NODES)


def path(source: str, target: str, rate: float, low: float = 1.0, high: float = 1.0) -> PathCurve:
    return PathCurve(
        source=f"id-{source}",
        target=f"id-{target}",
        latency_seconds=0.001,
        seconds_per_byte=1 / rate,
        low=low,
        high=high,
    )


def inventories(bed: Bed) -> list[Inventory]:
    async def ask() -> list[Inventory]:
        answers = [
            await bed.couriers.call(node, m.OnCourier(command=m.ReportInventory())) for node in bed.couriers.nodes
        ]
        return [answer.inventory for answer in answers if isinstance(answer, m.InventoryReported)]

    return asyncio.run(ask())


def artifacts_of(order: m.Fallback) -> tuple[PlanArtifacts, Mapping[str, str]]:
    assert isinstance(order.artifacts, m.NeededArtifacts)
    return order.artifacts.plan, {item.participant: item.node_id for item in order.plan.placements}


def record(bed: Bed, *arrivals: tuple[str, float, int], source: str = ORIGIN) -> TransferRecord:
    """An acquisition that began at 0: participant, when, and how many bytes came."""
    artifacts, _ = artifacts_of(bed.order(NODES))
    events = tuple(
        LedgerEvent(
            kind="received",
            participant=participant,
            source=source,
            object="u",
            range=ByteRange(0, num),
            bytes=num,
            at_ns=str(int(at * SECOND)),
        )
        for participant, at, num in arrivals
    )
    nodes = tuple((f"stage-{index}", f"id-{name}", name) for index, name in enumerate(NODES))
    return TransferRecord(1, "r", 0, nodes, artifacts, events, frozenset(), None)


# -- speeds --


def test_the_origin_is_as_fast_as_earlier_acquisitions_found_it(bed) -> None:
    """Mutation: leave the wait for the first byte out, or take what came too fast to tell for a speed."""
    first = record(bed, ("stage-0", 1.0, 3000), ("stage-0", 2.0, 5000), ("stage-1", 4.0, 4000))
    speeds = link_speeds([], [first, record(bed, ("stage-0", 1.0, 2000)), record(bed, ("stage-0", 0.1, 10**6))])
    assert speeds.paths == {
        (ORIGIN, "id-amber"): (2000, 2000, 4000),
        (ORIGIN, "id-birch"): (1000, 1000, 1000),
    }
    assert speeds.outbound == {ORIGIN: (2000, 2000, 3000)}
    assert link_speeds([], [record(bed, ("stage-0", 9.0, 10**6), source="id-cedar")]).paths == {}


def test_paths_between_nodes_are_as_they_were_measured() -> None:
    none = PathCurve(source="id-birch", target="id-amber", latency_seconds=0.1, seconds_per_byte=0.0)
    speeds = link_speeds([path("amber", "birch", 1e6, 0.5, 2.0), none], [])
    assert speeds.paths == {("id-amber", "id-birch"): pytest.approx((5e5, 1e6, 2e6))}


# -- what is lacking, and how long that takes --


def test_only_what_is_lacking_counts_and_a_peer_that_has_it_is_asked(bed) -> None:
    """Mutation: count what a Node holds, or ask the origin for what a peer has."""
    artifacts, nodes = artifacts_of(bed.order(NODES, manifest=bed.rig.manifest))
    speeds = link_speeds(
        [path("amber", "cedar", 1e3), path("birch", "cedar", 1e3)],
        [record(bed, ("stage-0", 1.0, 10**4), ("stage-1", 1.0, 10**4), ("stage-2", 1.0, 10**4))],
    )
    empty = estimate_acquiring(artifacts, nodes, inventories(bed), speeds, NAMES)
    everything = sum(item.bytes for item in artifacts.participants)
    assert (empty.missing_bytes, empty.reasons) == (everything, ())
    largest = max(item.bytes for item in artifacts.participants)
    # 10 kB/s to each and 30 kB/s from the origin: whoever needs most is the last
    assert empty.upper_seconds == pytest.approx(largest / 1e4)

    asyncio.run(bed.acquire(bed.order(NODES, manifest=bed.rig.manifest)))
    full = estimate_acquiring(artifacts, nodes, inventories(bed), speeds, NAMES)
    assert (full.missing_bytes, full.upper_seconds) == (0, 0.0)

    # cedar takes birch's place: birch has it all, at 1 kB/s, and what amber has too comes from both
    moved, nodes = artifacts_of(bed.order(("amber", "cedar"), ((0, 2), (2, 4)), manifest=bed.rig.manifest))
    lacking = estimate_acquiring(moved, nodes, inventories(bed), speeds, NAMES)
    assert lacking.missing_bytes == moved.of("stage-1").bytes
    assert lacking.upper_seconds == pytest.approx(moved.of("stage-1").bytes / 1e3)


def test_what_was_never_measured_is_named_and_bounds_nothing(bed) -> None:
    """Mutation: take no time for bytes whose way was never measured."""
    order = bed.order(("amber", "birch"), ((0, 3), (3, 6)), manifest=bed.rig.manifest)
    artifacts, nodes = artifacts_of(order)
    nothing = LinkSpeeds(paths={})
    found = estimate_acquiring(artifacts, nodes, inventories(bed), nothing, NAMES)
    assert found.seconds[:3] == (None, None, None)
    assert found.reasons == ("the origin's speed was never measured",)
    assert "an unknown time: the origin's speed was never measured" in str(found)
    some = link_speeds([], [record(bed, ("stage-0", 1.0, 10**4))])
    found = estimate_acquiring(artifacts, nodes, inventories(bed), some, NAMES)
    assert (found.upper_seconds, found.reasons) == (None, ("the origin's speed to birch was never measured",))
    asyncio.run(bed.acquire(order))
    moved, nodes = artifacts_of(bed.order(("cedar",), ((0, 1),), manifest=bed.rig.manifest))
    found = estimate_acquiring(moved, nodes, inventories(bed), some, NAMES)
    assert any(reason.startswith("no path to cedar from amber") for reason in found.reasons)
    assert found.upper_seconds is None


def test_digests_that_an_earlier_acquisition_found_tell_what_is_there(bed) -> None:
    """Mutation: take everything of a model without a published manifest for lacking."""
    artifacts, nodes = artifacts_of(bed.order(NODES))
    asyncio.run(bed.acquire(bed.order(NODES)))
    (moved,) = bed.records
    by_id = {item.id: item for own in moved.artifacts.participants for item in own.artifacts}

    def with_content(event: LedgerEvent) -> LedgerEvent:
        if event.kind != "acquired" or event.artifact not in by_id:
            return event  # of who was held to a digest that another one found
        place = by_id[event.artifact].range
        content = digest_bytes(bed.couriers.whole[place.start : place.end])
        return msgspec.structs.replace(event, content=content)

    assert known_digests([moved]) == {}
    pins = known_digests([moved._replace(events=tuple(map(with_content, moved.events)))])
    assert set(pins) == {pin_place(item) for item in by_id.values()}  # who comes first says it for all
    speeds, held = LinkSpeeds(paths={}), inventories(bed)
    assert estimate_acquiring(artifacts, nodes, held, speeds, NAMES).missing_bytes
    known = with_known_digests(artifacts, pins)
    assert estimate_acquiring(known, nodes, held, speeds, NAMES).missing_bytes == 0


def test_a_limit_of_transfers_bounds_what_each_node_receives_and_gives(bed) -> None:
    """Mutation: let several sources together fill a Node faster than its limit, or limit the origin."""
    artifacts, nodes = artifacts_of(bed.order(NODES, manifest=bed.rig.manifest))
    at_once = [record(bed, *((f"stage-{index}", 1.0, 10**6) for index in range(3)))]
    speeds = link_speeds([path("amber", "cedar", 1e6), path("birch", "cedar", 1e6)], at_once)
    assert limited(speeds, None) is speeds
    largest = max(item.bytes for item in artifacts.participants)
    slow = limited(speeds, 1e4)
    assert estimate_acquiring(artifacts, nodes, inventories(bed), slow, NAMES).upper_seconds == pytest.approx(
        largest / 1e4
    )
    assert slow.outbound == {ORIGIN: (3e6, 3e6, 3e6), "id-amber": (1e4,) * 3, "id-birch": (1e4,) * 3}
    assert limited(speeds, 1e9).inbound["id-cedar"] == (1e6, 1e6, 1e6)  # a limit makes no path faster


def test_who_prefers_what_is_remote_acquires_everything_and_who_requires_what_is_local_nothing(bed) -> None:
    order = bed.order(NODES, manifest=bed.rig.manifest)
    artifacts, nodes = artifacts_of(order)
    speeds = link_speeds([], [record(bed, *((f"stage-{index}", 1.0, 10**4) for index in range(3)))])
    local = estimate_acquiring(artifacts, nodes, inventories(bed), speeds, NAMES, "REQUIRE_LOCAL_VERIFIED")
    assert (local.upper_seconds, local.reasons) == (
        None,
        ("REQUIRE_LOCAL_VERIFIED lets nothing come from elsewhere",),
    )
    asyncio.run(bed.acquire(order))
    remote = estimate_acquiring(artifacts, nodes, inventories(bed), speeds, NAMES, "PREFER_REMOTE_AUTHORIZED")
    assert remote.missing_bytes == sum(item.bytes for item in artifacts.participants)
    local = estimate_acquiring(artifacts, nodes, inventories(bed), speeds, NAMES, "REQUIRE_LOCAL_VERIFIED")
    assert (local.missing_bytes, local.upper_seconds) == (0, 0.0)


# -- in the economics of a change --


KNOWN = AcquiringEstimate(4000, TransferEstimate(1.0, 2.0, 3.0, ()))
UNKNOWN = AcquiringEstimate(4000, TransferEstimate(None, None, None, ()), ("the origin's speed was never measured",))
GRAPH = make_graph({"oak": ENOUGH, "elm": ENOUGH})


def test_a_preparation_has_the_seconds_of_acquiring_and_without_a_bound_nothing_is_changed() -> None:
    """Mutation: leave acquiring out of the preparation, or take an unknown time for none."""

    def weighed(acquiring: AcquiringEstimate | None, requests: float = 1000) -> Weighed:
        return weigh(SLOW, FAST, GRAPH, BEFORE, requests, EAGER, ChangeHistory(), 0.0, acquiring)

    without, known, unknown = weighed(None), weighed(KNOWN), weighed(UNKNOWN)
    assert without.change is not None
    assert known.change is not None
    assert known.change.preparation_seconds == pytest.approx(without.change.preparation_seconds + 3.0)
    assert (without.go, known.go) == (True, True)
    assert "acquiring what its Nodes lack (4.00 kB) up to 3.00 s" in str(known.bringing_up)
    requests = (without.change.preparation_seconds + 1) / without.change.gain_seconds
    assert (weighed(None, requests).go, weighed(KNOWN, requests).go) == (True, False)
    assert (unknown.go, unknown.verdict, unknown.change) == (False, None, None)
    assert "the origin's speed was never measured" in unknown.reasons[0]
    bringing = bringing_up(FAST, BEFORE, UNKNOWN)
    assert bringing is not None
    with pytest.raises(SpecError, match="never measured"):
        propose(Interval(1, 1, 1), Interval(0.5, 0.5, 0.5), 10, bringing, interrupts=False)


def test_a_change_that_has_to_be_is_made_and_says_what_is_not_known() -> None:
    weighed = weigh_departure(SLOW, FAST, GRAPH, BEFORE, UNKNOWN)
    assert weighed.go
    view = ConsideredChange("d", "changed", (), 2, change=weighed.change, bringing_up=weighed.bringing_up)
    assert view.arithmetic.startswith("preparation at least ")
    view = view._replace(seconds=2.0, acquiring_seconds=0.5)
    assert "it took:     2.00 s, acquiring 500 ms of them" in str(view)
    assert "an unknown time: the origin's speed was never measured" in str(view)


def test_what_stages_take_to_start_is_without_the_acquiring_of_then(bed) -> None:
    """Mutation: count the bytes of the first plan once more for every plan behind it."""
    realized = m.Realized(epoch=7, realization="r", stages=(), pids=(), seconds=5.0)
    assert brought_up(realized, 4.0).starting_seconds == pytest.approx(1.0)
    moved = record(bed, ("stage-0", 2.0, 10))
    assert acquired_seconds(moved) == 0.0
    (event,) = moved.events
    assert acquired_seconds(moved._replace(events=(msgspec.structs.replace(event, kind="acquired"),))) == 2.0


# -- asked of a swarm --


class Asked:
    """A swarm's client, inputs and ledger, over couriers in memory."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.has_stores = True
        self.ledger = bed.path
        self.settings = SimpleNamespace(transfer_bytes_per_second=None)
        self.client = self

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(nodes=[SimpleNamespace(node_id=f"id-{name}") for name in NODES])

    def ask(self, question: m.OnNode, timeout_seconds: float) -> m.Answer:
        if self.bed.couriers.nodes[question.node_id].name in self.bed.couriers.silent:
            raise FabricError(f"silent for {timeout_seconds} s")
        assert isinstance(question.command, m.OnCourier)
        return asyncio.run(self.bed.couriers.call(question.node_id, question.command))

    def paths(self, graph: object) -> tuple[PathCurve, ...]:
        return (path("amber", "cedar", 1e3), path("birch", "cedar", 1e3))

    def needed(self, plan: object, model: Any, graph: object) -> m.NeededArtifacts:
        return model


def test_a_swarm_is_asked_what_its_nodes_hold_and_a_silent_one_holds_nothing(bed) -> None:
    """Mutation: ask only the Nodes of the plan, or take a silent Node's word of before."""
    asyncio.run(bed.acquire(bed.order(NODES, manifest=bed.rig.manifest)))
    asked: Any = Asked(bed)
    acquiring = AcquiringAsked(asked, asked)
    graph: Any = SimpleNamespace(nodes=[SimpleNamespace(id=node, name=name) for node, name in NAMES.items()])
    order = bed.order(("cedar",), ((2, 4),), manifest=bed.rig.manifest)
    needed: Any = order.artifacts
    found = acquiring.estimate(order.plan, needed, graph)
    assert found is not None
    assert found.missing_bytes == needed.plan.of("stage-0").bytes
    assert found.upper_seconds == pytest.approx(found.missing_bytes / 1e3)
    bed.couriers.silent.add("birch")
    found = acquiring.estimate(order.plan, needed, graph)
    assert found is not None
    assert found.reasons == ("the origin's speed was never measured",)
    asked.settings.transfer_bytes_per_second = 500.0
    bed.couriers.silent.clear()
    found = acquiring.estimate(order.plan, needed, graph)
    assert found is not None
    assert found.upper_seconds == pytest.approx(needed.plan.of("stage-0").bytes / 500)
    assert acquiring.took("realization-1") is not None
    assert acquiring.took("another") is None
    asked.has_stores = False
    assert acquiring.estimate(order.plan, needed, graph) is None


def test_what_nodes_know_of_first_fetches_tells_what_is_there(bed, tmp_path) -> None:
    """Mutation: ask for inventories alone: without a published manifest everything would be lacking."""
    order = bed.order(NODES)
    asyncio.run(bed.acquire(order))
    asked: Any = Asked(bed)
    asked.ledger = tmp_path / "another.ledger"
    Ledger(asked.ledger).close()
    graph: Any = SimpleNamespace(nodes=[SimpleNamespace(id=node, name=name) for node, name in NAMES.items()])
    needed: Any = order.artifacts
    found = AcquiringAsked(asked, asked).estimate(order.plan, needed, graph)
    assert found is not None
    assert (found.missing_bytes, str(found)) == (0, "acquiring nothing: its Nodes have it all")
    amber = bed.couriers.nodes["id-amber"]
    amber.pins = dict.fromkeys(amber.pins, digest_bytes(b"something else"))
    found = AcquiringAsked(asked, asked).estimate(order.plan, needed, graph)
    assert found is not None
    assert (found.missing_bytes, "as Node cedar was told" in found.reasons[0]) == (None, True)
