"""Nodes with empty stores acquire exactly what their stages need, from the origin and from each other.

Everything is a process of its own. The origin is an HTTP server that logs what it sends; models are opened by its
address, so that nobody here has more of them than headers.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest

from inferswarm.artifacts.describing import describe_model
from inferswarm.artifacts.identity import Provenance
from inferswarm.artifacts.manifest import CHECKPOINT, manifest_of
from inferswarm.artifacts.manifest_files import save_manifest
from inferswarm.artifacts.origins.opening import open_origin
from inferswarm.artifacts.publishing import publish
from inferswarm.artifacts.reconciling import ServedLine
from inferswarm.artifacts.sources import ORIGIN
from inferswarm.demo.oracle import run_unsplit
from inferswarm.documents import canonical_bytes
from inferswarm.errors import ArtifactError, SpecError
from inferswarm.fabric import messages as m
from inferswarm.fabric.acquisition_log import STEPS, AcquisitionReported
from inferswarm.fabric.recovery_records import TransitionMode, Trigger
from inferswarm.planner import ChangePolicy, Workload
from inferswarm.planner.plan import ExecutionPlan
from inferswarm.resources import Envelope
from inferswarm.resources.types import observed
from inferswarm.strategies.catalog import resolve_model
from inferswarm.swarm import Model, Swarm
from inferswarm.swarm.displays import DecisionView
from inferswarm.swarm.reservations import Reservations
from inferswarm.units import format_seconds
from tests.as_measured import paths_at, priced
from tests.models import write_small_llama
from tests.origin_server import Fault, OriginServer, serve_origin
from tests.unit.fabric.processes import wait_until

NODES = ("amber", "birch", "cedar")
WORKLOAD = Workload(prompt_tokens=24, output_tokens=24)
PROMPT = "The capital of France is"
CORRUPT = "INTEGRITY_DIGEST_MISMATCH"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, smollm2_path) -> Path:
    folder = tmp_path_factory.mktemp("origin")
    (folder / "smollm2.gguf").symlink_to(smollm2_path)
    write_small_llama(folder / "small.gguf", seed=1)
    write_small_llama(folder / "other.gguf", seed=2)
    write_small_llama(folder / "third.gguf", seed=3)
    return folder


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory) -> Iterator[OriginServer]:
    with pytest.MonkeyPatch.context() as patch, serve_origin(folder) as running:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield running


@pytest.fixture(scope="module")
def swarm(server, tmp_path_factory) -> Iterator[Swarm]:
    """Four Nodes; each test has a model of its own, of which no store holds anything before."""
    nodes = [Envelope(name=name, threads=1, memory_bytes=900_000_000) for name in (*NODES, "oak")]
    with Swarm.local(nodes, name="stores", state=tmp_path_factory.mktemp("state"), stores=True) as running:
        yield running


def served_lines(server: OriginServer, *uris: str) -> list[ServedLine]:
    """What the origin's own log says of these objects."""
    return [
        ServedLine(
            source=ORIGIN,
            object=server.url(request.path),
            bytes=request.bytes_sent,
            complete=request.range is None or request.bytes_sent == request.range.length,
            is_look=request.bytes_sent <= 1,
        )
        for request in server.log
        if server.url(request.path) in uris and request.method == "GET"
    ]


def required_bytes(plan: ExecutionPlan, swarm: Swarm, model: Model) -> dict[str, int]:
    """What each Node of a plan needs, by its name."""
    problem = swarm.problem(model, WORKLOAD)
    return {
        item.node_name: model.opened.requirement(problem, item.participant, item.first_unit, item.end_unit).bytes
        for item in plan.placements
    }


def store_of(swarm: Swarm, node: str) -> Path:
    return swarm.store.directory.parent / "stores" / node


def held_bytes(swarm: Swarm, node: str) -> int:
    return sum(path.stat().st_size for path in (store_of(swarm, node) / "blobs").rglob("*") if path.is_file())


def change_to(swarm: Swarm, plan: ExecutionPlan, model: Model, epoch: int) -> None:
    """Change the plan in force to another one, beside it."""
    order = swarm._planned.order(plan, model, swarm.graph.document, 2)
    mode, trigger = TransitionMode.MAKE_BEFORE_BREAK, Trigger.REQUEST
    swarm._connected().ask(m.Change(order=order, epoch=epoch, mode=mode, trigger=trigger, detail="a test asks"))


