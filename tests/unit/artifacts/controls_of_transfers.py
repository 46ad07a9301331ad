"""Negative controls of transfers: what sources give, who may ask them, what a store keeps of it."""

from __future__ import annotations

import msgspec

from inferswarm.artifacts.acquiring import acquire
from inferswarm.artifacts.acquisition import BytesMoved, Order
from inferswarm.artifacts.byte_ledger import ByteLedger
from inferswarm.artifacts.identity import Transform
from inferswarm.artifacts.inventory import InventoryBook
from inferswarm.artifacts.origins.opening import open_origin
from inferswarm.artifacts.sources import Source
from inferswarm.artifacts.store import partial_identity
from inferswarm.artifacts.tickets import TicketBooth
from inferswarm.fabric import messages as m
from inferswarm.fabric.courier_process import CourierProcess
from tests.origin_server import Fault
from tests.unit.artifacts.controls_registry import (
    raises,
    read_all,
    refused_with,
    stored_requirement,
    unmoved,
)
from tests.unit.artifacts.controls_world import LONG, LONG_BYTES, MODEL, SCOPE, TOKEN, World

replace = msgspec.structs.replace


# -- bytes that are others --


@refused_with("INTEGRITY_DIGEST_MISMATCH")
def byte_flipped_in_flight(world: World) -> None:
    item = world.next_artifact()
    with world.fault(MODEL, Fault(flip_at=item.range.start + 5)):
        answer = world.refused(world.from_origin(item), "INTEGRITY_DIGEST_MISMATCH", moved=item.length)
    assert ByteLedger(answer.events).total("integrity_failure") == item.length
    world.accepted(world.from_origin(item))


@refused_with("INTEGRITY_DIGEST_MISMATCH")
def corrupt_peer(world: World) -> None:
    item = world.next_artifact()
    source = world.lying_peer(item, bytes(item.length))
    world.refused(world.from_peer(item, source), "INTEGRITY_DIGEST_MISMATCH", moved=item.length)
    world.accepted(world.from_peer(item, world.lying_peer(item, world.bytes_of(item))))


@refused_with("INTEGRITY_DIGEST_MISMATCH")
def long_beginning_altered_at_its_end(world: World) -> None:
    """What lies in a partial is judged like what lies in memory."""
    item = world.long_artifact()
    with world.fault(LONG, Fault(flip_at=item.range.end - 1)):
        world.refused(world.from_origin(item), "INTEGRITY_DIGEST_MISMATCH", moved=item.length)
    with world.store(world.birch) as store:
        assert store.held_bytes(partial_identity(item)) == 0
    world.accepted(world.from_origin(item))


# -- objects that are others --


@refused_with("PROVENANCE_IDENTITY_MISMATCH")
def changed_object_under_the_same_name(world: World) -> None:
    item = world.next_artifact()
    contents = (world.server.folder / MODEL).read_bytes()[::-1]
    with world.fault(MODEL, Fault(contents=contents)):
        world.refused(world.from_origin(item), "PROVENANCE_IDENTITY_MISMATCH")
    world.accepted(world.from_origin(item))


@refused_with("PROVENANCE_IDENTITY_MISMATCH")
def changed_between_opening_and_reading(world: World) -> None:
    item = world.next_artifact()
    contents = (world.server.folder / MODEL).read_bytes()[::-1]
    with world.fault(MODEL, Fault(after=1, contents=contents)):
        world.refused(world.from_origin(item), "PROVENANCE_IDENTITY_MISMATCH")
    world.accepted(world.from_origin(item))


@refused_with("PROVENANCE_IDENTITY_MISMATCH")
def server_lying_about_the_objects_length(world: World) -> None:
    item = world.next_artifact()
    with world.fault(MODEL, Fault(truncate=item.range.end + 1)):
        world.refused(world.from_origin(item), "PROVENANCE_IDENTITY_MISMATCH")
    world.accepted(world.from_origin(item))


