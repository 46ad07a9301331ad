"""GGUF files for tests: wrong ones, whose every header field can be set to anything, and split ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 6, 7, 8, 9, 10


def text(value: str | bytes, length: int | None = None) -> bytes:
    """Return a string as the format has it; `length` overrides the true one."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data) if length is None else length) + data


def key(name: str | bytes, code: int, value: bytes) -> bytes:
    """Return one metadata entry with raw value bytes."""
    return text(name) + struct.pack("<I", code) + value


def array(code: int, count: int, elements: bytes = b"") -> bytes:
    """Return the bytes of an array value; `count` is what it claims."""
    return struct.pack("<IQ", code, count) + elements


def tensor(name: str | bytes, dimensions: tuple[int, ...], code: int = 0, offset: int = 0) -> bytes:
    """Return one tensor entry; `dimensions` are fastest first, as in the file."""
    sizes = b"".join(struct.pack("<Q", size) for size in dimensions)
    return text(name) + struct.pack("<I", len(dimensions)) + sizes + struct.pack("<IQ", code, offset)


@dataclass
class File:
    """The parts of a file; counts default to the true ones."""

    keys: tuple[bytes, ...] = ()
    tensors: tuple[bytes, ...] = ()
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    num_keys: int | None = None
    num_tensors: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        """Return the file's bytes, padded to the start of the data."""
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        header = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_keys)
        header += b"".join(self.keys) + b"".join(self.tensors)
        return header + bytes(-len(header) % self.alignment) + self.data


def uint32(value: int) -> bytes:
    """Return the bytes of a uint32 value."""
    return struct.pack("<I", value)


def example(**changes: Any) -> File:
    """Return a small good file (one text key, two F32 tensors) with `changes`."""
    good = {
        "keys": (key("general.architecture", STRING, text("llama")),),
        "tensors": (tensor("a", (4, 2)), tensor("b", (8,), offset=32)),
        "data": bytes(range(64)),
    }
    return File(**(good | changes))


def split_model(path: Path, target: Path, num_parts: int) -> list[Path]:
    """Write the model at `path` again in parts beside `target`, with the format's own writer; return the parts.

    As large models are published: the first part holds the metadata and no tensor.
    """
    model = gguf.GGUFReader(path)
    architecture = model.fields["general.architecture"].contents()
    per_part = -(-len(model.tensors) // (num_parts - 1))
    writer = gguf.GGUFWriter(target, architecture, split_max_tensors=per_part, small_first_shard=True)
    for name, field in model.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kinds = field.types
            writer.add_key_value(name, field.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
    for record in model.tensors:
        writer.add_tensor(record.name, record.data, raw_dtype=record.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(target.parent.glob(f"{target.stem}-*-of-*.gguf"))