def test_three_empty_nodes_fetch_their_parts_of_a_real_model_and_a_stage_comes_back_without_a_byte(
    server, tmp_path, smollm2_path, cli
) -> None:
    model = Model(server.url("smollm2.gguf"))
    nodes = [Envelope(name=name, threads=1, memory_bytes=900_000_000) for name in NODES]
    state = tmp_path / "state"
    with Swarm.local(nodes, name="real", state=state, stores=True) as swarm:
        plan = swarm.force(model, NODES, cuts=(11, 21), workload=WORKLOAD)
        server.clear()
        seen: list[m.Progressed] = []
        with swarm.realize(plan, model, on_progress=seen.append) as service:
            answer = service.generate(PROMPT, max_tokens=16, ignore_stop=True)

            # Exactly what each Node requires, as the origin says itself; the tied embedding came from it once.
            moved = swarm.transfers()
            required = required_bytes(plan, swarm, model)
            for name in NODES:
                assert moved.total("received", node=name) == required[name] == held_bytes(swarm, name)
            moved.check()
            sent = served_lines(server, server.url("smollm2.gguf"))
            moved.reconcile(sent, source=ORIGIN)
            moved.reconcile([*sent, *swarm.served()])
            said = [event.document for event in swarm.events() if isinstance(event.document, AcquisitionReported)]
            assert (said[0].state, said[-1].state, len(said) <= STEPS + 1) == ("begun", "complete", True)
            assert said[-1].done_bytes == sum(required.values())
            assert moved.total("received", source="origin") < model.opened.object.length
            assert all(held_bytes(swarm, name) < 0.7 * model.opened.object.length for name in NODES)
            assert (seen[-1].done, sum(required.values())) == (seen[-1].total, seen[-1].total)

            # The same answer as from the file itself.
            local = Model(smollm2_path)
            direct = run_unsplit(plan, local, swarm.problem(local, WORKLOAD), answer)
            assert (answer.tokens, answer.record.logits_digests) == (direct.tokens, direct.logits_digests)

            # A stage that is killed comes back with what its Node has.
            server.clear()
            before = moved.generation
            (agent,) = [item.pid for item in swarm.status().nodes if item.name == "birch"]
            (stage,) = [
                item for item in psutil.Process(agent).children() if "fabric.stage_main" in " ".join(item.cmdline())
            ]
            os.kill(stage.pid, signal.SIGKILL)
            again = service.generate(PROMPT, max_tokens=16, ignore_stop=True)
            assert again.tokens == answer.tokens
            assert wait_until(lambda: swarm.transfers().generation > before, 30.0)
            since = swarm.transfers().since(before)
            assert (since.total("received"), server.bytes_sent()) == (0, 0)
            assert since.total("cache_hit", node="birch") == required["birch"]
        outcome = cli("transfers", "real", "--state", str(state), "--picture", str(tmp_path / "moved"))
        assert (outcome.status, "all zeros hold" in outcome.out) == (0, True), outcome
        assert (tmp_path / "moved.svg").stat().st_size > 1000
        assert "<table>" in swarm.transfers()._repr_html_()
        assert swarm.transfers().table()["bytes"].sum() > 0


@pytest.mark.slow
def test_another_real_model_comes_the_same_way_and_the_second_time_not_a_byte(server, folder, tmp_path) -> None:
    path = resolve_model("gemma-3-270m")
    (folder / "gemma3.gguf").symlink_to(path)
    model = Model(server.url("gemma3.gguf"))
    nodes = [Envelope(name=name, threads=1, memory_bytes=2_000_000_000) for name in NODES]
    with Swarm.local(nodes, name="gemma", state=tmp_path / "state", stores=True) as swarm:
        plan = swarm.force(model, NODES, cuts=(7, 13), workload=WORKLOAD)
        required = required_bytes(plan, swarm, model)
        server.clear()
        with swarm.realize(plan, model) as service:
            answer = service.generate(PROMPT, max_tokens=16, ignore_stop=True)
        moved = swarm.transfers()
        for name in NODES:
            assert moved.total("received", node=name) == required[name] == held_bytes(swarm, name)
            assert required[name] < model.opened.object.length
        moved.check()
        moved.reconcile(served_lines(server, server.url("gemma3.gguf")), source=ORIGIN)

        server.clear()
        with swarm.realize(plan, model) as service:
            assert service.generate(PROMPT, max_tokens=16, ignore_stop=True).tokens == answer.tokens
        again = swarm.transfers().since(moved.generation)
        assert (again.total("received"), server.bytes_sent()) == (0, 0)
        assert again.total("cache_hit") == sum(required.values())

        local = Model(path)
        direct = run_unsplit(plan, local, swarm.problem(local, WORKLOAD), answer)
        assert (answer.tokens, answer.record.logits_digests) == (direct.tokens, direct.logits_digests)


