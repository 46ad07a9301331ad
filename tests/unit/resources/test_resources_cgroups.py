"""Finding a memory controller, over made-up file trees of each kind of machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferswarm.errors import DiscoveryError, SpecError
from inferswarm.resources.cgroups import (
    MemoryCgroupV1,
    MemoryCgroupV2,
    MemoryController,
    Unavailable,
    effective_memory_limit,
    find_memory_controller,
)
from tests.unit.resources.resources_samples import write_file

V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V2_MOUNT = "31 23 0:28 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
NO_LIMIT_V1 = "9223372036854771712"
PAGE = os.sysconf("SC_PAGE_SIZE")


def v1_machine(
    root: Path, *, own: str = "/swarm", mount_root: str = "/", limits: dict[str, str] | None = None
) -> None:
    write_file(root, "proc/self/cgroup", f"5:cpuset:/\n4:memory:{own}\n0::/\n")
    write_file(root, "proc/self/mountinfo", "1 1 0:1 / / rw - ext4 /dev/a rw\n" + V1_MOUNT.format(root=mount_root))
    relative = os.path.relpath(own, mount_root)
    places = [relative]
    while relative not in ("", "."):
        relative = os.path.dirname(relative)
        places.append(relative)
    for place in places:
        directory = os.path.normpath(f"sys/fs/cgroup/memory/{place}")
        write_file(root, f"{directory}/cgroup.procs", "")
        write_file(root, f"{directory}/memory.limit_in_bytes", (limits or {}).get(place, NO_LIMIT_V1))
        write_file(root, f"{directory}/memory.stat", f"hierarchical_memory_limit {NO_LIMIT_V1}\n")


def v2_machine(
    root: Path, groups: dict[str, tuple[str, str, str | None]], *, own: str, mount_root: str = "/"
) -> None:
    """`groups` maps a path below the mount to (controllers, subtree_control, memory.max or None)."""
    write_file(root, "proc/self/cgroup", f"0::{own}\n")
    write_file(root, "proc/self/mountinfo", V2_MOUNT.format(root=mount_root))
    for place, (controllers, subtree, limit) in groups.items():
        write_file(root, f"sys/fs/cgroup/{place}/cgroup.controllers", controllers)
        write_file(root, f"sys/fs/cgroup/{place}/cgroup.subtree_control", subtree)
        write_file(root, f"sys/fs/cgroup/{place}/cgroup.procs", "")
        if limit is not None:
            write_file(root, f"sys/fs/cgroup/{place}/memory.max", limit)


SESSION = {
    ".": ("cpu memory pids", "cpu memory pids", None),
    "user": ("cpu memory pids", "memory pids", "max"),
    "user/app": ("memory pids", "memory pids", "max"),
    "user/app/shell": ("memory pids", "", "max"),
}


def test_v1_groups_are_made_in_the_own_group(tmp_path: Path) -> None:
    v1_machine(tmp_path)
    found = find_memory_controller(tmp_path)
    own = tmp_path / "sys/fs/cgroup/memory/swarm"
    assert found == MemoryController(1, own, own)
    assert found.mechanism == "cgroup-v1"


def test_v1_in_a_container_is_found_through_the_root_of_its_mount(tmp_path: Path) -> None:
    v1_machine(tmp_path, own="/docker/abc", mount_root="/docker/abc")
    found = find_memory_controller(tmp_path)
    assert isinstance(found, MemoryController)
    assert found.base == tmp_path / "sys/fs/cgroup/memory"


def test_v2_groups_are_made_in_the_nearest_group_that_passes_memory_on(tmp_path: Path) -> None:
    v2_machine(tmp_path, SESSION, own="/user/app/shell")
    found = find_memory_controller(tmp_path)
    assert isinstance(found, MemoryController)
    assert (found.version, found.base) == (2, tmp_path / "sys/fs/cgroup/user/app")
    assert found.way_back == tmp_path / "sys/fs/cgroup/user/app/shell/cgroup.procs"


def test_v2_comes_before_v1(tmp_path: Path) -> None:
    v1_machine(tmp_path / "v1")
    v2_machine(tmp_path, SESSION, own="/user/app")
    write_file(tmp_path, "proc/self/cgroup", "4:memory:/\n0::/user/app\n")
    write_file(tmp_path, "proc/self/mountinfo", V1_MOUNT.format(root="/") + V2_MOUNT.format(root="/"))
    found = find_memory_controller(tmp_path)
    assert isinstance(found, MemoryController)
    assert found.version == 2


def test_a_hybrid_machine_falls_back_to_v1(tmp_path: Path) -> None:
    v1_machine(tmp_path, own="/swarm")
    mounts = V1_MOUNT.format(root="/") + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    write_file(tmp_path, "proc/self/mountinfo", mounts)
    write_file(tmp_path, "sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n")
    write_file(tmp_path, "sys/fs/cgroup/unified/cgroup.procs", "")
    found = find_memory_controller(tmp_path)
    assert isinstance(found, MemoryController)
    assert found.version == 1


@pytest.mark.parametrize(
    ("groups", "own", "reason"),
    [
        ({".": ("cpu pids", "cpu", None)}, "/", "cgroup.controllers does not offer memory"),
        ({".": ("memory", "", None)}, "/", "cgroup.subtree_control does not pass memory on to children"),
        ({".": ("memory", "memory", None)}, "/../outside", "is outside what is mounted"),
        ({".": ("memory", "memory", None)}, "/gone", "is outside what is mounted"),
    ],
)
def test_v2_says_why_no_group_can_be_made(
    tmp_path: Path, groups: dict[str, tuple[str, str, str | None]], own: str, reason: str
) -> None:
    v2_machine(tmp_path, groups, own=own)
    found = find_memory_controller(tmp_path)
    assert isinstance(found, Unavailable)
    assert reason in found.reason
    assert found.mechanism == "none"


def test_a_directory_that_may_not_be_written_is_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    v1_machine(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere, so the answer is made up
    found = find_memory_controller(tmp_path)
    assert isinstance(found, Unavailable)
    assert "memory/swarm is not writable" in found.reason


def test_a_machine_without_cgroups_says_so(tmp_path: Path) -> None:
    found = find_memory_controller(tmp_path)
    assert isinstance(found, Unavailable)
    assert "No such file" in found.reason
    write_file(tmp_path, "proc/self/cgroup", "")
    write_file(tmp_path, "proc/self/mountinfo", "")
    again = find_memory_controller(tmp_path)
    assert isinstance(again, Unavailable)
    assert again.reason == "cgroup v2: no memory hierarchy; cgroup v1: no memory hierarchy"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"swarm": "500000000"}, 500_000_000),
        ({"": "400000000"}, 400_000_000),
        ({"": "600000000", "swarm": "500000000"}, 500_000_000),
        ({"": "400000000", "swarm": "500000000"}, 400_000_000),
    ],
)
def test_the_tightest_v1_limit_up_to_the_root_counts(
    tmp_path: Path, limits: dict[str, str], expected: int | None
) -> None:
    v1_machine(tmp_path, limits=limits)
    found = effective_memory_limit(tmp_path)
    assert (None if found is None else found.value) == expected


def test_v1_limits_above_what_a_container_sees_count(tmp_path: Path) -> None:
    v1_machine(tmp_path, own="/docker/abc", mount_root="/docker/abc")
    write_file(tmp_path, "sys/fs/cgroup/memory/memory.stat", "cache 1\nhierarchical_memory_limit 300000000\n")
    found = effective_memory_limit(tmp_path)
    assert found is not None
    assert (found.value, found.detail) == (300_000_000, str(tmp_path / "sys/fs/cgroup/memory/memory.stat"))


@pytest.mark.parametrize(
    ("own_limit", "parent_limit", "expected"),
    [("max", "max", None), ("700000000", "max", 700_000_000), ("max", "600000000", 600_000_000)],
)
def test_the_tightest_v2_limit_up_to_the_root_counts(
    tmp_path: Path, own_limit: str, parent_limit: str, expected: int | None
) -> None:
    groups: dict[str, tuple[str, str, str | None]] = {
        ".": ("memory", "memory", None),
        "a": ("memory", "memory", parent_limit),
        "a/b": ("memory", "", own_limit),
    }
    v2_machine(tmp_path, groups, own="/a/b")
    found = effective_memory_limit(tmp_path)
    assert (None if found is None else found.value) == expected


def test_a_limit_that_cannot_be_read_is_unknown_not_absent(tmp_path: Path) -> None:
    hidden = effective_memory_limit(tmp_path)
    assert hidden is not None
    assert not hidden.known
    v1_machine(tmp_path, own="/docker/abc", mount_root="/elsewhere")
    outside = effective_memory_limit(tmp_path)
    assert outside is not None
    assert not outside.known
    v1_machine(tmp_path)
    write_file(tmp_path, "sys/fs/cgroup/memory/swarm/memory.limit_in_bytes", "garbage")
    damaged = effective_memory_limit(tmp_path)
    assert damaged is not None
    assert not damaged.known


def test_a_v2_group_gets_its_limit_and_no_swap(tmp_path: Path) -> None:
    controller = MemoryController(2, tmp_path, tmp_path)
    group = controller.create("birch", 100 * PAGE)
    assert isinstance(group, MemoryCgroupV2)
    assert (tmp_path / "birch/memory.max").read_text() == str(100 * PAGE)
    assert group.limit_bytes == 100 * PAGE
    assert group.swap == "memory.swap.max is not there: the kernel does not account swap"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "a b", "x" * 101])
def test_a_name_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError, match="cgroup name"):
        MemoryController(1, tmp_path, tmp_path).create(name, 10**6)
    assert list(tmp_path.iterdir()) == []


def test_a_taken_name_and_an_empty_limit_are_refused(tmp_path: Path) -> None:
    controller = MemoryController(1, tmp_path, tmp_path)
    controller.create("birch", 10**6)
    with pytest.raises(SpecError, match="a name that is free"):
        controller.create("birch", 10**6)
    with pytest.raises(SpecError, match="at least one page"):
        controller.create("oak", PAGE - 1)


def test_a_place_that_is_gone_is_a_discovery_error(tmp_path: Path) -> None:
    gone = MemoryController(1, tmp_path / "gone", tmp_path)
    with pytest.raises(DiscoveryError, match="cannot be made"):
        gone.create("birch", 10**6)


V1_FILES = {
    "memory.usage_in_bytes": "90000000\n",
    "memory.max_usage_in_bytes": "95000000\n",
    "memory.kmem.usage_in_bytes": "100000\n",
    "memory.stat": "rss 1\ntotal_rss 50000000\ntotal_shmem 2000000\ntotal_cache 30000000\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
}
V2_FILES = {
    "memory.current": "90000000\n",
    "memory.peak": "95000000\n",
    "memory.stat": "anon 50000000\nfile 30000000\nkernel 100000\nkernel_stack 7\nshmem 2000000\n",
    "memory.events": "low 0\nhigh 0\nmax 9\noom 3\noom_kill 3\n",
}


@pytest.mark.parametrize(("kind", "files"), [(MemoryCgroupV1, V1_FILES), (MemoryCgroupV2, V2_FILES)])
def test_counts_come_from_the_files_of_each_version(
    tmp_path: Path, kind: type[MemoryCgroupV1] | type[MemoryCgroupV2], files: dict[str, str]
) -> None:
    for name, text in files.items():
        write_file(tmp_path, name, text)
    group = kind(tmp_path, 10**8, "disabled")
    assert group.usage_bytes() == 90_000_000
    assert group.peak_bytes() == 95_000_000
    assert group.unreclaimable_bytes() == 52_100_000
    assert group.oom_kills() == 3


def test_an_older_v2_kernel_states_its_memory_in_parts(tmp_path: Path) -> None:
    write_file(tmp_path, "memory.stat", "anon 1000\nshmem 200\nkernel_stack 30\npagetables 4\nslab 500\n")
    assert MemoryCgroupV2(tmp_path, 10**8, "disabled").unreclaimable_bytes() == 1734
