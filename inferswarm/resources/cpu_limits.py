"""How many CPUs processes here may use: what the affinity allows, and the quota that a cgroup sets beside it.

A quota limits time, not which CPUs: a group with a quota of 1.5 CPUs may run on sixteen, and is stopped for the rest
of each period once it has used its share. More busy threads than the quota are therefore stopped together.
"""

from __future__ import annotations

import os
from pathlib import Path

from inferswarm.resources.cgroup_view import view_cgroups
from inferswarm.resources.types import Fact, observed, unknown

_AFFINITY = "the affinity of this process"


def effective_cpu_quota(root: Path = Path("/"), pid: str | int = "self") -> Fact[float] | None:
    """Return the tightest CPU quota on a process, in CPUs, from its own group up to the root.

    None when none is set in any group that this process can see; unknown, with the reason, when none is seen and
    not every group could be read.
    """
    view = view_cgroups(root, pid, "cpu")
    quotas: list[tuple[float, str]] = []
    unread = list(view.hidden)
    for hierarchy in view.found:
        for directory in hierarchy.groups:
            try:
                quota = _quota_of(directory, hierarchy.version)
            except (OSError, ValueError, ZeroDivisionError) as error:
                unread.append(f"{directory}: {error}")
                continue
            if quota is not None:
                quotas.append(quota)
    if quotas:
        value, source = min(quotas)
        return observed(value, source)
    return unknown("; ".join(unread)) if unread else None


def _quota_of(directory: Path, version: int) -> tuple[float, str] | None:
    """Return the quota that one group states in CPUs, with its file; None for no quota."""
    if version == 2:
        path = directory / "cpu.max"
        if not path.exists():
            return None  # the root group, or a hierarchy without the cpu controller
        quota, period = path.read_text().split()
        return None if quota == "max" else (_positive(quota) / _positive(period), str(path))
    path = directory / "cpu.cfs_quota_us"
    quota = path.read_text().strip()
    if quota == "-1":
        return None
    return _positive(quota) / _positive((directory / "cpu.cfs_period_us").read_text()), str(path)


def _positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise ValueError(f"{number} is no share of time")
    return number


def allowed_cpus() -> tuple[int, ...]:
    """Return the logical CPUs that this process may run on, ascending: its affinity, within the cpuset."""
    return tuple(sorted(os.sched_getaffinity(0)))


def usable_cpus(quota: Fact[float] | None, affinity: int | None = None) -> Fact[int]:
    """Return how many CPUs processes here can keep busy: the affinity's, or the quota's whole CPUs when fewer.

    `affinity` is the number of CPUs that may be run on (default: this process's; the kernel keeps it within the
    cpuset). At least one, because a fraction of a CPU still runs one thread. A quota that cannot be read does not
    lower the number, and the detail says so.
    """
    allowed = len(os.sched_getaffinity(0)) if affinity is None else affinity
    if quota is None:
        return observed(allowed, _AFFINITY)
    if quota.value is None:
        return observed(allowed, f"{_AFFINITY}; whether a CPU quota lies on it is unknown: {quota.detail}")
    whole = max(1, int(quota.value))
    if whole >= allowed:
        return observed(allowed, _AFFINITY)
    return observed(whole, f"whole CPUs of the quota of {quota.value:g} in {quota.detail}")