@refused_with("PROVENANCE_IDENTITY_MISMATCH")
def peer_with_a_longer_object(world: World) -> None:
    item = world.next_artifact()
    source = world.lying_peer(item, world.bytes_of(item) + b"more")
    world.refused(world.from_peer(item, source), "PROVENANCE_IDENTITY_MISMATCH")
    world.accepted(world.from_peer(item, world.lying_peer(item, world.bytes_of(item))))


@refused_with("PROVENANCE_IDENTITY_MISMATCH")
def symbolic_link_for_a_root(world: World) -> None:
    link = world.birch.root.with_name("link")
    link.symlink_to(world.birch.root)

    async def start() -> None:
        set_up = m.CourierSetUp(
            node_id="node-x", address="127.0.0.1", root=str(link), quota_bytes=None, scope=SCOPE, token=TOKEN
        )
        courier = CourierProcess(set_up, "x")
        try:
            await courier.start()
        finally:
            await courier.stop()

    unmoved(world, "PROVENANCE_IDENTITY_MISMATCH", lambda: world.run(start))


# -- sources that may not, or cannot --


def refused_by_amber(world: World, order: m.AcquisitionOrder, kind: str) -> None:
    before = world.served(world.amber)
    world.refused(order, "SOURCE_UNAUTHORIZED")
    after = world.served(world.amber)
    assert after.lines == before.lines
    assert {item.kind for item in after.refused[len(before.refused) :]} == {kind}


@refused_with("SOURCE_UNAUTHORIZED")
def ticket_of_an_earlier_generation(world: World) -> None:
    item = world.given_to_amber(world.next_artifact())
    stale = world.from_peer(item)
    world.freeze()
    refused_by_amber(world, stale, "generation")
    world.accepted(world.from_peer(item))


@refused_with("SOURCE_UNAUTHORIZED")
def expired_ticket(world: World) -> None:
    item = world.given_to_amber(world.next_artifact())
    refused_by_amber(world, world.from_peer(item, expires_at=1), "expired")
    world.accepted(world.from_peer(item))


@refused_with("SOURCE_UNAUTHORIZED")
def ticket_of_another_participant(world: World) -> None:
    item = world.given_to_amber(world.next_artifact())
    refused_by_amber(world, world.from_peer(item, participant="stage-2"), "participant")
    world.accepted(world.from_peer(item))


@refused_with("SOURCE_UNAUTHORIZED")
def ticket_for_the_same_source_at_another_endpoint(world: World) -> None:
    item = world.given_to_amber(world.next_artifact())
    drifted = Source(id=world.amber.source.id, endpoint="http://127.0.0.1:1")
    refused_by_amber(world, world.from_peer(item, source=drifted), "endpoint")  # type: ignore[arg-type]
    world.accepted(world.from_peer(item))


@refused_with("SOURCE_UNAUTHORIZED")
def ticket_of_another_tenant(world: World) -> None:
    """It was signed with the swarm's token, for another scope."""
    item = world.given_to_amber(world.next_artifact())
    order = world.from_peer(item)
    ticket = TicketBooth(TOKEN, "scope-2").issue(replace(world.ticket(item), scope="scope-2"))
    refused_by_amber(world, replace(order, ticket=ticket), "signature")
    world.accepted(order)


@refused_with("SOURCE_UNAUTHORIZED")
def ticket_that_was_written_to(world: World) -> None:
    item = world.given_to_amber(world.next_artifact())
    order = world.from_peer(item)
    form, body, signature = order.ticket.split(".")
    forged = f"{form}.{body}.{'A' * 8}{signature[8:]}"
    refused_by_amber(world, replace(order, ticket=forged), "signature")
    world.accepted(order)


@refused_with("SOURCE_UNAUTHORIZED")
def fallback_that_nobody_approved(world: World) -> None:
    """What was said to be there and is not comes from nowhere else."""
    item = world.next_artifact()
    world.server.clear()
    world.refused(m.AcquisitionOrder(artifact=item, source=None), "SOURCE_UNAUTHORIZED", side="order")
    assert world.server.log == []
    world.accepted(world.from_origin(item))


