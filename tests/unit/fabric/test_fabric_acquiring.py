"""The Coordinator has Nodes acquire what a plan needs: from whom, under which tickets, and what when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from inferswarm.artifacts.ledger_checks import check_zeros, zero_invariants
from inferswarm.documents import digest_bytes
from inferswarm.errors import ArtifactError, SpecError
from inferswarm.fabric import acquiring
from inferswarm.fabric import messages as m
from inferswarm.fabric.acquiring import Acquirer
from inferswarm.fabric.acquisition_log import read_reports
from inferswarm.fabric.acquisition_rounds import ATTEMPTS
from inferswarm.fabric.bulk_guard import bulk_bytes
from tests.unit.artifacts.artifacts_support import SPANS, Rig, make_rig
from tests.unit.fabric.fake_couriers import SCOPE, TOKEN, Bed, FakeCouriers, Lie, event_of, is_artifact_error

NODES = ("amber", "birch", "cedar")
INTEGRITY, UNAVAILABLE = "INTEGRITY_DIGEST_MISMATCH", "SOURCE_OBJECT_UNAVAILABLE"


@pytest.fixture(scope="module")
def rig(tmp_path_factory) -> Rig:
    return make_rig(tmp_path_factory.mktemp("model"))


@pytest.fixture
def bed(rig, tmp_path) -> Bed:
    return Bed(rig, tmp_path, *NODES)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def needed_bytes(order: m.Fallback, participant: str) -> int:
    assert not isinstance(order.artifacts, msgspec.UnsetType)
    return order.artifacts.plan.of(participant).bytes


def check_last(bed: Bed) -> None:
    """Check that everything that must be 0 for the newest realization is."""
    record = bed.records[-1]
    check_zeros(zero_invariants(record.ledger, record.artifacts, record.authorized, record.serving_since_ns))


# -- what is needed, once --


def test_each_node_gets_exactly_what_it_needs_and_the_second_time_nothing(bed) -> None:
    order = bed.order(NODES)

    async def test() -> None:
        told = await bed.acquire(order)
        for index, name in enumerate(NODES):
            moved = sum(size for node, _, size in bed.couriers.asked if node == name)
            assert moved == needed_bytes(order, f"stage-{index}")
            requirement = told[index].requirement
            stored = requirement.stored
            assert not isinstance(stored, msgspec.UnsetType)
            assert (stored.root, sum(blob.range.length for blob in stored.blobs)) == ("", requirement.bytes)
            for blob in stored.blobs:
                assert blob.sha256 == digest_bytes(bed.couriers.whole[blob.range.start : blob.range.end])
        check_last(bed)
        bed.couriers.asked.clear()
        assert await bed.acquire(order) == told
        assert bed.couriers.asked == []
        check_last(bed)

    run(test)
    said = [(entry.report.realization, entry.report.state) for entry in read_reports(bed.path)]
    assert said == [(f"realization-{number}", state) for number in (1, 2) for state in ("begun", "complete")]
    total = bed.progress[-1].total
    assert (bed.progress[-1].done, total) == (total, sum(needed_bytes(order, f"stage-{index}") for index in range(3)))


def test_what_two_need_and_nobody_knows_the_digest_of_comes_from_the_origin_once(bed) -> None:
    """A tied embedding: the first pins it, the last gets what the first got, and from it."""

    async def test() -> None:
        await bed.acquire(bed.order(NODES))
        (shared,) = [entry for entry in bed.couriers.asked if entry[:2] == ("cedar", "amber")]
        assert [entry for entry in bed.couriers.asked if entry[2] == shared[2] and entry[1] == "origin"] == [
            ("amber", "origin", shared[2])
        ]

    run(test)


def test_what_peers_have_comes_from_them_although_nobody_published_a_digest(rig, tmp_path) -> None:
    bed = Bed(rig, tmp_path, *NODES, "oak")

    async def test() -> None:
        await bed.acquire(bed.order(NODES))
        bed.couriers.asked.clear()
        await bed.acquire(bed.order(("oak", "birch", "amber"), ((0, 3), (3, 5), (5, 6))))
        assert {source for _, source, _ in bed.couriers.asked} <= set(NODES)
        assert {node for node, _, _ in bed.couriers.asked} == {"oak", "birch", "amber"}
        check_last(bed)
        assert [record.generation for record in bed.records] == [1, 2]
        assert {node.generation for node in bed.couriers.nodes.values()} == {2}

    run(test)


def test_stages_that_were_adopted_acquire_nothing(bed) -> None:
    order = bed.order(NODES)

    async def test() -> None:
        told = await bed.acquire(order, adopted=("stage-0", "stage-2"))
        assert {node for node, _, _ in bed.couriers.asked} == {"birch"}
        assert told[0] == order.assignments[0]
        check_last(bed)

    run(test)


def test_an_order_without_artifacts_asks_no_courier(bed) -> None:
    order = msgspec.structs.replace(bed.order(NODES), artifacts=msgspec.UNSET)

    async def test() -> None:
        assert await bed.acquire(order) == order.assignments
        assert bed.records == ()

    run(test)


# -- what fails of a source --


def test_a_peer_that_gives_other_bytes_is_not_asked_for_them_again_by_any_coordinator(rig, tmp_path) -> None:
    bed = Bed(rig, tmp_path, *NODES, "oak")
    moved = bed.order(("oak", "birch", "cedar"))

    async def test() -> None:
        await bed.acquire(bed.order(NODES))
        bed.couriers.lies.append(Lie("amber", INTEGRITY))
        bed.couriers.asked.clear()
        await bed.acquire(moved)
        assert {source for node, source, _ in bed.couriers.asked if node == "oak"} <= {"origin", "cedar"}
        check_last(bed)
        assert bed.records[-1].ledger.total("integrity_failure") > 0
        assert bed.ledger.refusals()[INTEGRITY] > 0
        bed.couriers.lies.clear()
        bed.couriers.nodes["id-oak"].held.clear()
        bed.couriers.nodes["id-oak"].sequence += 1
        bed.couriers.asked.clear()
        bed.acquirer = Acquirer(SCOPE, TOKEN, bed.couriers, bed.ledger)  # type: ignore[arg-type]
        await bed.acquire(moved)
        failed, allowed = (
            {a for _, a, source in record.authorized if source == "id-amber"} for record in bed.records[1:]
        )
        assert failed
        assert not failed & allowed

    run(test)


def test_an_origin_that_gives_other_bytes_fails_with_node_artifact_source_and_reason(bed, rig) -> None:
    bed.couriers.lies.append(Lie("origin", INTEGRITY, node="birch"))
    order = bed.order(NODES, manifest=rig.manifest)

    async def test() -> None:
        error = await bed.refusal(order)
        assert is_artifact_error(error, INTEGRITY)
        text = str(error)
        for part in ("stage-1 on Node birch", "block.", str(rig.path), "the origin", "as told", "excluded"):
            assert part in text, text
        await asyncio.sleep(0)
        assert bed.records[0].serving_since_ns is None
        assert bed.records[0].ledger.total("integrity_failure") > 0
        *_, last = read_reports(bed.path)
        assert (last.report.state, last.report.reason) == ("failed", text)

    run(test)


def test_a_peer_that_has_gone_is_replaced_by_the_origin(rig, tmp_path) -> None:
    bed = Bed(rig, tmp_path, *NODES, "oak")

    async def test() -> None:
        await bed.acquire(bed.order(NODES))
        bed.couriers.lies += [Lie(name, UNAVAILABLE) for name in NODES]
        bed.couriers.asked.clear()
        await bed.acquire(bed.order(("oak", "birch", "cedar")))
        assert {source for _, source, _ in bed.couriers.asked} == {"origin"}
        check_last(bed)

    run(test)


def test_attempts_are_bounded(rig, tmp_path) -> None:
    others = tuple(f"node-{index}" for index in range(ATTEMPTS + 2))
    bed = Bed(rig, tmp_path, "amber", "birch", "cedar", "oak", *others)
    content = digest_bytes(bed.couriers.whole[rig.layout.entries[-1].range.start : rig.layout.entries[-1].range.end])
    length = rig.layout.entries[-1].range.length
    for name in others:
        bed.couriers.nodes[f"id-{name}"].keep(content, length)
    bed.couriers.lies += [Lie(name, UNAVAILABLE) for name in others]

    async def test() -> None:
        error = await bed.refusal(bed.order(NODES, manifest=rig.manifest))
        assert is_artifact_error(error, UNAVAILABLE)
        tried = {source for _, artifact, source in bed.records[-1].authorized if source != "origin"}
        assert len(tried) == ATTEMPTS

    run(test)


@pytest.mark.parametrize("side", ["store", "order"])
def test_what_another_source_would_not_help_is_not_tried_elsewhere(bed, side) -> None:
    bed.couriers.lies.append(Lie("origin", "UNVERIFIED_OBJECT_PUBLICATION_REFUSED", side=side, node="cedar"))

    async def test() -> None:
        error = await bed.refusal(bed.order(NODES))
        assert is_artifact_error(error, "UNVERIFIED_OBJECT_PUBLICATION_REFUSED")
        assert "stage-2 on Node cedar" in str(error)

    run(test)


def test_what_a_node_holds_no_more_comes_from_elsewhere(bed) -> None:
    order = bed.order(NODES)

    async def test() -> None:
        await bed.acquire(order)
        honest = bed.couriers.nodes["id-birch"]
        lost = next(iter(honest.held))
        real = bed.couriers._one

        def forgetful(node: Any, *rest: Any) -> m.AcquisitionOutcome:
            if node is honest:
                honest.held.pop(lost, None)  # behind the inventory's back
            return real(node, *rest)

        bed.couriers._one = forgetful  # type: ignore[method-assign]
        bed.couriers.asked.clear()
        await bed.acquire(order)
        assert [entry[:2] for entry in bed.couriers.asked] == [("birch", "origin")]
        check_last(bed)

    run(test)


# -- who is asked, and what is believed --


def test_a_node_without_a_store_and_artifacts_of_another_plan_are_refused_before_anything_is_asked(bed) -> None:
    order, other = bed.order(NODES), bed.order(("birch", "amber", "cedar"))

    async def test() -> None:
        swapped = msgspec.structs.replace(order, artifacts=other.artifacts)
        assert is_artifact_error(await bed.refusal(swapped), "PROVENANCE_IDENTITY_MISMATCH")
        bed.couriers.without_store.add("birch")
        error = await bed.refusal(order)
        assert isinstance(error, SpecError)
        assert "birch" in str(error)
        assert bed.records == ()

    run(test)


def test_artifacts_that_are_not_what_is_required_are_an_error_of_the_order(bed) -> None:
    order = bed.order(NODES)
    assert not isinstance(order.artifacts, msgspec.UnsetType)
    elsewhere = msgspec.structs.replace(order.artifacts, files=("/another/file",))
    first, *others = order.artifacts.plan.participants
    fewer = msgspec.structs.replace(first, artifacts=first.artifacts[1:])
    plan = msgspec.structs.replace(order.artifacts.plan, participants=(fewer, *others))
    lacking = msgspec.structs.replace(order.artifacts, plan=plan)
    everything = msgspec.structs.replace(first, artifacts=(*first.artifacts, *others[0].artifacts))
    plan = msgspec.structs.replace(order.artifacts.plan, participants=(everything, *others))
    too_much = msgspec.structs.replace(order.artifacts, plan=plan)

    async def test() -> None:
        for wrong in (elsewhere, lacking, too_much):
            error = await bed.refusal(msgspec.structs.replace(order, artifacts=wrong))
            assert is_artifact_error(error, "EXECUTION_IDENTITY_MISMATCH")

    run(test)


def test_a_silent_node_is_no_source_and_a_silent_participant_an_error(rig, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(acquiring, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(acquiring, "PEER_LOOK_SECONDS", 0.05)
    bed = Bed(rig, tmp_path, *NODES, "oak")

    async def test() -> None:
        bed.couriers.silent.add("oak")
        await bed.acquire(bed.order(NODES))
        bed.couriers.silent.add("birch")
        assert "Node birch did not answer" in str(await bed.refusal(bed.order(NODES)))

    run(test)


def test_bytes_are_counted_also_when_nobody_waits_for_the_answer_any_more(bed) -> None:
    bed.couriers.lies.append(Lie("origin", UNAVAILABLE, side="order", node="amber"))
    bed.couriers.slow["birch"] = 0.05

    async def test() -> None:
        await bed.refusal(bed.order(NODES))
        assert bed.records[-1].ledger.total("received", participant="stage-1") == 0
        await bed.acquirer.keep_only([])  # which also ends what is under way: that is a courier's work
        assert [node.name for node in bed.couriers.nodes.values() if node.released] == ["amber", "birch", "cedar"]
        async with asyncio.timeout(10.0):
            while not bed.records[-1].ledger.total("received", participant="stage-1"):
                await asyncio.sleep(0.01)
        assert bed.records[-1].ledger.unexplained() == {}

    run(test)


@pytest.mark.rule(83)
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"versions": (("x", "y" * 9000),)}, "UNVERIFIED_SOURCE_READ_REFUSED"),
        ({"outcomes": ()}, "RECONCILIATION_MISMATCH"),
        ({"events": ()}, "RECONCILIATION_MISMATCH"),
    ],
    ids=["bytes in bulk", "outcomes of nothing", "bytes that nobody counted"],
)
def test_an_answer_that_is_not_to_the_question_is_refused(bed, changes, code) -> None:
    """Mutation: take a courier's answer in `transfer_accounts` without asking `bulk_bytes` what is in it."""
    bed.couriers.changes = changes

    async def test() -> None:
        assert is_artifact_error(await bed.refusal(bed.order(NODES)), code)

    run(test)


