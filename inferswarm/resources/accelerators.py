"""Which accelerators torch can use here, asked in another process so that torch never enters this one.

The probe is a short program for `python -c`; it imports torch if its build can have accelerators at all, asks NVML
for what torch does not tell, and prints one JSON object. A missing torch, a timeout, a crash: each is an unknown
with its reason.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec

from inferswarm.documents import Document, read_json
from inferswarm.errors import DocumentError
from inferswarm.resources.nvml import NvmlReport
from inferswarm.resources.pcie import PcieLink, read_pcie_link, unknown_pcie
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


_NOT_STATED: Fact[str] = unknown("torch states no PCI address")
_NOT_ASKED: Fact[float] = unknown("not asked")
_NOT_ASKED_COUNT: Fact[int] = unknown("not asked")
_NO_PCIE = unknown_pcie("not asked")


class Accelerator(Document, frozen=True, kw_only=True):
    """One accelerator that torch can use; sizes in bytes."""

    kind: AcceleratorKind
    name: str
    uuid: Fact[str]
    """As its maker writes it, without a `GPU-` in front; what its identity is derived from."""
    memory_bytes: Fact[int]
    architecture: Fact[str]
    bus: Fact[str] = _NOT_STATED
    pcie: PcieLink = _NO_PCIE
    """Its link to the rest of the machine, now and at most."""
    power_limit_watts: Fact[float] = _NOT_ASKED
    compute_clock_hertz: Fact[int] = _NOT_ASKED_COUNT
    compute_clock_max_hertz: Fact[int] = _NOT_ASKED_COUNT
    memory_clock_hertz: Fact[int] = _NOT_ASKED_COUNT
    memory_clock_max_hertz: Fact[int] = _NOT_ASKED_COUNT


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
            observed(plain_uuid(uuid), "torch or NVML")
            if uuid
            else unknown("torch states no UUID" + (f"; NVML: {nvml}" if nvml else ""))
        ),
        memory_bytes=observed(size, "torch") if size else unknown("torch states no memory size"),
        architecture=observed(fields["architecture"], "torch") if fields["architecture"] else unknown("not stated"),
        bus=observed(fields["bus"], "torch") if fields.get("bus") else _NOT_STATED,
    )


def plain_uuid(uuid: str) -> str:
    """Return an accelerator's UUID as its identity is derived from it.

    >>> plain_uuid("GPU-1B4E28BA-2FA1-11D2-883F-0016D3CCA427")
    '1b4e28ba-2fa1-11d2-883f-0016d3cca427'
    """
    return uuid.removeprefix("GPU-").lower()


def with_hardware(probe: AcceleratorProbe, nvml: NvmlReport, root: Path = Path("/")) -> AcceleratorProbe:
    """Return the probe with what lies below torch: PCIe links from sysfs, or from NVML; power and clocks from NVML.

    Each value or a reason. A card is found again by its UUID, never by its place in a list.
    """
    return msgspec.structs.replace(
        probe, accelerators=tuple(_with_hardware(card, nvml, root) for card in probe.accelerators)
    )


def _with_hardware(card: Accelerator, nvml: NvmlReport, root: Path) -> Accelerator:
    reason = f"torch states no PCI address of this {card.kind} accelerator"
    pcie = unknown_pcie(reason) if card.bus.value is None else read_pcie_link(card.bus.value, root)
    told = None if card.kind != "cuda" or card.uuid.value is None else nvml.card(card.uuid.value)
    if told is None:
        why = "NVML tells of CUDA cards only" if card.kind != "cuda" else _why_untold(nvml)
        return msgspec.structs.replace(
            card,
            pcie=pcie,
            power_limit_watts=unknown(why),
            compute_clock_hertz=unknown(why),
            compute_clock_max_hertz=unknown(why),
            memory_clock_hertz=unknown(why),
            memory_clock_max_hertz=unknown(why),
        )
    return msgspec.structs.replace(
        card,
        bus=card.bus if card.bus.known else told.bus,
        pcie=_first_known(pcie, told.pcie),
        power_limit_watts=told.power_limit_watts,
        compute_clock_hertz=told.compute_clock_hertz,
        compute_clock_max_hertz=told.compute_clock_max_hertz,
        memory_clock_hertz=told.memory_clock_hertz,
        memory_clock_max_hertz=told.memory_clock_max_hertz,
    )


def _why_untold(nvml: NvmlReport) -> str:
    return f"NVML: {nvml.driver.detail}" if not nvml.driver.known else "NVML tells of no card with this UUID"


def _first_known(first: PcieLink, second: PcieLink) -> PcieLink:
    """Return each fact from the first that has it."""
    facts = {
        name: getattr(first, name) if getattr(first, name).known else getattr(second, name)
        for name in PcieLink.__struct_fields__
    }
    return PcieLink(**facts)
