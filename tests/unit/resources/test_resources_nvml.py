"""The management library is a module given as a parameter here, because this machine has no card to ask."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inferswarm.documents import read_document, write_document
from inferswarm.resources.accelerators import AcceleratorProbe, with_hardware
from inferswarm.resources.nvml import NvmlReport, probe_nvml, read_nvml
from inferswarm.resources.pcie import parse_generation, read_pcie_link, sysfs_bus
from inferswarm.resources.types import observed, unknown
from tests.unit.resources.resources_samples import make_accelerator, write_file


class NVMLError(Exception):
    """The library's error."""


class FakeNvml(SimpleNamespace):
    """A library with two cards, which counts how often it was opened and closed."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def __init__(self, **changes: Any) -> None:
        self.open = 0
        answers: dict[str, Any] = {
            "nvmlInit": lambda: setattr(self, "open", self.open + 1),
            "nvmlShutdown": lambda: setattr(self, "open", self.open - 1),
            "nvmlSystemGetDriverVersion": lambda: b"550.54",
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda card: f"GPU-ABC{card}",
            "nvmlDeviceGetName": lambda card: b"RTX 3060",
            "nvmlDeviceGetPciInfo": lambda card: SimpleNamespace(busId=b"00000000:0%d:00.0" % (card + 1)),
            "nvmlDeviceGetMemoryInfo": lambda card: SimpleNamespace(total=12 * 2**30),
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda card: 1 + card,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda card: 4,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda card: (16, 1)[card],
            "nvmlDeviceGetMaxPcieLinkWidth": lambda card: 16,
            "nvmlDeviceGetEnforcedPowerLimit": lambda card: 170_500,
            "nvmlDeviceGetPowerManagementLimitConstraints": lambda card: [100_000, 212_000],
            "nvmlDeviceGetClockInfo": lambda card, kind: {1: 1807, 2: 7501}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda card, kind: {1: 2130, 2: 7501}[kind],
        }
        super().__init__(**(answers | changes))


def refuse(*arguments: Any) -> Any:
    raise NVMLError("Not Supported")


def test_everything_is_read_in_plain_units() -> None:
    library = FakeNvml()
    found = read_nvml(library)
    assert found.driver.value == "550.54"
    second = found.card("abc1")
    assert second is not None
    assert (second.name.value, second.bus.value) == ("RTX 3060", "00000000:02:00.0")
    assert (second.pcie.generation.value, second.pcie.width.value) == (2, 1)
    assert (second.pcie.generation_max.value, second.pcie.width_max.value) == (4, 16)
    assert (second.power_limit_watts.value, second.power_limit_max_watts.value) == (170.5, 212.0)
    assert (second.compute_clock_hertz.value, second.memory_clock_hertz.value) == (1_807_000_000, 7_501_000_000)
    assert second.compute_clock_max_hertz.value == 2_130_000_000
    assert second.memory_bytes.value == 12 * 2**30
    assert library.open == 0
    assert read_document(NvmlReport, write_document(found), "test") == found


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetUUID", "uuid"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_watts"),
        ("nvmlDeviceGetClockInfo", "memory_clock_hertz"),
        ("nvmlDeviceGetMemoryInfo", "memory_bytes"),
    ],
)
def test_what_one_call_refuses_is_one_unknown(function: str, field: str) -> None:
    card = read_nvml(FakeNvml(**{function: refuse})).cards[0]
    assert getattr(card, field).detail == f"{function}: Not Supported"
    assert card.name.known


def test_an_older_library_without_a_function_gives_an_unknown() -> None:
    library = FakeNvml()
    del library.nvmlDeviceGetEnforcedPowerLimit
    assert "has no nvmlDeviceGetEnforcedPowerLimit" in read_nvml(library).cards[0].power_limit_watts.detail


def test_a_library_that_cannot_start_or_count_says_so_and_is_closed() -> None:
    assert read_nvml(FakeNvml(nvmlInit=refuse)).driver.detail == "NVML: Not Supported"
    library = FakeNvml(nvmlDeviceGetCount=refuse)
    assert "counts no cards" in read_nvml(library).driver.detail
    assert library.open == 0


def test_a_card_that_cannot_be_opened_is_left_out() -> None:
    def handle(index: int) -> int:
        return refuse() if index == 0 else index

    assert [card.uuid.value for card in read_nvml(FakeNvml(nvmlDeviceGetHandleByIndex=handle)).cards] == ["abc1"]


def test_the_real_library_without_a_driver_is_an_unknown() -> None:
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    found = read_nvml(pynvml)
    assert found.driver.known or found.driver.detail.startswith("NVML")


def test_without_the_module_or_a_driver_nothing_is_started(tmp_path: Path) -> None:
    assert "is not installed" in probe_nvml("/no/such/python", module="no_such_module").driver.detail
    assert "no NVIDIA driver" in probe_nvml("/no/such/python", root=tmp_path, module="json").driver.detail


def answering(tmp_path: Path, script: str) -> str:
    write_file(tmp_path, "proc/driver/nvidia/version", "550")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize(
    ("script", "timeout_seconds", "reason"),
    [
        ("exec sleep 30", 0.2, "did not answer within 0.2 s"),
        ("echo broken >&2; exit 3", 30, "status 3: broken"),
        ("exit 0", 30, "status 0: no message"),
        ("echo '{}'", 30, "is not a NvmlReport"),
    ],
)
def test_an_answer_that_does_not_come_is_an_unknown(
    tmp_path: Path, script: str, timeout_seconds: float, reason: str
) -> None:
    found = probe_nvml(answering(tmp_path, script), timeout_seconds, tmp_path, "json")
    assert reason in found.driver.detail


def test_the_answer_of_the_other_process_is_read(tmp_path: Path) -> None:
    report = read_nvml(FakeNvml())
    (tmp_path / "answer.json").write_text(json.dumps(json.loads(write_document(report))))
    assert probe_nvml(answering(tmp_path, f"cat {tmp_path}/answer.json"), 30, tmp_path, "json") == report


def test_the_program_of_the_other_process_runs_here(tmp_path: Path) -> None:
    """The real interpreter, the real program, the installed library: an unknown without a driver, else cards."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    write_file(tmp_path, "dev/nvidiactl", "")
    found = probe_nvml(sys.executable, 60, tmp_path)
    assert found.driver.known or found.driver.detail.startswith("NVML: ")