def test_events_of_another_participant_are_refused(bed, rig) -> None:
    item = rig.derive(SPANS).participants[0].artifacts[0]
    bed.couriers.changes = {"events": (event_of("stage-9", "cache_hit", item),)}

    async def test() -> None:
        assert "stage-9" in str(await bed.refusal(bed.order(NODES)))

    run(test)


@pytest.mark.rule(83)
def test_the_guard_counts_what_could_carry_a_model_and_nothing_else() -> None:
    """Mutation: leave out sets, or a Struct's fields, in `bulk_guard.bulk_bytes`."""
    record = m.ArtifactsAcquired(outcomes=(), events=(), seconds=0.0, versions=(("https://" + "a" * 2000, "etag"),))
    assert bulk_bytes(record) == 0
    assert bulk_bytes(msgspec.structs.replace(record, tampered=(("x", "y" * 10_000),))) == 10_000
    assert bulk_bytes({"a": [b"x" * 257, bytearray(300), frozenset({"y"})]}) == 557


def test_no_message_of_a_courier_has_a_field_for_bytes() -> None:
    kinds = {type(item).__name__ for item in _types_in(msgspec.inspect.type_info(m.Answer))}
    assert "StructType" in kinds
    assert not kinds & {"BytesType", "ByteArrayType", "MemoryViewType", "RawType", "AnyType", "ExtType"}


