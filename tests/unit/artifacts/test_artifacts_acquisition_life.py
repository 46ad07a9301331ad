"""One participant's acquisition from end to end: manifest, delta, choices, transfers, ledger, zeros, logs."""

import time

import pytest

from inferswarm.artifacts.acquiring import acquire
from inferswarm.artifacts.acquisition import BytesMoved, Order
from inferswarm.artifacts.byte_ledger import ByteLedger, LedgerEvent, event_of
from inferswarm.artifacts.delta import delta_of
from inferswarm.artifacts.deriving import derive_artifacts
from inferswarm.artifacts.inventory import InventoryBook, inventory_of, receipt_of
from inferswarm.artifacts.ledger_checks import check_zeros, zero_invariants
from inferswarm.artifacts.manifest import manifest_of
from inferswarm.artifacts.origins.opening import open_origin
from inferswarm.artifacts.publishing import publish
from inferswarm.artifacts.reconciling import ServedLine, reconcile
from inferswarm.artifacts.source_choices import SourceFacts, Want
from inferswarm.artifacts.sources import Source
from inferswarm.artifacts.sourcing import choose_again, choose_sources
from inferswarm.artifacts.store import ContentStore, Use
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError
from tests.origin_server import Fault, serve_origin
from tests.unit.artifacts.artifacts_support import PLAN, PROVENANCE, SPANS, make_rig

WHO = "stage-1"
TOKEN = "a swarm's token"


@pytest.fixture
def rig(tmp_path):
    (tmp_path / "origin").mkdir()
    return make_rig(tmp_path / "origin")


@pytest.fixture
def origin(rig):
    with serve_origin(rig.path.parent) as server:
        yield server


@pytest.fixture
def peer(tmp_path):
    """A Node that serves whatever blobs lie in its folder."""
    (tmp_path / "peer").mkdir()
    with serve_origin(tmp_path / "peer") as server:
        yield server


def planned(rig, origin):
    """The artifacts of the middle stage, published from where they are served."""
    described = open_origin(origin.url("small.gguf"))
    with described:
        files = [described.described]
    layout = manifest_of(rig.model.object, PROVENANCE, files=files)
    manifest = publish(layout, lambda file: open_origin(file.uri, file))
    plan = derive_artifacts(manifest, rig.model.object, PLAN, rig.needs(SPANS), rig.states)
    return plan, plan.of(WHO).artifacts


def blob_name(item):
    return item.sha256.removeprefix("sha256:")


def give(rig, folder, *items):
    data = rig.path.read_bytes()
    for item in items:
        (folder / blob_name(item)).write_bytes(data[item.range.start : item.range.end])


def order_of(choice, item, peer):
    if choice.source.id == "origin":
        return Order.from_origin(item)
    return Order.from_peer(item, choice.source.id, peer.url(blob_name(item)))


def served_lines(origin, peer):
    """What both servers logged, by the names that the ledger has for it."""
    lines = []
    for source, server in (("origin", origin), ("peer", peer)):
        for request in server.log:
            name = server.url(request.path) if source == "origin" else f"sha256:{request.path}"
            asked = 0 if request.range is None else request.range.length
            lines.append(
                ServedLine(
                    source=source,
                    object=name,
                    bytes=request.bytes_sent,
                    complete=request.bytes_sent == asked,
                    is_look=request.range == ByteRange(0, 1),
                )
            )
    return lines


