"""What the CPU is: model, sockets, cores, instruction sets, caches and NUMA, each with its source or a reason.

The parsers take text, so that any machine's files can be tabled in a test; `read_cpu` reads this machine's.
Covers Linux on x86 and ARM. Elsewhere every fact is unknown and says which file was not there.
"""

from __future__ import annotations

from pathlib import Path

from inferswarm.documents import Document
from inferswarm.resources.cpu_limits import effective_cpu_quota, usable_cpus
from inferswarm.resources.numa import NumaNode, parse_cpu_list, read_numa_nodes
from inferswarm.resources.types import Fact, observed, unknown

DECISIVE_ISA = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni_int8",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "amx_fp16",
    "neon",
    "asimd",
    "asimdhp",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
    "svei8mm",
    "svebf16",
    "sme",
    "sme2",
)
"""Instruction sets that decide which kernel runs, as the kernel spells them; the order is the order of reports."""
_ARM_IMPLEMENTERS = {
    "0x41": "Arm",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
    "0x50": "APM",
    "0x51": "Qualcomm",
    "0x61": "Apple",
    "0xc0": "Ampere",
}


class Cache(Document, frozen=True, kw_only=True):
    """One cache as a core sees it: `shared_by` logical CPUs use the same one."""

    level: int
    kind: str
    bytes: int
    shared_by: int