def _types_in(info: Any, seen: set[int] | None = None) -> list[Any]:
    """Return every type that a type is made of."""
    seen = set() if seen is None else seen
    if id(info) in seen or not isinstance(info, msgspec.inspect.Type):
        return []
    seen.add(id(info))
    found = [info]
    for name in info.__struct_fields__:
        value = getattr(info, name)
        parts = value if isinstance(value, tuple) else (value,)
        for part in parts:
            found += _types_in(getattr(part, "type", part), seen)
    return found


# -- what is kept --


def test_contents_are_let_go_when_no_plan_needs_them_also_by_nodes_that_were_away(bed) -> None:
    first, second = bed.order(NODES), bed.order(("birch", "amber", "cedar"))

    async def test() -> None:
        await bed.acquire(first)
        await bed.acquire(second)
        bed.couriers.gone.add("cedar")
        kept = second.assignments[0].plan_digest
        await bed.acquirer.keep_only([kept])
        released = {node.name: node.released for node in bed.couriers.nodes.values()}
        over = f"{SCOPE}/{first.assignments[0].plan_digest}"
        assert released == {"amber": [over], "birch": [over], "cedar": []}
        bed.couriers.gone.clear()
        await bed.acquirer.keep_only([kept])
        assert {node.name: node.released for node in bed.couriers.nodes.values()} == {key: [over] for key in NODES}

    run(test)


