"""`inferswarm model publish`: every byte read once, wherever it is, into a manifest that all readers agree with."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferswarm.artifacts.deriving import derive_artifacts
from inferswarm.artifacts.exactness import Need
from inferswarm.artifacts.gguf_files import open_gguf
from inferswarm.artifacts.manifest import check_manifest
from inferswarm.artifacts.manifest_files import load_manifest
from inferswarm.artifacts.pinning import check_policy
from inferswarm.strategies.chain import state_tensors
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.strategies.requirement import declare
from tests import families
from tests.hub_mirror import Mirror, serve
from tests.models import write_small_llama
from tests.origin_server import serve_origin

PLAN = "sha256:" + "a" * 64
SIZES = {"num_blocks": 2, "hidden": 32, "ffn": 64, "vocab": 300}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def check_digests(manifest, contents):
    """Compare every digest with the bytes of the files."""
    assert [file.sha256 for file in manifest.files] == [sha256(data) for data in contents]
    for entry in manifest.entries:
        assert entry.sha256 == sha256(contents[entry.file][entry.range.start : entry.range.end])


@pytest.mark.parametrize(
    ("name", "form"), [("phi3", "directory"), ("phi3", "gguf"), ("gemma3", "directory"), ("llama-llama3", "gguf")]
)
def test_a_family_is_published_and_its_participants_find_exactly_their_bytes(cli, tmp_path, name, form):
    """Fused tensors, tied heads, several files and factors that are no weights: the manifest fits the model."""
    if form == "gguf":
        path = families.write_gguf(name, tmp_path / f"{name}.gguf", "Q8_0")
    else:
        path = families.write_directory(name, tmp_path / name, max_shard_size="200KB")
    target = tmp_path / "manifest.json"
    done = cli("model", "publish", str(path), "-o", str(target))
    assert (done.status, done.err) == (0, "")
    manifest = load_manifest(target)
    check_digests(manifest, [Path(file.uri).read_bytes() for file in manifest.files])
    check_policy(manifest, "strict")
    assert done.out.splitlines()[-1] == f"{target}: {manifest.id}"
    model = DenseModel.open(path)
    check_manifest(manifest, model.object)
    metadata = {entry.name for entry in manifest.entries if entry.kind == "metadata"}
    assert ("config.json" in metadata) is (form == "directory")
    problem, units = model.problem(), len(model.description.unit_ids)
    spans = ((0, 3), (3, units))
    needs = [
        Need(model.requirement(problem, f"stage-{index}", *span), declare(model.description, *span))
        for index, span in enumerate(spans)
    ]
    plan = derive_artifacts(manifest, model.object, PLAN, needs, state_tensors(model.description), metadata)
    for need, found in zip(needs, plan.participants, strict=True):
        assert found.weight_bytes == need.requirement.bytes < manifest.weight_bytes
        assert {item.requirement_class for item in found.artifacts} <= {"assigned", "shared", "metadata"}


def test_what_was_done_is_printed_as_json_and_progress_goes_to_standard_error(cli, tmp_path):
    path = write_small_llama(tmp_path / "m.gguf", **SIZES)
    target = tmp_path / "manifest.json"
    done = cli("model", "publish", str(path), "-o", str(target), "--json", "--revision", "v7")
    manifest = load_manifest(target)
    assert json.loads(done.out) == {
        "manifest": str(target),
        "digest": manifest.id,
        "model": "m",
        "revision": "v7",
        "hash_known_by": "hashed",
        "files": 1,
        "bytes": path.stat().st_size,
        "entries": 20,
    }
    assert done.err.startswith(f"{path}: ")
    assert " of " in done.err


def test_publishing_again_changes_nothing_and_another_model_is_not_overwritten(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = write_small_llama(tmp_path / "m.gguf", **SIZES)
    assert cli("model", "publish", "m.gguf", "-o", "manifest.json").status == 0
    before = (tmp_path / "manifest.json").read_bytes()
    assert str(first) in before.decode()
    assert cli("model", "publish", "m.gguf", "-o", "manifest.json").status == 0
    assert (tmp_path / "manifest.json").read_bytes() == before
    write_small_llama(tmp_path / "other.gguf", **SIZES, seed=1)
    refused = cli("model", "publish", "other.gguf", "-o", "manifest.json")
    assert (refused.status, refused.out) == (1, "")
    assert refused.err == (
        "inferswarm: SpecError: output: found 'manifest.json', needed another file: it holds the manifest of m\n"
    )
    write_small_llama(first, **SIZES, seed=1)
    refused = cli("model", "publish", "m.gguf", "-o", "manifest.json")
    assert (refused.status, "other contents of m" in refused.err) == (1, True)
    assert (tmp_path / "manifest.json").read_bytes() == before
    assert cli("model", "publish", "m.gguf", "-o", "manifest.json", "--replace").status == 0
    assert (tmp_path / "manifest.json").read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("absent.gguf", "-o", "manifest.json"), "absent.gguf"),
        (("m.gguf", "-o", "nowhere/manifest.json"), "a directory that exists"),
        (("m.gguf", "-o", "m.gguf"), "a new file, or one that holds a manifest"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_before_anything_is_read(
    cli, tmp_path, monkeypatch, arguments, said
):
    monkeypatch.chdir(tmp_path)
    path = write_small_llama(tmp_path / "m.gguf", **SIZES)
    before = path.read_bytes()
    refused = cli("model", "publish", *arguments)
    assert (refused.status, refused.out, refused.err.count("\n")) == (1, "", 1)
    assert said in refused.err
    assert path.read_bytes() == before


def test_a_model_at_an_address_is_read_once_from_there(cli, tmp_path):
    (tmp_path / "served").mkdir()
    path = write_small_llama(tmp_path / "served" / "m.gguf", hidden=64, ffn=512, vocab=2048, encoding="F32")
    with serve_origin(tmp_path / "served") as server:
        uri = server.url("m.gguf")
        done = cli("model", "publish", uri, "-o", str(tmp_path / "manifest.json"))
        sent = server.bytes_sent("m.gguf")
    assert done.status == 0, done.err
    manifest = load_manifest(tmp_path / "manifest.json")
    check_digests(manifest, [path.read_bytes()])
    assert [file.uri for file in manifest.files] == [uri]
    assert manifest.files[0].version.startswith("etag:")
    assert (
        manifest.bytes <= sent <= manifest.bytes + open_gguf(path).bytes_read + 2
    )  # the header twice, and two looks


def test_a_model_of_a_hub_is_published_at_its_commit(tmp_path):
    path = write_small_llama(tmp_path / "m.gguf", **SIZES)
    target = tmp_path / "manifest.json"
    command = [sys.executable, "-m", "inferswarm", "model", "publish", "hf://owner/small/m.gguf", "-o", str(target)]
    with serve(Mirror()) as mirror:
        commit = mirror.publish("owner/small", {"m.gguf": path.read_bytes()})
        environment = {**os.environ, "HF_ENDPOINT": mirror.endpoint, "HF_HUB_CACHE": str(tmp_path / "hub")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    manifest = load_manifest(target)
    check_digests(manifest, [path.read_bytes()])
    assert manifest.provenance.revision == commit
    assert [file.uri for file in manifest.files] == [f"hf://owner/small@{commit}/m.gguf"]