class CpuFacts(Document, frozen=True, kw_only=True):
    """What is known of a host's CPUs.

    Counts of the whole host, except `usable_cpus`: what processes here can keep busy, by affinity and CPU quota.
    """

    model_name: Fact[str]
    sockets: Fact[int]
    cores: Fact[int]
    logical_cpus: Fact[int]
    usable_cpus: Fact[int]
    isa: Fact[str]
    """Those of `DECISIVE_ISA` that every core has, separated by spaces (may be empty)."""
    numa_nodes: Fact[int]
    last_level_cache_bytes: Fact[int]
    """The largest cache that one core can reach."""
    caches: tuple[Cache, ...] = ()
    numa: tuple[NumaNode, ...] = ()
    """The NUMA nodes, each with its CPUs and its memory."""

    @property
    def threads_per_core(self) -> Fact[int]:
        """Return how many logical CPUs one core has; unknown where that is not the same for all."""
        cores, logical = self.cores, self.logical_cpus
        if cores.value is None or logical.value is None:
            return unknown(logical.detail if logical.value is None else cores.detail)
        if logical.value % cores.value:
            return unknown(f"{logical.value} logical CPUs on {cores.value} cores: not the same for every core")
        return observed(logical.value // cores.value, f"{logical.detail}, {cores.detail}")

    @property
    def isa_names(self) -> tuple[str, ...]:
        """Return the instruction sets as a tuple; empty when they are unknown."""
        return tuple((self.isa.value or "").split())


def parse_size(text: str) -> int:
    """Return the bytes that a sysfs size states. Raises ValueError for anything else.

    >>> parse_size("32768K"), parse_size("2M"), parse_size("512")
    (33554432, 2097152, 512)
    """
    text = text.strip()
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
    return int(text[:-1] if scale > 1 else text) * scale


def parse_processors(text: str) -> tuple[dict[str, str], ...]:
    """Split the text of /proc/cpuinfo into one mapping for each logical CPU, keys in lower case.

    Lines that belong to no processor (ARM's trailing `Hardware`) are left out.
    """
    processors: list[dict[str, str]] = []
    for paragraph in text.split("\n\n"):
        fields: dict[str, str] = {}
        for line in paragraph.splitlines():
            key, colon, value = line.partition(":")
            if colon:
                fields[key.strip().lower()] = value.strip()
        if fields.get("processor", "").isdigit():
            processors.append(fields)
    return tuple(processors)


def _model_name(processors: tuple[dict[str, str], ...], source: str) -> Fact[str]:
    for fields in processors:
        if name := fields.get("model name"):
            return observed(name, source)
        if "cpu implementer" in fields and "cpu part" in fields:
            code = fields["cpu implementer"]
            return observed(f"{_ARM_IMPLEMENTERS.get(code, code)} part {fields['cpu part']}", source)
    return unknown(f"{source} names no CPU model")


def _isa(processors: tuple[dict[str, str], ...], source: str) -> Fact[str]:
    sets = [set((fields.get("flags") or fields.get("features") or "").split()) for fields in processors]
    if not sets or not all(sets):
        return unknown(f"{source} lists no instruction sets for some CPU")
    common = set.intersection(*sets)
    return observed(" ".join(name for name in DECISIVE_ISA if name in common), source)


def _topology(
    processors: tuple[dict[str, str], ...], topology: dict[int, tuple[int, int]], source: str
) -> tuple[Fact[int], Fact[int]]:
    """Count sockets and cores from sysfs where it tells them, else from /proc/cpuinfo."""
    if topology and all(package >= 0 for package, _ in topology.values()):
        where = "/sys/devices/system/cpu/cpu*/topology"
        return observed(len({package for package, _ in topology.values()}), where), observed(
            len(set(topology.values())), where
        )
    pairs = [(fields.get("physical id"), fields.get("core id")) for fields in processors]
    if pairs and all(package is not None and core is not None for package, core in pairs):
        return observed(len({package for package, _ in pairs}), source), observed(len(set(pairs)), source)
    reason = f"neither {source} nor sysfs tells which CPUs share a socket or a core"
    return unknown(reason), unknown(reason)


def describe_cpu(
    text: str,
    *,
    topology: dict[int, tuple[int, int]],
    caches: tuple[Cache, ...],
    numa_nodes: Fact[int],
    usable_cpus: Fact[int],
    numa: tuple[NumaNode, ...] = (),
    source: str = "/proc/cpuinfo",
) -> CpuFacts:
    """Put together what the text of /proc/cpuinfo and the sysfs readings say.

    `topology` maps a logical CPU to its (package, core); -1 is the kernel's word for "not told".
    """
    processors = parse_processors(text)
    sockets, cores = _topology(processors, topology, source)
    absent = f"{source} lists no processor"
    data_caches = [cache.bytes for cache in caches if cache.kind != "Instruction"]
    return CpuFacts(
        model_name=_model_name(processors, source),
        sockets=sockets,
        cores=cores,
        logical_cpus=observed(len(processors), source) if processors else unknown(absent),
        usable_cpus=usable_cpus,
        isa=_isa(processors, source),
        numa_nodes=numa_nodes,
        last_level_cache_bytes=(
            observed(max(data_caches), "/sys/devices/system/cpu/cpu0/cache")
            if data_caches
            else unknown("sysfs describes no cache of CPU 0")
        ),
        caches=caches,
        numa=numa,
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    text = _read(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def read_topology(root: Path = Path("/")) -> dict[int, tuple[int, int]]:
    """Return (package, core) of each logical CPU that sysfs describes; empty when it describes none."""
    found: dict[int, tuple[int, int]] = {}
    for directory in sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*")):
        package, core = (_read_int(directory / "topology" / name) for name in ("physical_package_id", "core_id"))
        if package is not None and core is not None:
            found[int(directory.name[3:])] = (package, core)
    return found


def read_caches(root: Path = Path("/")) -> tuple[Cache, ...]:
    """Return the caches that CPU 0 sees, innermost first; entries that sysfs leaves incomplete are left out."""
    found: list[Cache] = []
    for directory in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index[0-9]*")):
        level = _read_int(directory / "level")
        kind, size, shared = (_read(directory / name) for name in ("type", "size", "shared_cpu_list"))
        if level is None or not (kind and size and shared):
            continue
        try:
            found.append(Cache(level=level, kind=kind, bytes=parse_size(size), shared_by=len(parse_cpu_list(shared))))
        except ValueError:
            continue  # a hypervisor's nonsense is no cache size
    return tuple(sorted(found, key=lambda cache: (cache.level, cache.kind)))


def count_numa_nodes(nodes: tuple[NumaNode, ...], root: Path = Path("/")) -> Fact[int]:
    """Return how many NUMA nodes the kernel shows."""
    directory = root / "sys/devices/system/node"
    if not nodes:
        return unknown(f"{directory} shows no node (the kernel may be built without NUMA)")
    return observed(len(nodes), str(directory))


def read_cpu(root: Path = Path("/")) -> CpuFacts:
    """Read this machine's CPU facts. Never raises for a file that is not there: its facts are unknown."""
    numa = read_numa_nodes(root)
    return describe_cpu(
        _read(root / "proc/cpuinfo") or "",
        topology=read_topology(root),
        caches=read_caches(root),
        numa_nodes=count_numa_nodes(numa, root),
        usable_cpus=usable_cpus(effective_cpu_quota(root)),
        numa=numa,
        source=str(root / "proc/cpuinfo"),
    )
