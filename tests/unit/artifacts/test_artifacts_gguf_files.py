"""Split GGUF models: opened from any part as one header; parts that are missing, foreign or miscounted are named."""

import struct
from pathlib import Path

import pytest

from inferswarm.artifacts.gguf import read_gguf
from inferswarm.artifacts.gguf_files import open_gguf, parse_part_name, part_names
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.types import ByteRange
from inferswarm.errors import ArtifactError, ModelError
from tests.gguf_bytes import STRING, example, key, split_model, tensor, text, uint32
from tests.models import write_small_llama

UINT16, INT32 = 2, 5


def split_keys(number, count, num_tensors):
    return (
        key("split.no", UINT16, struct.pack("<H", number)),
        key("split.count", UINT16, struct.pack("<H", count)),
        key("split.tensors.count", INT32, struct.pack("<i", num_tensors)),
    )


MODEL_KEYS = (key("general.architecture", STRING, text("llama")), key("llama.block_count", 4, uint32(2)))


def build_parts(**changes):
    """Return the files of a model of three tensors in three parts, the first without any."""
    parts = [
        example(keys=MODEL_KEYS + split_keys(0, 3, 3), tensors=(), data=b""),
        example(keys=split_keys(1, 3, 3), tensors=(tensor("a", (4, 2)), tensor("b", (8,), offset=32))),
        example(keys=split_keys(2, 3, 3), tensors=(tensor("c", (8,)),), data=bytes(32)),
    ]
    for index, change in changes.items():
        parts[int(index[1:])] = change
    return [part.build() for part in parts]


def write_parts(folder, parts, stem="m"):
    paths = [folder / f"{stem}-{index + 1:05d}-of-{len(parts):05d}.gguf" for index in range(len(parts))]
    for path, data in zip(paths, parts, strict=True):
        path.write_bytes(data)
    return paths


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_a_split_model_is_the_same_from_any_of_its_parts(tmp_path, opened):
    paths = write_parts(tmp_path, build_parts())
    header = open_gguf(paths[opened])
    assert header.source == str(paths[0])
    assert dict(header.metadata) == {"general.architecture": "llama", "llama.block_count": 2}
    assert [(record.name, record.file) for record in header.tensors] == [("a", 1), ("b", 1), ("c", 2)]
    assert [(file.uri, file.length) for file in header.files] == [(str(path), path.stat().st_size) for path in paths]
    assert header.length == header.model_object().length == sum(path.stat().st_size for path in paths)


def test_ranges_count_from_the_start_of_the_tensors_own_file(tmp_path):
    paths = write_parts(tmp_path, build_parts())
    header = open_gguf(paths[0])
    for record in header.tensors:
        with LocalFileOrigin(paths[record.file]) as origin:
            assert record.range in {own.range for own in read_gguf(origin).tensors if own.name == record.name}


def test_parts_of_the_formats_own_writer_say_what_the_whole_model_says(tmp_path):
    whole = write_small_llama(tmp_path / "whole.gguf", num_blocks=2)
    parts = split_model(whole, tmp_path / "parts.gguf", num_parts=4)
    header, one = open_gguf(parts[2]), open_gguf(whole)
    assert [Path(file.uri) for file in header.files] == parts
    assert dict(header.metadata) == dict(one.metadata)
    assert not [record for record in header.tensors if record.file == 0]

    def contents(model):
        found = {}
        for record in model.tensors:
            with LocalFileOrigin(model.files[record.file].uri) as origin:
                found[record.name] = (record.shape, record.encoding, origin.read(record.range))
        return found

    assert contents(header) == contents(one)


def test_only_headers_are_read_and_every_byte_is_counted(tmp_path):
    large = example(keys=split_keys(1, 2, 1), tensors=(tensor("a", (2**18, 8)),), data=bytes(2**23))
    first = example(keys=MODEL_KEYS + split_keys(0, 2, 1), tensors=(), data=b"")
    paths = write_parts(tmp_path, [first.build(), large.build()])
    header = open_gguf(paths[0])
    assert header.bytes_read <= paths[0].stat().st_size + 2**16
    assert header.tensors[0].range == ByteRange(paths[1].stat().st_size - 2**23, paths[1].stat().st_size)


def test_the_real_model_is_one_file_and_its_header_is_what_is_read(smollm2_path):
    header = open_gguf(smollm2_path)
    with LocalFileOrigin(smollm2_path) as origin:
        alone = read_gguf(origin)
        assert header.bytes_read == alone.bytes_read == origin.bytes_read < 3 * 2**20
    assert header.tensors == alone.tensors
    assert [(file.uri, file.length) for file in header.files] == [(str(smollm2_path), header.length)]


