"""Negative controls of records: plans, requirements, accounts, and what is executed or published under them."""

from __future__ import annotations

import msgspec

from inferswarm.artifacts.byte_ledger import ByteLedger
from inferswarm.artifacts.exactness import Need, check_artifacts, check_execution
from inferswarm.artifacts.inventory import InventoryBook
from inferswarm.artifacts.ledger_checks import check_zeros, zero_invariants
from inferswarm.artifacts.reconciling import reconcile
from inferswarm.artifacts.requirement import check_reads
from inferswarm.artifacts.store import partial_identity
from inferswarm.artifacts.types import ByteRange, StoredBlob, StoredBlobs
from inferswarm.backends.required_bytes import open_required
from inferswarm.fabric.ledger import Ledger
from inferswarm.fabric.transfer_accounts import TransferAccount
from inferswarm.fabric.transfer_records import TransferRecords
from tests.origin_server import Fault
from tests.unit.artifacts.artifacts_support import PLAN
from tests.unit.artifacts.controls_registry import (
    OTHER,
    raises,
    read_all,
    refused_with,
    stored_requirement,
    unmoved,
)
from tests.unit.artifacts.controls_world import LONG, TOKEN, World

replace = msgspec.structs.replace


# -- records that contradict themselves --


@refused_with("MALFORMED_ARTIFACT_RECORD")
def digest_of_a_content_of_another_length(world: World) -> None:
    item = world.next_artifact()
    world.accepted(world.from_origin(item))
    shorter = replace(item, length=item.length - 1, range=ByteRange(item.range.start, item.range.end - 1))
    world.server.clear()
    world.refused(world.from_origin(shorter), "MALFORMED_ARTIFACT_RECORD", side="order")
    assert world.server.log == []
    world.accepted(world.from_origin(item), how="cache-hit")


@refused_with("MALFORMED_ARTIFACT_RECORD")
def altered_requirement(world: World) -> None:
    """A tensor is not where the file's header has it."""
    needs = world.needs()
    tensor, *rest = needs[1].requirement.tensors
    moved = replace(tensor, range=ByteRange(tensor.range.start + 4, tensor.range.end + 4))
    needs[1] = needs[1]._replace(requirement=replace(needs[1].requirement, tensors=(moved, *rest)))
    unmoved(world, "MALFORMED_ARTIFACT_RECORD", lambda: world.derive(needs))
    assert world.derive(world.needs()) == world.plan


@refused_with("MALFORMED_ARTIFACT_RECORD")
def name_that_leads_out_of_the_store(world: World) -> None:
    item = world.long_artifact(50_000)
    identity = partial_identity(item)
    with world.store(world.birch) as store:
        for name in ("sha256:../../../../etc/passwd", "../" * 5 + "etc/passwd", "sha256:" + "A" * 64, ""):
            unmoved(world, "MALFORMED_ARTIFACT_RECORD", lambda name=name: store.open_verified(name))
            unmoved(world, "MALFORMED_ARTIFACT_RECORD", lambda name=name: store.hold("x", [name]))
            unmoved(world, "MALFORMED_ARTIFACT_RECORD", lambda name=name: store.pin_told([(identity, name)]))


# -- plans of something else --


@refused_with("PROVENANCE_IDENTITY_MISMATCH")
def wrong_provenance(world: World) -> None:
    found, need = world.plan.of("stage-1"), world.needs()[1]
    first, *rest = found.artifacts
    other = replace(first, provenance=replace(first.provenance, revision="r2"))
    altered = replace(found, artifacts=(other, *rest))
    unmoved(
        world,
        "PROVENANCE_IDENTITY_MISMATCH",
        lambda: check_artifacts(altered, world.manifest, PLAN, need),
    )
    check_artifacts(found, world.manifest, PLAN, need)


@refused_with("PROVENANCE_IDENTITY_MISMATCH")
def another_digest_in_the_plan(world: World) -> None:
    found, need = world.plan.of("stage-1"), world.needs()[1]
    first, *rest = found.artifacts
    altered = replace(found, artifacts=(replace(first, sha256=OTHER), *rest))
    unmoved(world, "PROVENANCE_IDENTITY_MISMATCH", lambda: check_artifacts(altered, world.manifest, PLAN, need))


@refused_with("PROVENANCE_IDENTITY_MISMATCH")
def stored_content_of_another_length(world: World) -> None:
    """The order says a digest that the store has, and a place of another length."""
    requirement = stored_requirement(world)
    stored = requirement.stored
    assert isinstance(stored, StoredBlobs)
    tensors = tuple(
        replace(tensor, range=ByteRange(tensor.range.start, tensor.range.end - 4)) for tensor in requirement.tensors
    )
    blobs = tuple(StoredBlob(b.file, ByteRange(b.range.start, b.range.end - 4), b.sha256) for b in stored.blobs)
    altered = replace(requirement, tensors=tensors, stored=StoredBlobs(stored.root, blobs))
    unmoved(world, "PROVENANCE_IDENTITY_MISMATCH", lambda: read_all(altered))
    assert read_all(requirement) == requirement.bytes


