"""Model directories: one safetensors file, or several with an index; contradictions are refused by name."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import save

from inferswarm.artifacts.directory import find_model, gguf_models, open_directory
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.errors import ArtifactError, ModelError, SpecError, UnsupportedModel
from tests.gguf_bytes import example

CONFIGURATION = {"model_type": "llama", "rope_theta": 1e4}
A, B, C = (np.full((2, 3), value, np.float32) for value in (1, 2, 3))
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def write(folder, files):
    for name, contents in files.items():
        data = contents if isinstance(contents, bytes) else json.dumps(contents).encode()
        (folder / name).write_bytes(data)
    return folder


def single():
    return {"config.json": CONFIGURATION, "model.safetensors": save({"a": A, "b": B})}


def several():
    return {
        "config.json": CONFIGURATION,
        "generation_config.json": {"eos_token_id": [1, 2]},
        INDEX: {"metadata": {"total_size": 72}, "weight_map": {"a": FIRST, "c": SECOND, "b": FIRST}},
        FIRST: save({"a": A, "b": B}),
        SECOND: save({"c": C}),
    }


def test_one_file_of_weights(tmp_path):
    model = open_directory(write(tmp_path, single()))
    assert model.path == tmp_path
    assert dict(model.configuration) == CONFIGURATION
    assert model.generation is None
    assert [file.uri for file in model.files] == [str(tmp_path / "model.safetensors")]
    assert [(record.name, record.file) for record in model.tensors] == [("a", 0), ("b", 0)]


def test_several_files_of_weights_by_their_index(tmp_path):
    model = open_directory(write(tmp_path, several()))
    assert dict(model.generation) == {"eos_token_id": [1, 2]}
    assert [(record.name, record.file) for record in model.tensors] == [("a", 0), ("b", 0), ("c", 1)]
    for record, values in zip(model.tensors, (A, B, C), strict=True):
        with LocalFileOrigin(model.files[record.file].uri) as origin:
            assert origin.read(record.range) == values.tobytes()
    assert model.model_object().length == sum((tmp_path / name).stat().st_size for name in (FIRST, SECOND))


def test_headers_and_texts_are_read_and_every_byte_is_counted(tmp_path):
    files = several() | {SECOND: save({"c": np.zeros(2**18, np.float32)})}
    write(tmp_path, files)
    texts = sum((tmp_path / name).stat().st_size for name in ("config.json", "generation_config.json", INDEX))
    model = open_directory(tmp_path)
    headers = sum(min(r.range.start for r in model.tensors if r.file == file) for file in (0, 1))
    assert model.bytes_read == texts + headers < 2000


def test_an_index_of_one_file_may_stand_beside_that_file(tmp_path):
    index = {"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}}
    assert len(open_directory(write(tmp_path, single() | {INDEX: index})).tensors) == 2


def test_links_as_a_hub_cache_has_them_are_followed(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    write(blobs, single())
    for name in single():
        (snapshot / name).symlink_to(os.path.join("..", "blobs", name))
    model = open_directory(snapshot)
    assert model.files[0].uri == str(snapshot / "model.safetensors")
    assert len(model.tensors) == 2


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "generation_config.json"])
def test_a_link_to_nothing_is_named_with_its_target(tmp_path, name):
    write(tmp_path, single())
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("../blobs/gone")
    with pytest.raises(ArtifactError, match=r"is a link to \.\./blobs/gone, where nothing is") as caught:
        open_directory(tmp_path)
    assert caught.value.subject == str(tmp_path / name)


def indexed(placement):
    return several() | {INDEX: {"weight_map": placement}}


GOOD_PLACEMENT = {"a": FIRST, "b": FIRST, "c": SECOND}
CONTRADICTIONS = {
    "a tensor that the index does not name": (
        indexed({"a": FIRST, "c": SECOND}),
        f"{FIRST} holds b, and {INDEX} does",
    ),
    "a tensor in another file": (
        indexed(GOOD_PLACEMENT | {"b": SECOND}),
        f"{FIRST} holds b, and {INDEX} places it in",
    ),
    "a tensor in no file": (indexed(GOOD_PLACEMENT | {"d": SECOND}), f"places d in {SECOND}, which does not hold it"),
    "a tensor in two files": (
        several() | {SECOND: save({"c": C, "a": A})},
        f"{SECOND} holds a, and {INDEX} places it",
    ),
    "an index of nothing": (indexed({}), "weight_map is missing, empty"),
    "an index that is a list": (several() | {INDEX: []}, "holds a JSON list"),
    "an index without a map": (several() | {INDEX: {"metadata": {}}}, "weight_map is missing"),
    "a map that is a list": (several() | {INDEX: {"weight_map": ["a"]}}, "not an object"),
    "a file that is a number": (indexed(GOOD_PLACEMENT | {"c": 2}), "places c in 2"),
    "a path upwards": (indexed(GOOD_PLACEMENT | {"c": "../x.safetensors"}), "places c in '../x.safetensors'"),
    "a path elsewhere": (indexed(GOOD_PLACEMENT | {"c": "/x.safetensors"}), "places c in '/x.safetensors'"),
    "a path in another notation": (indexed(GOOD_PLACEMENT | {"c": "..\\x.safetensors"}), "places c in"),
    "a pickle": (indexed(GOOD_PLACEMENT | {"c": "pytorch_model.bin"}), "needed a name that ends in .safetensors"),
    "a model and an index of others": (several() | {"model.safetensors": save({"a": A})}, "one of the two"),
    "a key twice in the configuration": (single() | {"config.json": b'{"a": 1, "a": 2}'}, "has the key 'a' twice"),
    "a configuration that is no object": (single() | {"config.json": b"7"}, "holds a JSON int"),
    "a configuration that is no text": (single() | {"config.json": b"\xff{}"}, "is not UTF-8"),
    "a configuration that is not JSON": (single() | {"config.json": b"{'a': 1}"}, "is not JSON"),
    "an infinite number": (single() | {"config.json": b'{"rope_theta": 1e999}'}, "too large for a number"),
    "an endless number": (single() | {"config.json": b'{"n": ' + b"1" * 5000 + b"}"}, "is not JSON"),
    "a huge configuration": (single() | {"config.json": b" " * (9 * 2**20)}, "at most 8,388,608 B"),
    "wrong generation settings": (single() | {"generation_config.json": b"[]"}, "holds a JSON list"),
    "weights that are none": (single() | {"model.safetensors": b"version https://git-lfs"}, "announces a header"),
    "weights without tensors": (single() | {"model.safetensors": save({})}, "hold no tensors"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions_are_refused_by_name(tmp_path, case):
    files, words = CONTRADICTIONS[case]
    with pytest.raises(ModelError) as caught:
        open_directory(write(tmp_path, files))
    assert words in caught.value.reason
    assert caught.value.source.startswith(str(tmp_path))


def test_missing_files_of_weights_are_named(tmp_path):
    files = several()
    del files[SECOND]
    with pytest.raises(ArtifactError, match=rf"1 of 2 files of weights are missing: {SECOND}") as caught:
        open_directory(write(tmp_path, files))
    assert caught.value.code == "SOURCE_OBJECT_UNAVAILABLE"


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        ([], SpecError, "a directory with config.json"),
        (["config.json"], SpecError, "holds no weights"),
        (["model.safetensors"], SpecError, "a directory with config.json"),
        (["config.json", "consolidated.safetensors"], SpecError, "which holds consolidated.safetensors"),
        (["config.json", "pytorch_model.bin"], UnsupportedModel, "convert it: load it with transformers"),
        (["config.json", "pytorch_model.bin.index.json"], UnsupportedModel, "save_pretrained"),
        (["adapter_config.json", "adapter_model.safetensors"], UnsupportedModel, "an adapter"),
        (["config.json", "model.safetensors", "adapter_config.json"], UnsupportedModel, "an adapter"),
    ],
)
@pytest.mark.parametrize("action", [open_directory, find_model])
def test_directories_of_another_kind_are_refused_saying_what_to_do(tmp_path, names, error, words, action):
    write(tmp_path, dict.fromkeys(names, b"{}"))
    with pytest.raises(error, match=words) as caught:
        action(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("action", [open_directory, find_model])
def test_what_is_no_directory_is_refused(tmp_path, action):
    (tmp_path / "file").write_bytes(b"")
    for name in ("file", "absent", "nul\0"):
        with pytest.raises(SpecError, match="a directory that can be read"):
            action(tmp_path / name)


GGUF = example().build()


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["m.gguf", "README.md"], "m.gguf"),
        (["m.gguf", "config.json", "mmproj-m-f16.gguf"], "m.gguf"),
        (["m.gguf", "pytorch_model.bin", "config.json"], "m.gguf"),
        (["m-00002-of-00002.gguf", "m-00001-of-00002.gguf"], "m-00001-of-00002.gguf"),
        (["m.gguf", "config.json", "model.safetensors"], ""),
    ],
)
def test_a_directory_stands_for_the_one_model_in_it(tmp_path, names, found):
    write(tmp_path, dict.fromkeys(names, GGUF))
    assert find_model(tmp_path) == tmp_path / found


def test_several_gguf_models_are_offered_by_name(tmp_path):
    write(tmp_path, dict.fromkeys(["q8.gguf", "q4-00001-of-00002.gguf", "q4-00002-of-00002.gguf"], GGUF))
    with pytest.raises(SpecError, match=r"one of its GGUF files: q4-00001-of-00002\.gguf, q8\.gguf"):
        find_model(tmp_path)


def test_a_directory_of_gguf_is_no_directory_of_safetensors(tmp_path):
    write(tmp_path, {"m.gguf": GGUF, "config.json": CONFIGURATION})
    with pytest.raises(SpecError, match=r"the path of its GGUF file: m\.gguf"):
        open_directory(tmp_path)


def test_models_are_counted_once_however_many_files_they_have():
    names = ["b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "a.gguf", "x.bin"]
    assert gguf_models(names) == ("a.gguf", "b-00001-of-00002.gguf")
