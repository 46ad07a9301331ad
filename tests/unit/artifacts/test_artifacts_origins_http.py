"""Ranges over HTTP from a real server: exactly the bytes of one version, or an error that says what is wrong."""

import dataclasses
import re
import threading
import time
from datetime import UTC, datetime

import httpx
import msgspec
import pytest

from inferswarm.artifacts.identity import UpstreamObject
from inferswarm.artifacts.origins.http import HttpOrigin
from inferswarm.artifacts.origins.http_answers import read_content_range, read_retry_after, read_validators
from inferswarm.artifacts.origins.http_client import Credentials, HttpClient, HttpSettings, redirect_target
from inferswarm.artifacts.origins.opening import find_origin, open_origin
from inferswarm.artifacts.taxonomy import IDENTITY_MISMATCH, MALFORMED, SOURCE_UNAVAILABLE, UNAUTHORIZED
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, SpecError
from tests.origin_server import Fault, serve_origin

CONTENTS = bytes(range(256)) * 800  # 200 KB
NAME = "folder/model one.bin"
SETTINGS = HttpSettings(
    connect_seconds=2, silence_seconds=2, attempts=4, first_wait_seconds=0.01, longest_wait_seconds=0.05
)


@pytest.fixture
def server(tmp_path):
    file = tmp_path / NAME
    file.parent.mkdir()
    file.write_bytes(CONTENTS)
    with serve_origin(tmp_path) as served:
        yield served


@pytest.fixture(scope="module")
def client():
    with HttpClient(SETTINGS) as made:
        yield made


@pytest.fixture
def opened(server, client):
    """Open the one object, before a fault is injected into what follows."""

    def open_it(*faults, **more):
        origin = HttpOrigin(server.url(NAME), client=client, **more)
        server.inject(NAME, *faults)
        server.clear()
        return origin

    return open_it


def refused(code, action):
    with pytest.raises(ArtifactError) as caught:
        action()
    assert caught.value.code == code
    return caught.value


def test_opening_learns_length_and_version_with_one_byte(server, client):
    with HttpOrigin(server.url(NAME), client=client) as origin:
        etag = server.etag(CONTENTS, "strong")
        assert origin.described == UpstreamObject(uri=server.url(NAME), length=len(CONTENTS), version=f"etag:{etag}")
        assert (origin.length, origin.bytes_read, origin.ranges_read) == (len(CONTENTS), 1, ())
    assert [(request.range, request.bytes_sent) for request in server.log] == [(ByteRange(0, 1), 1)]


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 1), (7, 70_000), (204_799, 204_800), (0, 204_800)])
def test_a_read_gives_exactly_the_bytes_of_the_range_and_asks_for_no_others(server, opened, start, end):
    origin, wanted = opened(), ByteRange(start, end)
    assert origin.read(wanted) == CONTENTS[start:end]
    assert origin.ranges_read == (wanted,)
    assert origin.bytes_read == 1 + end - start
    assert server.bytes_sent() == end - start
    assert all(request.header("if-range") == server.etag(CONTENTS, "strong") for request in server.log)
    assert all(request.header("accept-encoding") == "identity" for request in server.log)


def test_a_stream_comes_in_pieces_of_bounded_size(opened):
    pieces = [bytes(piece) for piece in opened().stream(ByteRange(5, 200_000))]
    assert b"".join(pieces) == CONTENTS[5:200_000]
    assert len(pieces) > 1
    assert max(map(len, pieces)) <= 2**20