def test_a_policy_without_the_origin_takes_what_is_there_or_says_who_was_left_out(bed, rig) -> None:
    strict = bed.order(NODES, manifest=rig.manifest, source_policy="REQUIRE_LOCAL_VERIFIED")

    async def test() -> None:
        error = await bed.refusal(strict)
        assert is_artifact_error(error, UNAVAILABLE)
        assert "REQUIRE_LOCAL_VERIFIED" in str(error)
        await bed.acquire(bed.order(NODES, manifest=rig.manifest))
        bed.couriers.asked.clear()
        await bed.acquire(strict)
        assert bed.couriers.asked == []

    run(test)


@pytest.mark.parametrize("policy", ["PREFER_REMOTE_AUTHORIZED", "REQUIRE_REMOTE_AUTHORIZED"])
def test_a_policy_for_what_is_remote_fetches_what_is_there_and_counts_it(bed, policy) -> None:
    remote = bed.order(NODES, source_policy=policy)

    async def test() -> None:
        await bed.acquire(bed.order(NODES))
        bed.couriers.asked.clear()
        await bed.acquire(remote)
        total = sum(needed_bytes(remote, f"stage-{index}") for index in range(3))
        assert sum(size for _, _, size in bed.couriers.asked) == total
        ledger = bed.records[-1].ledger
        assert sum(event.bytes for event in ledger.events if event.kind == "received") == total
        check_last(bed)

    run(test)


