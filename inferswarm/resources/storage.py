"""Disks that hold a path, such as the artifact store: room, filesystem, the block device behind it, and its kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import psutil

from inferswarm.documents import Document
from inferswarm.resources.types import Fact, observed, unknown

_ESCAPE = re.compile(r"\\([0-7]{3})")
_NOT_ASKED: Fact[str] = unknown("not asked")


class Disk(Document, frozen=True, kw_only=True):
    """The filesystem that holds a path, and what it lies on."""

    path: str
    total_bytes: Fact[int]
    free_bytes: Fact[int]
    filesystem: Fact[str] = _NOT_ASKED
    """Its type, as the kernel names it (`ext4`, `tmpfs`)."""
    mount_point: Fact[str] = _NOT_ASKED
    block_name: Fact[str] = _NOT_ASKED
    """The whole block device that it lies on, as the kernel names it (`nvme0n1`, not the partition)."""
    medium: Fact[str] = _NOT_ASKED
    """`rotational` or `solid state`, as the driver states it; virtual disks state what they like."""
    model: Fact[str] = _NOT_ASKED


class Mount(NamedTuple):
    """One line of mountinfo: where, of what type, and the numbers of the block device (major 0 for none)."""

    point: str
    filesystem: str
    source: str
    numbers: str


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Return the mounts that the text of /proc/PID/mountinfo lists, in its order, and nothing for other lines."""
    found: list[Mount] = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if separator and len(fields) >= 5 and len(rest) >= 2:
            point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
            found.append(Mount(point, rest[0], rest[1], fields[2]))
    return tuple(found)


def find_mount(mounts: tuple[Mount, ...], path: str) -> Mount | None:
    """Return the mount that holds an absolute path: the innermost, and of several on one place the last."""
    holding = [
        mount for mount in mounts if mount.point == "/" or path == mount.point or path.startswith(f"{mount.point}/")
    ]
    return max(enumerate(holding), key=lambda item: (len(item[1].point), item[0]))[1] if holding else None


def read_disk(path: Path, root: Path = Path("/")) -> Disk:
    """Return what holds `path`, or its nearest ancestor that exists. Never raises: what cannot be read is unknown.

    Room is asked of this machine; `root` is where the files of /proc and /sys are read from.
    """
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    total: Fact[int]
    free: Fact[int]
    try:
        usage = psutil.disk_usage(str(existing))
        total, free = (
            observed(int(usage.total), "statvfs"),
            observed(int(usage.free), "statvfs, for unprivileged users"),
        )
    except OSError as error:
        total = free = unknown(f"{path}: {error.strerror}")
    table = root / "proc/self/mountinfo"
    try:
        mount = find_mount(parse_mounts(table.read_text()), str(existing.resolve()))
        reason = f"{table} lists no mount that holds {existing}"
    except OSError as error:
        mount, reason = None, f"{table}: {error.strerror}"
    if mount is None:
        nothing: Fact[str] = unknown(reason)
        filesystem = mount_point = block_name = medium = model = nothing
    else:
        filesystem, mount_point = observed(mount.filesystem, str(table)), observed(mount.point, str(table))
        block_name, medium, model = _block(mount, root)
    return Disk(
        path=str(path),
        total_bytes=total,
        free_bytes=free,
        filesystem=filesystem,
        mount_point=mount_point,
        block_name=block_name,
        medium=medium,
        model=model,
    )


def _block(mount: Mount, root: Path) -> tuple[Fact[str], Fact[str], Fact[str]]:
    """Return name, medium and model of the whole block device below a mount."""
    entry = root / "sys/dev/block" / mount.numbers
    try:
        directory = entry.resolve(strict=True)
    except OSError as error:
        reason = f"{mount.filesystem} on {mount.source} lies on no block device of its own"
        if not mount.numbers.startswith("0:"):
            reason = f"{entry}: {error.strerror}"
        return unknown(reason), unknown(reason), unknown(reason)
    if (directory / "partition").exists():
        directory = directory.parent
    return observed(directory.name, str(entry)), _medium(directory / "queue/rotational"), _text(directory)


def _medium(path: Path) -> Fact[str]:
    try:
        text = path.read_text().strip()
    except OSError as error:
        return unknown(f"{path}: {error.strerror}")
    words = {"0": "solid state", "1": "rotational"}
    return observed(words[text], str(path)) if text in words else unknown(f"{path} holds {text[:20]!r}")


def _text(directory: Path) -> Fact[str]:
    path = directory / "device/model"
    try:
        text = path.read_text(errors="replace").strip()
    except OSError as error:
        return unknown(f"{path}: {error.strerror}")
    return observed(text, str(path)) if text else unknown(f"{path} is empty")