@pytest.mark.slow
def test_what_one_node_decoded_another_gets_from_it_and_the_answer_is_the_same(server, folder, tmp_path) -> None:
    """Mutation: leave the results out of the account, or `keep_results` out of what the Nodes are told."""
    write_small_llama(folder / "decoded.gguf", seed=7)
    model = Model(server.url("decoded.gguf"))
    nodes = [Envelope(name=name, threads=1, memory_bytes=900_000_000) for name in NODES]
    with Swarm.local(nodes, name="decoded", state=tmp_path, stores=True, keep_results=True) as swarm:
        tokens = []
        for first in ("amber", "cedar", "cedar"):
            start = swarm.transfers().generation
            with swarm.realize(swarm.force(model, [first, "birch"], cuts=(3,), workload=WORKLOAD), model) as service:
                tokens.append(service.generate(PROMPT, max_tokens=12, ignore_stop=True).tokens)
            moved = swarm.transfers().since(start)
            moved.check()
            if first == "cedar":
                assert moved.total("received", source="origin") == 0
                moved.reconcile(swarm.served())
            came = moved.total("optional_retained", node="cedar")
            assert (came > 0) == (len(tokens) == 2), str(moved)
        assert tokens[1] == tokens[2] == tokens[0]


def test_another_cut_and_another_node_get_what_is_there_from_peers_and_altered_bytes_from_nobody(
    swarm, server
) -> None:
    model = Model(server.url("small.gguf"))
    first = swarm.force(model, ["amber", "birch"], cuts=(3,), workload=WORKLOAD)
    other = swarm.force(model, ["cedar", "amber"], cuts=(2,), workload=WORKLOAD)
    with swarm.realize(first, model) as service:
        tokens = service.generate(PROMPT, max_tokens=12, ignore_stop=True).tokens
        start = swarm.transfers().generation
        server.clear()
        change_to(swarm, other, model, service.epoch)
        moved = swarm.transfers().since(start)
        assert moved.total("received") > 0
        assert (moved.total("received", source="origin"), server.bytes_sent()) == (0, 0)
        moved.check()
        assert service.generate(PROMPT, max_tokens=12, ignore_stop=True).tokens == tokens

    # One bit of everybody's largest blob flips behind the stores' backs: oak has never had it.
    altered = {name: largest_blob(swarm, name) for name in NODES}
    assert len({path.name for path in altered.values()}) == 1, "the tied embedding"
    for path in altered.values():
        flip(path)
    size = altered["amber"].stat().st_size
    start = swarm.transfers().generation
    third = swarm.force(model, ["oak", "birch"], cuts=(3,), workload=WORKLOAD)
    with swarm.realize(third, model) as service:
        moved = swarm.transfers().since(start)
        assert service.generate(PROMPT, max_tokens=12, ignore_stop=True).tokens == tokens
    assert moved.total("received", source="origin") == 2 * size  # for each who needs it, because no peer gives it
    assert moved.total("received", node="oak") > moved.total("received", node="oak", source="origin")
    kept = [path.name for path in (store_of(swarm, "birch") / "quarantine").iterdir()]
    assert any(altered["birch"].name in name for name in kept), kept
    told = [str(event) for event in swarm.events() if event.source == "refusal"]
    for name in NODES:
        assert any(f"Node {name}" in text for text in told), told
    moved.check()