def test_measured_paths_decide_between_peers(rig, tmp_path) -> None:
    bed = Bed(rig, tmp_path, *NODES, "oak", "pine")

    async def test() -> None:
        await bed.acquire(bed.order(NODES))
        await bed.acquire(bed.order(("pine", "birch", "cedar")))  # as amber has it
        bed.couriers.asked.clear()
        paths = (("id-amber", "id-oak", 1e-6), ("id-pine", "id-oak", 1.0), ("id-cedar", "id-oak", 1.0))
        await bed.acquire(bed.order(("oak", "birch", "cedar"), seconds_per_byte=paths))
        assert {entry[:2] for entry in bed.couriers.asked} == {("oak", "amber")}

    run(test)


def test_a_token_that_is_empty_signs_nothing(rig, tmp_path) -> None:
    bed = Bed(rig, tmp_path, "amber")
    couriers: FakeCouriers = bed.couriers
    with pytest.raises(SpecError, match="token"):
        Acquirer(SCOPE, "", couriers, bed.ledger)  # type: ignore[arg-type]


def test_an_error_names_what_it_is_about(bed) -> None:
    bed.couriers.gone.add("birch")

    async def test() -> None:
        with pytest.raises(Exception, match="birch") as raised:
            await bed.acquire(bed.order(NODES))
        assert not isinstance(raised.value, ArtifactError)

    run(test)