@refused_with("SOURCE_UNAUTHORIZED")
def result_of_a_transform_from_the_origin(world: World) -> None:
    item = world.next_artifact()
    assert isinstance(item.sha256, str)
    made = Transform(id="repack", version="1", source=item.sha256, context=())
    world.server.clear()
    world.refused(
        world.from_origin(replace(item, kind="transform", transform=made)), "SOURCE_UNAUTHORIZED", side="order"
    )
    assert world.server.log == []
    world.accepted(world.from_origin(item))


@refused_with("SOURCE_UNAUTHORIZED")
def inventory_from_an_endpoint_that_is_not_registered(world: World) -> None:
    report = world.inventory(world.birch)
    drifted = Source(id=world.birch.source.id, endpoint="http://127.0.0.1:1")
    book = InventoryBook(TOKEN, [drifted])
    unmoved(world, "SOURCE_UNAUTHORIZED", lambda: book.accept(report.inventory, report.receipt))
    assert book.newest(drifted.id) is None
    InventoryBook(TOKEN, [world.birch.source]).accept(report.inventory, report.receipt)


@refused_with("SOURCE_OBJECT_UNAVAILABLE")
def missing_object(world: World) -> None:
    item = world.next_artifact()
    gone = replace(item, origin=replace(item.origin, uri=world.server.url("gone.gguf")))
    world.refused(world.from_origin(gone), "SOURCE_OBJECT_UNAVAILABLE")
    world.accepted(world.from_origin(item))


@refused_with("SOURCE_OBJECT_UNAVAILABLE")
def advertisement_that_is_stale(world: World) -> None:
    item = world.given_to_amber(world.next_artifact())
    assert item.sha256 in world.held(world.amber)
    world.blob(world.amber, item).unlink()
    world.refused(world.from_peer(item), "SOURCE_OBJECT_UNAVAILABLE")
    world.accepted(world.from_origin(item))


@refused_with("SOURCE_OBJECT_UNAVAILABLE")
def partial_offered_as_verified(world: World) -> None:
    """Amber has a beginning that no digest was computed of; a right ticket gets nothing of it."""
    item = world.long_artifact(60_000)
    with world.fault(LONG, Fault(after=1, drop_after=400_000, times=1), Fault(after=1, status=404)):
        (outcome,) = world.acquire(world.amber, world.from_origin(item)).outcomes
    assert (outcome.how, outcome.transferred_bytes) == ("failed", 400_000)
    assert item.sha256 not in world.held(world.amber)
    world.refused(world.from_peer(item), "SOURCE_OBJECT_UNAVAILABLE")
    world.given_to_amber(item)
    world.accepted(world.from_peer(item))


@refused_with("SOURCE_OBJECT_UNAVAILABLE")
def truncated_range(world: World) -> None:
    item = world.next_artifact()
    source = world.lying_peer(item, world.bytes_of(item), Fault(short_by=10))
    world.refused(world.from_peer(item, source), "SOURCE_OBJECT_UNAVAILABLE", moved=item.length - 10)
    world.accepted(world.from_peer(item, world.lying_peer(item, world.bytes_of(item))))


@refused_with("SOURCE_OBJECT_UNAVAILABLE")
def peer_that_sends_elsewhere(world: World) -> None:
    """A redirect would have the bytes come from somebody whom nobody authorized."""
    item = world.next_artifact()
    elsewhere = world.server.url("elsewhere")
    (world.server.folder / "elsewhere").write_bytes(world.bytes_of(item))
    source = world.lying_peer(item, b"", Fault(redirect=elsewhere))
    world.refused(world.from_peer(item, source), "SOURCE_OBJECT_UNAVAILABLE")
    assert world.server.requests("elsewhere") == []
    world.accepted(world.from_peer(item, world.lying_peer(item, world.bytes_of(item))))