CARDS = AcceleratorProbe(
    torch_version=observed("2", "test"),
    accelerators=(make_accelerator("abc1", "RTX 3060"), make_accelerator("f00", "RX 580", "hip")),
)


def test_a_card_is_found_again_by_its_uuid(tmp_path: Path) -> None:
    cuda, hip = with_hardware(CARDS, read_nvml(FakeNvml()), tmp_path).accelerators
    assert (cuda.bus.value, cuda.pcie.width.value) == ("00000000:02:00.0", 1)  # the second card of the library
    assert (cuda.power_limit_watts.value, cuda.compute_clock_max_hertz.value) == (170.5, 2_130_000_000)
    assert hip.power_limit_watts.detail == "NVML tells of CUDA cards only"
    assert "no PCI address" in hip.pcie.width.detail


def test_without_the_library_the_reason_is_on_the_card(tmp_path: Path) -> None:
    card = with_hardware(CARDS, NvmlReport(driver=unknown("no driver")), tmp_path).accelerators[0]
    assert card.power_limit_watts.detail == "NVML: no driver"
    assert (
        with_hardware(CARDS, NvmlReport(driver=observed("550", "t")), tmp_path)
        .accelerators[0]
        .compute_clock_hertz.detail.endswith("no card with this UUID")
    )


RISER = {
    "current_link_speed": "2.5 GT/s PCIe\n",
    "max_link_speed": "16.0 GT/s PCIe\n",
    "current_link_width": "1\n",
    "max_link_width": "16\n",
    "numa_node": "-1\n",
}


def test_the_link_of_a_card_on_a_riser_is_read_from_sysfs(tmp_path: Path) -> None:
    for name, text in RISER.items():
        write_file(tmp_path, f"sys/bus/pci/devices/0000:03:00.0/{name}", text)
    link = read_pcie_link("00000000:03:00.0", tmp_path)
    assert (link.generation.value, link.generation_max.value) == (1, 4)
    assert (link.width.value, link.width_max.value) == (1, 16)
    assert "not known" in link.numa_index.detail


@pytest.mark.parametrize(
    ("text", "generation"),
    [
        ("2.5 GT/s PCIe", 1),
        ("5.0 GT/s PCIe", 2),
        ("8.0 GT/s", 3),
        ("32.0 GT/s PCIe", 5),
        ("64.0 GT/s PCIe", 6),
        ("7 GT/s", None),
        ("Unknown", None),
        ("", None),
    ],
)
def test_generations(text: str, generation: int | None) -> None:
    assert parse_generation(text) == generation


@pytest.mark.parametrize("width", ["0", "255", "-1", "wide", ""])
def test_a_width_that_the_kernel_does_not_know_is_unknown(tmp_path: Path, width: str) -> None:
    write_file(tmp_path, "sys/bus/pci/devices/0000:03:00.0/current_link_width", width)
    assert not read_pcie_link("0000:03:00.0", tmp_path).width.known


@pytest.mark.parametrize("bus", ["", "03:00.0", "0000:03:00", "../../etc", "0000:03:00.9"])
def test_what_is_no_address_is_not_looked_up(tmp_path: Path, bus: str) -> None:
    assert sysfs_bus(bus) is None
    assert "no PCI address" in read_pcie_link(bus, tmp_path).generation.detail
