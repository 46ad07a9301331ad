"""The façade of a swarm with stores: which manifest, what its Nodes need, what is reserved, what is shown."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from inferswarm.artifacts.byte_ledger import LedgerEvent
from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.manifest_files import save_manifest
from inferswarm.artifacts.reconciling import ServedLine
from inferswarm.cli_options import read_limit
from inferswarm.documents import digest_bytes
from inferswarm.errors import ArtifactError, SpecError
from inferswarm.planner import PathCurve, Workload
from inferswarm.resources.types import observed
from inferswarm.swarm import Model
from inferswarm.swarm.manifests import UNPUBLISHED, manifest_at
from inferswarm.swarm.model_artifacts import ArtifactTerms, needed_artifacts, refuse_without_stores
from inferswarm.swarm.planned import PlannedHere
from inferswarm.swarm.reservations import ON_THEIR_WAY_BYTES, Reservations, with_stores
from inferswarm.swarm.starting import prepare
from inferswarm.swarm.transfers_view import Transfers
from tests.unit.artifacts.artifacts_support import Rig, make_rig
from tests.unit.fabric.fake_couriers import Bed, Lie

NODES = ("amber", "birch", "cedar")


@pytest.fixture(scope="module")
def rig(tmp_path_factory) -> Rig:
    return make_rig(tmp_path_factory.mktemp("model"))


@pytest.fixture
def bed(rig, tmp_path) -> Bed:
    return Bed(rig, tmp_path, *NODES)


# -- models and manifests --


def test_a_given_model_is_taken_where_it_lies(rig, bed, tmp_path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy(rig.path, copy)
    known, given = Model(rig.path), Model(copy)
    planned = PlannedHere(None)  # type: ignore[arg-type]
    problem = known.problem(Workload(prompt_tokens=8, output_tokens=8))
    plan = bed.order(NODES).plan
    planned._problems[plan.problem_digest] = (known, problem)
    assert planned.resolve(plan, None) == (known, problem)
    assert planned.resolve(plan, given) == (given, problem)


def test_a_model_without_a_published_manifest_is_known_by_its_layout(rig) -> None:
    manifest = Model(rig.path).manifest
    assert (manifest.hash_known_by, manifest.provenance.revision) == ("layout", UNPUBLISHED)
    assert manifest.files[0].uri == str(rig.path)
    assert isinstance(manifest.files[0].version, str)


def test_a_published_manifest_is_about_the_bytes_wherever_they_lie(rig, tmp_path) -> None:
    elsewhere = msgspec.structs.replace(
        rig.manifest, files=(msgspec.structs.replace(rig.manifest.files[0], uri="https://example.org/small.gguf"),)
    )
    save_manifest(tmp_path / "manifest.json", elsewhere)
    manifest = Model(rig.path, manifest=tmp_path / "manifest.json").manifest
    assert (manifest.files[0].uri, manifest.files[0].sha256) == (str(rig.path), rig.manifest.files[0].sha256)
    assert (manifest.hash_known_by, manifest.entries) == ("hashed", rig.manifest.entries)


def test_a_file_of_another_version_than_was_published_is_refused(rig) -> None:
    (file,) = rig.manifest.files
    published = UpstreamObject(uri=file.uri, length=file.length, version="modified:1", sha256=file.sha256)
    manifest = msgspec.structs.replace(rig.manifest, files=(published,))
    with pytest.raises(ArtifactError, match="published was modified:1"):
        manifest_at(rig.path, "small", rig.model.object, manifest)


def test_what_nodes_need_says_the_rules_and_the_paths_that_were_measured(rig, bed) -> None:
    model, order = Model(rig.path), bed.order(NODES)
    paths = (
        PathCurve(source="id-oak", target="id-amber", latency_seconds=1e-3, seconds_per_byte=2e-9),
        PathCurve(source="id-amber", target="id-oak", latency_seconds=1e-3, seconds_per_byte=2e-9),
        PathCurve(source="id-birch", target="id-amber", latency_seconds=1e-3, seconds_per_byte=0.0),
    )
    needed = needed_artifacts(model, order.plan, order.assignments, ArtifactTerms("pinning", paths))
    assert needed.seconds_per_byte == (("id-oak", "id-amber", 2e-9),)  # into the plan's Nodes, where it is a speed
    assert (needed.files, needed.strict) == ((str(rig.path),), False)
    assert needed.source_policy == "PREFER_LOCAL_VERIFIED"
    remote = ArtifactTerms("pinning", paths, "PREFER_REMOTE_AUTHORIZED")
    assert needed_artifacts(model, order.plan, order.assignments, remote).source_policy == remote.source_policy
    assert [item.participant for item in needed.plan.participants] == ["stage-0", "stage-1", "stage-2"]
    with pytest.raises(ArtifactError, match="publish it"):
        needed_artifacts(model, order.plan, order.assignments, ArtifactTerms("strict"))


def test_the_switches_of_a_swarm_reach_its_orders(rig, bed, monkeypatch) -> None:
    """Mutation: order by the usual rules, whatever the swarm was begun with."""
    monkeypatch.setattr("inferswarm.swarm.planned.measured_paths", lambda *_: ())
    ground: Any = SimpleNamespace(
        hash_policy="pinning",
        source_policy="REQUIRE_REMOTE_AUTHORIZED",
        settings=SimpleNamespace(keep_results=True),
        store=None,
        nodes=SimpleNamespace(currency=lambda graph: None),
    )
    terms = PlannedHere(ground)._terms(None)  # type: ignore[arg-type]
    order = bed.order(NODES)
    needed = needed_artifacts(Model(rig.path), order.plan, order.assignments, terms)
    assert (needed.source_policy, needed.takes_results) == ("REQUIRE_REMOTE_AUTHORIZED", True)


def test_a_model_that_is_all_here_needs_no_store(rig) -> None:
    refuse_without_stores(Model(rig.path), has_stores=False)


# -- what a swarm is begun with --


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"stores": True, "hash_policy": "loose"}, "hash_policy"),
        ({"stores": True, "store_quota_bytes": 0}, "store_quota_bytes"),
        ({"store_quota_bytes": 10**9}, "store_quota_bytes"),
        ({"stores": True, "source_policy": "NEAREST"}, "REQUIRE_LOCAL_VERIFIED, PREFER_REMOTE_AUTHORIZED"),
        ({"source_policy": "PREFER_REMOTE_AUTHORIZED"}, "source_policy"),
        ({"keep_results": True}, "keep_results"),
        ({"transfer_bytes_per_second": 1e6}, "transfer_bytes_per_second"),
        ({"stores": True, "transfer_bytes_per_second": 0.0}, "transfer_bytes_per_second"),
        ({"stores": True, "transfer_bytes_per_second": float("nan")}, "transfer_bytes_per_second"),
        ({"stores": True, "transfer_bytes_per_second": float("inf")}, "transfer_bytes_per_second"),
    ],
)
def test_what_means_nothing_is_refused(tmp_path, options, field) -> None:
    with pytest.raises(SpecError, match=field):
        prepare((), name=None, state=tmp_path, port=0, mechanism="auto", lease_seconds=2.0, **options)


def test_a_limit_is_a_size_per_second() -> None:
    assert [read_limit(text) for text in ("20MB/s", "1.5 MiB", None)] == [20e6, 1.5 * 2**20, None]
    for text in ("fast", "20MB/m", "-1MB/s"):
        with pytest.raises(SpecError, match="transfer-limit"):
            read_limit(text)


def test_an_option_about_stores_that_means_nothing_is_refused_before_anything_starts(cli, monkeypatch) -> None:
    monkeypatch.setattr("inferswarm.swarm.Swarm.local", None)
    for command in (("run", "hello"), ("serve",)):
        outcome = cli(*command, "--stores", "--source-policy", "NEAREST")
        assert (outcome.status, "PREFER_LOCAL_VERIFIED, REQUIRE_LOCAL" in outcome.err) == (1, True), outcome


def test_options_about_stores_reach_the_swarm(cli, rig, monkeypatch) -> None:
    """Mutation: let one of the commands drop one."""
    begun: list[dict[str, object]] = []

    def local(nodes: object, **options: object) -> object:
        begun.append(options)
        raise SpecError("swarm", "none", "a test")

    monkeypatch.setattr("inferswarm.swarm.Swarm.local", local)
    options = ("--stores", "--source-policy", "REQUIRE_LOCAL_VERIFIED", "--keep-results", "--transfer-limit", "1MB/s")
    for command in (("run", "hello"), ("serve", "--port", "0", "--prompt-tokens", "8", "--output-tokens", "8")):
        assert cli(*command, "--model", str(rig.path), *options).status == 1
        assert {name: begun[-1][name] for name in ("stores", "source_policy", "keep_results")} == {
            "stores": True,
            "source_policy": "REQUIRE_LOCAL_VERIFIED",
            "keep_results": True,
        }
        assert begun[-1]["transfer_bytes_per_second"] == 1e6


def test_stores_lie_in_the_state_directory_and_couriers_have_their_memory_reserved(tmp_path) -> None:
    preparation = prepare(
        (),
        name="s",
        state=tmp_path,
        port=0,
        mechanism="auto",
        lease_seconds=2.0,
        stores=True,
        store_quota_bytes=7,
        transfer_bytes_per_second=8e6,
        source_policy="REQUIRE_REMOTE_AUTHORIZED",
        keep_results=True,
    )
    assert preparation.settings.stores_directory == str(tmp_path / "stores")
    assert preparation.settings.store_quota_bytes == 7
    assert preparation.settings.transfer_bytes_per_second == 8e6
    assert (preparation.settings.keep_results, preparation.source_policy) == (True, "REQUIRE_REMOTE_AUTHORIZED")
    reserved = with_stores(Reservations({"amber": observed(100, "measured")}, {}, 0)).nodes["amber"]
    assert (reserved.value, "on their way" in reserved.detail) == (100 + ON_THEIR_WAY_BYTES, True)


# -- what is shown --


def test_transfers_are_shown_by_class_and_source_with_what_must_be_zero(bed, tmp_path) -> None:
    asyncio.run(bed.acquire(bed.order(NODES)))
    moved = Transfers(bed.records)
    total = sum(item.bytes for item in bed.records[0].artifacts.participants)
    assert moved.total("received") == moved.total("required") == total
    assert moved.total("received", source="amber") > 0
    assert moved.total("received", node="cedar", source="amber") == moved.total("received", source="amber")
    rows = {(row["class"], row["source"]): row["bytes"] for row in moved.table().to_dicts()}
    assert rows["received", "origin"] + rows["received", "amber"] == total
    assert all(zero.holds for zero in moved.zeros())
    assert {zero.name for zero in moved.zeros()} >= {"coordinator_observed_bytes", "unrelated_model_bytes_acquired"}
    assert "all zeros hold" in str(moved)
    assert max(map(len, str(moved).splitlines())) <= 100
    assert "unrelated_model_bytes_acquired" in moved._repr_html_()
    picture = moved.draw(tmp_path / "a.svg", tmp_path / "a.png")
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert all(f"line:0:{source}" in svg for source in ("amber", "origin"))
    assert "image/png" in picture._repr_mimebundle_()


def test_what_moved_for_a_plan_that_never_served_is_shown_as_that(bed) -> None:
    bed.couriers.lies.append(Lie("origin", "INTEGRITY_DIGEST_MISMATCH", node="cedar"))
    asyncio.run(_refused(bed))
    text = " ".join(str(Transfers(bed.records)).split())
    assert "it did not serve" in text
    assert "steady_state_model_bytes_moved" not in text


async def _refused(bed: Bed) -> None:
    await bed.refusal(bed.order(NODES))
    await asyncio.sleep(0.01)


def test_nothing_that_moved_is_shown_as_nothing(tmp_path) -> None:
    empty = Transfers(())
    assert (empty.zeros(), empty.generation, empty.table().height) == ((), 0, 0)
    assert "nothing was acquired" in str(empty)
    assert empty.draw(tmp_path / "a.svg", tmp_path / "a.png") is not None


def test_only_what_came_after_a_generation(bed) -> None:
    order = bed.order(NODES)

    async def twice() -> None:
        await bed.acquire(order)
        await bed.acquire(order)

    asyncio.run(twice())
    later = Transfers(bed.records).since(1)
    assert (later.total("received"), later.generation) == (0, 2)
    assert later.total("cache_hit") == later.total("required")


def test_a_number_that_must_be_zero_and_is_not_is_an_error_with_its_name(cli, bed, tmp_path) -> None:
    """Mutation: show the numbers, and let nobody judge them."""
    asyncio.run(bed.acquire(bed.order(NODES)))
    Transfers(bed.records).check()
    assert cli("transfers", "here", "--state", str(tmp_path)).status == 0
    bed.ledger.write("DELETE FROM authorizations WHERE source=?", [("origin",)])
    with pytest.raises(ArtifactError, match="unauthorized_source_bytes"):
        Transfers(bed.records).check()
    outcome = cli("transfers", "here", "--state", str(tmp_path))
    assert (outcome.status, "unauthorized_source_bytes" in outcome.err) == (1, True)


def test_the_account_is_held_against_the_sources_own_logs(bed) -> None:
    """Mutation: compare with nobody's log, or with that of another source."""
    asyncio.run(bed.acquire(bed.order(NODES)))
    moved = Transfers(bed.records)
    received = [event for event in moved.events if event.kind == "received"]
    lines = [
        ServedLine(
            source=event.source,
            object=str(event.object if event.source == "origin" else event.content),
            bytes=event.bytes,
            complete=True,
        )
        for event in received
    ]
    moved.reconcile(lines)
    of_origin = [line for line in lines if line.source == "origin"]
    moved.reconcile(of_origin, source="origin")
    with pytest.raises(ArtifactError, match="id-amber: its log has 0 B"):
        moved.reconcile(of_origin)
    more = msgspec.structs.replace(of_origin[0], bytes=of_origin[0].bytes + 1)
    with pytest.raises(ArtifactError, match="origin: its log has"):
        moved.reconcile([more, *of_origin[1:]], source="origin")
    moved.reconcile([more, *lines], source="amber")
    earlier = ServedLine(source="id-amber", object="sha256:" + "0" * 64, bytes=7, complete=True, generation=99)
    moved.reconcile([*lines, earlier])  # of another realization than those that are compared
    with pytest.raises(ArtifactError, match="id-amber: its log has 7 B"):
        moved.reconcile([*lines, msgspec.structs.replace(earlier, generation=1)])


