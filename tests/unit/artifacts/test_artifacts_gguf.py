"""Good GGUF files: our header reader agrees with the format's own package."""

import struct
import time

import gguf
import pytest

from inferswarm.artifacts.gguf import read_gguf
from inferswarm.artifacts.gguf_types import ENCODINGS
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.types import ByteRange
from tests.gguf_bytes import ARRAY, BOOL, FLOAT32, STRING, UINT64, array, example, key, tensor, text, uint32
from tests.models import write_small_llama


def read(path):
    with LocalFileOrigin(path) as origin:
        return read_gguf(origin)


def read_bytes(tmp_path, data):
    path = tmp_path / "file.gguf"
    path.write_bytes(data)
    return read(path)


def assert_agrees_with_gguf_package(path):
    header, theirs = read(path), gguf.GGUFReader(path)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(header.metadata) == list(fields)
    for name, field in fields.items():
        value = header.metadata[name]
        assert (list(value) if isinstance(value, tuple) else value) == field.contents(), name
    assert header.data_start == theirs.data_offset
    assert header.alignment == theirs.alignment
    assert header.length == path.stat().st_size
    assert len(header.tensors) == len(theirs.tensors)
    for ours, other in zip(header.tensors, theirs.tensors, strict=True):
        assert ours.name == other.name
        assert ours.encoding == other.tensor_type.name
        assert ours.shape == tuple(reversed(other.shape.tolist()))
        assert ours.range == ByteRange(int(other.data_offset), int(other.data_offset + other.n_bytes))


def test_the_real_model_is_read_as_the_gguf_package_reads_it(smollm2_path):
    assert_agrees_with_gguf_package(smollm2_path)


@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_each_encoding_is_placed_as_the_gguf_package_places_it(tmp_path, encoding):
    assert_agrees_with_gguf_package(write_small_llama(tmp_path / "m.gguf", encoding=encoding, num_blocks=1))


def test_the_table_of_encodings_is_that_of_the_gguf_package():
    ours = {code: (encoding.name, encoding.block_size, encoding.block_bytes) for code, encoding in ENCODINGS.items()}
    theirs = {kind.value: (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items() if kind.name != "Q8_1"}
    assert ours.items() <= theirs.items()
    assert {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"} <= {name for name, _, _ in ours.values()}


def test_only_the_header_is_read_and_fast(smollm2_path):
    began = time.process_time()
    with LocalFileOrigin(smollm2_path) as origin:
        header = read_gguf(origin)
    assert time.process_time() - began < 0.5
    assert header.data_start <= origin.bytes_read < 2 * header.data_start
    assert max(part.end for part in origin.ranges_read) < 3 * 2**20


@pytest.mark.parametrize(
    ("code", "raw", "value"),
    [
        (0, b"\xff", 255),
        (1, b"\xff", -1),
        (2, struct.pack("<H", 65535), 65535),
        (3, struct.pack("<h", -2), -2),
        (4, uint32(2**32 - 1), 2**32 - 1),
        (5, struct.pack("<i", -7), -7),
        (FLOAT32, struct.pack("<f", 0.5), 0.5),
        (BOOL, b"\x01", True),
        (BOOL, b"\x00", False),
        (STRING, text("naïve 🙂"), "naïve 🙂"),
        (STRING, text(""), ""),
        (UINT64, struct.pack("<Q", 2**64 - 1), 2**64 - 1),
        (11, struct.pack("<q", -(2**63)), -(2**63)),
        (12, struct.pack("<d", 1e300), 1e300),
        (ARRAY, array(5, 3, struct.pack("<iii", 1, -2, 3)), (1, -2, 3)),
        (ARRAY, array(BOOL, 2, b"\x00\x01"), (False, True)),
        (ARRAY, array(STRING, 2, text("a") + text("")), ("a", "")),
        (ARRAY, array(4, 0), ()),
        (ARRAY, array(ARRAY, 2, array(0, 1, b"\x07") + array(STRING, 1, text("x"))), ((7,), ("x",))),
    ],
)
def test_each_value_type_is_read_with_its_own_python_type(tmp_path, code, raw, value):
    found = read_bytes(tmp_path, example(keys=(key("k", code, raw),)).build()).metadata["k"]
    assert found == value
    assert type(found) is type(value)


def test_version_2_reads_like_version_3(tmp_path):
    two, three = (read_bytes(tmp_path, example(version=version).build()) for version in (2, 3))
    assert (two.version, three.version) == (2, 3)
    assert two.tensors == three.tensors


def test_a_stated_alignment_moves_the_data(tmp_path):
    keys = (key("general.alignment", 4, uint32(256)),)
    tensors = (tensor("a", (8,)), tensor("b", (8,), offset=256))
    header = read_bytes(tmp_path, example(keys=keys, tensors=tensors, data=bytes(288), alignment=256).build())
    assert (header.alignment, header.data_start) == (256, 256)
    assert [record.range.start for record in header.tensors] == [256, 512]


def test_shapes_are_row_major(tmp_path):
    header = read_bytes(tmp_path, example(tensors=(tensor("a", (4, 2, 1, 2)),)).build())
    assert header.tensors[0].shape == (2, 1, 2, 4)


def test_a_file_without_keys_and_tensors_is_a_header(tmp_path):
    header = read_bytes(tmp_path, example(keys=(), tensors=(), data=b"").build())
    assert (dict(header.metadata), header.tensors) == ({}, ())


def test_metadata_cannot_be_changed(tmp_path):
    header = read_bytes(tmp_path, example().build())
    with pytest.raises(TypeError):
        header.metadata["general.architecture"] = "other"


def test_the_object_of_a_header_claims_no_digest(smollm2_path):
    header = read(smollm2_path)
    model_object = header.model_object()
    assert (model_object.uri, model_object.length) == (str(smollm2_path), smollm2_path.stat().st_size)
    assert model_object.hash_known_by == "layout"
    assert model_object.tensors == header.tensors
