"""Where the bytes are: headers, ranges, origins."""

from inferswarm.artifacts.directory import ModelDirectory, open_directory
from inferswarm.artifacts.gguf import GgufHeader, read_gguf
from inferswarm.artifacts.gguf_files import open_gguf
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.safetensors import SafetensorsHeader, read_safetensors
from inferswarm.artifacts.types import ByteRange, ModelFile, ModelObject, ParticipantRequirement, TensorRecord

__all__ = [
    "ByteRange",
    "GgufHeader",
    "LocalFileOrigin",
    "ModelDirectory",
    "ModelFile",
    "ModelObject",
    "ParticipantRequirement",
    "SafetensorsHeader",
    "TensorRecord",
    "open_directory",
    "open_gguf",
    "read_gguf",
    "read_safetensors",
]