@refused_with("SOURCE_OBJECT_UNAVAILABLE")
def server_lying_about_the_ranges_length(world: World) -> None:
    item = world.next_artifact()
    with world.fault(MODEL, Fault(after=1, announce=item.length + 1)):
        world.refused(world.from_origin(item), "SOURCE_OBJECT_UNAVAILABLE")
    world.accepted(world.from_origin(item))


@refused_with("SOURCE_OBJECT_UNAVAILABLE")
def origin_that_answers_a_range_with_everything(world: World) -> None:
    item = world.next_artifact()
    with world.fault(MODEL, Fault(after=1, ignores_range=True)):
        world.refused(world.from_origin(item), "SOURCE_OBJECT_UNAVAILABLE")
    world.accepted(world.from_origin(item))


# -- what was kept and is not it --


@refused_with("PARTIAL_STATE_IDENTITY_MISMATCH")
def foreign_partial(world: World) -> None:
    """The beginning of one version lies under the name of another: it is thrown away, and nothing of it goes on."""
    item = world.long_artifact(80_000)
    foreign = replace(item, origin=replace(item.origin, version="etag:other"))
    place = world.birch.root / "partials"
    with world.store(world.birch) as store:
        partial = store.partial(partial_identity(foreign))
        assert partial is not None
        partial.write(LONG_BYTES[80_000:180_000])
        partial.close()
        for ending in ("part", "json"):
            old, new = (f"{partial_identity(each).name}.{ending}" for each in (foreign, item))
            (place / old).rename(place / new)
        events: list[BytesMoved] = []
        acquire(
            [Order.from_origin(item)],
            store,
            lambda source, uri: open_origin(uri),
            strict=True,
            on_event=lambda event: events.append(event) if isinstance(event, BytesMoved) else None,
        )
    (discarded,) = (event for event in events if event.kind == "partial_discarded")
    assert discarded.detail.startswith("PARTIAL_STATE_IDENTITY_MISMATCH")
    assert discarded.bytes == 100_000
    moved = {event.kind: event.bytes for event in events}
    assert moved["acquired"] == item.length
    assert "resumed_prefix" not in moved


@refused_with("CACHE_OBJECT_TAMPERED")
def local_object_corrupted_after_the_inventory(world: World) -> None:
    item = world.next_artifact()
    world.accepted(world.from_origin(item))
    assert item.sha256 in world.held(world.birch)
    world.alter(world.birch, item)
    order = m.AcquisitionOrder(artifact=item, source=None)
    answer = world.refused(order, "SOURCE_UNAUTHORIZED", side="order")
    assert [sha256 for sha256, _ in answer.tampered] == [item.sha256]
    assert item.sha256 not in world.held(world.birch)
    world.accepted(world.from_origin(item))


@refused_with("CACHE_OBJECT_TAMPERED")
def peers_object_corrupted_after_the_inventory(world: World) -> None:
    item = world.given_to_amber(world.next_artifact())
    assert item.sha256 in world.held(world.amber)
    world.alter(world.amber, item)
    before = world.served(world.amber)
    world.refused(world.from_peer(item), "SOURCE_OBJECT_UNAVAILABLE")
    after = world.served(world.amber)
    assert after.lines == before.lines
    assert after.refused[-1].kind == "CACHE_OBJECT_TAMPERED"
    assert item.sha256 not in world.held(world.amber)


@refused_with("CACHE_OBJECT_TAMPERED")
def stored_object_corrupted_before_a_state_is_made(world: World) -> None:
    requirement = stored_requirement(world)
    item = next(item for item in world.plan.of("stage-0").artifacts if item.states)
    world.alter(world.birch, item)
    unmoved_but_quarantined = raises("CACHE_OBJECT_TAMPERED", lambda: read_all(requirement))
    assert item.sha256 == unmoved_but_quarantined.subject
    assert item.sha256 not in world.held(world.birch)