@pytest.mark.rule(81, 82)
def test_a_lying_peer_costs_one_attempt_and_every_byte_is_accounted_for(rig, origin, peer, tmp_path):
    """One block comes from a peer, another from the origin; what the peer altered is refused and fetched elsewhere.

    Mutation: let `Job.is_right` answer True, let `choose_again` keep the failed pair, or let `unexplained` leave out
    `integrity_failure`.
    """
    plan, items = planned(rig, origin)
    origin.clear()
    by_id = {item.id: item for item in items}
    peer_source = Source("peer", peer.address)
    here = Source("here", "http://here:1")
    with ContentStore(tmp_path / "peer-store") as peer_store, ContentStore(tmp_path / "store") as store:
        data = rig.path.read_bytes()
        half = items[: len(items) // 2]
        for item in half:
            peer_store.publish(data[item.range.start : item.range.end], use=Use("plan", "required"))
        give(rig, peer.folder, *half)
        there = items[-1]
        store.publish(data[there.range.start : there.range.end], use=Use("older plan", "required"))
        lying = max(half, key=lambda item: item.length)
        peer.inject(blob_name(lying), Fault(flip_at=lying.length - 1))

        book = InventoryBook(TOKEN, [peer_source, here])
        for node, kept in ((peer_source, peer_store), (here, store)):
            said = inventory_of(node, kept.inventory())
            book.accept(said, receipt_of(said, TOKEN))
        delta = delta_of(plan.of(WHO), book.newest("here"), 1)
        assert there.id in delta.held

        facts = SourceFacts(index=book.index(), origin=Source("origin", origin.address))
        wants = {item.id: Want(WHO, "here", item) for item in items}
        chosen = choose_sources(wants.values(), facts, "PREFER_LOCAL_VERIFIED", 1)
        ledger = ByteLedger()
        now = str(time.time_ns())
        for item in items:
            ledger.append(
                LedgerEvent(kind="required", participant=WHO, artifact=item.id, bytes=item.length, at_ns=now)
            )

        def said_of_bytes(event):
            if isinstance(event, BytesMoved):
                ledger.append(event_of(WHO, event, time.time_ns()))

        authorized = set()

        def attempt(choices):
            orders = [order_of(choice, by_id[choice.artifact], peer) for choice in choices if choice.source]
            local = [Order.from_origin(by_id[choice.artifact]) for choice in choices if not choice.source]
            authorized.update((WHO, order.artifact.id, order.source) for order in orders)
            return acquire([*orders, *local], store, lambda source, uri: open_origin(uri), on_event=said_of_bytes)

        done = attempt(chosen.choices)
        (failed,) = done.failed
        assert (failed.artifact, failed.source, failed.failure.code) == (
            lying.id,
            "peer",
            "INTEGRITY_DIGEST_MISMATCH",
        )
        assert store.holds(lying.sha256) is None
        first = next(choice for choice in chosen.choices if choice.artifact == lying.id)
        again = choose_again(chosen, first, failed.failure.code, wants[lying.id], facts)
        second = next(choice for choice in again.choices if choice.artifact == lying.id)
        assert (second.source.id, second.attempt) == ("origin", 2)
        assert attempt([second]).is_complete
        assert all(store.holds(item.sha256) == item.length for item in items)

    ledger.append(LedgerEvent(kind="coordinator_observed", participant=WHO, bytes=0, at_ns=now))
    ledger.check_conservation()
    ledger.check_complete()
    check_zeros(zero_invariants(ledger, plan, authorized, serving_since_ns=time.time_ns()))
    reconcile(ledger, served_lines(origin, peer))
    assert ledger.total("integrity_failure", source="peer") == lying.length
    assert ledger.total("acquired", source="peer") == sum(item.length for item in half) - lying.length > 0
    assert ledger.total("cache_hit") == delta.held_bytes
    assert ledger.total("received") == plan.of(WHO).bytes - delta.held_bytes + lying.length


def test_a_transfer_that_breaks_off_goes_on_and_adds_up(rig, origin, peer, tmp_path):
    """The peer cuts an answer and then refuses; what came is kept, found by the next attempt, and counted once."""
    plan, items = planned(rig, origin)
    item = max(items, key=lambda item: item.length)
    name = blob_name(item)
    give(rig, peer.folder, item)
    origin.clear()
    ledger = ByteLedger(
        [LedgerEvent(kind="required", participant=WHO, artifact=item.id, bytes=item.length, at_ns="1")]
    )

    def said_of_bytes(event):
        if isinstance(event, BytesMoved):
            ledger.append(event_of(WHO, event, time.time_ns()))

    def attempt(store):
        order = Order.from_peer(item, "peer", peer.url(name))
        return acquire([order], store, lambda source, uri: open_origin(uri), on_event=said_of_bytes)

    with ContentStore(tmp_path / "store") as store:
        peer.inject(name, Fault(after=1, times=1, drop_after=100), Fault(after=1, status=403))
        assert not attempt(store).is_complete
        assert ledger.total("partial_staging", source="peer") == 100
        ledger.check_conservation()
        peer.inject(name)
        assert attempt(store).is_complete
    ledger.check_conservation()
    ledger.check_complete()
    sums = [ledger.total(kind) for kind in ("received", "resumed_prefix", "resume_transfer", "acquired")]
    assert sums == [item.length, 100, item.length - 100, 0]
    lines = served_lines(origin, peer)
    reconcile(ledger, lines)
    zeros = {found.name: found.value for found in zero_invariants(ledger, plan, {(WHO, item.id, "peer")})}
    assert zeros["unauthorized_source_bytes"] == zeros["unrelated_model_bytes_acquired"] == 0
    with pytest.raises(ArtifactError, match="RECONCILIATION_MISMATCH"):
        reconcile(ledger, [line for line in lines if line.complete])
