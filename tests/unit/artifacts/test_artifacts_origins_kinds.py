"""Origins of every kind behave alike: local files, file systems of fsspec, a hub."""

import os
import subprocess
import sys
import uuid

import fsspec
import msgspec
import pytest

from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.origins.hub import open_hub_file
from inferswarm.artifacts.origins.opening import find_origin, is_remote, open_origin
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, MALFORMED, SOURCE_UNAVAILABLE, UNAUTHORIZED
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, SpecError
from tests.hub_mirror import Mirror, serve
from tests.origin_server import serve_origin

CONTENTS = bytes(range(256)) * 12_000  # 3 MB: more than one piece
OTHER = bytes(len(CONTENTS))
NAME = "owner/small"


def refused(code, action):
    with pytest.raises(ArtifactError) as caught:
        action()
    assert caught.value.code == code
    return caught.value


@pytest.fixture(params=["path", "file", "http", "memory"])
def place(request, tmp_path):
    """An object of one kind: its name, and what puts other contents under it."""
    path = tmp_path / "an object.bin"
    path.write_bytes(CONTENTS)
    if request.param in ("path", "file"):
        yield path.as_uri() if request.param == "file" else str(path), path.write_bytes
    elif request.param == "memory":
        uri = f"memory://{uuid.uuid4()}/object.bin"
        files, inside = fsspec.core.url_to_fs(uri)
        files.pipe_file(inside, CONTENTS)
        yield uri, lambda contents: files.pipe_file(inside, contents)
        files.rm(inside)
    else:
        with serve_origin(tmp_path) as server:
            yield server.url(path.name), path.write_bytes


def test_every_origin_gives_exact_ranges_counts_them_and_streams_in_pieces(place):
    uri, _ = place
    with open_origin(uri) as origin:
        assert origin.described.length == origin.length == len(CONTENTS)
        assert origin.described.version is not msgspec.UNSET
        assert origin.read(ByteRange(5, 50)) == CONTENTS[5:50]
        assert origin.read(ByteRange(9, 9)) == b""
        before, pieces = origin.bytes_read, []
        for piece in origin.stream(ByteRange(1, 3_000_000)):
            pieces.append(bytes(piece))
        assert b"".join(pieces) == CONTENTS[1:3_000_000]
        assert max(map(len, pieces)) <= 2**20
        assert origin.bytes_read - before == 2_999_999
        assert origin.ranges_read == (ByteRange(5, 50), ByteRange(9, 9), ByteRange(1, 3_000_000))
        refused(MALFORMED, lambda: origin.read(ByteRange(0, len(CONTENTS) + 1)))
        assert len(origin.ranges_read) == 3
    origin.close()
    refused(SOURCE_UNAVAILABLE, lambda: origin.read(ByteRange(0, 9)))


def test_every_origin_refuses_an_object_that_was_replaced(place):
    uri, put = place
    with open_origin(uri) as origin:
        origin.read(ByteRange(0, 9))
        put(OTHER)
        refused(IDENTITY_MISMATCH, lambda: origin.read(ByteRange(10, 20)))
        refused(IDENTITY_MISMATCH, lambda: open_origin(uri, origin.described))
    with open_origin(uri) as origin:
        assert origin.read(ByteRange(0, 9)) == OTHER[:9]


def test_a_local_stream_stops_where_the_file_changed(tmp_path):
    path = tmp_path / "object.bin"
    path.write_bytes(CONTENTS)
    with LocalFileOrigin(path) as origin:
        pieces = origin.stream(ByteRange(0, len(CONTENTS)))
        assert bytes(next(pieces)) == CONTENTS[: 2**20]
        path.write_bytes(OTHER)
        refused(IDENTITY_MISMATCH, lambda: next(pieces))
        assert origin.ranges_read == ()


def test_an_absent_object_is_none_when_it_is_looked_for_and_an_error_when_it_is_opened(tmp_path):
    for uri in (str(tmp_path / "no"), (tmp_path / "no").as_uri(), f"memory://{uuid.uuid4()}/no"):
        assert find_origin(uri) is None
        assert type(refused(SOURCE_UNAVAILABLE, lambda uri=uri: open_origin(uri))) is ArtifactError


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("nowhere://a/b", "a known scheme"),
        ("file://elsewhere/a", "a file of this computer"),
        ("gs://bucket/m.gguf", "the driver of its scheme"),
        ("hf://owner/name", "one file of the repository"),
        ("hf://owner", "hf://owner/name"),
    ],
)
def test_names_that_no_origin_reads_are_refused_by_what_is_wrong(uri, words):
    with pytest.raises(SpecError, match=words):
        open_origin(uri)


