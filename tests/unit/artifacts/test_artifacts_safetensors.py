"""Safetensors headers: read as the format's own library reads them, anything else refused by key or byte."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save, save_file

from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.safetensors import BITS, read_safetensors
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, ModelError


def read(path):
    with LocalFileOrigin(path) as origin:
        return read_safetensors(origin), origin


def build(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(start=0, end=8, dtype="F32", shape=(2,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


ARRAYS = {
    "float64": np.arange(6, dtype=np.float64).reshape(2, 3),
    "float32": np.arange(6, dtype=np.float32).reshape(1, 2, 3),
    "float16": np.arange(5, dtype=np.float16),
    "int64": np.arange(3, dtype=np.int64),
    "bytes": np.arange(7, dtype=np.uint8),
    "flags": np.array([True, False]),
    "scalar": np.array(3.0, np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "naïve 🙂": np.ones((2, 2), np.float16),
}


def test_files_of_the_library_are_read_as_the_library_reads_them(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file(ARRAYS, path, metadata={"format": "np", "note": "é"})
    header, _ = read(path)
    with safe_open(path, "np") as theirs:
        assert {tensor.name for tensor in header.tensors} == set(theirs.keys())
        assert dict(header.metadata) == theirs.metadata()
        for tensor in header.tensors:
            part = theirs.get_slice(tensor.name)
            assert (list(tensor.shape), tensor.encoding) == (part.get_shape(), part.get_dtype())
    data = path.read_bytes()
    for tensor in header.tensors:
        assert data[tensor.range.start : tensor.range.end] == ARRAYS[tensor.name].tobytes(), tensor.name


def test_only_the_length_and_the_header_are_read(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"large": np.zeros(2**20, np.float32)}, path)
    header, origin = read(path)
    assert header.bytes_read == origin.bytes_read == header.tensors[0].range.start < 200
    assert origin.ranges_read[-1].end == header.tensors[0].range.start


def test_tensors_come_in_the_order_of_their_bytes_whatever_the_order_of_the_header(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(build({"b": entry(8, 16), "a": entry(0, 8)}, bytes(16)))
    header, _ = read(path)
    assert [tensor.name for tensor in header.tensors] == ["a", "b"]
    assert header.model_object().files[0].length == header.length == path.stat().st_size


@pytest.mark.parametrize("dtype", BITS)
def test_every_type_of_the_format_has_the_size_that_the_library_gives_it(tmp_path, dtype):
    size = BITS[dtype]
    good = build({"a": entry(0, size, dtype, (8,))}, bytes(size))
    path = tmp_path / "m.safetensors"
    path.write_bytes(good)
    assert read(path)[0].tensors[0].range == ByteRange(len(good) - size, len(good))
    with safe_open(path, "np") as theirs:
        assert theirs.get_slice("a").get_dtype() == dtype


def test_padding_after_the_header_belongs_to_it(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(build(json.dumps({"a": entry()}).encode() + b"   ", bytes(8)))
    assert read(path)[0].tensors[0].range.length == 8


REFUSALS = {
    "nothing": (b"", "has 0 B"),
    "seven bytes": (b"\x00" * 7, "has 7 B"),
    "a header beyond the end": (build({}, length=100), "announces a header of 100 B (at byte 0); 2 B follow"),
    "an absurd header": (build({}, length=2**63), "at most 100,000,000"),
    "an empty header": (build(b""), "begins with b''"),
    "a pickle": (b"PK\x03\x04" + bytes(60), "announces a header"),
    "an array": (build(b"[]"), "not with '{' (at byte 8)"),
    "not UTF-8": (build(b'{"\xff": 1}'), "not UTF-8: invalid start byte (at byte 10)"),
    "not JSON": (build(b'{"a": }'), "is not JSON"),
    "deep JSON": (build(b'{"a":' + b"[" * 100_000), "is not JSON"),
    "a number without end": (build(b'{"a":' + b"9" * 5000 + b"}"), "is not JSON"),
    "text after the object": (build(b"{} x"), "is not JSON"),
    "a key twice": (build(b'{"a":{},"a":{}}'), "has the key 'a' twice"),
    "NaN": (build(b'{"a": NaN}'), "NaN"),
    "half a character": (build({"\ud800": entry()}, bytes(8)), "not text"),
    "a nameless tensor": (build({"": entry()}, bytes(8)), "is empty"),
    "metadata of numbers": (build({"__metadata__": {"n": 1}}), "__metadata__.n is 1"),
    "metadata of text": (build({"__metadata__": "x"}), "__metadata__ is 'x'"),
    "a tensor that is no object": (build({"a": 1}), "tensor a: found 1"),
    "a field too many": (build({"a": entry() | {"scale": 2}}, bytes(8)), "'scale', 'shape'"),
    "a field too few": (build({"a": {"dtype": "F32", "shape": [2]}}), "needed exactly"),
    "an unknown type": (build({"a": entry(dtype="F7")}, bytes(8)), "dtype is 'F7'"),
    "a type that is no name": (build({"a": entry(dtype=["F32"])}, bytes(8)), "dtype is ['F32']"),
    "a shape of text": (build({"a": entry() | {"shape": ["2"]}}, bytes(8)), "shape is ['2']"),
    "a negative size": (build({"a": entry(shape=(-2,))}, bytes(8)), "shape is [-2]"),
    "a size of true": (build({"a": entry() | {"shape": [True, 2]}}, bytes(8)), "shape is [True, 2]"),
    "a size in fractions": (build({"a": entry() | {"shape": [2.0]}}, bytes(8)), "shape is [2.0]"),
    "too many dimensions": (build({"a": entry(shape=(1,) * 40)}, bytes(8)), "at most 16"),
    "absurd sizes": (build({"a": entry(shape=(2**53 - 1,) * 16)}, bytes(8)), "data_offsets hold 8 B"),
    "one offset": (build({"a": entry() | {"data_offsets": [0]}}, bytes(8)), "two offsets"),
    "offsets that run backwards": (build({"a": entry(8, 0)}, bytes(8)), "are not inside the 8 B"),
    "offsets beyond the end": (build({"a": entry(0, 9)}, bytes(8)), "are not inside the 8 B"),
    "a size that the shape does not give": (build({"a": entry(0, 7)}, bytes(7)), "takes 8 B; data_offsets hold 7 B"),
    "half a byte too many": (build({"a": entry(0, 1, "F4", (3,))}, bytes(1)), "takes 2 B"),
    "an overlap": (build({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)), "tensor b overlaps a"),
    "the same bytes twice": (build({"a": entry(0, 8), "b": entry(0, 8)}, bytes(8)), "tensor b overlaps a"),
    "a hole": (build({"a": entry(0, 8), "b": entry(12, 20)}, bytes(20)), "tensor b leaves a hole after a"),
    "a hole at the start": (build({"a": entry(8, 16)}, bytes(16)), "leaves a hole after the header"),
    "bytes that nothing names": (build({"a": entry()}, bytes(9)), "1 B follow a"),
    "data without tensors": (build({}, bytes(3)), "3 B follow the header"),
    "data cut short": (build({"a": entry()}, bytes(7)), "not inside the 7 B"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_wrong_file_is_refused_naming_the_key_or_the_byte(tmp_path, case):
    data, words = REFUSALS[case]
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        read(path)
    assert words in caught.value.reason
    assert caught.value.source == str(path)


def test_a_header_over_the_limit_is_refused_unread(tmp_path):
    path = tmp_path / "sparse.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001))
        file.truncate(200_000_000)
    with LocalFileOrigin(path) as origin:
        with pytest.raises(ModelError, match="at most 100,000,000"):
            read_safetensors(origin)
        assert origin.bytes_read == 8


GOOD = save({name: ARRAYS[name] for name in ("float32", "float16", "empty")}, metadata={"format": "np"})
edits = st.lists(
    st.one_of(
        st.tuples(st.just("cut"), st.integers(0, len(GOOD)), st.just(b"")),
        st.tuples(st.just("put"), st.integers(0, len(GOOD)), st.binary(min_size=1, max_size=9)),
        st.tuples(st.just("insert"), st.integers(0, len(GOOD)), st.binary(min_size=1, max_size=9)),
        st.tuples(
            st.just("put"),
            st.integers(0, len(GOOD)),
            st.sampled_from([b'"', b"}", b"{", b"]", b",", b"-", b"9", b"e9", b"null", b"\x00", b"\xff"]),
        ),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=600, deadline=None, database=None)
@given(edits=edits)
def test_damaged_files_give_typed_errors_or_what_the_library_reads(tmp_path_factory, edits):
    data = bytearray(GOOD)
    for kind, at, piece in edits:
        if kind == "cut":
            del data[at:]
        else:
            data[at : at + (len(piece) if kind == "put" else 0)] = piece
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(data)
    try:
        header, _ = read(path)
    except (ModelError, ArtifactError):
        return
    with safe_open(path, "np") as theirs:
        found = {name: theirs.get_slice(name) for name in list(theirs.keys())}
        assert {name: (part.get_shape(), part.get_dtype()) for name, part in found.items()} == {
            tensor.name: (list(tensor.shape), tensor.encoding) for tensor in header.tensors
        }
