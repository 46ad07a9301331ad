from __future__ import annotations

from pathlib import Path

import pytest

from inferswarm.resources.storage import Mount, find_mount, parse_mounts, read_disk
from tests.unit.resources.resources_samples import write_file

MOUNTINFO = (
    "22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw\n"
    "40 22 0:30 / /tmp rw - tmpfs tmpfs rw\n"
    "41 22 259:0 / /srv/models rw - xfs /dev/nvme0n1 rw\n"
    "42 22 0:50 /@ /srv/my\\040disk rw - btrfs /dev/sdb1 rw\n"
    "43 22 8:17 / /srv/models rw - ext4 /dev/sdb1 rw\n"
    "a line of another form\n"
)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("/", "/dev/sda2"),
        ("/srv", "/dev/sda2"),
        ("/srv/modelsets", "/dev/sda2"),
        ("/tmp/x", "tmpfs"),
        ("/srv/my disk/store", "/dev/sdb1"),
        ("/srv/models/a/b", "/dev/sdb1"),  # mounted over the first one
    ],
)
def test_the_mount_of_a_path_is_the_innermost_and_the_latest(path: str, source: str) -> None:
    mount = find_mount(parse_mounts(MOUNTINFO), path)
    assert mount is not None
    assert mount.source == source


def test_no_mount_is_none() -> None:
    assert find_mount((), "/x") is None
    assert find_mount((Mount("/mnt", "ext4", "/dev/sda1", "8:1"),), "/mntx") is None


def block(root: Path, numbers: str, target: str) -> None:
    link = root / "sys/dev/block" / numbers
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(root / target)


def mounted_on(root: Path, numbers: str, kind: str = "ext4") -> None:
    write_file(root, "proc/self/mountinfo", f"22 1 {numbers} / / rw - {kind} /dev/x rw\n")


@pytest.mark.parametrize(("rotational", "medium"), [("0\n", "solid state"), ("1\n", "rotational"), ("yes", None)])
def test_a_partition_lies_on_its_whole_disk(tmp_path: Path, rotational: str, medium: str | None) -> None:
    disk = "sys/devices/pci0/nvme/nvme0/nvme0n1"
    write_file(tmp_path, f"{disk}/nvme0n1p2/partition", "2\n")
    write_file(tmp_path, f"{disk}/queue/rotational", rotational)
    write_file(tmp_path, f"{disk}/device/model", "FAST DISK 1TB   \n")
    block(tmp_path, "259:2", f"{disk}/nvme0n1p2")
    mounted_on(tmp_path, "259:2")
    found = read_disk(Path("/"), tmp_path)
    assert (found.block_name.value, found.medium.value) == ("nvme0n1", medium)
    assert (found.model.value, found.filesystem.value) == ("FAST DISK 1TB", "ext4")
    assert found.mount_point.value == "/"
    assert found.total_bytes.known


def test_a_whole_disk_without_a_model_has_an_unknown_one(tmp_path: Path) -> None:
    write_file(tmp_path, "sys/devices/virtio/vda/queue/rotational", "1\n")
    block(tmp_path, "254:0", "sys/devices/virtio/vda")
    mounted_on(tmp_path, "254:0")
    found = read_disk(Path("/"), tmp_path)
    assert (found.block_name.value, found.medium.value) == ("vda", "rotational")
    assert "device/model" in found.model.detail


def test_a_filesystem_without_a_block_device_says_so(tmp_path: Path) -> None:
    mounted_on(tmp_path, "0:30", "tmpfs")
    found = read_disk(Path("/"), tmp_path)
    assert found.filesystem.value == "tmpfs"
    for fact in (found.block_name, found.medium, found.model):
        assert "no block device of its own" in fact.detail


def test_a_block_device_that_sysfs_does_not_show_is_unknown(tmp_path: Path) -> None:
    mounted_on(tmp_path, "8:1")
    assert "8:1" in read_disk(Path("/"), tmp_path).medium.detail


def test_without_a_table_of_mounts_everything_below_is_unknown(tmp_path: Path) -> None:
    found = read_disk(tmp_path, tmp_path)
    assert found.total_bytes.known  # room is asked of this machine
    assert "mountinfo" in found.filesystem.detail
    write_file(tmp_path, "proc/self/mountinfo", "\n")
    assert "lists no mount" in read_disk(tmp_path, tmp_path).filesystem.detail


def test_this_machine_names_the_filesystem_of_a_directory(tmp_path: Path) -> None:
    found = read_disk(tmp_path)
    assert found.filesystem.known
    assert found.mount_point.known