def test_an_empty_object_has_no_bytes_and_nothing_is_asked_of_it(server, client, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    with HttpOrigin(server.url("empty"), client=client) as origin:
        assert (origin.length, origin.read(ByteRange(0, 0))) == (0, b"")


def test_ranges_outside_are_refused_without_a_question(server, opened):
    origin = opened()
    refused(MALFORMED, lambda: origin.read(ByteRange(0, len(CONTENTS) + 1)))
    refused(MALFORMED, lambda: origin.read(ByteRange(2**50, 2**51)))
    assert server.log == []


def test_threads_read_at_once_over_the_same_origin(opened):
    origin = opened()
    found = {}
    ranges = [ByteRange(index * 20_000, index * 20_000 + 20_000) for index in range(8)]

    def read(wanted):
        found[wanted] = origin.read(wanted)

    threads = [threading.Thread(target=read, args=(wanted,)) for wanted in ranges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {wanted: CONTENTS[wanted.start : wanted.end] for wanted in ranges}
    assert sorted(origin.ranges_read) == ranges
    assert origin.bytes_read == 160_001


# -- versions --


@pytest.mark.parametrize(
    ("fault", "version", "condition"),
    [
        (Fault(etag="weak"), r'etag:W/"\w{16}"', False),
        (Fault(etag="gzip"), r'etag:"\w{16}"', False),
        (Fault(etag="none"), r"modified:\w{3}, .* GMT", False),
    ],
)
def test_versions_that_no_condition_can_name_are_compared_on_every_answer(server, client, fault, version, condition):
    server.inject(NAME, fault)
    with HttpOrigin(server.url(NAME), client=client) as origin:
        assert re.fullmatch(version, origin.described.version)
        assert origin.read(ByteRange(10, 20)) == CONTENTS[10:20]
        assert all((request.header("if-range") is not None) is condition for request in server.log)
        other = bytes(len(CONTENTS))
        server.inject(NAME, dataclasses.replace(fault, contents=other))
        error = refused(IDENTITY_MISMATCH, lambda: origin.read(ByteRange(10, 20)))
        assert "changed since" in error.reason


def test_the_suffix_of_compression_is_no_part_of_a_version(server, opened):
    origin = opened(Fault(etag="gzip"))
    assert origin.read(ByteRange(0, 9)) == CONTENTS[:9]
    with HttpOrigin(server.url(NAME), origin.described) as again:
        assert again.described == origin.described


def test_an_object_without_any_version_is_described_without_one(server, client):
    server.inject(NAME, Fault(etag="none", modified=False))
    with HttpOrigin(server.url(NAME), client=client) as origin:
        assert origin.described.version is msgspec.UNSET
        assert origin.read(ByteRange(0, 9)) == CONTENTS[:9]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(contents=bytes(len(CONTENTS))),
        Fault(contents=bytes(10)),
        Fault(contents=CONTENTS + b"more"),
        Fault(truncate=100_000, etag="none"),
        Fault(truncate=100_000),
        Fault(etag="alternating"),
        Fault(status=412),
    ],
    ids=["other bytes", "shorter", "longer", "cut and no ETag", "cut", "another ETag", "the server says so"],
)
def test_an_object_that_changed_under_its_name_is_refused(opened, fault):
    origin = opened(fault)
    refused(IDENTITY_MISMATCH, lambda: origin.read(ByteRange(1000, 150_000)))
    assert origin.bytes_read == 1
    assert origin.ranges_read == ()


def test_an_object_that_changes_while_a_stream_is_interrupted_is_not_continued(opened):
    other = bytes(len(CONTENTS))
    origin = opened(Fault(drop_after=70_000, times=1), Fault(contents=other))
    received = bytearray()

    def read():
        for piece in origin.stream(ByteRange(0, 200_000)):
            received.extend(piece)

    refused(IDENTITY_MISMATCH, read)
    assert len(received) > 0
    assert received == CONTENTS[: len(received)]


@pytest.mark.parametrize(
    "change", [{"length": 7}, {"version": 'etag:"other"'}, {"version": "modified:Thu, 01 Jan 1970 00:00:00 GMT"}]
)
def test_another_object_than_the_described_one_is_refused_at_opening(server, change):
    with open_origin(server.url(NAME)) as origin:
        described = origin.described
    with open_origin(server.url(NAME), described) as origin:
        assert origin.described == described
    refused(IDENTITY_MISMATCH, lambda: open_origin(server.url(NAME), msgspec.structs.replace(described, **change)))


