"""Where the bytes are: headers, ranges, origins."""

from inferswarm.artifacts.gguf import GgufHeader, read_gguf
from inferswarm.artifacts.origin import LocalFileOrigin
from inferswarm.artifacts.types import ByteRange, ModelObject, ParticipantRequirement, TensorRecord

__all__ = [
    "ByteRange",
    "GgufHeader",
    "LocalFileOrigin",
    "ModelObject",
    "ParticipantRequirement",
    "TensorRecord",
    "read_gguf",
]