@pytest.mark.parametrize("count", [0, 1])
def test_a_file_that_says_it_is_whole_is_whole(tmp_path, count):
    path = tmp_path / "merged.gguf"
    path.write_bytes(example(keys=MODEL_KEYS + split_keys(0, count, 2)).build())
    header = open_gguf(path)
    assert len(header.files) == 1
    assert not [name for name in header.metadata if name.startswith("split.")]


def test_missing_parts_are_named(tmp_path):
    paths = write_parts(tmp_path, build_parts())
    paths[1].unlink()
    with pytest.raises(ArtifactError, match=r"1 of 3 parts are missing: m-00002-of-00003\.gguf") as caught:
        open_gguf(paths[0])
    assert caught.value.code == "SOURCE_OBJECT_UNAVAILABLE"


OTHER = (key("general.architecture", STRING, text("qwen2")),)
WRONG_PARTS = {
    "two first parts": (
        {"p1": example(keys=split_keys(0, 3, 3), tensors=(tensor("a", (8,)),))},
        "split.no is 0, its name says 1",
    ),
    "another count": (
        {"p1": example(keys=split_keys(1, 4, 3), tensors=(tensor("a", (8,)),))},
        "split.count is 4, there are 3",
    ),
    "no part at all": ({"p1": example(keys=(), tensors=(tensor("a", (8,)),))}, "split.no is absent"),
    "another model's metadata": (
        {"p2": example(keys=split_keys(2, 3, 3) + OTHER, tensors=(tensor("c", (8,)),))},
        "general.architecture is not as in the first part",
    ),
    "a tensor twice": (
        {"p2": example(keys=split_keys(2, 3, 3), tensors=(tensor("a", (8,)),))},
        "holds a, which m-00002-of-00003.gguf holds too",
    ),
    "a tensor too few": (
        {"p2": example(keys=split_keys(2, 3, 3), tensors=())},
        "split.tensors.count is 3; the parts hold 2",
    ),
    "another number of tensors": (
        {"p2": example(keys=split_keys(2, 3, 4), tensors=(tensor("c", (8,)),))},
        "split.tensors.count is 4; the parts hold 3",
    ),
    "another version": (
        {"p2": example(keys=split_keys(2, 3, 3), tensors=(tensor("c", (8,)),), version=2)},
        "has GGUF version 2, the first part 3",
    ),
    "a count in words": (
        {"p1": example(keys=(key("split.no", STRING, text("1")),), tensors=(tensor("a", (8,)),))},
        "split.no is '1'",
    ),
}


@pytest.mark.parametrize("case", WRONG_PARTS)
def test_a_wrong_part_is_refused_by_name(tmp_path, case):
    changes, words = WRONG_PARTS[case]
    paths = write_parts(tmp_path, build_parts(**changes))
    with pytest.raises(ModelError) as caught:
        open_gguf(paths[0])
    assert words in caught.value.reason
    # Who is right about the number of tensors cannot be known: the first part that differs from them all is named.
    wrong = 0 if case == "a tensor too few" else int(next(iter(changes))[1:])
    assert caught.value.source == str(paths[wrong])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("m.gguf", "needed a name that ends in -00001-of-00003.gguf"),
        ("m-00001-of-00004.gguf", "is named as part 1 of 4; split.count is 3"),
        ("m-00004-of-00003.gguf", "is named as part 4 of 3"),
        ("m-00000-of-00003.gguf", "is named as part 0 of 3"),
    ],
)
def test_a_part_under_another_name_is_refused(tmp_path, name, words):
    path = tmp_path / name
    path.write_bytes(build_parts()[0])
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    assert words in caught.value.reason


def test_a_file_that_is_only_named_like_a_part_is_refused(tmp_path):
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(example().build())
    with pytest.raises(ModelError, match=r"is named as part 1 of 2; split\.count is absent"):
        open_gguf(path)


def test_an_absurd_number_of_parts_is_refused(tmp_path):
    path = tmp_path / "m-00001-of-09999.gguf"
    path.write_bytes(example(keys=split_keys(0, 9999, 2)).build())
    with pytest.raises(ModelError, match="at most 1,024 parts"):
        open_gguf(path)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("m.gguf", ["m.gguf"]),
        ("m-00002-of-00002.gguf", ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]),
        ("q/m-00001-of-00002.GGUF", ["q/m-00001-of-00002.GGUF", "q/m-00002-of-00002.GGUF"]),
        ("m-00003-of-00002.gguf", ["m-00003-of-00002.gguf"]),
        ("m-1-of-2.gguf", ["m-1-of-2.gguf"]),
    ],
)
def test_the_parts_of_a_name(name, parts):
    assert list(part_names(name)) == parts


def test_a_name_of_another_form_is_no_part():
    assert parse_part_name("m-00001-of-00002.safetensors") is None
    assert parse_part_name("-00001-of-00002.gguf") is None