# -- what is not all there, or more than that --


@refused_with("REQUIRED_STATE_COVERAGE_INCOMPLETE")
def requirement_that_lacks_a_tensor(world: World) -> None:
    needs = world.needs()
    requirement = needs[1].requirement
    needs[1] = needs[1]._replace(requirement=replace(requirement, tensors=requirement.tensors[1:]))
    unmoved(world, "REQUIRED_STATE_COVERAGE_INCOMPLETE", lambda: world.derive(needs))


@refused_with("REQUIRED_STATE_COVERAGE_INCOMPLETE")
def artifacts_that_lack_one(world: World) -> None:
    found, need = world.plan.of("stage-1"), world.needs()[1]
    altered = replace(found, artifacts=found.artifacts[1:])
    unmoved(world, "REQUIRED_STATE_COVERAGE_INCOMPLETE", lambda: check_artifacts(altered, world.manifest, PLAN, need))


@refused_with("REQUIRED_STATE_COVERAGE_INCOMPLETE")
def state_made_of_less_than_its_bytes(world: World) -> None:
    requirement = stored_requirement(world)
    opened = open_required(requirement)
    tensor, *_ = requirement.tensors
    opened.read_into(tensor.file, tensor.range, bytearray(tensor.range.length))
    opened.close()
    read = opened.ranges_read
    raises("REQUIRED_STATE_COVERAGE_INCOMPLETE", lambda: check_reads(requirement, read))


@refused_with("UNDECLARED_REQUIREMENT_ARTIFACT")
def unrequired_artifact(world: World) -> None:
    found, need = world.plan.of("stage-1"), world.needs()[1]
    altered = replace(found, artifacts=(*found.artifacts, world.plan.of("stage-2").artifacts[0]))
    unmoved(world, "UNDECLARED_REQUIREMENT_ARTIFACT", lambda: check_artifacts(altered, world.manifest, PLAN, need))


@refused_with("UNDECLARED_REQUIREMENT_ARTIFACT")
def requirement_of_somebody_elses_tensor(world: World) -> None:
    needs = world.needs()
    mine, theirs = needs[1].requirement, needs[2].requirement
    needs[1] = needs[1]._replace(requirement=replace(mine, tensors=(*mine.tensors, theirs.tensors[0])))
    unmoved(world, "UNDECLARED_REQUIREMENT_ARTIFACT", lambda: world.derive(needs))


@refused_with("UPSTREAM_OBJECT_FULLY_ACQUIRED_WITHOUT_DECLARATION")
def participant_with_a_part_that_would_get_everything(world: World) -> None:
    """One state of many is declared to be made of every tensor."""
    needs = world.needs()
    state = next(iter(needs[1].declaration))
    names = tuple(tensor.name for tensor in world.model.object.tensors)
    requirement = replace(needs[1].requirement, tensors=world.model.object.tensors, state_ids=(state,))
    needs[1] = Need(requirement, {state: names})
    unmoved(world, "UPSTREAM_OBJECT_FULLY_ACQUIRED_WITHOUT_DECLARATION", lambda: world.derive(needs))


# -- what is not verified --


@refused_with("UNVERIFIED_OBJECT_PUBLICATION_REFUSED")
def unfinished_transfer_published(world: World) -> None:
    item = world.long_artifact(70_000)
    with world.fault(LONG, Fault(after=1, drop_after=300_000, times=1), Fault(after=1, status=404)):
        world.refused(world.from_origin(item), "SOURCE_OBJECT_UNAVAILABLE", moved=300_000)
    with world.store(world.birch) as store:
        partial = store.partial(partial_identity(item))
        assert partial is not None
        assert partial.length == 300_000
        unmoved(
            world,
            "UNVERIFIED_OBJECT_PUBLICATION_REFUSED",
            lambda: store.publish_partial(partial, item.sha256),  # type: ignore[arg-type]
        )
        partial.close()
    world.accepted(world.from_origin(item))


@refused_with("UNVERIFIED_OBJECT_PUBLICATION_REFUSED")
def wrong_bytes_published(world: World) -> None:
    item = world.next_artifact()
    assert isinstance(item.sha256, str)
    with world.store(world.birch) as store:
        unmoved(
            world,
            "UNVERIFIED_OBJECT_PUBLICATION_REFUSED",
            lambda: store.publish(world.bytes_of(item)[:-1], item.sha256),  # type: ignore[arg-type]
        )
        assert store.publish(world.bytes_of(item), item.sha256) == item.sha256


