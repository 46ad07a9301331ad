"""The bytes of a frame, exactly, and the refusal of every altered one."""

from __future__ import annotations

import msgspec
import pytest
import xxhash

from inferswarm.errors import WireError
from inferswarm.fabric.frames import (
    MAX_FRAME_BYTES,
    PROTOCOL,
    Address,
    Frame,
    FrameKind,
    Header,
    decode,
    encode,
    frame_bytes,
    plan_prefix,
)
from tests.unit.fabric.fabric_samples import PLAN

ADDRESS = Address("s", 7, "r1", plan_prefix(PLAN))
HEADER = ADDRESS.header(FrameKind.BOUNDARY, 3, position=300, count=2, sample=True, sent_ns=10**12)
PAYLOAD = b"\x00\x01\xfe\xff"
GOLDEN = (
    "9b"  # an array of eleven
    "02"  # protocol
    "a173"  # scope "s"
    "07"  # epoch
    "a27231"  # realization "r1"
    "ac616261626162616261626162"  # twelve digits of the plan's digest
    "03"  # session
    "cd012c"  # position 300
    "02"  # count
    "04"  # BOUNDARY
    "c3"  # sample
    "cf000000e8d4a51000",  # sent_ns
    "0001feff",
    "aca4de94c811d42d",  # xxh3-64 of both, big-endian
)


def with_checksum(head: bytes, payload: bytes = b"") -> list[bytes]:
    return [head, payload, xxhash.xxh3_64_digest(head + payload)]


def code_of(parts: list[bytes]) -> str:
    with pytest.raises(WireError) as caught:
        decode(parts)
    return caught.value.code


def test_a_frame_has_exactly_these_bytes() -> None:
    assert tuple(bytes(part).hex() for part in encode(HEADER, PAYLOAD)) == GOLDEN


def test_golden_bytes_are_read_back() -> None:
    frame = decode([bytes.fromhex(part) for part in GOLDEN])
    assert frame == Frame(HEADER, memoryview(PAYLOAD))
    assert frame.header == Header(PROTOCOL, "s", 7, "r1", "abababababab", 3, 300, 2, 4, True, 10**12)


def test_the_size_of_a_frame_is_that_of_its_parts() -> None:
    assert frame_bytes(encode(HEADER, PAYLOAD)) == len("".join(GOLDEN)) // 2


@pytest.mark.parametrize("payload", [b"", b"x", bytes(4096)], ids=["empty", "one byte", "a page"])
def test_every_payload_comes_back(payload: bytes) -> None:
    frame = decode(encode(HEADER, memoryview(payload)))
    assert bytes(frame.payload) == payload


@pytest.mark.parametrize("part", [0, 1, 2], ids=["header", "payload", "checksum"])
def test_every_flipped_bit_is_noticed(part: int) -> None:
    parts = [bytes.fromhex(item) for item in GOLDEN]
    for bit in range(len(parts[part]) * 8):
        altered = bytearray(parts[part])
        altered[bit // 8] ^= 1 << bit % 8
        frame = [*parts[:part], bytes(altered), *parts[part + 1 :]]
        assert code_of(frame) == "CHECKSUM_MISMATCH", f"bit {bit}"


@pytest.mark.parametrize("part", [0, 1, 2], ids=["header", "payload", "checksum"])
def test_a_truncated_part_is_noticed(part: int) -> None:
    parts = [bytes.fromhex(item) for item in GOLDEN]
    parts[part] = parts[part][:-1]
    assert code_of(parts) == "CHECKSUM_MISMATCH"


@pytest.mark.parametrize("num_parts", [0, 1, 2, 4])
def test_another_number_of_parts_is_malformed(num_parts: int) -> None:
    parts = [bytes.fromhex(item) for item in GOLDEN]
    assert code_of((parts + parts)[:num_parts]) == "MALFORMED_FRAME"


def test_exchanged_parts_are_noticed() -> None:
    head, payload, checksum = (bytes.fromhex(item) for item in GOLDEN)
    assert code_of([payload, head, checksum]) == "CHECKSUM_MISMATCH"


@pytest.mark.parametrize("protocol", [0, PROTOCOL + 1])
def test_another_protocol_is_refused(protocol: int) -> None:
    head = msgspec.msgpack.encode(msgspec.structs.replace(HEADER, protocol=protocol))
    assert code_of(with_checksum(head)) == "PROTOCOL_MISMATCH"


@pytest.mark.parametrize(
    "head",
    [b"", b"\xc1", b"\x90", msgspec.msgpack.encode([1, "s"]), msgspec.msgpack.encode({"protocol": 1})],
    ids=["nothing", "no msgpack", "an empty array", "a short array", "a map"],
)
def test_a_header_that_is_none_is_malformed(head: bytes) -> None:
    assert code_of(with_checksum(head)) == "MALFORMED_FRAME"


def test_a_header_field_of_another_type_is_malformed() -> None:
    fields = list(msgspec.structs.astuple(HEADER))
    fields[6] = "300"
    assert code_of(with_checksum(msgspec.msgpack.encode(fields))) == "MALFORMED_FRAME"


def test_a_payload_that_is_too_long_is_refused_before_it_is_read() -> None:
    payload = bytes(MAX_FRAME_BYTES + 1)  # never touched: the checksum would differ too
    assert code_of([b"", payload, bytes(8)]) == "FRAME_TOO_LONG"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, None),
        ({"scope": "t"}, "WRONG_SCOPE"),
        ({"epoch": 6}, "RETIRED_OR_SUPERSEDED_EPOCH"),
        ({"epoch": 8}, "RETIRED_OR_SUPERSEDED_EPOCH"),
        ({"realization": "r2"}, "WRONG_REALIZATION"),
        ({"plan": "cdcdcdcdcdcd"}, "PLAN_DIGEST_MISMATCH"),
        ({"session": 9, "position": 0, "sent_ns": 1}, None),
    ],
    ids=str,
)
def test_an_address_says_why_a_frame_does_not_belong_to_it(change: dict[str, object], code: str | None) -> None:
    assert ADDRESS.mismatch(msgspec.structs.replace(HEADER, **change)) == code


def test_the_plan_is_named_by_twelve_digits_of_its_digest() -> None:
    assert plan_prefix(PLAN) == "abababababab"
