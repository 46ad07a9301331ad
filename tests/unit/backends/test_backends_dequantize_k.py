"""Blocks of 256: decoded as the format defines them, number by number."""

import struct
import tracemalloc

import numpy as np
import pytest

from inferswarm.artifacts.gguf_types import ENCODING_BY_NAME, ENCODINGS, READABLE_ENCODINGS
from inferswarm.artifacts.types import ByteRange, TensorRecord
from inferswarm.backends.dequantize import decode_rows, row_bytes
from inferswarm.backends.states import rows_at_once
from inferswarm.errors import ArtifactError, UnsupportedModel

HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where in a block its fp16 scales are."""
SCALE, MINIMUM = 0.0078125, 0.00390625


def record(encoding, rows, columns):
    block = ENCODING_BY_NAME[encoding]
    return TensorRecord(
        name="t",
        encoding=encoding,
        shape=(rows, columns),
        range=ByteRange(0, rows * columns // block.block_size * block.block_bytes),
    )


def random_blocks(encoding, count, seed):
    """Return blocks of random bytes whose fp16 scales are ordinary numbers, some of them negative or zero."""
    generator = np.random.default_rng(seed)
    blocks = []
    for index in range(count):
        block = bytearray(
            generator.integers(0, 256, ENCODING_BY_NAME[encoding].block_bytes, dtype=np.uint8).tobytes()
        )
        for place, value in zip(HALVES[encoding], (SCALE, MINIMUM), strict=False):
            struct.pack_into("<e", block, place, (value, -value, value * 1.5, 0.0)[index % 4])
        blocks.append(bytes(block))
    return blocks


def half(block, place):
    return np.float32(struct.unpack_from("<e", block, place)[0])


def six_bits(packed, index):
    """Return the scale and the minimum of sub-block `index` out of the 12 bytes of a Q4_K or Q5_K block."""
    if index < 4:
        return packed[index] & 63, packed[index + 4] & 63
    scale = (packed[index + 4] & 15) + 16 * (packed[index - 4] >> 6)
    return scale, (packed[index + 4] >> 4) + 16 * (packed[index] >> 6)


def scaled(block, places, scale, value, minimum):
    """Return d · scale · value - dmin · minimum, each product rounded to fp32 in turn."""
    return half(block, places[0]) * np.float32(scale) * np.float32(value) - half(block, places[1]) * np.float32(
        minimum
    )


def q2(block, i):
    scales, quants = block[:16], block[16:80]
    part, within = divmod(i, 128)
    pair, low = scales[i // 16], quants[32 * part + within % 32]
    return scaled(block, (80, 82), pair & 15, (low >> (2 * (within // 32))) & 3, pair >> 4)


def q3(block, i):
    high, quants, packed = block[:32], block[32:96], block[96:108]
    part, within = divmod(i, 128)
    value = (quants[32 * part + within % 32] >> (2 * (within // 32))) & 3
    value -= 0 if (high[within % 32] >> (i // 32)) & 1 else 4
    group = i // 16
    scale = ((packed[group % 8] >> (4 * (group // 8))) & 15) + 16 * (
        (packed[8 + group % 4] >> (2 * (group // 4))) & 3
    )
    return half(block, 108) * np.float32(scale - 32) * np.float32(value)


def q4(block, i):
    scale, minimum = six_bits(block[4:16], i // 32)
    nibble = (block[16 + 32 * (i // 64) + i % 32] >> (4 * (i // 32 % 2))) & 15
    return scaled(block, (0, 2), scale, nibble, minimum)


def q5(block, i):
    scale, minimum = six_bits(block[4:16], i // 32)
    nibble = (block[48 + 32 * (i // 64) + i % 32] >> (4 * (i // 32 % 2))) & 15
    fifth = (block[16 + i % 32] >> (i // 32)) & 1
    return scaled(block, (0, 2), scale, nibble + 16 * fifth, minimum)


def q6(block, i):
    low, high, scales = block[:128], block[128:192], struct.unpack("16b", block[192:208])
    part, within = divmod(i, 128)
    quarter, place = divmod(within, 32)
    nibble = (low[64 * part + 32 * (quarter % 2) + place] >> (4 * (quarter // 2))) & 15
    top = (high[32 * part + place] >> (2 * quarter)) & 3
    return half(block, 208) * np.float32(scales[i // 16]) * np.float32(nibble + 16 * top - 32)


DEFINITIONS = {"Q2_K": q2, "Q3_K": q3, "Q4_K": q4, "Q5_K": q5, "Q6_K": q6}


@pytest.mark.parametrize("encoding", DEFINITIONS)
def test_every_number_is_the_one_that_the_definition_gives(encoding):
    blocks = random_blocks(encoding, 8, seed=len(encoding) + ord(encoding[1]))
    values = decode_rows(record(encoding, 4, 512), b"".join(blocks))
    expected = [[DEFINITIONS[encoding](block, i) for i in range(256)] for block in blocks]
    assert np.array_equal(values, np.array(expected, np.float32).reshape(4, 512))
    assert len(np.unique(values)) > 50


@pytest.mark.parametrize("encoding", DEFINITIONS)
def test_rows_decode_alone_as_they_decode_together(encoding):
    data = b"".join(random_blocks(encoding, 6, seed=1))
    whole = record(encoding, 3, 512)
    size = row_bytes(whole, "m.gguf")
    alone = [decode_rows(whole, data[row * size : (row + 1) * size]) for row in range(3)]
    assert np.array_equal(np.concatenate(alone), decode_rows(whole, data))


@pytest.mark.parametrize("encoding", DEFINITIONS)
@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
def test_a_block_whose_scale_is_no_number_is_refused(encoding, scale):
    block = bytearray(random_blocks(encoding, 1, seed=2)[0])
    struct.pack_into("<e", block, HALVES[encoding][0], scale)
    with pytest.raises(ArtifactError, match="not finite"):
        decode_rows(record(encoding, 1, 256), block)


@pytest.mark.parametrize("encoding", READABLE_ENCODINGS)
def test_decoding_at_once_what_staging_allows_takes_little_memory(encoding):
    rows = rows_at_once(2048)
    wanted = record(encoding, rows, 2048)
    data = bytes(wanted.range.length)
    decode_rows(wanted, data)
    tracemalloc.start()
    try:
        decode_rows(wanted, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20


@pytest.mark.parametrize("encoding", sorted({kind.name for kind in ENCODINGS.values()} - set(READABLE_ENCODINGS)))
def test_every_other_encoding_of_the_format_is_refused_by_name(encoding):
    with pytest.raises(UnsupportedModel) as caught:
        row_bytes(record(encoding, 1, 256), "m.gguf")
    assert (caught.value.field, caught.value.found) == ("the encoding of t", encoding)


@pytest.mark.parametrize("encoding", ["F8_E4M3", "F64", "I64"])
def test_types_of_safetensors_that_are_not_read_are_refused_by_name(encoding):
    stored = TensorRecord(name="t", encoding=encoding, shape=(1, 8), range=ByteRange(0, 8))
    with pytest.raises(UnsupportedModel, match=encoding):
        row_bytes(stored, "model.safetensors")