@refused_with("UNVERIFIED_SOURCE_READ_REFUSED")
def digest_that_nobody_published_under_the_strict_policy(world: World) -> None:
    item = world.next_artifact()
    order = world.from_origin(replace(item, sha256=msgspec.UNSET))
    world.server.clear()
    world.refused(order, "UNVERIFIED_SOURCE_READ_REFUSED", side="order")
    assert world.server.log == []
    world.accepted(order, strict=False)


@refused_with("UNVERIFIED_SOURCE_READ_REFUSED")
def raw_bytes_at_the_coordinators_entry(world: World) -> None:
    item = world.next_artifact()
    answer = world.acquire(world.birch, world.from_origin(item))
    folder = world.birch.root.parent
    records = TransferRecords(Ledger(folder / "ledger.sqlite"))
    names = (("stage-1", world.birch.source.id, "birch"),)
    account = TransferAccount(records, "realization-1", names, world.plan)
    smuggled = replace(answer.outcomes[0], reason="x" * 9000)
    raises(
        "UNVERIFIED_SOURCE_READ_REFUSED",
        lambda: account.answered("stage-1", replace(answer, outcomes=(smuggled,))),
    )
    account.answered("stage-1", answer)


# -- accounts that differ --


@refused_with("RECONCILIATION_MISMATCH")
def inventory_older_than_the_last(world: World) -> None:
    book = InventoryBook(TOKEN, [world.birch.source])
    older = world.inventory(world.birch)
    world.accepted(world.from_origin(world.next_artifact()))
    newer = world.inventory(world.birch)
    book.accept(newer.inventory, newer.receipt)
    unmoved(world, "RECONCILIATION_MISMATCH", lambda: book.accept(older.inventory, older.receipt))
    assert book.newest(world.birch.source.id) == newer.inventory


@refused_with("RECONCILIATION_MISMATCH")
def source_that_says_that_it_gave_less(world: World) -> None:
    item = world.given_to_amber(world.next_artifact())
    num_before = len(world.served(world.amber).lines)
    ledger = ByteLedger(world.accepted(world.from_peer(item)).events)
    lines = world.served(world.amber).lines[num_before:]
    reconcile(ledger, lines)
    less = [line if line.is_look else replace(line, bytes=line.bytes - 1) for line in lines]
    raises("RECONCILIATION_MISMATCH", lambda: reconcile(ledger, less))


@refused_with("RECONCILIATION_MISMATCH")
def bytes_from_a_source_that_was_not_authorized(world: World) -> None:
    item = world.next_artifact()
    answer = world.accepted(world.from_origin(item))
    ledger = ByteLedger(answer.events)
    zero = {"unknown": 0}
    for allowed, is_right in ((("stage-1", item.id, "origin"), True), (("stage-1", item.id, "node-amber"), False)):
        (found,) = (
            each
            for each in zero_invariants(ledger, world.plan, {allowed})
            if each.name == "unauthorized_source_bytes"
        )
        assert found.holds is is_right
        zero[allowed[2]] = found.value or 0
    assert zero["node-amber"] == item.length
    raises("RECONCILIATION_MISMATCH", lambda: check_zeros(zero_invariants(ledger, world.plan, set())))


# -- what executes --


@refused_with("STAGING_UNPLANNED_KEY")
def bytes_that_no_state_of_the_stage_needs(world: World) -> None:
    """A stage with a store cannot even read them: they are asked for in no blob of its own."""
    requirement = stored_requirement(world)
    theirs = world.plan.of("stage-2").artifacts[-1].range
    opened = open_required(requirement)
    unmoved(world, "STAGING_UNPLANNED_KEY", lambda: opened.read_into(0, theirs, bytearray(theirs.length)))
    assert opened.bytes_read == 0
    opened.close()


@refused_with("STAGING_UNPLANNED_KEY")
def log_of_reads_with_a_byte_too_many(world: World) -> None:
    requirement = world.needs()[1].requirement
    ranges = requirement.ranges(0)
    wide = (*ranges[:-1], ByteRange(ranges[-1].start, ranges[-1].end + 1))
    raises("STAGING_UNPLANNED_KEY", lambda: check_reads(requirement, {0: wide}))
    check_reads(requirement, {0: ranges})


@refused_with("EXECUTION_IDENTITY_MISMATCH")
def stage_that_executes_something_else(world: World) -> None:
    found, requirement = world.plan.of("stage-1"), world.needs()[1].requirement
    files = (world.manifest.files[0].uri,)
    for altered in (
        replace(requirement, problem_digest=OTHER),
        replace(requirement, tensors=requirement.tensors[1:]),
        replace(requirement, state_ids=requirement.state_ids[1:]),
        replace(requirement, participant="stage-2"),
    ):
        unmoved(world, "EXECUTION_IDENTITY_MISMATCH", lambda a=altered: check_execution(found, PLAN, a, files))
    unmoved(world, "EXECUTION_IDENTITY_MISMATCH", lambda: check_execution(found, OTHER, requirement, files))
    check_execution(found, PLAN, requirement, files)
