"""What torch computes on, in which type and with how many threads, and what decides its bits."""

from __future__ import annotations

import ctypes
import re
from typing import Final

import msgspec
import torch

from inferswarm.backends.base import UnitBinding
from inferswarm.errors import SpecError
from inferswarm.resources.accelerators import plain_uuid
from inferswarm.resources.cpuinfo import read_cpu
from inferswarm.resources.identity import accelerator_id

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""The type of every weight, every kept value and every boundary, by representation."""

_TORCH_DEVICES: Final = {"cpu": "cpu", "cuda": "cuda", "hip": "cuda", "xpu": "xpu", "mps": "mps"}
"""Kind of Compute Unit → torch's word for it."""


def torch_device(kind: str, index: int = 0) -> torch.device:
    """Return torch's device for a kind of Compute Unit.

    Raises SpecError when torch has no word for it, or when this build or machine cannot use it.
    """
    name = _TORCH_DEVICES.get(kind)
    if name is None:
        raise SpecError("compute unit kind", kind, f"one of {sorted(_TORCH_DEVICES)}")
    if name == "cpu":
        return torch.device("cpu")
    backend = torch.get_device_module(name)
    if not backend.is_available() or index >= backend.device_count():
        raise SpecError("compute unit", f"{kind} {index}", f"one that torch {torch.__version__} can use here")
    return torch.device(name, index)


def device_of(binding: UnitBinding | msgspec.UnsetType) -> torch.device:
    """Return torch's device for the Compute Unit that an assignment names; the CPU when it names none.

    An accelerator is found by its identity, which its UUID gives: its place in torch's list may change. Raises
    SpecError when this build or machine has no such accelerator.
    """
    if isinstance(binding, msgspec.UnsetType) or binding.kind == "cpu":
        return torch_device("cpu")
    first = torch_device(binding.kind)  # refuses what torch cannot use here at all
    backend = torch.get_device_module(first.type)
    found: list[str] = []
    for index in range(backend.device_count()):
        properties = backend.get_device_properties(index)
        uuid = getattr(properties, "uuid", None)
        identity = "without a UUID" if uuid is None else accelerator_id(binding.kind, plain_uuid(str(uuid)))
        if identity == binding.id:
            return torch_device(binding.kind, index)
        found.append(f"{properties.name} ({identity})")
    raise SpecError("compute unit", binding.id, f"one of the accelerators of torch {torch.__version__} here: {found}")


def finish(device: torch.device) -> None:
    """Wait until a device has done all that it was given; a CPU has at once."""
    if device.type != "cpu":
        torch.get_device_module(device.type).synchronize(device)


def dtype_of(representation: str) -> torch.dtype:
    """Return torch's type of a representation. Raises SpecError for one that this backend does not have."""
    if representation not in DTYPES:
        raise SpecError("representation", representation, f"one of {list(DTYPES)}")
    return DTYPES[representation]


def set_threads(threads: int) -> None:
    """Let torch's operators use `threads` threads from now on. The count is the process's, and decides bits."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def describe_kernels(device: torch.device, *names: str) -> str:
    """Return what decides the bits besides model, tokens and partition, as one line.

    Two executions whose lines differ are never compared bit for bit.
    """
    parts = [f"torch {torch.__version__}", *names]
    if device.type == "cpu":
        parts += [*_library_versions(), torch.backends.cpu.get_cpu_capability(), _cpu_name()]
    else:
        parts.append(f"{device.type} {torch.get_device_module(device.type).get_device_name(device.index)}")
    return "; ".join(parts)


def release_freed_memory() -> None:
    """Give freed memory back to the system, where the C library can: staging must not stay resident."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _library_versions() -> list[str]:
    text = torch.__config__.show()
    found = []
    for label, pattern in (("mkl", r"Math Kernel Library Version (\S+)"), ("onednn", r"MKL-DNN v(\S+)")):
        match = re.search(pattern, text)
        found.append(f"{label} {match.group(1) if match else 'none'}")
    return found


def _cpu_name() -> str:
    name = read_cpu().model_name
    return name.value if name.value is not None else "unknown CPU"
