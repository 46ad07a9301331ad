"""Files put together from slices: once, verified before they have their name, and nothing is left of a failure."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from inferswarm.artifacts.assembly import assemble, digest_file
from inferswarm.errors import ArtifactError

CONTENTS = [os.urandom(3 * 2**20 + 7), os.urandom(5), b"", os.urandom(2**20)]
WHOLE = b"".join(CONTENTS)
DIGEST = hashlib.sha256(WHOLE).hexdigest()


@pytest.fixture
def slices(tmp_path):
    paths = [tmp_path / f"part{index}" for index in range(len(CONTENTS))]
    for path, data in zip(paths, CONTENTS, strict=True):
        path.write_bytes(data)
    return paths


@pytest.fixture
def target(tmp_path):
    return tmp_path / "cache" / "models" / "whole.bin"


def visible(target):
    return sorted(path.name for path in target.parent.iterdir() if path.suffix != ".lock")


def refuse(slices, target, code, **changes):
    arguments = {"length": len(WHOLE), "sha256": DIGEST} | changes
    with pytest.raises(ArtifactError) as caught:
        assemble(slices, target, **arguments)
    assert caught.value.code == code
    assert caught.value.subject == str(target)
    return caught.value


def test_the_slices_become_one_file_in_their_order(slices, target):
    assert assemble(slices, target, len(WHOLE), DIGEST) == target
    assert target.read_bytes() == WHOLE
    assert digest_file(target) == DIGEST
    assert visible(target) == ["whole.bin"]


def test_a_file_that_is_there_is_not_written_again(slices, target):
    assemble(slices, target, len(WHOLE), DIGEST)
    before = target.stat()
    assert assemble([], target, len(WHOLE), DIGEST) == target
    after = target.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_file_of_another_length_is_refused_and_kept(slices, target):
    target.parent.mkdir(parents=True)
    target.write_bytes(b"something else")
    assert "remove it" in refuse(slices, target, "PROVENANCE_IDENTITY_MISMATCH").reason
    assert target.read_bytes() == b"something else"


def test_altered_slices_are_refused_and_leave_nothing(slices, target):
    slices[3].write_bytes(bytes(len(CONTENTS[3])))
    refuse(slices, target, "INTEGRITY_DIGEST_MISMATCH")
    assert visible(target) == []


def test_slices_of_another_length_are_refused_unread(slices, target):
    slices[1].write_bytes(b"")
    refuse(slices, target, "PROVENANCE_IDENTITY_MISMATCH")
    assert visible(target) == []


def test_a_missing_slice_is_named(slices, target):
    slices[2].unlink()
    assert str(slices[2]) in refuse(slices, target, "SOURCE_OBJECT_UNAVAILABLE").reason


def test_a_cache_that_cannot_be_written_is_named(slices, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    assert "file" in refuse(slices, tmp_path / "file" / "whole.bin", "SOURCE_OBJECT_UNAVAILABLE").reason


def test_what_a_killed_process_left_is_overwritten(slices, target):
    target.parent.mkdir(parents=True)
    (target.parent / ".whole.bin.partial").write_bytes(bytes(10 * 2**20))
    assemble(slices, target, len(WHOLE), DIGEST)
    assert target.read_bytes() == WHOLE
    assert visible(target) == ["whole.bin"]


CHILD = """
import json, resource, sys
from pathlib import Path
from inferswarm.artifacts.assembly import assemble
from inferswarm.errors import ArtifactError
slices, target, length, sha256, limit = json.loads(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(assemble([Path(part) for part in slices], Path(target), length, sha256).stat().st_ino)
except ArtifactError as error:
    print(error)
"""


def start_child(slices, target, limit=0):
    arguments = json.dumps([[str(part) for part in slices], str(target), len(WHOLE), DIGEST, limit])
    return subprocess.Popen([sys.executable, "-c", CHILD, arguments], stdout=subprocess.PIPE, text=True)


def test_a_disk_without_room_is_named_and_nothing_is_left(slices, target):
    with start_child(slices, target, limit=2**20) as child:
        said = child.communicate(timeout=30)[0]
    assert said.startswith("SOURCE_OBJECT_UNAVAILABLE")
    assert f"({len(WHOLE):,} B)" in said
    assert str(target.parent / ".whole.bin.partial") in said
    assert visible(target) == []


def test_processes_that_ask_at_once_write_one_file(slices, target):
    children = [start_child(slices, target) for _ in range(3)]
    said = {child.communicate(timeout=60)[0] for child in children}
    assert said == {f"{target.stat().st_ino}\n"}
    assert target.read_bytes() == WHOLE