# -- what servers do wrong --


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(content_range="bytes 0-9/204800"), "answered 206 with 'bytes 0-9/204800', needed 'bytes 100-"),
        (Fault(content_range="bytes 100-199/*"), r"needed 'bytes 100-199/204800'"),
        (Fault(content_range=""), "answered 206 with 'no range'"),
        (Fault(content_range="lines 1-2/3"), "answered 206 with 'lines 1-2/3'"),
        (Fault(encoding="gzip"), "in the encoding 'gzip'"),
        (Fault(announce=99), "announces 99 B for a range of 100 B"),
        (Fault(announce=5000), "announces 5,000 B for a range of 100 B"),
        (Fault(long_by=3), "sends more than the 100 B"),
        (Fault(status=418), "answered 418"),
        (Fault(status=304), "answered 304"),
        (Fault(status=404), "answered 404"),
        (Fault(status=410), "answered 410"),
    ],
)
def test_a_wrong_answer_is_refused_once_and_none_of_it_is_used(server, opened, fault, words):
    origin = opened(fault)
    error = refused(SOURCE_UNAVAILABLE, lambda: origin.read(ByteRange(100, 200)))
    assert re.search(words, error.reason), error.reason
    assert error.subject == server.url(NAME)
    assert len(server.log) == 1
    assert origin.ranges_read == ()


def test_a_server_that_ignores_ranges_later_is_refused_before_a_body_is_read(server, opened):
    origin = opened(Fault(ignores_range=True))
    error = refused(SOURCE_UNAVAILABLE, lambda: origin.read(ByteRange(100, 200)))
    assert "ignores ranges" in error.reason
    assert [request.header("if-range") is None for request in server.log] == [False, True]
    assert origin.bytes_read == 1


def test_a_server_without_ranges_serves_whole_objects_and_nothing_else(server, client, tmp_path):
    contents = bytes(range(256)) * 40_000  # 10 MB: more than sockets hold
    (tmp_path / NAME).write_bytes(contents)
    server.inject(NAME, Fault(ignores_range=True))
    with HttpOrigin(server.url(NAME), client=client) as origin:
        assert (origin.length, origin.has_ranges, origin.bytes_read) == (len(contents), False, 0)
        assert "ignores ranges" in refused(SOURCE_UNAVAILABLE, lambda: origin.read(ByteRange(0, 9))).reason
        assert origin.bytes_read == 0
        assert origin.read(ByteRange(0, len(contents))) == contents
    assert max(request.bytes_sent for request in server.log[:1]) < len(contents)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(content_range="bytes 0-0/*"), "needed 'bytes 0-0/' and the length"),
        (Fault(content_range="bytes 1-1/9"), "needed 'bytes 0-0/' and the length"),
        (Fault(ignores_range=True, without_length=True), "does not state its length"),
        (Fault(encoding="br"), "in the encoding 'br'"),
    ],
)
def test_an_object_whose_length_or_bytes_are_not_to_be_had_is_refused_at_opening(server, client, fault, words):
    server.inject(NAME, fault)
    error = refused(SOURCE_UNAVAILABLE, lambda: HttpOrigin(server.url(NAME), client=client))
    assert words in error.reason


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_of_access_is_final_and_says_what_could_be_set(server, client, status):
    server.inject(NAME, Fault(status=status))
    error = refused(UNAUTHORIZED, lambda: HttpOrigin(server.url(NAME), client=client))
    assert f"answered {status}: no credentials are sent" in error.reason
    assert len(server.log) == 1


def test_what_is_not_there_is_absent_and_what_is_refused_is_not(server):
    assert find_origin(server.url("nothing")) is None
    error = refused(SOURCE_UNAVAILABLE, lambda: open_origin(server.url("nothing")))
    assert type(error) is ArtifactError
    server.inject("nothing", Fault(status=403))
    refused(UNAUTHORIZED, lambda: find_origin(server.url("nothing")))


# -- what passes --


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500, times=3),
        Fault(status=503, times=2, retry_after="0"),
        Fault(status=429, times=2, retry_after="0"),
        Fault(status=408, times=1),
        Fault(drop_after=0, times=3),
        Fault(short_by=30_000, times=1),
        Fault(announce=120_000, drop_after=50_000, times=1),
        Fault(drop_after=50_000, times=2),
    ],
    ids=["500", "503", "429", "408", "cut at once", "short", "cut", "cut twice"],
)
def test_what_may_pass_is_tried_again_and_goes_on_at_the_byte_that_was_reached(server, opened, fault):
    origin, wanted = opened(fault), ByteRange(30_000, 150_000)
    assert origin.read(wanted) == CONTENTS[30_000:150_000]
    assert origin.ranges_read == (wanted,)
    starts = [request.range.start for request in server.log]
    assert starts[0] == 30_000
    assert len(starts) == fault.times + 1
    # Nothing is received twice: each request begins where the body before it ended for the client.
    assert starts == sorted(starts)
    assert all(request.range.end == 150_000 for request in server.log)
    assert origin.bytes_read == 1 + 120_000


