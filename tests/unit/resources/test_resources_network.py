from __future__ import annotations

from pathlib import Path

import pytest

from inferswarm.resources.network import read_backing, read_carrier, read_duplex, read_interfaces
from tests.unit.resources.resources_samples import write_file


@pytest.mark.parametrize(("text", "value"), [("full\n", "full"), ("half\n", "half"), ("unknown\n", None), ("", None)])
def test_duplex_is_full_or_half_or_unknown(tmp_path: Path, text: str, value: str | None) -> None:
    write_file(tmp_path, "duplex", text)
    assert read_duplex(tmp_path).value == value


@pytest.mark.parametrize(("text", "value"), [("1\n", "present"), ("0\n", "absent"), ("7", None)])
def test_carrier_is_present_or_absent_or_unknown(tmp_path: Path, text: str, value: str | None) -> None:
    write_file(tmp_path, "carrier", text)
    assert read_carrier(tmp_path).value == value


def test_what_the_kernel_does_not_answer_is_unknown_with_the_file(tmp_path: Path) -> None:
    assert "duplex" in read_duplex(tmp_path).detail
    assert "carrier" in read_carrier(tmp_path).detail
    assert "not there" in read_backing(tmp_path / "eth9").detail


def test_software_interfaces_are_told_from_adapters(tmp_path: Path) -> None:
    (tmp_path / "docker0").mkdir()
    (tmp_path / "eth0" / "device").mkdir(parents=True)
    assert read_backing(tmp_path / "docker0").value == "software"
    assert read_backing(tmp_path / "eth0").value == "adapter"


def test_every_interface_here_has_a_value_or_a_reason() -> None:
    for interface in read_interfaces():
        facts = (interface.duplex, interface.carrier, interface.physical)
        assert all(fact.known or fact.detail not in ("", "not asked") for fact in facts)
