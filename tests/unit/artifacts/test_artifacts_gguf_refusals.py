"""Wrong GGUF files: each is refused by a typed error that names what and where, quickly and without large memory."""

import random
import struct
import time
import tracemalloc

import pytest

from inferswarm.artifacts.gguf import read_gguf
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.errors import ArtifactError, ModelError, UnsupportedModel
from inferswarm.strategies.dense.readers import understand_gguf
from inferswarm.strategies.text.tokenizer import TextCodec
from tests.gguf_bytes import ARRAY, BOOL, STRING, array, example, key, tensor, text, uint32
from tests.models import write_small_llama

HUGE = 2**63


def read_bytes(tmp_path, data):
    path = tmp_path / "file.gguf"
    path.write_bytes(data)
    with LocalFileOrigin(path) as origin:
        return read_gguf(origin)


def nested(depth):
    return array(ARRAY, 1, nested(depth - 1)) if depth else array(0, 1, b"\x01")


REFUSALS = {
    "nothing at all": (b"", "the magic needs 4 B and the file ends at 0"),
    "three bytes": (b"GGU", "the magic"),
    "other magic": (example(magic=b"GGML").build(), "begins with b'GGML'"),
    "garbage": (random.Random(1).randbytes(4096), "this is not a GGUF file"),
    "no counts": (b"GGUF\x03\x00\x00\x00", "the number of tensors"),
    "keys that cannot be there": (example(num_keys=HUGE).build(), "metadata keys are announced"),
    "more keys than there are": (example(num_keys=2).build(), "at byte"),
    "tensors that cannot be there": (example(num_tensors=HUGE).build(), "tensors are announced"),
    "an empty key": (example(keys=(key("", 0, b"\x01"),)).build(), "a metadata key is empty"),
    "a key twice": (example(keys=(key("k", 0, b"\x01"),) * 2).build(), "the metadata key 'k' appears twice"),
    "a key beyond the end": (example(keys=(text("k", HUGE),)).build(), "a metadata key needs"),
    "a key that is not text": (example(keys=(key(b"\xff\xfe", 0, b"\x01"),)).build(), "a metadata key is not UTF-8"),
    "a string beyond the end": (example(keys=(key("k", STRING, text("v", 2**40)),)).build(), "k needs"),
    "a string that is not text": (example(keys=(key("k", STRING, text(b"ok\xc3")),)).build(), "k is not UTF-8"),
    "an unknown value type": (example(keys=(key("k", 13, b""),)).build(), "k has the unknown value type 13"),
    "a bool of 2": (example(keys=(key("k", BOOL, b"\x02"),)).build(), "neither 0 nor 1"),
    "an array of bools with a 2": (example(keys=(key("k", ARRAY, array(BOOL, 2, b"\x01\x02")),)).build(), "neither"),
    "an unknown element type": (example(keys=(key("k", ARRAY, array(99, 1, b"\x01")),)).build(), "value type 99"),
    "an array that cannot be there": (example(keys=(key("k", ARRAY, array(0, 2**20)),)).build(), "k (uint8) needs"),
    "an array of absurd length": (example(keys=(key("k", ARRAY, array(0, HUGE)),)).build(), "elements"),
    "strings that cannot be there": (
        example(keys=(key("k", ARRAY, array(STRING, 2**20)),)).build(),
        "strings of k are announced",
    ),
    "a bad string in an array": (
        example(keys=(key("k", ARRAY, array(STRING, 2, text("a") + text(b"\xff"))),)).build(),
        "k[1] is not UTF-8",
    ),
    "a long string in an array": (
        example(keys=(key("k", ARRAY, array(STRING, 2, text("a") + text("b", 2**50))),)).build(),
        "k[1] needs",
    ),
    "arrays in arrays without end": (example(keys=(key("k", ARRAY, nested(9)),)).build(), "k nests arrays"),
    "an alignment of 3": (example(keys=(key("general.alignment", 4, uint32(3)),)).build(), "needed a power of two"),
    "an alignment of 0": (example(keys=(key("general.alignment", 4, uint32(0)),)).build(), "needed a power of two"),
    "an alignment in words": (
        example(keys=(key("general.alignment", STRING, text("32")),)).build(),
        "general.alignment is '32'",
    ),
    "a tensor without a name": (example(tensors=(tensor("", (8,)),)).build(), "a tensor's name has 0 B"),
    "a tensor with a long name": (example(tensors=(tensor("n" * 65, (8,)),)).build(), "a tensor's name has 65 B"),
    "a tensor twice": (example(tensors=(tensor("a", (8,)), tensor("a", (8,), offset=32))).build(), "a appears twice"),
    "no dimensions": (example(tensors=(tensor("a", ()),)).build(), "tensor a has 0 dimensions"),
    "five dimensions": (example(tensors=(tensor("a", (1, 1, 1, 1, 8)),)).build(), "tensor a has 5 dimensions"),
    "an empty dimension": (example(tensors=(tensor("a", (8, 0)),)).build(), "tensor a has the empty shape (0, 8)"),
    "absurd dimensions": (example(tensors=(tensor("a", (2**63,) * 4),)).build(), "the file ends at"),
    "an unknown encoding": (example(tensors=(tensor("a", (32,), code=4),)).build(), "unknown encoding 4"),
    "rows that do not fill blocks": (example(tensors=(tensor("a", (48, 1), code=3),)).build(), "blocks of 32"),
    "an unaligned tensor": (example(tensors=(tensor("a", (4,), offset=16),)).build(), "not a multiple of 32"),
    "a tensor beyond the end": (example(tensors=(tensor("a", (8,), offset=64),)).build(), "tensor a of shape"),
    "a tensor far beyond the end": (example(tensors=(tensor("a", (8,), offset=2**62),)).build(), "tensor a of shape"),
    "overlapping tensors": (
        example(tensors=(tensor("a", (16,)), tensor("b", (8,), offset=32))).build(),
        "tensors a and b overlap",
    ),
    "data cut short": (example().build()[:-1], "tensor b of shape (8,) in F32 needs bytes"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_wrong_file_is_refused_naming_what_and_where(tmp_path, case):
    data, words = REFUSALS[case]
    with pytest.raises(ModelError) as caught:
        read_bytes(tmp_path, data)
    assert words in caught.value.reason
    assert "at byte" in caught.value.reason
    assert caught.value.source.endswith("file.gguf")


@pytest.mark.parametrize(
    ("version", "field"),
    [
        (1, "GGUF version"),
        (4, "GGUF version"),
        (0, "GGUF version"),
        (0x03000000, "GGUF byte order"),
        (0x01000000, "GGUF byte order"),
    ],
)
def test_versions_and_byte_orders_that_are_not_read_are_refused_by_name(tmp_path, version, field):
    with pytest.raises(UnsupportedModel) as caught:
        read_bytes(tmp_path, example(version=version).build())
    assert caught.value.field == field


def test_a_count_is_never_believed_before_its_bytes_are_there(tmp_path):
    claims = [
        example(num_keys=2**40).build(),
        example(num_tensors=2**40).build(),
        example(keys=(key("k", ARRAY, array(STRING, 2**23)),)).build(),
        example(keys=(key("k", ARRAY, array(12, 2**23)),)).build(),
        example(keys=(key("k", STRING, text("v", 2**33)),)).build(),
    ]
    tracemalloc.start()
    try:
        for data in claims:
            with pytest.raises(ModelError):
                read_bytes(tmp_path, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_a_header_longer_than_its_limit_is_refused_unread(tmp_path):
    path = tmp_path / "sparse.gguf"
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("k", STRING, text("", 300 * 2**20))
    with path.open("wb") as file:
        file.write(data)
        file.truncate(400 * 2**20)
    with LocalFileOrigin(path) as origin:
        with pytest.raises(ModelError, match="longer than"):
            read_gguf(origin)
        assert origin.bytes_read < 2**20


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    return write_small_llama(tmp_path_factory.mktemp("fuzz") / "m.gguf", num_blocks=1).read_bytes()


def understand(path):
    """Do everything that opening a model does with its header."""
    with LocalFileOrigin(path) as origin:
        header = read_gguf(origin)
    understand_gguf(header)
    TextCodec.from_metadata(header.metadata, header.source)


def mutate(data, generator):
    """Flip bits, overwrite words with extreme values, cut, insert or delete; mostly in the header."""
    mutant = bytearray(data)
    for _ in range(generator.choice([1, 1, 2, 5])):
        at = generator.randrange(min(len(mutant), generator.choice([64, 2000, 20_000])))
        match generator.randrange(5):
            case 0:
                mutant[at] ^= 1 << generator.randrange(8)
            case 1:
                mutant[at : at + 8] = struct.pack("<Q", generator.choice([0, 1, 2**31, 2**32, 2**63, 2**64 - 1]))
            case 2:
                del mutant[at:]
            case 3:
                mutant[at:at] = generator.randbytes(generator.randrange(1, 9))
            case 4:
                del mutant[at : at + generator.randrange(1, 9)]
        if not mutant:
            break
    return bytes(mutant)


def test_damaged_files_give_only_typed_errors_and_quickly(tmp_path, small_file):
    generator = random.Random(20_240_607)
    path = tmp_path / "mutant.gguf"
    refused = 0
    for _ in range(1500):
        path.write_bytes(mutate(small_file, generator))
        began = time.process_time()
        try:
            understand(path)
        except (ModelError, ArtifactError):
            refused += 1
        assert time.process_time() - began < 0.5
    assert refused > 700


def test_every_truncation_of_the_header_is_refused(tmp_path, small_file):
    path = tmp_path / "cut.gguf"
    for length in range(0, 9000, 37):
        path.write_bytes(small_file[:length])
        with pytest.raises(ModelError):
            understand(path)