def test_what_does_not_pass_is_given_up_after_a_few_tries(server, opened):
    origin = opened(Fault(status=502))
    error = refused(SOURCE_UNAVAILABLE, lambda: origin.read(ByteRange(0, 9)))
    assert error.reason == "answered 502, 4 times in a row"
    assert len(server.log) == 4


def test_bodies_that_never_grow_are_given_up_and_growing_ones_are_not(opened):
    origin = opened(Fault(drop_after=16_000))
    assert origin.read(ByteRange(0, 160_000)) == CONTENTS[:160_000]
    origin = opened(Fault(drop_after=0))
    refused(SOURCE_UNAVAILABLE, lambda: origin.read(ByteRange(0, 160_000)))


def test_an_origin_asks_again_no_earlier_than_it_is_told(server, opened):
    origin = opened(Fault(status=429, times=1, retry_after="1"))
    began = time.monotonic()
    assert origin.read(ByteRange(0, 9)) == CONTENTS[:9]
    assert time.monotonic() - began >= 1.0  # the least that the field can ask for


def test_a_wait_beyond_the_deadline_is_not_begun(server, opened):
    origin = opened(Fault(status=503, retry_after="3600"))
    error = refused(SOURCE_UNAVAILABLE, lambda: origin.read(ByteRange(0, 9)))
    assert re.match(r"answered 503 and asks to wait 3,600 s; of 120 s, 1\d\d s are left", error.reason)
    assert len(server.log) == 1


def test_one_deadline_holds_over_bytes_that_trickle(server):
    settings = HttpSettings(deadline_seconds=0.3, least_bytes_per_second=10**9, first_wait_seconds=0.01)
    with HttpClient(settings) as client, HttpOrigin(server.url(NAME), client=client) as origin:
        server.inject(NAME, Fault(bytes_per_second=20_000))
        error = refused(SOURCE_UNAVAILABLE, lambda: origin.read(ByteRange(0, 150_000)))
        assert "was not read within 0 s" in error.reason
        assert 1 < origin.bytes_read < 150_000


def test_silence_is_a_broken_connection(server):
    settings = HttpSettings(silence_seconds=0.1, attempts=2, first_wait_seconds=0.01)
    with HttpClient(settings) as client, HttpOrigin(server.url(NAME), client=client) as origin:
        server.inject(NAME, Fault(silent_seconds=0.4))
        error = refused(SOURCE_UNAVAILABLE, lambda: origin.read(ByteRange(0, 9)))
        assert error.reason == "sent nothing for 0.1 s, 2 times in a row"


def test_nobody_who_listens_is_named(client):
    error = refused(SOURCE_UNAVAILABLE, lambda: HttpOrigin("http://127.0.0.1:9/m.bin", client=client))
    assert "could not be connected to" in error.reason


def test_closing_ends_a_read_that_waits_and_refuses_another(server, opened):
    origin = opened(Fault(bytes_per_second=40_000))
    ended = []
    thread = threading.Thread(target=lambda: ended.append(refused(SOURCE_UNAVAILABLE, slow)))

    def slow():
        return origin.read(ByteRange(0, 200_000))

    thread.start()
    while origin.bytes_read < 2:
        time.sleep(0.01)
    origin.close()
    origin.close()
    thread.join(2)
    assert "closed" in ended[0].reason
    assert "closed" in refused(SOURCE_UNAVAILABLE, lambda: origin.read(ByteRange(0, 9))).reason


# -- addresses --


