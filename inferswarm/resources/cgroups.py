"""Which mechanism can enforce a memory envelope here: cgroup v2, cgroup v1, or none and why.

`find_memory_controller` reads /proc/PID/cgroup and /proc/PID/mountinfo, and asks of each candidate directory
whether groups can be made in it: it must be visible, writable, and pass the memory controller on to its children.
It changes nothing. The kernel has the last word when `MemoryController.create` is called.

`effective_memory_limit` is the limit that already lies on a process, from its own group up to the root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from inferswarm.errors import SpecError
from inferswarm.resources.cgroup_view import view_cgroups
from inferswarm.resources.memory_cgroup import MemoryCgroup, MemoryCgroupV1, MemoryCgroupV2, make_group
from inferswarm.resources.types import Fact, observed, unknown

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_V1_NO_LIMIT = 2**62
"""v1 writes 'no limit' as the largest page-aligned 63-bit number, whatever the page size is."""

__all__ = [
    "MemoryCgroup",
    "MemoryCgroupV1",
    "MemoryCgroupV2",
    "MemoryController",
    "Unavailable",
    "effective_memory_limit",
    "find_memory_controller",
]


class Unavailable(NamedTuple):
    """No memory envelope can be enforced here, and why."""

    reason: str

    @property
    def mechanism(self) -> str:
        """Return `none`."""
        return "none"

    @property
    def detail(self) -> str:
        """Return the reason."""
        return self.reason


class MemoryController(NamedTuple):
    """A directory in which memory groups can be made."""

    version: int
    base: Path
    """Where groups are made."""
    own: Path
    """The group that the process was in when it was asked for."""

    @property
    def way_back(self) -> Path:
        """Return the file that a process writes its pid to in order to return to where it came from.

        Not `base`: in the unified hierarchy a group that passes controllers on may hold no process.
        """
        return self.own / "cgroup.procs"

    @property
    def mechanism(self) -> str:
        """Return `cgroup-v1` or `cgroup-v2`, as `MemoryResource.enforcement` states it."""
        return f"cgroup-v{self.version}"

    @property
    def detail(self) -> str:
        """Return the directory that groups are made in."""
        return str(self.base)

    def create(self, name: str, limit_bytes: int) -> MemoryCgroup:
        """Make the group `name` with a limit; swap is switched off where the kernel accounts it.

        Raises SpecError for a name that is taken or no name, and for less than one page; DiscoveryError when the
        kernel refuses.
        """
        if not _NAME.fullmatch(name):
            raise SpecError("cgroup name", name, "letters, digits, '.', '_' and '-', at most 100, no dot first")
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        if limit_bytes < page_bytes:
            raise SpecError(f"cgroup {name}: limit", limit_bytes, f"at least one page, {page_bytes} B")
        if (self.base / name).exists():
            raise SpecError("cgroup name", name, f"a name that is free in {self.base}")
        return make_group(self.base / name, limit_bytes, self.version)

    def find(self, name: str) -> MemoryCgroup | None:
        """Return the group `name` that somebody else has made here, or None. Its limit is read from the kernel."""
        path = self.base / name
        if not name or not path.is_dir():
            return None
        kind = MemoryCgroupV1 if self.version == 1 else MemoryCgroupV2
        limit = (path / ("memory.limit_in_bytes" if self.version == 1 else "memory.max")).read_text().strip()
        return kind(path, int(limit) if limit.isdigit() else _V1_NO_LIMIT, "unknown")

    def remove_abandoned(self, is_abandoned: Callable[[str], bool]) -> tuple[str, ...]:
        """Remove the empty groups here whose names `is_abandoned` accepts, and return their names.

        For what a killed run left behind. Only the caller can tell by its names whether their run is still alive:
        a group is empty too between its creation and the first process in it. Groups with processes stay.
        """
        removed: list[str] = []
        for path in sorted(self.base.iterdir()):
            if path.is_dir() and is_abandoned(path.name):
                try:
                    path.rmdir()
                except OSError:
                    continue  # it holds processes or groups, or is gone already
                removed.append(path.name)
        return tuple(removed)


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text().split())
    except OSError:
        return set()


def _refusal(directory: Path, version: int) -> str | None:
    """Return why no memory group can be made in `directory`, or None when one can."""
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"{directory} is not writable"
    if version == 1:
        return None if (directory / "memory.limit_in_bytes").exists() else f"{directory} has no memory files"
    if not os.access(directory / "cgroup.procs", os.W_OK):
        return f"{directory}/cgroup.procs is not writable, so no process may be moved below it"
    if "memory" not in _words(directory / "cgroup.controllers"):
        return f"{directory}/cgroup.controllers does not offer memory"
    if "memory" not in _words(directory / "cgroup.subtree_control"):
        return f"{directory}/cgroup.subtree_control does not pass memory on to children"
    return None


def find_memory_controller(root: Path = Path("/"), pid: str | int = "self") -> MemoryController | Unavailable:
    """Return where memory groups can be made for processes like `pid`, or why nowhere.

    Unified first, then v1; in each, the innermost directory that allows it (in the unified hierarchy that is an
    ancestor as a rule, because a group with processes of its own cannot pass controllers on).
    """
    view = view_cgroups(root, pid, "memory")
    reasons = [*view.hidden, *view.absent]
    for hierarchy in view.found:
        for directory in hierarchy.groups:
            refusal = _refusal(directory, hierarchy.version)
            if refusal is None:
                return MemoryController(hierarchy.version, directory, hierarchy.own)
            reasons.append(f"cgroup v{hierarchy.version}: {refusal}")
    return Unavailable("; ".join(reasons))


def effective_memory_limit(root: Path = Path("/"), pid: str | int = "self") -> Fact[int] | None:
    """Return the tightest memory limit on a process, in bytes, from its own group up to the root.

    None when none is set in any group that this process can see. Unknown, with the reason, when none is seen and
    not every group could be read. v1's `hierarchical_memory_limit` also covers ancestors outside a container; v2
    tells nothing of those.
    """
    view = view_cgroups(root, pid, "memory")
    limits: list[tuple[int, str]] = []
    unread = list(view.hidden)
    for hierarchy in view.found:
        for directory in hierarchy.groups:
            try:
                limits.extend((value, str(path)) for path, value in _limits_of(directory, hierarchy.version))
            except (OSError, ValueError) as error:
                unread.append(f"{directory}: {error}")
    if limits:
        value, source = min(limits)
        return observed(value, source)
    return unknown("; ".join(unread)) if unread else None


def _limits_of(directory: Path, version: int) -> list[tuple[Path, int]]:
    """Return the limits that one group states, each with its file. Raises OSError or ValueError."""
    if version == 2:
        path = directory / "memory.max"
        if not path.exists():
            return []  # the root group, or a hierarchy without the memory controller
        text = path.read_text().strip()
        return [] if text == "max" else [(path, int(text))]
    path, stat = directory / "memory.limit_in_bytes", directory / "memory.stat"
    found = [(path, int(path.read_text()))]
    for line in stat.read_text().splitlines():
        if line.startswith("hierarchical_memory_limit "):
            found.append((stat, int(line.split()[1])))
    return [(path, value) for path, value in found if value < _V1_NO_LIMIT]
