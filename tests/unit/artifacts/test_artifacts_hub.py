"""Models of a hub, from a mirror on loopback: fetched once and whole, refused clearly, served without network."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save

from inferswarm.artifacts.directory import open_directory
from inferswarm.artifacts.hub import fetch_snapshot, parse_hub_id
from inferswarm.errors import ArtifactError, ModelError, SpecError, UnsupportedModel
from tests.gguf_bytes import example
from tests.hub_mirror import Mirror, serve

NAME = "owner/small"
CONFIGURATION = json.dumps({"model_type": "llama"}).encode()
ONE = save({"a": np.zeros((2, 3), np.float32)})
TWO = save({"b": np.ones(4, np.float16)})
SHARDED = {
    "config.json": CONFIGURATION,
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    ).encode(),
    "model-00001-of-00002.safetensors": ONE,
    "model-00002-of-00002.safetensors": TWO,
    "pytorch_model.bin": b"not fetched",
    "modeling_small.py": b"raise SystemExit",
    "README.md": b"text",
}
WHOLE = {"config.json": CONFIGURATION, "model.safetensors": ONE, "generation_config.json": b"{}"}
GGUF = example().build()


@pytest.fixture
def mirror():
    with serve(Mirror()) as served:
        yield served


@pytest.fixture
def fetch(mirror, tmp_path):
    def fetch(uri, endpoint=None):
        return fetch_snapshot(uri, endpoint=endpoint or mirror.endpoint, cache=tmp_path / "cache")

    return fetch


def test_a_model_is_fetched_with_its_texts_first_and_nothing_else(mirror, fetch):
    commit = mirror.publish(NAME, SHARDED)
    path = fetch(f"hf://{NAME}")
    assert path.name == commit
    assert {tensor.name for tensor in open_directory(path).tensors} == {"a", "b"}
    assert mirror.fetched() == [
        *("config.json", "tokenizer.json", "model.safetensors.index.json"),
        *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
    ]


@pytest.mark.parametrize("files", [SHARDED, WHOLE, {"m.gguf": GGUF}])
def test_a_fetched_model_is_served_from_the_cache_when_the_hub_is_gone(tmp_path, files):
    cache = tmp_path / "cache"
    with serve(Mirror()) as mirror:
        mirror.publish(NAME, files)
        fetched = fetch_snapshot(f"hf://{NAME}", endpoint=mirror.endpoint, cache=cache)
    assert fetch_snapshot(f"hf://{NAME}", endpoint=mirror.endpoint, cache=cache) == fetched


def test_a_second_fetch_asks_for_the_listing_and_no_file(mirror, fetch):
    mirror.publish(NAME, WHOLE)
    first = fetch(f"hf://{NAME}")
    mirror.requests.clear()
    assert fetch(f"hf://{NAME}") == first
    assert len(mirror.requests) == 1


def test_a_commit_that_is_in_the_cache_asks_nothing(mirror, fetch):
    commit = mirror.publish(NAME, WHOLE)
    path = fetch(f"hf://{NAME}")
    mirror.requests.clear()
    assert fetch(f"hf://{NAME}@{commit}") == path
    assert mirror.requests == []


def test_a_moved_branch_brings_the_new_commit_and_keeps_the_old(mirror, fetch):
    old = mirror.publish(NAME, WHOLE)
    before = fetch(f"hf://{NAME}")
    new = mirror.publish(NAME, {**WHOLE, "config.json": b'{"model_type": "other"}'})
    after = fetch(f"hf://{NAME}")
    assert (before.name, after.name) == (old, new)
    assert open_directory(before).configuration != open_directory(after).configuration


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/3", "refs%2Fpr%2F3", "feature%2Fx"])
def test_a_revision_is_a_branch_a_tag_or_a_reference(mirror, fetch, revision):
    commit = mirror.publish(NAME, WHOLE, revision.replace("%2F", "/"))
    assert fetch(f"hf://{NAME}@{revision}").name == commit


def test_a_named_gguf_brings_all_parts_of_its_split_model_and_no_other_file(mirror, fetch):
    parts = {f"q4/m-{part:05d}-of-00002.gguf": GGUF + bytes([part]) for part in (1, 2)}
    mirror.publish(NAME, {**parts, "q8.gguf": GGUF, "config.json": CONFIGURATION})
    path = fetch(f"hf://{NAME}/q4/m-00002-of-00002.gguf")
    assert path.name == "m-00001-of-00002.gguf"
    assert path.read_bytes() == GGUF + b"\x01"
    assert mirror.fetched() == list(parts)


def test_several_gguf_models_are_offered_by_id(mirror, fetch):
    mirror.publish(NAME, {"q4.gguf": GGUF, "q8.gguf": GGUF})
    with pytest.raises(SpecError, match=r"hf://owner/small/q4\.gguf, hf://owner/small/q8\.gguf"):
        fetch(f"hf://{NAME}")
    with pytest.raises(SpecError, match=r"holds: q4\.gguf, q8\.gguf"):
        fetch(f"hf://{NAME}/q5.gguf")
    assert mirror.fetched() == []


@pytest.mark.parametrize(
    ("status", "code"), [(401, "RepoNotFound"), (401, ""), (403, "GatedRepo"), (403, ""), (404, "RepoNotFound")]
)
def test_a_repository_that_may_not_be_read_is_refused_after_one_question(mirror, fetch, status, code):
    mirror.publish(NAME, WHOLE)
    mirror.repositories[NAME].status, mirror.repositories[NAME].error_code = status, code
    with pytest.raises(SpecError, match=rf"answered {status} .*token") as caught:
        fetch(f"hf://{NAME}")
    assert caught.value.found == f"hf://{NAME}"
    assert len(mirror.requests) == 1


def test_an_unknown_repository_or_revision_is_refused_by_name(mirror, fetch):
    mirror.publish(NAME, WHOLE)
    with pytest.raises(SpecError, match="owner/absent"):
        fetch("hf://owner/absent")
    with pytest.raises(SpecError, match="a revision that owner/small has"):
        fetch(f"hf://{NAME}@v2")
    assert len(mirror.requests) == 2


def test_pickled_weights_are_refused_before_anything_is_fetched(mirror, fetch):
    mirror.publish(NAME, {"config.json": CONFIGURATION, "pytorch_model.bin": b"PK"})
    with pytest.raises(UnsupportedModel, match="save_pretrained"):
        fetch(f"hf://{NAME}")
    assert mirror.fetched() == []


def test_an_index_that_leads_out_of_the_repository_is_refused(mirror, fetch):
    index = json.dumps({"weight_map": {"a": "../../x.safetensors"}}).encode()
    mirror.publish(NAME, {"config.json": CONFIGURATION, "model.safetensors.index.json": index})
    with pytest.raises(ModelError, match="weight_map places a in"):
        fetch(f"hf://{NAME}")


def test_an_unreachable_hub_and_an_empty_cache_are_named(mirror, fetch):
    with pytest.raises(ArtifactError, match=r"hf://owner/small@main: .*127\.0\.0\.1:9 failed.* holds no part of it"):
        fetch(f"hf://{NAME}", endpoint="http://127.0.0.1:9")


def test_a_hub_in_trouble_is_like_one_that_is_gone(mirror, fetch):
    mirror.status = 503
    with pytest.raises(ArtifactError, match=r"answered 503.*holds no part of it"):
        fetch(f"hf://{NAME}")
    mirror.status = 200
    mirror.publish(NAME, WHOLE)
    path = fetch(f"hf://{NAME}")
    mirror.status = 503
    assert fetch(f"hf://{NAME}") == path


def test_an_interrupted_transfer_is_resumed(mirror, fetch):
    mirror.publish(NAME, WHOLE)
    mirror.cut_once.add("model.safetensors")
    assert (fetch(f"hf://{NAME}") / "model.safetensors").read_bytes() == ONE
    assert mirror.fetched().count("model.safetensors") == 2


def test_a_failed_transfer_is_an_error_and_its_part_is_no_model(mirror, fetch, tmp_path):
    mirror.publish(NAME, SHARDED)
    mirror.lying.add("model-00002-of-00002.safetensors")
    with pytest.raises(ArtifactError, match="model-00002-of-00002"):
        fetch(f"hf://{NAME}")
    with pytest.raises(ArtifactError, match="holds no part of it"):
        fetch(f"hf://{NAME}", endpoint="http://127.0.0.1:9")
    mirror.lying.clear()
    assert open_directory(fetch(f"hf://{NAME}")).tensors


def test_a_snapshot_that_lost_a_file_is_fetched_again_or_refused(mirror, fetch):
    mirror.publish(NAME, SHARDED)
    path = fetch(f"hf://{NAME}")
    (path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"holds commit \w{12} in part"):
        fetch(f"hf://{NAME}", endpoint="http://127.0.0.1:9")
    assert open_directory(fetch(f"hf://{NAME}")).tensors


def test_an_endpoint_that_is_no_hub_is_named(mirror, fetch):
    mirror.publish(NAME, WHOLE)
    repository = mirror.repositories[NAME]
    repository.revisions["main"] = "not-a-commit"
    repository.commits["not-a-commit"] = WHOLE
    with pytest.raises(ArtifactError, match="named no commit: 'not-a-commit'"):
        fetch(f"hf://{NAME}")


def test_offline_the_clients_own_switch_is_obeyed_and_torch_stays_out(mirror, tmp_path, fetch):
    mirror.publish(NAME, WHOLE)
    path = fetch(f"hf://{NAME}")
    mirror.requests.clear()
    code = (
        "import sys\n"
        "from inferswarm.artifacts.hub import fetch_snapshot\n"
        f"print(fetch_snapshot('hf://{NAME}'))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": mirror.endpoint,
        "HF_HUB_CACHE": str(tmp_path / "cache"),
    }
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == str(path)
    assert mirror.requests == []


@pytest.mark.parametrize(
    "uri",
    [
        *(
            "hf://",
            "hf://name",
            "hf://owner/",
            "hf:///name",
            "hf://owner/name@",
            "hf://owner/name/",
            "hf://a/b/model.bin",
        ),
        *("hf://a/b/../c.gguf", "hf://a/b//c.gguf", "hf://a/b@..%2Fx", "hf://a b/c", "HF://a/b", "hf://a/b@%00"),
    ],
)
def test_ids_of_another_form_are_refused_before_any_question(uri):
    with pytest.raises(SpecError, match="hf://owner/name"):
        parse_hub_id(uri)


def test_ids_that_the_client_refuses_are_refused(fetch):
    with pytest.raises(SpecError, match="hf://owner/name"):
        fetch("hf://owner--x/na..me")
