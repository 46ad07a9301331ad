from __future__ import annotations

from pathlib import Path

import pytest

from inferswarm.resources.cpu_limits import effective_cpu_quota, usable_cpus
from inferswarm.resources.types import Fact, observed, unknown
from tests.unit.resources.resources_samples import write_file

V2_MOUNT = "31 23 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1_MOUNT = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"


def machine(root: Path, membership: str, mounts: str, files: dict[str, str]) -> Path:
    write_file(root, "proc/self/cgroup", membership)
    write_file(root, "proc/self/mountinfo", mounts)
    for name, text in files.items():
        write_file(root, f"sys/fs/cgroup/{name}", text)
    return root


@pytest.mark.parametrize(
    ("files", "cpus", "where"),
    [
        ({"a/b/cpu.max": "max 100000\n"}, None, ""),
        ({"a/b/cpu.max": "150000 100000\n"}, 1.5, "a/b/cpu.max"),
        ({"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "200000 100000\n"}, 2.0, "a/cpu.max"),
        ({"a/b/cpu.max": "10000 20000\n", "a/cpu.max": "max 100000\n"}, 0.5, "a/b/cpu.max"),
        ({"a/b/cgroup.procs": ""}, None, ""),
    ],
)
def test_the_unified_quota_is_the_tightest_up_to_the_root(
    tmp_path: Path, files: dict[str, str], cpus: float | None, where: str
) -> None:
    found = effective_cpu_quota(machine(tmp_path, "0::/a/b\n", V2_MOUNT, files))
    assert (None if found is None else found.value) == cpus
    assert found is None or found.detail.endswith(where)


@pytest.mark.parametrize(
    ("own", "above", "cpus"), [("-1", "-1", None), ("250000", "-1", 2.5), ("250000", "100000", 1.0)]
)
def test_the_v1_quota_is_read_where_cpu_and_cpuacct_are_mounted_together(
    tmp_path: Path, own: str, above: str, cpus: float | None
) -> None:
    files = {}
    for group, quota in (("", "-1"), ("box/", above), ("box/inner/", own)):
        files[f"cpu,cpuacct/{group}cpu.cfs_quota_us"] = quota
        files[f"cpu,cpuacct/{group}cpu.cfs_period_us"] = "100000"
    found = effective_cpu_quota(machine(tmp_path, "4:cpu,cpuacct:/box/inner\n", V1_MOUNT, files))
    assert (None if found is None else found.value) == cpus


@pytest.mark.parametrize("text", ["", "fast 100000", "100000", "100000 0", "-5 100000", "0 100000"])
def test_a_quota_that_makes_no_sense_is_unknown_and_says_where(tmp_path: Path, text: str) -> None:
    found = effective_cpu_quota(machine(tmp_path, "0::/a\n", V2_MOUNT, {"a/cpu.max": text}))
    assert found is not None
    assert not found.known
    assert "sys/fs/cgroup/a" in found.detail


def test_groups_outside_the_mount_leave_the_quota_unknown(tmp_path: Path) -> None:
    mounts = V2_MOUNT.replace("0:38 / ", "0:38 /box ")
    found = effective_cpu_quota(machine(tmp_path, "0::/elsewhere\n", mounts, {"cpu.max": "max 1"}))
    assert found is not None
    assert "outside what is mounted" in found.detail


@pytest.mark.parametrize(
    ("quota", "affinity", "usable", "says"),
    [
        (None, 8, 8, "affinity"),
        (observed(2.0, "f"), 8, 2, "quota of 2 in f"),
        (observed(2.9, "f"), 8, 2, "quota of 2.9"),
        (observed(0.5, "f"), 8, 1, "quota of 0.5"),
        (observed(64.0, "f"), 8, 8, "affinity"),
        (unknown("cannot be read"), 8, 8, "unknown: cannot be read"),
    ],
)
def test_usable_cpus_are_the_fewer_of_affinity_and_quota(
    quota: Fact[float] | None, affinity: int, usable: int, says: str
) -> None:
    found = usable_cpus(quota, affinity)
    assert found.value == usable
    assert says in found.detail
