"""Models by address: texts whole, of the weights the headers alone, kept once and read like files."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from inferswarm.artifacts import header_pruning
from inferswarm.artifacts.directory import open_directory
from inferswarm.artifacts.gguf_files import open_gguf
from inferswarm.artifacts.header_pruning import prune_headers
from inferswarm.artifacts.headers import RECORD, header_cache, open_file, read_kept
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.remote import describe_files, fetch_headers
from inferswarm.artifacts.taxonomy import CACHE_TAMPERED, IDENTITY_MISMATCH, SOURCE_UNAVAILABLE, UNAUTHORIZED
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, ModelError, SpecError, UnsupportedModel
from inferswarm.strategies.catalog import resolve_model
from inferswarm.strategies.dense.model import DenseModel
from inferswarm.swarm.opening import open_model, wants_headers
from tests.families import write_tokenizer
from tests.gguf_bytes import split_model
from tests.hub_mirror import Mirror, serve
from tests.models import small_llama_tensors, write_small_llama
from tests.origin_server import Fault, serve_origin

SIZES = {"num_blocks": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 2048, "tied": True}
FACTORS = np.linspace(1, 8, 8, dtype=np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "served").mkdir()
    return tmp_path / "served"


@pytest.fixture
def server(folder):
    with serve_origin(folder) as served:
        yield served


def write_gguf(path):
    return write_small_llama(
        path, **SIZES, encoding="F32", extra_tensors={"rope_freqs.weight": FACTORS}, metadata={"x.filler": None}
    )


def write_directory(path, num_files=1):
    """Write a small Llama as Hugging Face lays it out, without its library."""
    names = {"token_embd": "embed_tokens", "output_norm": "norm"}
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_output": "self_attn.o_proj",
    }
    parts |= {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}
    parts |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    tensors = {}
    for name, values in small_llama_tensors(seed=0, **SIZES).items():
        stem = name.removesuffix(".weight")
        if stem in names:
            tensors[f"model.{names[stem]}.weight"] = values
        else:
            _, block, part = stem.split(".")
            tensors[f"model.layers.{block}.{parts[part]}.weight"] = values
    path.mkdir(parents=True)
    sizes = {"vocab_size": 2048, "hidden_size": 64, "intermediate_size": 512, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 640}
    rest = {"model_type": "llama", "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "rope_theta": 10000.0}
    configuration = sizes | heads | rest
    (path / "config.json").write_text(json.dumps(configuration))
    write_tokenizer(path)
    if num_files == 1:
        save_file(tensors, path / "model.safetensors")
        return path
    placement = {}
    for index in range(num_files):
        chosen = dict(list(tensors.items())[index::num_files])
        file = f"model-{index + 1:05d}-of-{num_files:05d}.safetensors"
        save_file(chosen, path / file)
        placement |= dict.fromkeys(chosen, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placement}))
    return path


def refused(code, action):
    with pytest.raises(ArtifactError) as caught:
        action()
    assert caught.value.code == code
    return caught.value


def same_but_for_places(remote, local):
    assert remote.description == local.description
    assert remote.notes == local.notes
    assert remote.object.tensors == local.object.tensors
    assert [file.length for file in remote.object.files] == [file.length for file in local.object.files]
    assert remote.name == local.name
    assert remote.text.codec.encode("hello there") == local.text.codec.encode("hello there")


# -- GGUF --


def test_a_gguf_file_is_understood_from_its_header_and_its_factors(server, folder):
    path = write_gguf(folder / "small model.gguf")
    local = DenseModel.open(path)
    uri = server.url("small model.gguf")
    remote = DenseModel.open(uri)
    same_but_for_places(remote, local)
    assert remote.description.block_kinds[0].rope.factors == tuple(FACTORS.tolist())
    assert remote.object.uri == uri
    sent = server.bytes_sent()
    header = open_gguf(path)
    factors = next(tensor.range for tensor in header.tensors if tensor.name == "rope_freqs.weight")
    # Opening asks for a byte, twice: of the file, and for its factors.
    assert sent == header.bytes_read + 1 + 1 + factors.length
    assert sent < path.stat().st_size / 8


def test_headers_are_fetched_once_for_each_version(server, folder):
    path = write_gguf(folder / "m.gguf")
    first = fetch_headers(server.url("m.gguf"))
    assert first.bytes_fetched == server.bytes_sent()
    assert first.bytes_total == path.stat().st_size
    server.clear()
    second = fetch_headers(server.url("m.gguf"))
    assert (second.path, second.bytes_fetched, server.bytes_sent()) == (first.path, 1, 1)
    path.write_bytes(path.read_bytes().replace(b"Small Llama 0", b"Other Llama 0"))
    third = fetch_headers(server.url("m.gguf"))
    assert third.path != first.path
    assert [open_gguf(found.path).metadata["general.name"] for found in (first, third)] == [
        *("Small Llama 0", "Other Llama 0")
    ]


def test_without_a_version_headers_are_fetched_each_time(server, folder):
    write_gguf(folder / "m.gguf")
    server.inject("m.gguf", Fault(etag="none", modified=False))
    first, second = fetch_headers(server.url("m.gguf")), fetch_headers(server.url("m.gguf"))
    assert first.bytes_fetched == second.bytes_fetched > 1000
    assert first.path == second.path


@pytest.mark.parametrize("part", [1, 3])
def test_any_part_of_a_split_model_stands_for_all(server, folder, part):
    whole = write_gguf(folder / "whole.gguf")
    split_model(whole, folder / "m.gguf", 3)
    name = f"m-{part:05d}-of-00003.gguf"
    remote = DenseModel.open(server.url(name))
    local = DenseModel.open(folder / name)
    same_but_for_places(remote, local)
    assert [file.uri for file in remote.object.files] == [
        server.url(f"m-{index:05d}-of-00003.gguf") for index in (1, 2, 3)
    ]
    (folder / "m-00002-of-00003.gguf").unlink()
    shutil.rmtree(header_cache())
    refused(SOURCE_UNAVAILABLE, lambda: fetch_headers(server.url(name)))


def test_a_signature_is_used_for_every_request_and_not_shown(server, folder):
    write_gguf(folder / "m.gguf")
    fetched = fetch_headers(server.url("m.gguf") + "?signature=secret")
    assert {request.query for request in server.log} == {"signature=secret"}
    assert read_kept(fetched.path.parent).uri == server.url("m.gguf") + "?…"
    error = refused(SOURCE_UNAVAILABLE, lambda: fetch_headers(server.url("no.gguf") + "?signature=secret"))
    assert "secret" not in str(error)


# -- directories --


@pytest.mark.parametrize("num_files", [1, 3])
def test_a_directory_is_understood_from_texts_and_headers(server, folder, num_files):
    path = write_directory(folder / "small", num_files)
    remote, local = DenseModel.open(server.url("small/")), DenseModel.open(path)
    same_but_for_places(remote, local)
    weights = sorted(file.name for file in path.glob("*.safetensors"))
    assert [file.uri for file in remote.object.files] == [server.url(f"small/{name}") for name in weights]
    texts = [file for file in path.iterdir() if file.name not in weights]
    assert all(server.bytes_sent(f"small/{file.name}") == 1 + file.stat().st_size for file in texts)
    for name in weights:
        with LocalFileOrigin(path / name) as origin:
            length = 8 + int.from_bytes(origin.read(ByteRange(0, 8)), "little")
        assert server.bytes_sent(f"small/{name}") == 1 + length
    assert describe_files(remote.path) == open_directory(remote.path).objects


def test_an_optional_text_that_is_refused_is_not_taken_for_an_absence(server, folder):
    write_directory(folder / "small")
    server.inject("small/tokenizer.json", Fault(status=403))
    error = refused(UNAUTHORIZED, lambda: fetch_headers(server.url("small/")))
    assert error.subject == server.url("small/tokenizer.json")


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        (["config.json"], ArtifactError, r"small/model\.safetensors: answered 404"),
        ([], SpecError, r"a directory with config\.json"),
    ],
)
def test_a_directory_that_lacks_something_is_refused_by_name(server, folder, names, error, words):
    path = write_directory(folder / "small")
    for file in path.iterdir():
        if file.name not in names:
            file.unlink()
    with pytest.raises(error, match=words):
        fetch_headers(server.url("small/"))


def test_a_directory_with_an_adapter_is_refused_before_its_weights_are_asked_for(server, folder):
    path = write_directory(folder / "small")
    (path / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="an adapter"):
        fetch_headers(server.url("small/"))
    assert server.requests("small/model.safetensors") == []


def test_an_index_that_leads_elsewhere_is_refused(server, folder):
    path = write_directory(folder / "small", 2)
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../x.safetensors"}}')
    with pytest.raises(ModelError, match="weight_map places a in"):
        fetch_headers(server.url("small/"))
    assert not any("x.safetensors" in request.path for request in server.log)


def test_a_text_that_is_too_long_is_refused_unread(server, folder, monkeypatch):
    write_directory(folder / "small")
    monkeypatch.setattr("inferswarm.artifacts.remote.MAX_TEXT_BYTES", 2000)
    with pytest.raises(ModelError, match="at most 2,000 B are read"):
        fetch_headers(server.url("small/"))
    assert server.bytes_sent("small/tokenizer.json") == 1


def test_a_server_without_ranges_serves_texts_and_no_weights(server, folder):
    write_directory(folder / "small")
    for file in (folder / "small").iterdir():
        server.inject(f"small/{file.name}", Fault(ignores_range=True))
    error = refused(SOURCE_UNAVAILABLE, lambda: fetch_headers(server.url("small/")))
    assert (error.subject, "ignores ranges" in error.reason) == (server.url("small/model.safetensors"), True)


def test_a_file_system_of_fsspec_serves_models_too(folder):
    path = write_directory(folder / "a small one", 2)
    files, inside = fsspec.core.url_to_fs(f"memory://{uuid.uuid4()}")
    files.put(str(path), f"{inside}/a small one", recursive=True)
    try:
        remote, local = DenseModel.open(f"memory:/{inside}/a small one/"), DenseModel.open(path)
        same_but_for_places(remote, local)
    finally:
        files.rm(inside, recursive=True)


# -- what is kept --


def test_kept_headers_are_no_weights(server, folder):
    """Whoever reads a kept file without its record, or its tensors from here, is refused."""
    path = write_gguf(folder / "m.gguf")
    kept = fetch_headers(server.url("m.gguf")).path
    assert kept.stat().st_size < path.stat().st_size
    with open_file(kept) as origin:
        assert origin.length == path.stat().st_size
        # What lies behind the header comes from the origin, of the same version.
        assert origin.read(ByteRange(300_000, 300_100)) == path.read_bytes()[300_000:300_100]
        path.write_bytes(bytes(path.stat().st_size))
        refused(IDENTITY_MISMATCH, lambda: origin.read(ByteRange(300_000, 300_100)))
    with open_file(kept) as origin:
        refused(IDENTITY_MISMATCH, lambda: origin.read(ByteRange(300_000, 300_100)))
    moved = shutil.copytree(kept.parent, folder / "moved")
    with pytest.raises(ModelError, match="needs bytes"):
        open_gguf(moved / "m.gguf")
    assert "acquired first" in refused(SOURCE_UNAVAILABLE, lambda: LocalFileOrigin(server.url("m.gguf"))).reason


FETCH = "import sys; from inferswarm.artifacts.remote import fetch_headers; print(fetch_headers(sys.argv[1]).path)"


def test_the_longest_unopened_headers_go_and_never_those_that_a_process_uses(server, folder):
    """Mutation: lock nothing, or remove in the order of names."""
    outer, fetched = {}, []
    for index, name in enumerate(("oldest", "old", "new")):
        write_small_llama(folder / f"{name}.gguf", **SIZES, seed=index)
        command = [sys.executable, "-c", FETCH, server.url(f"{name}.gguf")]
        fetched.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    for name, process in zip(("oldest", "old", "new"), fetched, strict=True):
        outer[name] = Path(process.communicate()[0].strip()).parent.parent  # whoever fetched it has gone
    for age, name in enumerate(("new", "old", "oldest")):
        os.utime(outer[name], (1e9 - age, 1e9 - age))
    resolve_model(str(outer["oldest"] / next(outer["oldest"].iterdir()).name / "oldest.gguf"))  # used by this process
    kept = {path.name: path for path in (header_cache() / "kept").iterdir()}
    for path in kept.values():
        os.utime(path, (1e9, 1e9))
    (header_cache() / "models" / f"{'0' * 32}.1.ab").mkdir()
    os.utime(header_cache() / "models" / f"{'0' * 32}.1.ab", (1e9, 1e9))
    assert prune_headers(header_cache(), 2) == (outer["old"],)
    assert sorted(path.name for path in (header_cache() / "models").iterdir()) == sorted(
        outer[name].name for name in ("oldest", "new")
    )
    assert len(list((header_cache() / "kept").iterdir())) == len(kept) - 1
    assert prune_headers(header_cache(), 0) == (outer["new"],)
    server.clear()
    assert fetch_headers(server.url("oldest.gguf")).path.parent.parent == outer["oldest"]
    assert fetch_headers(server.url("new.gguf")).path.is_file()  # what has gone is fetched again
    assert server.bytes_sent("new.gguf") > server.bytes_sent("oldest.gguf")


def test_opening_models_keeps_so_many(server, folder, monkeypatch):
    """Mutation: prune nothing when a model is opened."""
    monkeypatch.setattr(header_pruning, "KEPT_MODELS", 1)
    write_gguf(folder / "m.gguf")
    left = header_cache() / "models" / ("a" * 32)
    left.mkdir(parents=True)
    fetch_headers(server.url("m.gguf"))
    assert not left.exists()


def test_kept_bytes_that_changed_are_refused_and_fetched_again(server, folder):
    write_gguf(folder / "m.gguf")
    kept = fetch_headers(server.url("m.gguf")).path
    kept.write_bytes(kept.read_bytes().replace(b"Small Llama 0", b"Other Llama 0"))
    refused(CACHE_TAMPERED, lambda: open_gguf(kept))
    again = fetch_headers(server.url("m.gguf"))
    assert again.bytes_fetched > 1000
    assert open_gguf(again.path).metadata["general.name"] == "Small Llama 0"


def test_a_record_outside_of_the_cache_names_no_address(server, folder, tmp_path):
    write_gguf(folder / "m.gguf")
    kept = fetch_headers(server.url("m.gguf")).path
    shutil.copytree(kept.parent, tmp_path / "elsewhere")
    assert read_kept(kept.parent) is not None
    assert read_kept(tmp_path / "elsewhere") is None
    assert read_kept(header_cache() / "models" / ".." / ".." / ".." / ".." / "elsewhere") is None
    assert (tmp_path / "elsewhere" / RECORD).is_file()


def test_what_is_kept_needs_no_server_to_be_read(folder, tmp_path):
    write_directory(folder / "small")
    with serve_origin(folder) as server:
        path = fetch_headers(server.url("small/")).path
    model = DenseModel.open(path)
    assert model.object.uri.startswith("http://127.0.0.1:")
    assert model.text.codec.size > 0
    assert resolve_model(str(path)) == resolve_model(path.as_uri()) == path


# -- names --


@pytest.mark.parametrize(
    "uri",
    [
        *("http://host", "http://host/model", "http://host/model.safetensors", "http://host/a/config.json"),
        *("http://host/a%2F..%2F/", "http://host/a/..%2Fm.gguf", "http://host/a/#x", "http:///m.gguf"),
    ],
)
def test_addresses_that_stand_for_no_model_are_refused_unasked(uri):
    with pytest.raises(SpecError, match="the address of a GGUF file"):
        fetch_headers(uri)


def test_what_is_fetched_of_which_name():
    assert [wants_headers(name) for name in ("m.gguf", "hf://a/b", "http://a/m.gguf", "s3://a/b/")] == [
        *(False, False, True, True)
    ]
    assert wants_headers("hf://a/b", "headers")
    assert not wants_headers("hf://a/b", "whole")
    for name, fetch in (("m.gguf", "headers"), ("http://a/m.gguf", "whole"), ("hf://a/b", "some")):
        with pytest.raises(SpecError, match="fetch"):
            wants_headers(name, fetch)
    with pytest.raises(SpecError, match="fetch"):
        open_model("smollm2-135m", fetch="headers")


def fetch_of_hub(mirror, tmp_path, uri):
    """Fetch the headers of a hub's model in a fresh process, and return what it printed."""
    code = (
        "import sys\n"
        "from inferswarm.artifacts.remote import fetch_headers\n"
        "from inferswarm.errors import InferSwarmError\n"
        "from inferswarm.strategies.dense.model import DenseModel\n"
        "try:\n"
        f"    found = fetch_headers({uri!r})\n"
        "    model = DenseModel.open(found.path)\n"
        "    print(model.name, model.object.uri, found.bytes_fetched, found.bytes_total)\n"
        "except InferSwarmError as error:\n"
        "    print(type(error).__name__, error)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": mirror.endpoint, "HF_HUB_CACHE": str(tmp_path / "hub")}
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return child.stdout


def test_a_hubs_model_is_opened_from_headers_at_one_commit(tmp_path):
    path = write_directory(tmp_path / "small", 2)
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    with serve(Mirror()) as mirror:
        commit = mirror.publish("owner/small", files | {"README.md": b"text", "modeling.py": b"raise SystemExit"})
        name, uri, fetched, total = fetch_of_hub(mirror, tmp_path, "hf://owner/small").split()
        assert (name, uri) == ("small", f"hf://owner/small@{commit}/model-00001-of-00002.safetensors")
        assert int(total) == sum(map(len, files.values()))
        assert int(fetched) < int(total) / 3
        assert set(mirror.fetched()) == set(files)
        assert not (tmp_path / "hub").exists()