def test_redirects_are_followed_and_credentials_stay_with_their_origin(server, client, tmp_path):
    credentials = Credentials({"Authorization": "Bearer very-secret"}, "set a token")
    other = tmp_path / "other"
    other.mkdir()
    (other / "blob").write_bytes(CONTENTS)
    with serve_origin(other) as elsewhere:
        server.inject(NAME, Fault(redirect="/here?signature=1"))
        server.inject("here", Fault(redirect=elsewhere.url("blob") + "?signature=2"))
        with HttpOrigin(server.url(NAME), client=client, credentials=credentials) as origin:
            assert origin.read(ByteRange(4, 40)) == CONTENTS[4:40]
        assert [request.header("authorization") for request in server.log] == ["Bearer very-secret"] * 4
        assert [request.header("authorization") for request in elsewhere.log] == [None, None]
        assert [request.query for request in elsewhere.log] == ["signature=2"] * 2
        elsewhere.inject("blob", Fault(status=403))
        error = refused(UNAUTHORIZED, lambda: HttpOrigin(server.url(NAME), client=client, credentials=credentials))
        assert "very-secret" not in f"{error} {error!r} {credentials!r}"
        assert "set a token" in error.reason


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("file:///etc/passwd", "redirects to file://; needed http or https"),
        ("ftp://127.0.0.1/x", "redirects to ftp://127.0.0.1; needed http or https"),
        ("http://u:p@127.0.0.1/x", "redirects to http://127.0.0.1"),
        (None, "redirects more than 8 times"),
    ],
)
def test_redirects_to_what_is_not_to_be_asked_are_refused(server, client, target, words):
    server.inject(NAME, Fault(redirect=target or server.url(NAME)))
    error = refused(SOURCE_UNAVAILABLE, lambda: HttpOrigin(server.url(NAME), client=client))
    assert words in error.reason
    assert "u:p" not in str(error)


def test_a_redirect_from_a_protected_address_to_an_open_one_is_refused():
    address = httpx.URL("https://a.org/m")
    assert str(redirect_target(address, "/n", "m")) == "https://a.org/n"
    assert str(redirect_target(httpx.URL("http://a.org/m"), "https://b.org/n", "m")) == "https://b.org/n"
    error = refused(SOURCE_UNAVAILABLE, lambda: redirect_target(address, "http://a.org/m", "m"))
    assert error.reason == "redirects to http://a.org; needed https"


def test_signatures_and_passwords_of_an_address_are_not_shown(server, client):
    error = refused(
        SOURCE_UNAVAILABLE, lambda: HttpOrigin(f"{server.url('gone')}?signature=very-secret", client=client)
    )
    assert error.subject == f"{server.url('gone')}?…"
    with pytest.raises(SpecError, match="without a name and a password") as caught:
        HttpOrigin("http://me:very-secret@127.0.0.1/m.bin", client=client)
    assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize("uri", ["http://", "http://[::1/x", "nowhere://a/b"])
def test_addresses_that_are_none_are_refused(uri):
    with pytest.raises(SpecError):
        open_origin(uri)


# -- fields --


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("bytes 0-9/100", (0, 10, 100)),
        (" bytes 5-5/* ", (5, 6, None)),
        ("bytes */7", (None, None, 7)),
        *((text, None) for text in (None, "", "bytes 0-9", "bytes=0-9/10", "bytes -9/10", "bytes 0-9/10, 2-3/10")),
    ],
)
def test_a_content_range_is_read_or_is_none(text, parsed):
    assert read_content_range(text) == parsed


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("Mon, 30 Nov 2026 12:00:30 GMT", 30.0),
        ("Mon, 30 Nov 2026 11:00:00 GMT", 0.0),
        *((text, None) for text in (None, "", "soon", "-1", "1.5")),
    ],
)
def test_a_wait_is_asked_for_in_seconds_or_by_a_date(text, seconds):
    assert read_retry_after(text, datetime(2026, 11, 30, 12, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(
    ("etag", "version", "condition"),
    [
        ('"a"', 'etag:"a"', '"a"'),
        ('W/"a"', 'etag:W/"a"', None),
        ('"a-gzip"', 'etag:"a"', None),
        ('W/"a--gzip"', 'etag:W/"a"', None),
        ('"a-br"', 'etag:"a"', None),
        ('""', 'etag:""', '""'),
        ("a", None, None),
        ("", None, None),
    ],
)
def test_an_etag_is_a_version_and_only_a_strong_one_is_a_condition(etag, version, condition):
    found = read_validators({"etag": etag})
    assert (found.version, found.condition) == (version, condition)
    assert found.difference(found) is None
