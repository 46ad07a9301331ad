"""From blocks of bytes to numbers: golden bytes, each value worked out by hand from the layout of the block."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from inferswarm.artifacts.types import ByteRange, TensorRecord
from inferswarm.backends.dequantize import decode_rows, num_rows, row_bytes
from inferswarm.errors import ArtifactError, UnsupportedModel


def record(encoding: str, shape: tuple[int, ...], length: int) -> TensorRecord:
    return TensorRecord(name="blk.0.attn_q.weight", encoding=encoding, shape=shape, range=ByteRange(0, length))


def half(value: float) -> bytes:
    return struct.pack("<e", value)


# Byte i of a 4-bit block holds value i in its low nibble and value i + 16 in its high one.
NIBBLES = bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE, 0xF0, 0x0F, 0x88, 0x77, 0x01, 0x23, 0x45, 0x67])
LOW = [0, 2, 4, 6, 8, 10, 12, 14, 0, 15, 8, 7, 1, 3, 5, 7]
HIGH = [1, 3, 5, 7, 9, 11, 13, 15, 15, 0, 8, 7, 0, 2, 4, 6]


def test_q4_1_is_scale_times_nibble_plus_minimum():
    data = half(0.5) + half(-2.0) + NIBBLES
    expected = [0.5 * nibble - 2.0 for nibble in LOW + HIGH]
    assert decode_rows(record("Q4_1", (1, 32), 20), data).tolist() == [expected]


def test_q4_0_is_scale_times_nibble_less_eight():
    data = half(0.25) + NIBBLES
    expected = [0.25 * (nibble - 8) for nibble in LOW + HIGH]
    assert decode_rows(record("Q4_0", (1, 32), 18), data).tolist() == [expected]


def test_q8_0_is_scale_times_signed_byte():
    values = [0, 1, -1, 127, -128, 2, -2, 64, -64, *range(3, 26)]
    data = half(0.125) + struct.pack("<32b", *values)
    assert decode_rows(record("Q8_0", (1, 32), 34), data).tolist() == [[0.125 * value for value in values]]


def test_q5_0_takes_its_fifth_bits_from_one_word():
    # the word's bit i is the fifth bit of value i; values are scale times (five bits - 16)
    word = 0x0000_8001
    data = half(1.0) + struct.pack("<I", word) + NIBBLES
    bits = [(word >> index) & 1 for index in range(32)]
    expected = [float(nibble + 16 * bit - 16) for nibble, bit in zip(LOW + HIGH, bits, strict=True)]
    assert decode_rows(record("Q5_0", (1, 32), 22), data).tolist() == [expected]


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("F32", struct.pack("<4f", 1.5, -0.0, 3.25, -1e-20)),
        ("F16", b"".join(half(value) for value in (1.5, -0.0, 3.25, 0.0))),
        ("BF16", bytes.fromhex("c03f 0080 5040 0000")),
    ],
)
def test_floats_keep_their_values(encoding, data):
    values = decode_rows(record(encoding, (2, 2), len(data)), data)
    assert values[0].tolist() == [1.5, 0.0]
    assert np.signbit(values[0, 1])
    assert values[1, 0] == 3.25
    assert values.dtype == np.float32


def test_blocks_of_a_row_follow_one_another_and_rows_too():
    blocks = [half(scale) + struct.pack("<32b", *([1] * 32)) for scale in (1.0, 2.0, 3.0, 4.0)]
    values = decode_rows(record("Q8_0", (2, 64), 136), b"".join(blocks))
    assert values.shape == (2, 64)
    assert values[:, ::32].tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_a_block_whose_scale_is_no_number_is_refused(scale):
    data = half(scale) + struct.pack("<32b", *([1] * 32))
    with pytest.raises(ArtifactError, match=r"blk\.0\.attn_q\.weight: encodes numbers that are not finite"):
        decode_rows(record("Q8_0", (1, 32), 34), data)


def test_an_unexpected_encoding_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match=r"the encoding of blk\.0\.attn_q\.weight is 'Q8_K'") as caught:
        row_bytes(record("Q8_K", (1, 256), 292), "model.gguf")
    assert caught.value.found == "Q8_K"


@pytest.mark.parametrize(
    ("shape", "length"),
    [((2, 32), 39), ((2, 33), 40), ((1, 32), 40), ((), 20), ((2, 0), 0)],
    ids=["short", "ragged", "long", "scalar", "empty"],
)
def test_a_range_that_the_shape_does_not_take_is_refused(shape, length):
    with pytest.raises(ArtifactError, match="does not take") as caught:
        row_bytes(record("Q4_1", shape, length), "model.gguf")
    assert caught.value.code == "MALFORMED_ARTIFACT_RECORD"


def test_a_vector_is_one_row():
    assert num_rows(record("F32", (8,), 32)) == 1
    assert row_bytes(record("F32", (8,), 32), "model.gguf") == 32
