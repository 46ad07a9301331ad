"""Which accelerators torch can use here, asked in another process so that torch never enters this one.

The probe is a short program for `python -c`; it imports torch if its build can have accelerators at all, asks NVML
for what torch does not tell, and prints one JSON object. A missing torch, a timeout, a crash: each is an unknown
with its reason.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Literal

from inferswarm.documents import Document, read_json
from inferswarm.errors import DocumentError
from inferswarm.resources.types import Fact, observed, unknown

AcceleratorKind = Literal["cuda", "hip", "xpu", "mps"]

_PROBE = r"""
import importlib.util, json, os, runpy, sys

answer = {"torch": None, "source": "torch.__version__", "reason": "", "accelerators": [], "nvml": ""}
found = answer["accelerators"]


def describe(kind, properties, bus=None, architecture=""):
    uuid = getattr(properties, "uuid", None)
    found.append({
        "kind": kind, "name": properties.name, "memory_bytes": properties.total_memory,
        "uuid": None if uuid is None else str(uuid), "bus": bus, "architecture": architecture,
    })


def ask_torch():
    import torch
    answer["torch"] = torch.__version__
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        card = torch.cuda.get_device_properties(index)
        place = [getattr(card, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
        bus = None if None in place else "%08x:%02x:%02x.0" % tuple(place)
        if torch.version.hip:
            describe("hip", card, bus, getattr(card, "gcnArchName", ""))
        else:
            describe("cuda", card, bus, "sm_%d%d" % (card.major, card.minor))
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        for index in range(torch.xpu.device_count()):
            describe("xpu", torch.xpu.get_device_properties(index))
    if torch.backends.mps.is_available():
        found.append({
            "kind": "mps", "name": "Apple GPU", "memory_bytes": None, "uuid": None, "bus": None, "architecture": "",
        })


def ask_nvml(cards):
    try:
        import pynvml
    except ImportError as error:
        return str(error)
    try:
        pynvml.nvmlInit()
        for card in cards:
            uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(card["bus"].encode()))
            card["uuid"] = uuid.decode() if isinstance(uuid, bytes) else uuid
    except pynvml.NVMLError as error:
        return str(error)
    return ""


spec = importlib.util.find_spec("torch")
build = {}
if spec is not None and spec.origin is not None:
    try:
        build = runpy.run_path(os.path.join(os.path.dirname(spec.origin), "version.py"))
    except (OSError, SyntaxError):
        build = {}  # a layout that is not known here: importing tells
kinds = ("cuda", "hip", "xpu")
if spec is None:
    answer["reason"] = "torch is not installed"
elif sys.platform != "darwin" and "__version__" in build and all(build.get(kind, "") is None for kind in kinds):
    answer["torch"] = build["__version__"]
    answer["source"] = "torch/version.py; not imported, because a build without CUDA, HIP and XPU has no accelerators"
else:
    try:
        ask_torch()
    except (ImportError, OSError) as error:
        answer["reason"] = f"torch cannot be imported: {error}"
nameless = [card for card in found if card["kind"] == "cuda" and card["uuid"] is None and card["bus"]]
if nameless:
    answer["nvml"] = ask_nvml(nameless)
print("\n" + json.dumps(answer))
"""


class Accelerator(Document, frozen=True, kw_only=True):
    """One accelerator that torch can use; sizes in bytes."""

    kind: AcceleratorKind
    name: str
    uuid: Fact[str]
    """As its maker writes it, without a `GPU-` in front; what its identity is derived from."""
    memory_bytes: Fact[int]
    architecture: Fact[str]


class AcceleratorProbe(Document, frozen=True, kw_only=True):
    """What the probe found: the torch build that answered, or why nothing did, and the accelerators."""

    torch_version: Fact[str]
    accelerators: tuple[Accelerator, ...] = ()


def probe_accelerators(python: str = sys.executable, timeout_seconds: float = 60.0) -> AcceleratorProbe:
    """Ask the interpreter `python` which accelerators its torch can use.

    Never raises for what is not there; an answer that does not come or makes no sense is an unknown.
    """
    try:
        finished = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return AcceleratorProbe(torch_version=unknown(f"{python} did not answer within {timeout_seconds:g} s"))
    except OSError as error:
        return AcceleratorProbe(torch_version=unknown(f"{python} cannot be started: {error.strerror}"))
    if finished.returncode != 0:
        last = (finished.stderr.strip().splitlines() or ["no message"])[-1]
        return AcceleratorProbe(torch_version=unknown(f"{python} ended with status {finished.returncode}: {last}"))
    return parse_probe(finished.stdout)


def parse_probe(text: str) -> AcceleratorProbe:
    """Read the last line that the probe printed. An answer that makes no sense gives an unknown."""
    lines = text.strip().splitlines()
    if not lines:
        return AcceleratorProbe(torch_version=unknown("the probe printed nothing"))
    try:
        answer = read_json(lines[-1], "accelerator probe")
        if answer["torch"] is None:
            return AcceleratorProbe(torch_version=unknown(answer["reason"]))
        found = tuple(_accelerator(fields, answer["nvml"]) for fields in answer["accelerators"])
        version: Fact[str] = observed(answer["torch"], answer["source"])
    except (DocumentError, KeyError, TypeError, ValueError) as error:
        return AcceleratorProbe(torch_version=unknown(f"the probe's answer makes no sense: {error!r}"))
    return AcceleratorProbe(torch_version=version, accelerators=found)


def _accelerator(fields: dict[str, Any], nvml: str) -> Accelerator:
    uuid: str | None = fields["uuid"]
    size: int | None = fields["memory_bytes"]
    return Accelerator(
        kind=fields["kind"],
        name=fields["name"],
        uuid=(
            observed(uuid.removeprefix("GPU-").lower(), "torch or NVML")
            if uuid
            else unknown("torch states no UUID" + (f"; NVML: {nvml}" if nvml else ""))
        ),
        memory_bytes=observed(size, "torch") if size else unknown("torch states no memory size"),
        architecture=observed(fields["architecture"], "torch") if fields["architecture"] else unknown("not stated"),
    )
