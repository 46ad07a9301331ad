"""Digests that nobody published, said by Nodes whose stores are warm, to a scope that knows nothing of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from inferswarm.artifacts.ledger_checks import check_zeros, zero_invariants
from inferswarm.documents import digest_bytes
from tests.unit.artifacts.artifacts_support import Rig, make_rig
from tests.unit.fabric.fake_couriers import Bed, is_artifact_error

NODES = ("amber", "birch", "cedar")
OTHER_CUT = (("oak", "birch", "amber"), ((0, 3), (3, 5), (5, 6)))


@pytest.fixture(scope="module")
def rig(tmp_path_factory) -> Rig:
    return make_rig(tmp_path_factory.mktemp("model"))


@pytest.fixture
def bed(rig, tmp_path) -> Bed:
    return Bed(rig, tmp_path, *NODES, "oak")


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def check_last(bed: Bed) -> None:
    """Check that everything that must be 0 for the newest realization is."""
    record = bed.records[-1]
    check_zeros(zero_invariants(record.ledger, record.artifacts, record.authorized, record.serving_since_ns))


def in_another_scope(bed: Bed, folder: Path) -> Bed:
    """The same Nodes and stores, and a Coordinator that knows nothing of them."""
    folder.mkdir()
    other = Bed(bed.rig, folder)
    other.couriers.nodes = bed.couriers.nodes
    return other


def test_another_scope_learns_from_warm_stores_what_their_first_fetches_found(bed, tmp_path) -> None:
    async def test() -> None:
        await bed.acquire(bed.order(NODES))
        other = in_another_scope(bed, tmp_path / "other")
        await other.acquire(other.order(*OTHER_CUT))
        assert {source for _, source, _ in other.couriers.asked} <= set(NODES)
        assert {node for node, _, _ in other.couriers.asked} == {"oak", "birch", "amber"}
        check_last(other)
        assert all(
            artifact.sha256 is msgspec.UNSET for artifact in other.records[0].artifacts.of("stage-0").artifacts
        )

    run(test)


def test_a_warm_store_serves_another_scope_also_what_it_got_under_somebody_elses_pin(bed, tmp_path) -> None:
    """Mutation: let no store keep what others' first fetches gave."""

    async def test() -> None:
        await bed.acquire(bed.order(NODES))  # amber fetched the tied embedding first, cedar got it from amber
        (place,) = bed.couriers.nodes["id-cedar"].told
        bed.couriers.gone.add("amber")
        other = in_another_scope(bed, tmp_path / "other")
        other.couriers.gone.add("amber")
        await other.acquire(other.order(("oak", "birch", "cedar"), ((0, 2), (2, 4), (4, 6))))
        shared = {size for node, source, size in other.couriers.asked if (node, source) == ("oak", "cedar")}
        assert place[3] - place[2] in shared, other.couriers.asked

    run(test)


def test_who_was_told_a_digest_that_another_first_fetch_contradicts_is_named_as_that(bed, tmp_path) -> None:
    async def test() -> None:
        await bed.acquire(bed.order(NODES))
        cedar = bed.couriers.nodes["id-cedar"]
        (place,) = cedar.told
        cedar.told[place] = digest_bytes(b"something else")
        other = in_another_scope(bed, tmp_path / "other")
        error = await other.refusal(other.order(*OTHER_CUT))
        assert is_artifact_error(error, "INTEGRITY_DIGEST_MISMATCH")
        assert f"{cedar.told[place]} as Node cedar was told" in str(error)

    run(test)


def test_two_first_fetches_that_differ_are_refused_unless_the_scope_knows_which_is_right(bed, tmp_path) -> None:
    order = bed.order(*OTHER_CUT)

    async def test() -> None:
        await bed.acquire(bed.order(NODES))
        amber, cedar = (bed.couriers.nodes[f"id-{name}"] for name in ("amber", "cedar"))
        place = next(iter(amber.pins))
        cedar.pins[place] = digest_bytes(b"something else")
        other = in_another_scope(bed, tmp_path / "other")
        error = await other.refusal(order)
        assert is_artifact_error(error, "INTEGRITY_DIGEST_MISMATCH")
        for piece in ("Node amber", "Node cedar", amber.pins[place], cedar.pins[place], place[0], place[1]):
            assert piece in str(error)
        assert other.couriers.asked == []
        await bed.acquire(order)  # this scope has its own first fetch
        check_last(bed)

    run(test)


def test_a_strict_order_takes_no_digest_that_a_first_fetch_found(bed, tmp_path) -> None:
    async def test() -> None:
        await bed.acquire(bed.order(NODES))
        for here in (bed, in_another_scope(bed, tmp_path / "other")):
            error = await here.refusal(here.order(NODES, strict=True))
            assert is_artifact_error(error, "UNVERIFIED_SOURCE_READ_REFUSED")

    run(test)