def test_what_first_fetches_found_can_be_written_into_a_manifest(bed, rig) -> None:
    """Mutation: leave the label of a manifest as it was, or give digests that were never found."""
    asyncio.run(bed.acquire(bed.order(NODES)))
    (record,) = bed.records
    by_id = {item.id: item for own in record.artifacts.participants for item in own.artifacts}

    def found(event: LedgerEvent) -> LedgerEvent:
        if event.kind != "acquired" or event.artifact not in by_id:
            return event
        place = by_id[event.artifact].range
        return msgspec.structs.replace(event, content=digest_bytes(bed.couriers.whole[place.start : place.end]))

    moved = Transfers((record._replace(events=tuple(map(found, record.events))),))
    pinned = moved.pinned(rig.layout)
    assert (rig.layout.hash_known_by, pinned.hash_known_by) == ("layout", "first-fetch-pinned")
    weights = {(entry.name, entry.range): entry.sha256 for entry in rig.manifest.entries}
    assert all(entry.sha256 in (weights[entry.name, entry.range], msgspec.UNSET) for entry in pinned.entries)
    assert sum(entry.sha256 is not msgspec.UNSET for entry in pinned.entries) == len(
        {item.range for item in by_id.values()}
    )
    assert moved.pinned(rig.manifest) == rig.manifest  # a published one is confirmed


def test_a_swarm_that_does_not_exist_has_no_ledger(cli, tmp_path: Path) -> None:
    outcome = cli("transfers", "nobody", "--state", str(tmp_path))
    assert (outcome.status, "nobody" in outcome.err) == (1, True)


def test_every_event_is_a_line_of_json(cli, bed, tmp_path: Path) -> None:
    asyncio.run(bed.acquire(bed.order(NODES)))
    outcome = cli("transfers", "here", "--state", str(tmp_path), "--json")
    lines = [msgspec.json.decode(line) for line in outcome.out.splitlines()]
    assert outcome.status == 0
    assert {line["event"]["kind"] for line in lines} >= {"required", "received", "acquired", "materialized"}
