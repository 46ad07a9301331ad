"""A local file as an origin: exact bytes, every byte counted, changes refused."""

import os

import pytest

from inferswarm.artifacts.origin import LocalFileOrigin, read_whole
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, MALFORMED, REASON_CODES, SOURCE_UNAVAILABLE
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, ModelError

CONTENTS = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "object.bin"
    file.write_bytes(CONTENTS)
    return file


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 1), (7, 300), (10_239, 10_240), (0, 10_240)])
def test_a_read_gives_exactly_the_bytes_of_the_range(path, start, end):
    with LocalFileOrigin(path) as origin:
        assert origin.read(ByteRange(start, end)) == CONTENTS[start:end]


def test_a_read_larger_than_one_piece_is_whole(tmp_path):
    contents = os.urandom(20 * 2**20 + 3)
    file = tmp_path / "large.bin"
    file.write_bytes(contents)
    buffer = bytearray(len(contents) - 2)
    with LocalFileOrigin(file) as origin:
        origin.read_into(ByteRange(1, len(contents) - 1), buffer)
    assert buffer == contents[1:-1]


def test_every_byte_and_range_is_counted_also_after_closing(path):
    with LocalFileOrigin(path) as origin:
        assert (origin.bytes_read, origin.ranges_read) == (0, ())
        origin.read(ByteRange(10, 20))
        origin.read(ByteRange(0, 100))
        origin.read(ByteRange(10, 20))
    assert origin.bytes_read == 120
    assert origin.ranges_read == (ByteRange(10, 20), ByteRange(0, 100), ByteRange(10, 20))


def test_closing_twice_is_harmless_and_reading_then_is_refused(path):
    origin = LocalFileOrigin(path)
    origin.close()
    origin.close()
    with pytest.raises(ArtifactError, match="closed"):
        origin.read(ByteRange(0, 1))


def refuse(code, action):
    with pytest.raises(ArtifactError) as caught:
        action()
    assert caught.value.code == code
    assert caught.value.code in REASON_CODES
    return caught.value


@pytest.mark.parametrize("make", ["missing", "folder", "pipe", "nul byte"])
def test_what_is_not_a_readable_file_is_refused_by_name(tmp_path, make):
    where = tmp_path / "thing"
    if make == "folder":
        where.mkdir()
    elif make == "pipe":
        os.mkfifo(where)
    elif make == "nul byte":
        where = tmp_path / "thing\0"
    error = refuse(SOURCE_UNAVAILABLE, lambda: LocalFileOrigin(where))
    assert error.subject == str(where)


def test_another_length_than_expected_is_refused(path):
    refuse(IDENTITY_MISMATCH, lambda: LocalFileOrigin(path, expected_length=len(CONTENTS) + 1))
    with LocalFileOrigin(path, expected_length=len(CONTENTS)) as origin:
        assert origin.length == len(CONTENTS)


def test_ranges_outside_and_buffers_of_another_size_are_refused_unread(path):
    with LocalFileOrigin(path) as origin:
        refuse(MALFORMED, lambda: origin.read(ByteRange(10_000, 10_241)))
        refuse(MALFORMED, lambda: origin.read(ByteRange(0, 2**62)))
        refuse(MALFORMED, lambda: origin.read_into(ByteRange(0, 10), bytearray(9)))
        assert (origin.bytes_read, origin.ranges_read) == (0, ())


def _shrink(path):
    os.truncate(path, 100)


def _grow(path):
    with path.open("ab") as file:
        file.write(b"more")


def _rewrite_in_place(path):
    before = path.stat()
    path.write_bytes(bytes(len(CONTENTS)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def _replace(path):
    other = path.with_name("other")
    other.write_bytes(CONTENTS)
    status = path.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


def _remove(path):
    path.unlink()


@pytest.mark.parametrize("change", [_shrink, _grow, _rewrite_in_place, _replace, _remove])
def test_a_file_that_changed_after_opening_is_refused(path, change):
    with LocalFileOrigin(path) as origin:
        origin.read(ByteRange(0, 10))
        change(path)
        refuse(IDENTITY_MISMATCH, lambda: origin.read(ByteRange(0, 10)))
        assert origin.ranges_read == (ByteRange(0, 10),)


def test_a_file_that_changes_during_a_read_is_refused(path, monkeypatch):
    read = os.preadv

    def read_then_change(*arguments):
        count = read(*arguments)
        _grow(path)
        return count

    with LocalFileOrigin(path) as origin:
        monkeypatch.setattr(os, "preadv", read_then_change)
        refuse(IDENTITY_MISMATCH, lambda: origin.read(ByteRange(0, 10)))


def test_short_reads_are_continued(path, monkeypatch):
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: read(fd, [views[0][:7]], at))
    with LocalFileOrigin(path) as origin:
        assert origin.read(ByteRange(3, 103)) == CONTENTS[3:103]
        assert origin.bytes_read == 100


def test_a_whole_file_is_read_up_to_a_limit_and_no_further(tmp_path):
    path = tmp_path / "settings.json"
    path.write_bytes(b"12345")
    assert read_whole(path, 5) == b"12345"
    with pytest.raises(ModelError, match=r"has 5 B; at most 4 B are read"):
        read_whole(path, 4)
    with pytest.raises(ArtifactError, match="cannot be opened"):
        read_whole(tmp_path / "missing.json", 4)
