from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from inferswarm.errors import SpecError
from inferswarm.resources import identity
from tests.unit.resources.resources_samples import write_file

MACHINE_ID = "3d1219c7c4c5404aaa1f6d2a48adfda4"
UUID = "4c4c4544-0042-3510-8054-b7c04f4e3332"


def test_identities_are_these_bytes() -> None:
    host = identity.host_id("salt", MACHINE_ID)
    node = identity.node_id(host)
    assert (host, node, identity.node_id(host, "birch")) == (
        "host-65427e6854e59641",
        "node-9c2e9b198d09f188",
        "node-0766eaf628a8375f",
    )


@pytest.mark.parametrize(
    ("files", "value", "source"),
    [
        ({"etc/machine-id": MACHINE_ID + "\n"}, MACHINE_ID, "etc/machine-id"),
        ({"var/lib/dbus/machine-id": MACHINE_ID}, MACHINE_ID, "var/lib/dbus/machine-id"),
        (
            {"etc/machine-id": "uninitialized\n", "sys/class/dmi/id/product_uuid": UUID.upper()},
            UUID.replace("-", ""),
            "sys/class/dmi/id/product_uuid",
        ),
        (
            {"etc/machine-id": "", "sys/firmware/devicetree/base/serial-number": "10000000a1b2c3d4\0"},
            "10000000a1b2c3d4",
            "sys/firmware/devicetree/base/serial-number",
        ),
        (
            {"etc/machine-id": MACHINE_ID[:31] + "z", "var/lib/dbus/machine-id": MACHINE_ID},
            MACHINE_ID,
            "var/lib/dbus/machine-id",
        ),
    ],
)
def test_the_first_source_that_identifies_the_machine_is_taken(
    tmp_path: Path, files: dict[str, str], value: str, source: str
) -> None:
    for name, text in files.items():
        write_file(tmp_path, name, text)
    found = identity.read_machine_source(tmp_path)
    assert (found.value, found.detail) == (value, str(tmp_path / source))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "uninitialized",
        "0" * 32,
        "f" * 32,
        "03000200-0400-0500-0006-000700080009",
        "short",
        "not a machine id at all",
    ],
)
def test_a_placeholder_identifies_nothing(tmp_path: Path, text: str) -> None:
    write_file(tmp_path, "etc/machine-id", text)
    found = identity.read_machine_source(tmp_path)
    assert not found.known
    assert "etc/machine-id: " in found.detail


def test_without_any_source_every_file_that_was_tried_is_named(tmp_path: Path) -> None:
    found = identity.read_machine_source(tmp_path)
    assert not found.known
    assert found.detail.count("No such file") == 4


def test_the_machine_source_cannot_be_read_from_the_identity() -> None:
    one, other = identity.host_id("a", MACHINE_ID), identity.host_id("b", MACHINE_ID)
    assert one != other
    assert MACHINE_ID[:8] not in one


@pytest.mark.parametrize(("salt", "source"), [("", MACHINE_ID), ("salt", "")])
def test_an_empty_salt_or_source_is_refused(salt: str, source: str) -> None:
    with pytest.raises(SpecError):
        identity.host_id(salt, source)


def test_parts_of_one_host_have_identities_of_their_own() -> None:
    node = identity.node_id("host-1")
    names = [
        node,
        identity.node_id("host-2"),
        identity.node_id("host-1", "birch"),
        identity.node_id("host-1", "oak"),
        identity.cpu_id(node),
        identity.cpu_id(node, 0),
        identity.cpu_id(node, 1),
        identity.ram_id(node),
        identity.ram_id(node, 0),
        identity.accelerator_id("cuda", UUID),
        identity.accelerator_id("hip", UUID),
        identity.vram_id(identity.accelerator_id("cuda", UUID)),
        identity.link_id(node, "node-2", "ethernet"),
        identity.link_id("node-2", node, "ethernet"),
        identity.link_id(node, "node-2", "ethernet", "02:00:00:00:00:01"),
    ]
    assert len(set(names)) == len(names)


def test_joined_names_do_not_collide() -> None:
    assert identity.link_id("ab", "c", "loopback") != identity.link_id("a", "bc", "loopback")


def test_a_random_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    first = identity.load_or_create_host_salt(tmp_path / "state")
    assert identity.load_or_create_host_salt(tmp_path / "state") == first
    assert identity.load_or_create_host_salt(tmp_path / "other") != first
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["host-identity"]


def test_processes_that_ask_at_once_get_the_same_random_identity(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from inferswarm.resources.identity import load_or_create_host_salt\n"
        "sys.stdin.readline()\n"
        "print(load_or_create_host_salt(pathlib.Path(sys.argv[1])))"
    )
    asked = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "state")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in asked:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = {process.communicate(timeout=60)[0].strip() for process in asked}
    assert len(answers) == 1
    assert len(answers.pop()) == 32


def test_a_state_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"state directory: found '.*file/state'"):
        identity.load_or_create_host_salt(tmp_path / "file" / "state")


def test_a_damaged_random_identity_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "host-identity").write_text("garbage")
    with pytest.raises(SpecError, match="32 hexadecimal digits"):
        identity.load_or_create_host_salt(tmp_path)
    assert (tmp_path / "host-identity").read_text() == "garbage"
