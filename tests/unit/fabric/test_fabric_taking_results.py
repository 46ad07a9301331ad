"""Nodes get from peers what these decoded of the same bytes: where it is the same, once, and never at any price."""

from __future__ import annotations

import asyncio
import math

import pytest

from inferswarm.artifacts.transforms import ListedResult, result_bytes, transform_key
from inferswarm.backends.base import StageAssignment
from inferswarm.backends.decoding_identity import decoding
from inferswarm.documents import digest_bytes
from inferswarm.fabric import messages as m
from inferswarm.fabric.audit import RefusedWork, read_refusals
from inferswarm.swarm.transfers_view import Transfers
from tests.unit.artifacts.artifacts_support import Rig, make_rig
from tests.unit.fabric.fake_couriers import SURROUNDINGS, Bed, Lie

NODES = ("amber", "birch", "cedar")
WITH_OAK = ("oak", "birch", "cedar")


@pytest.fixture(scope="module")
def rig(tmp_path_factory) -> Rig:
    return make_rig(tmp_path_factory.mktemp("model"))


@pytest.fixture
def bed(rig, tmp_path) -> Bed:
    """Three Nodes hold what they need, and amber has decoded its part; oak is to do the same."""
    bed = Bed(rig, tmp_path, *NODES, "oak")
    told = asyncio.run(bed.acquire(bed.order(NODES)))
    give_results(bed, "amber", told[0], "decoded")
    bed.couriers.asked.clear()
    return bed


def give_results(bed: Bed, name: str, assignment: StageAssignment, word: str) -> None:
    """Let a Node list results of everything quantized that a participant needs, each named by a word."""
    assert assignment.requirement is not None
    node, listed = bed.couriers.nodes[f"id-{name}"], []
    for record in assignment.requirement.tensors:
        made = decoding(record, assignment.requirement.stored, "fp32", dict(SURROUNDINGS))
        if made is not None:
            length = result_bytes(made, math.prod(record.shape) * 4)
            sha256 = digest_bytes(f"{word} {transform_key(made)}".encode())
            listed.append(ListedResult(key=transform_key(made), sha256=sha256, length=length))
            node.keep(sha256, length)
    node.results = tuple(listed)


def acquire(bed: Bed, **rules: object) -> list[tuple[str, str, int]]:
    """Have oak take amber's part; return what of amber's results came to it."""
    asyncio.run(bed.acquire(bed.order(WITH_OAK, takes_results=True, **rules)))
    lengths = {item.length for item in bed.couriers.nodes["id-amber"].results}
    return [moved for moved in bed.couriers.asked if moved[0] == "oak" and moved[2] in lengths]


def refusals(bed: Bed) -> list[RefusedWork]:
    return [entry.item for entry in read_refusals(bed.path) if isinstance(entry.item, RefusedWork)]


def test_results_of_the_same_bytes_come_from_the_peer_that_made_them_and_the_account_says_so(bed) -> None:
    """Mutation: count them as what the plan needs, or as bytes that nobody asked for."""
    results = bed.couriers.nodes["id-amber"].results
    moved = acquire(bed)
    assert sorted(moved) == sorted(("oak", "amber", item.length) for item in results)
    record = bed.records[-1]
    assert len(record.results) >= len(results) > 0  # cedar uses the tied table, too
    account = Transfers(bed.records)
    account.check()
    record.ledger.check_complete()
    needed = sum(item.bytes for item in record.artifacts.participants)
    assert account.since(1).total("required") == needed
    assert account.total("optional_retained", node="oak") == sum(item.length for item in results)
    assert " of results beside" in " ".join(str(account.since(1)).split())


def test_without_the_switch_nobody_is_asked_and_what_a_node_lists_it_does_not_get_again(bed) -> None:
    asyncio.run(bed.acquire(bed.order(WITH_OAK)))
    assert (bed.records[-1].results, bed.records[-1].ledger.total("optional_retained")) == (frozenset(), 0)
    bed.couriers.nodes["id-oak"].results = bed.couriers.nodes["id-amber"].results
    assert acquire(bed) == []


@pytest.mark.rule(86)
def test_a_result_that_was_made_elsewhere_differently_is_none(bed, monkeypatch) -> None:
    """Mutation: look results up by their source alone."""
    monkeypatch.setattr("tests.unit.fabric.fake_couriers.SURROUNDINGS", (("gguf", "1"), ("numpy", "3")))
    assert acquire(bed) == []


def test_peers_that_say_different_results_are_believed_by_nobody(bed) -> None:
    """Mutation: take the first that is said."""
    told = asyncio.run(bed.acquire(bed.order(NODES)))
    give_results(bed, "birch", told[0], "computed otherwise")
    assert acquire(bed) == []
    assert {item.code for item in refusals(bed)} == {"RECONCILIATION_MISMATCH"}


def test_nothing_is_evicted_for_results(bed) -> None:
    smallest = min(item.length for item in bed.couriers.nodes["id-amber"].results)
    bed.couriers.nodes["id-oak"].room = smallest
    assert [size for _, _, size in acquire(bed)] == [smallest]


@pytest.mark.parametrize("code", ["SOURCE_OBJECT_UNAVAILABLE", "INTEGRITY_DIGEST_MISMATCH"])
def test_a_result_that_does_not_come_fails_nothing_and_altered_ones_are_not_asked_for_again(bed, code) -> None:
    """Mutation: fail the realization, or let the source go on."""
    results = bed.couriers.nodes["id-amber"].results
    bed.couriers.lies += [Lie("amber", code, node="oak", content=item.sha256) for item in results]
    assert acquire(bed) == []
    Transfers(bed.records).check()
    assert [item.code for item in refusals(bed)] == [code] * len(results)
    bed.couriers.lies.clear()
    asked = {source for _, source, _ in acquire(bed)}
    assert ("amber" in asked) == (code == "SOURCE_OBJECT_UNAVAILABLE")


def test_a_courier_that_says_nothing_of_results_costs_only_them(bed, monkeypatch) -> None:
    real = bed.couriers.call

    async def call(node_id: str, command: m.OnCourier, on_progress: object = None) -> m.Answer:
        if isinstance(command.command, m.ReportResults):
            await asyncio.sleep(3600)
        return await real(node_id, command, on_progress)

    monkeypatch.setattr(bed.couriers, "call", call)
    monkeypatch.setattr("inferswarm.fabric.taking_results.ASK_SECONDS", 0.01)
    assert acquire(bed) == []
    assert bed.records[-1].serving_since_ns is not None
