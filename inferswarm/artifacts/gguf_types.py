"""The type codes of GGUF: metadata values, and how each tensor encoding packs numbers into blocks."""

from __future__ import annotations

from typing import Final, NamedTuple


class Encoding(NamedTuple):
    """One way to store a tensor: `block_size` numbers take `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int


ENCODINGS: Final[dict[int, Encoding]] = {
    0: Encoding("F32", 1, 4),
    1: Encoding("F16", 1, 2),
    2: Encoding("Q4_0", 32, 18),
    3: Encoding("Q4_1", 32, 20),
    6: Encoding("Q5_0", 32, 22),
    7: Encoding("Q5_1", 32, 24),
    8: Encoding("Q8_0", 32, 34),
    10: Encoding("Q2_K", 256, 84),
    11: Encoding("Q3_K", 256, 110),
    12: Encoding("Q4_K", 256, 144),
    13: Encoding("Q5_K", 256, 176),
    14: Encoding("Q6_K", 256, 210),
    15: Encoding("Q8_K", 256, 292),
    16: Encoding("IQ2_XXS", 256, 66),
    17: Encoding("IQ2_XS", 256, 74),
    18: Encoding("IQ3_XXS", 256, 98),
    19: Encoding("IQ1_S", 256, 50),
    20: Encoding("IQ4_NL", 32, 18),
    21: Encoding("IQ3_S", 256, 110),
    22: Encoding("IQ2_S", 256, 82),
    23: Encoding("IQ4_XS", 256, 136),
    24: Encoding("I8", 1, 1),
    25: Encoding("I16", 1, 2),
    26: Encoding("I32", 1, 4),
    27: Encoding("I64", 1, 8),
    28: Encoding("F64", 1, 8),
    29: Encoding("IQ1_M", 256, 56),
    30: Encoding("BF16", 1, 2),
    34: Encoding("TQ1_0", 256, 54),
    35: Encoding("TQ2_0", 256, 66),
    39: Encoding("MXFP4", 32, 17),
    40: Encoding("NVFP4", 64, 36),
    41: Encoding("Q1_0", 128, 18),
}
"""Every encoding by its code in the file. A code that is absent here is refused (so is Q8_1, which exists only
while numbers are multiplied, never in files)."""

ENCODING_BY_NAME: Final[dict[str, Encoding]] = {encoding.name: encoding for encoding in ENCODINGS.values()}

PLAIN_ENCODINGS: Final = ("F32", "F16", "BF16")
"""Numbers one by one; safetensors has the same under the same names. All that norms and biases may be stored in."""
READABLE_ENCODINGS: Final = (
    *PLAIN_ENCODINGS,
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
)
"""Encodings that every backend can turn into numbers."""

BOOL: Final = 7
STRING: Final = 8
ARRAY: Final = 9
SCALARS: Final[dict[int, tuple[str, str]]] = {
    0: ("uint8", "<u1"),
    1: ("int8", "<i1"),
    2: ("uint16", "<u2"),
    3: ("int16", "<i2"),
    4: ("uint32", "<u4"),
    5: ("int32", "<i4"),
    6: ("float32", "<f4"),
    BOOL: ("bool", "<u1"),
    10: ("uint64", "<u8"),
    11: ("int64", "<i8"),
    12: ("float64", "<f8"),
}
"""Metadata values of fixed size: name and numpy's word for the bytes."""
