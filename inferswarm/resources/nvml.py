"""What NVIDIA's management library tells of its cards: identity, PCIe link, power limit, clocks.

`read_nvml` takes the library's Python module (`pynvml`) as an argument and asks it; `probe_nvml` does so in another
process, because a driver may hang or crash whoever asks. The library is optional: without it, or without a driver,
the report says why it is empty. Clocks and links are what holds at the moment of asking.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inferswarm.documents import Document, read_document
from inferswarm.errors import DocumentError
from inferswarm.resources.pcie import PcieLink
from inferswarm.resources.types import Fact, observed, unknown

MODULE = "pynvml"
_DRIVER_FILES = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg")
"""What is there when a driver is: Linux's own, and the one that Windows lends to Linux."""
_PROGRAM = """
import pynvml
from inferswarm.documents import canonical_bytes
from inferswarm.resources.nvml import read_nvml
print("\\n" + canonical_bytes(read_nvml(pynvml)).decode())
"""
_MEGA = 10**6


class NvmlCard(Document, frozen=True, kw_only=True):
    """One card as the library sees it. Clocks are in hertz, power in watts, memory in bytes."""

    uuid: Fact[str]
    """In lower case, without `GPU-` in front, as torch's is written here."""
    name: Fact[str]
    bus: Fact[str]
    memory_bytes: Fact[int]
    pcie: PcieLink
    power_limit_watts: Fact[float]
    """What is enforced now: the least of all limits that lie on the card."""
    power_limit_max_watts: Fact[float]
    compute_clock_hertz: Fact[int]
    compute_clock_max_hertz: Fact[int]
    memory_clock_hertz: Fact[int]
    memory_clock_max_hertz: Fact[int]


class NvmlReport(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.nvml-report/1"):
    """The driver's version and its cards; an unknown driver says why there are none."""

    driver: Fact[str]
    cards: tuple[NvmlCard, ...] = ()

    def card(self, uuid: str) -> NvmlCard | None:
        """Return the card with this UUID, or None when the library told of none."""
        return next((card for card in self.cards if card.uuid.value == uuid), None)


def read_nvml(nvml: Any) -> NvmlReport:
    """Ask the library, given as its module, for everything. Never raises what the library raises (`NVMLError`)."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NvmlReport(driver=unknown(f"NVML: {error}"))
    try:
        driver = _ask(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion()), "nvmlSystemGetDriverVersion")
        try:
            count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            return NvmlReport(driver=unknown(f"NVML counts no cards: {error}"))
        cards = []
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError:
                continue  # a card that fell off its bus is counted, and cannot be asked
            cards.append(_card(nvml, handle))
        return NvmlReport(driver=driver, cards=tuple(cards))
    finally:
        nvml.nvmlShutdown()


def _card(nvml: Any, handle: Any) -> NvmlCard:
    def number(function: str, *arguments: Any, scale: int = 1) -> Fact[int]:
        return _ask(nvml, lambda: int(getattr(nvml, function)(handle, *arguments)) * scale, function)

    def watts(function: str, pick: Callable[[Any], Any]) -> Fact[float]:
        return _ask(nvml, lambda: int(pick(getattr(nvml, function)(handle))) / 1000, function)

    compute, memory = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM
    return NvmlCard(
        uuid=_ask(
            nvml, lambda: _text(nvml.nvmlDeviceGetUUID(handle)).removeprefix("GPU-").lower(), "nvmlDeviceGetUUID"
        ),
        name=_ask(nvml, lambda: _text(nvml.nvmlDeviceGetName(handle)), "nvmlDeviceGetName"),
        bus=_ask(nvml, lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId), "nvmlDeviceGetPciInfo"),
        memory_bytes=_ask(nvml, lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total), "nvmlDeviceGetMemoryInfo"),
        pcie=PcieLink(
            generation=number("nvmlDeviceGetCurrPcieLinkGeneration"),
            generation_max=number("nvmlDeviceGetMaxPcieLinkGeneration"),
            width=number("nvmlDeviceGetCurrPcieLinkWidth"),
            width_max=number("nvmlDeviceGetMaxPcieLinkWidth"),
            numa_index=unknown("NVML is not asked for it"),
        ),
        power_limit_watts=watts("nvmlDeviceGetEnforcedPowerLimit", lambda limit: limit),
        power_limit_max_watts=watts("nvmlDeviceGetPowerManagementLimitConstraints", lambda limits: limits[1]),
        compute_clock_hertz=number("nvmlDeviceGetClockInfo", compute, scale=_MEGA),
        compute_clock_max_hertz=number("nvmlDeviceGetMaxClockInfo", compute, scale=_MEGA),
        memory_clock_hertz=number("nvmlDeviceGetClockInfo", memory, scale=_MEGA),
        memory_clock_max_hertz=number("nvmlDeviceGetMaxClockInfo", memory, scale=_MEGA),
    )


def _ask(nvml: Any, question: Callable[[], Any], name: str) -> Fact[Any]:
    try:
        return observed(question(), name)
    except nvml.NVMLError as error:
        return unknown(f"{name}: {error}")
    except AttributeError:
        return unknown(f"this {MODULE} has no {name}")


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def probe_nvml(
    python: str = sys.executable, timeout_seconds: float = 20.0, root: Path = Path("/"), module: str = MODULE
) -> NvmlReport:
    """Ask the library in another process (`python` must have this package). An answer that does not come says why.

    Starts nothing where the library is not installed or no driver is there.
    """
    if importlib.util.find_spec(module) is None:
        return NvmlReport(driver=unknown(f"NVML's Python module {module} is not installed"))
    if not any((root / name).exists() for name in _DRIVER_FILES):
        return NvmlReport(driver=unknown("no NVIDIA driver is loaded: none of " + ", ".join(_DRIVER_FILES)))
    try:
        finished = subprocess.run(
            [python, "-c", _PROGRAM], capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return NvmlReport(driver=unknown(f"NVML did not answer within {timeout_seconds:g} s"))
    except OSError as error:
        return NvmlReport(driver=unknown(f"{python} cannot be started: {error.strerror}"))
    lines = finished.stdout.strip().splitlines()
    if finished.returncode != 0 or not lines:
        last = (finished.stderr.strip().splitlines() or ["no message"])[-1]
        return NvmlReport(driver=unknown(f"asking NVML ended with status {finished.returncode}: {last}"))
    try:
        return read_document(NvmlReport, lines[-1], "NVML's report")
    except DocumentError as error:
        return NvmlReport(driver=unknown(str(error)))