def test_where_bytes_lie_changes_what_a_change_takes_and_nothing_that_is_decided(swarm, server, monkeypatch) -> None:
    reserved = Reservations(dict.fromkeys((*NODES, "oak"), observed(250_000_000, "as if measured")), {}, 0)
    monkeypatch.setattr("inferswarm.swarm.declared.reservations_of", lambda *_: reserved)
    node_ids = [node.id for node in swarm.graph.document.nodes]
    monkeypatch.setattr("inferswarm.swarm.planned.measured_paths", lambda *_: paths_at(node_ids, 1e-6))
    model = Model(server.url("third.gguf"))

    def decided(fastest: str) -> tuple[DecisionView, bytes]:
        monkeypatch.setattr("inferswarm.swarm.planned.economics_of", partial(priced, fastest))
        view = swarm.plan(model, WORKLOAD, measure=False)
        return view, canonical_bytes(view.document)

    first, of_empty_stores = decided("amber")
    _, other_of_empty_stores = decided("birch")
    assert [item.node_name for item in first.plan.placements] == ["amber"]
    needed = sum(required_bytes(first.plan, swarm, model).values())
    with swarm.realize(first.plan, model):
        assert decided("amber")[1] == of_empty_stores  # which holds it all by then
        other, of_other = decided("birch")
        assert of_other == other_of_empty_stores  # which holds nothing
        assert swarm.acquiring(first.plan, model).missing_bytes == 0
        assert swarm.acquiring(other.plan, model).missing_bytes == needed

        considered = swarm.reconsider(requests=10**6, policy=ChangePolicy(min_seconds_between_changes=0.0))
        acquiring = considered.bringing_up.acquiring
        assert (considered.changed, acquiring.missing_bytes) == (True, needed), str(considered)
        assert acquiring.upper_seconds == pytest.approx(needed * 1e-6)
        assert considered.change.preparation_seconds > acquiring.upper_seconds
        assert f"acquiring {format_seconds(considered.acquiring_seconds)} of them" in str(considered)
        assert decided("birch")[1] == other_of_empty_stores  # which holds it all too


def largest_blob(swarm: Swarm, node: str) -> Path:
    found = [path for path in (store_of(swarm, node) / "blobs").rglob("*") if path.is_file()]
    return max(found, key=lambda path: path.stat().st_size)


def flip(path: Path) -> None:
    """Change one bit of a file, and put its times back."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(status.st_mode & 0o777)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_an_origin_that_gives_other_bytes_is_named_and_nothing_of_it_is_kept(swarm, server, folder, tmp_path) -> None:
    described = describe_model(folder / "other.gguf")
    provenance = Provenance(model="other", revision="1", representation=CHECKPOINT)
    layout = manifest_of(described.object, provenance, files=described.files)
    manifest = publish(layout, lambda file: open_origin(file.uri))
    save_manifest(tmp_path / "manifest.json", manifest)
    model = Model(server.url("other.gguf"), manifest=tmp_path / "manifest.json")
    plan = swarm.force(model, ["cedar", "oak"], cuts=(3,), workload=WORKLOAD)
    target = next(entry for entry in manifest.entries if "blk.3.ffn_up" in entry.name)
    server.inject("other.gguf", Fault(flip_at=target.range.start + 5))
    with pytest.raises(ArtifactError, match=CORRUPT) as raised:
        swarm.realize(plan, model)
    for part in ("Node oak", "block.3", f"{target.range.start:,}", server.url("other.gguf"), "the origin"):
        assert part in str(raised.value), raised.value
    blobs = (store_of(swarm, "oak") / "blobs").rglob("*")
    assert not any(path.name in str(target.sha256) for path in blobs if path.is_file())
    assert swarm.status().refusals
    server.inject("other.gguf")
    with pytest.raises(ArtifactError, match="excluded"):  # for as long as the scope lives
        swarm.realize(plan, model)


def test_a_model_of_which_only_headers_are_here_is_refused_without_stores(server, cli, monkeypatch) -> None:
    monkeypatch.setattr(Swarm, "local", None)  # nothing is started
    outcome = cli("run", "--model", server.url("small.gguf"), "hello")
    assert (outcome.status, "--stores" in outcome.err) == (1, True), outcome


def test_a_manifest_of_another_model_is_refused_before_any_work(server, folder, tmp_path) -> None:
    described = describe_model(folder / "other.gguf")
    longer = msgspec.structs.replace(
        described.object, files=(msgspec.structs.replace(described.object.files[0], length=10**9),)
    )
    provenance = Provenance(model="other", revision="1", representation=CHECKPOINT)
    save_manifest(tmp_path / "manifest.json", manifest_of(longer, provenance))
    with pytest.raises(ArtifactError, match="PROVENANCE_IDENTITY_MISMATCH"):
        Model(server.url("other.gguf"), manifest=tmp_path / "manifest.json")
    with pytest.raises(SpecError, match="hash_policy"):
        Swarm.local(stores=True, hash_policy="loose")  # type: ignore[arg-type]
