"""Where in the cgroup hierarchies a process is, as far as it can see: the common ground of memory and CPU limits.

Reads /proc/PID/cgroup and /proc/PID/mountinfo. A controller is looked for in the unified hierarchy (v2) first, then
in the v1 hierarchy that has it; what exists and cannot be seen is told apart from what does not exist.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Hierarchy(NamedTuple):
    """One mounted hierarchy that may have the controller: its mount, and the process's own group in it."""

    version: int
    mount: Path
    own: Path

    @property
    def groups(self) -> tuple[Path, ...]:
        """Return the own group and its ancestors up to the mount, innermost first."""
        chain = [self.own]
        while chain[-1] != self.mount:
            chain.append(chain[-1].parent)
        return tuple(chain)


class CgroupView(NamedTuple):
    """What of the hierarchies a process can see; `hidden` hold it and cannot be read, `absent` are not there."""

    found: tuple[Hierarchy, ...]
    hidden: tuple[str, ...]
    absent: tuple[str, ...] = ()


def view_cgroups(root: Path, pid: str | int, controller: str) -> CgroupView:
    """Return the hierarchies in which a process may be limited by `controller` (`memory`, `cpu`), unified first."""
    process = root / "proc" / str(pid)
    try:
        own = _own_paths((process / "cgroup").read_text(), controller)
        mounts = _mounts((process / "mountinfo").read_text(), controller)
    except (OSError, ValueError) as error:
        return CgroupView((), (f"{process}: {error}",))
    found: list[Hierarchy] = []
    hidden: list[str] = []
    absent: list[str] = []
    for version in (2, 1):
        if version not in own:
            absent.append(f"cgroup v{version}: no {controller} hierarchy")
            continue
        if version not in mounts:
            hidden.append(f"cgroup v{version}: the hierarchy is not mounted")
            continue
        mount_root, mount_point = mounts[version]
        relative = os.path.relpath(own[version], mount_root)
        mount = root / mount_point.lstrip("/")
        directory = mount if relative == "." else mount / relative
        if relative.startswith("..") or not directory.is_dir():
            hidden.append(f"cgroup v{version}: this process's group {own[version]!r} is outside what is mounted")
            continue
        found.append(Hierarchy(version, mount, directory))
    return CgroupView(tuple(found), tuple(hidden), tuple(absent))


def _own_paths(text: str, controller: str) -> dict[int, str]:
    """Return the group paths of /proc/PID/cgroup: 1 for the controller's v1 hierarchy, 2 for the unified one."""
    found: dict[int, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            found[1] = path
        elif controllers == "":
            found[2] = path
    return found


def _mounts(text: str, controller: str) -> dict[int, tuple[str, str]]:
    """Return (root within the hierarchy, mount point) from /proc/PID/mountinfo, keyed as in `_own_paths`."""
    found: dict[int, tuple[str, str]] = {}
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        if not separator:
            continue
        fields, (kind, *rest) = left.split(), right.split()
        if kind == "cgroup2":
            found.setdefault(2, (fields[3], fields[4]))
        elif kind == "cgroup" and rest and controller in rest[-1].split(","):
            found.setdefault(1, (fields[3], fields[4]))
    return found
