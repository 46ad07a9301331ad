"""The origin that arms start: a real process, real requests, and a log that has every byte that left."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferswarm.arms.acquiring import held_bytes
from inferswarm.arms.origin_server import Asked, read_range
from inferswarm.arms.origins import OriginProcess, bytes_of
from inferswarm.artifacts.origins.opening import open_origin
from inferswarm.artifacts.types import ByteRange

CONTENTS = bytes(range(256)) * 5000


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OriginProcess]:
    folder = tmp_path_factory.mktemp("origin")
    (folder / "served").mkdir()
    (folder / "served" / "model.bin").write_bytes(CONTENTS)
    (folder / "secret").write_bytes(b"not this")
    running = OriginProcess(folder / "served", folder / "log")
    yield running
    running.stop()


def get(origin: OriginProcess, path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(origin.address.removeprefix("http://"), timeout=10)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    found = response.status, response.read(), dict(response.getheaders())
    connection.close()
    return found


def test_the_packages_own_client_reads_ranges_and_the_log_has_their_bytes(origin: OriginProcess) -> None:
    before = len(origin.lines())
    with open_origin(origin.url("model.bin")) as opened:
        assert opened.length == len(CONTENTS)
        assert opened.read(ByteRange(1000, 91_000)) == CONTENTS[1000:91_000]
    lines = origin.lines(before)
    assert bytes_of(lines) == 90_000
    assert {line.status for line in lines} == {206}
    assert all(line.sent == line.end - line.start for line in lines if line.method == "GET")


def test_whole_files_odd_ranges_and_other_versions_are_answered_as_http_says(origin: OriginProcess) -> None:
    status, body, headers = get(origin, "/model.bin")
    assert (status, body) == (200, CONTENTS)
    assert get(origin, "/model.bin", Range="bytes=10-19")[:2] == (206, CONTENTS[10:20])
    assert get(origin, "/model.bin", Range=f"bytes={len(CONTENTS)}-")[0] == 416
    same, other = {"If-Range": headers["ETag"]}, {"If-Range": '"another"'}
    assert get(origin, "/model.bin", Range="bytes=0-9", **same)[0] == 206
    assert get(origin, "/model.bin", Range="bytes=0-9", **other)[:2] == (200, CONTENTS)


@pytest.mark.parametrize("path", ["/nothing", "/../secret", "/%2e%2e/secret", "//etc/passwd", "/"])
def test_nothing_outside_of_the_folder_is_served(origin: OriginProcess, path: str) -> None:
    assert get(origin, path)[0] == 404


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        (None, Asked(200, 0, 100)),
        ("bytes=0-0", Asked(206, 0, 1)),
        ("bytes=90-", Asked(206, 90, 100)),
        ("bytes=90-1000", Asked(206, 90, 100)),
        ("bytes=100-", Asked(416, 0, 0)),
        ("bytes=9-3", Asked(416, 0, 0)),
        ("bytes=-5", Asked(200, 0, 100)),
        ("bytes=0-1,4-5", Asked(200, 0, 100)),
        ("lines=0-1", Asked(200, 0, 100)),
    ],
)
def test_ranges_are_read(field: str | None, asked: Asked) -> None:
    assert read_range(field, 100) == asked


def test_a_store_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert held_bytes(tmp_path, "amber") == 0
    blobs = tmp_path / "stores" / "amber" / "blobs" / "sha256" / "ab"
    blobs.mkdir(parents=True)
    (blobs / "cd").write_bytes(b"12345")
    assert held_bytes(tmp_path, "amber") == 5