def test_an_address_is_no_path_and_a_file_reader_says_so():
    assert [is_remote(uri) for uri in ("a/b", "file:///a", "http://a/b", "s3://a/b", "hf://a/b")] == [
        *(False, False, True, True, True)
    ]
    assert "acquired first" in refused(SOURCE_UNAVAILABLE, lambda: LocalFileOrigin("http://a/m.gguf")).reason


# -- a hub --


@pytest.fixture
def mirror():
    with serve(Mirror()) as served:
        yield served


@pytest.fixture
def hub(mirror, tmp_path):
    def open_it(uri, expected=None):
        return open_hub_file(uri, expected, endpoint=mirror.endpoint, cache=tmp_path / "cache")

    return open_it


def test_a_file_of_a_hub_is_read_at_the_commit_that_its_branch_had(mirror, hub):
    commit = mirror.publish(NAME, {"a b/m.bin": CONTENTS})
    with hub(f"hf://{NAME}/a b/m.bin") as origin:
        assert origin.described.uri == f"hf://{NAME}@{commit}/a b/m.bin"
        assert origin.described.version == f"commit:{commit}"
        mirror.publish(NAME, {"a b/m.bin": OTHER})
        assert origin.read(ByteRange(7, 99)) == CONTENTS[7:99]
        described = origin.described
    with hub(described.uri, described) as again:
        assert again.described == described
    refused(IDENTITY_MISMATCH, lambda: hub(f"hf://{NAME}/a b/m.bin", described))


def test_a_token_goes_to_the_hub_and_not_where_it_redirects_to(mirror, hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    (tmp_path / "m.bin").write_bytes(CONTENTS)
    mirror.publish(NAME, {"m.bin": CONTENTS})
    with serve_origin(tmp_path) as elsewhere:
        mirror.elsewhere = elsewhere.address
        with hub(f"hf://{NAME}/m.bin") as origin:
            assert origin.read(ByteRange(7, 99)) == CONTENTS[7:99]
            assert [request.header("authorization") for request in elsewhere.log] == [None, None]
            assert mirror.authorizations == {"Bearer hf_very_secret"}
            mirror.repositories[NAME].status = 403
            error = refused(UNAUTHORIZED, lambda: origin.read(ByteRange(0, 9)))
            assert "set HF_TOKEN" in error.reason
            assert "very_secret" not in f"{error} {vars(origin)!r}"


def test_what_the_hubs_cache_holds_is_read_there_and_a_dangling_link_is_not(mirror, hub, tmp_path):
    commit = mirror.publish(NAME, {"m.bin": CONTENTS})
    snapshot = tmp_path / "cache" / "models--owner--small" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "m.bin").symlink_to(tmp_path / "gone")
    with hub(f"hf://{NAME}@{commit}/m.bin") as origin:
        assert origin.read(ByteRange(0, 9)) == CONTENTS[:9]
        described = origin.described
    asked = len(mirror.requests)
    (tmp_path / "gone").write_bytes(CONTENTS)
    with hub(f"hf://{NAME}@{commit}/m.bin", described) as origin:
        assert origin.read(ByteRange(0, 9)) == CONTENTS[:9]
        assert origin.described == described
    assert len(mirror.requests) == asked


def test_offline_the_cache_serves_or_the_refusal_names_what_is_missing(mirror, tmp_path):
    commit = mirror.publish(NAME, {"m.bin": CONTENTS, "n.bin": CONTENTS, "o.bin": CONTENTS})
    snapshot = tmp_path / "models--owner--small" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "m.bin").write_bytes(CONTENTS)
    (snapshot / "n.bin").symlink_to(tmp_path / "gone")
    code = (
        "import sys\n"
        "from inferswarm.artifacts.origins.opening import open_origin\n"
        "from inferswarm.artifacts.types import ByteRange\n"
        "from inferswarm.errors import ArtifactError\n"
        "for name in ('m.bin', 'n.bin', 'o.bin'):\n"
        "    try:\n"
        f"        print(open_origin(f'hf://{NAME}@{commit}/{{name}}').read(ByteRange(2, 4)).hex())\n"
        "    except ArtifactError as error:\n"
        "        print(error.reason)\n"
        "assert 'torch' not in sys.modules\n"
    )
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": mirror.endpoint,
        "HF_HUB_CACHE": str(tmp_path),
    }
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found, dangling, missing = child.stdout.splitlines()
    assert found == "0203"
    assert "is a link to nothing" in dangling
    assert missing.startswith("HF_HUB_OFFLINE is set")
    assert mirror.requests == []
