"""What a run ran in: `environment.json`, captured inside the kernel, and `environment.parent.json`, by the parent.

Both are captured in the same way and compared, because a kernel may be another Python with other packages than the
one that asked for it. What cannot be read is there with its reason. Paths below the home directory or the project are
shortened, and cards' UUIDs are digests: both identify a machine, and neither is needed to compare.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

import msgspec
import psutil

from inferswarm import __version__
from inferswarm.campaigns.package_tree import PACKAGE_NAME, package_parent, python_path
from inferswarm.campaigns.records import SCHEMA, Moment
from inferswarm.campaigns.repository import Repository, read_repository
from inferswarm.documents import Document, digest_bytes
from inferswarm.resources.cgroups import effective_memory_limit
from inferswarm.resources.cpu_limits import allowed_cpus
from inferswarm.resources.cpuinfo import CpuFacts, read_cpu
from inferswarm.resources.nvml import NvmlReport, probe_nvml
from inferswarm.resources.types import Fact, observed, unknown

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "HIP_VISIBLE_DEVICES",
    "KMP_AFFINITY",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MALLOC_CONF",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONMALLOC",
    "PYTHONOPTIMIZE",
    "PYTHONPATH",
    "TORCH_LOGS",
)
"""Environment variables that change what is computed or how fast; no others are looked at."""


class Installed(Document, frozen=True):
    """One installed package and its version."""

    name: str
    version: str


class Variable(Document, frozen=True):
    """One environment variable; None where it is not set."""

    name: str
    value: str | None


class Environment(Document, frozen=True, kw_only=True):
    """One process's environment at one moment."""

    schema: int
    python: str
    implementation: str
    executable: str
    """The interpreter by its real path."""
    optimize: int
    """Above 0, asserts are gone."""
    package_version: str
    package_place: str
    """The directory that the imported package lies in."""
    packages: tuple[Installed, ...]
    repository: Repository
    """Of the project whose campaign is run; in a rehearsal, of the imported package's source."""
    system: str
    libc: str
    cpu: CpuFacts
    allowed_cpus: tuple[int, ...]
    ram_total_bytes: Fact[int]
    ram_available_bytes: Fact[int]
    memory_limit_bytes: Fact[int] | None
    """The tightest limit on this process; None where there is none."""
    nvml: NvmlReport
    variables: tuple[Variable, ...]
    captured_at: Moment


def capture_environment(project: Path | None = None) -> Environment:
    """Return the environment of this process and where the project stands (None: the package's source).

    What cannot be read is an unknown with its reason.
    """
    parent = package_parent()
    total, available = _memory()
    return Environment(
        schema=SCHEMA,
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        executable=_shortened(os.path.realpath(sys.executable), parent),
        optimize=sys.flags.optimize,
        package_version=__version__,
        package_place=_shortened(str(parent), parent),
        packages=tuple(sorted(set(_installed()), key=lambda item: (item.name, item.version))),
        repository=read_repository(parent if project is None else project),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        libc=" ".join(part for part in platform.libc_ver() if part),
        cpu=read_cpu(),
        allowed_cpus=allowed_cpus(),
        ram_total_bytes=total,
        ram_available_bytes=available,
        memory_limit_bytes=effective_memory_limit(),
        nvml=_without_identifiers(probe_nvml()),
        variables=_variables(os.environ, parent),
        captured_at=str(time.time_ns()),
    )


UNCOMPARED = frozenset({"captured_at", "ram_available_bytes", "repository", "nvml"})
"""Fields in which the kernel's environment may differ from the parent's: what changes by itself, and what is compared
by parts of it."""


def environment_differences(kernel: Environment, parent: Environment) -> tuple[str, ...]:
    """Return the fields in which the two differ and must not, each with both values, shortened."""
    found = [
        f"{name}: kernel {_difference(getattr(kernel, name), getattr(parent, name))}"
        for name in Environment.__struct_fields__
        if name not in UNCOMPARED and getattr(kernel, name) != getattr(parent, name)
    ]
    cards = [[(card.uuid.value, card.name.value) for card in side.nvml.cards] for side in (kernel, parent)]
    if cards[0] != cards[1]:
        found.append(f"nvml.cards: kernel {cards[0]}, parent {cards[1]}")
    if kernel.nvml.driver != parent.nvml.driver:
        found.append(f"nvml.driver: kernel {kernel.nvml.driver}, parent {parent.nvml.driver}")
    return tuple(found)


def _difference(mine: object, theirs: object) -> str:
    if isinstance(mine, CpuFacts) and isinstance(theirs, CpuFacts):
        names = [name for name in CpuFacts.__struct_fields__ if getattr(mine, name) != getattr(theirs, name)]
        return "; ".join(f"{name} {_difference(getattr(mine, name), getattr(theirs, name))}" for name in names)
    if isinstance(mine, tuple) and isinstance(theirs, tuple):
        only_mine = [item for item in mine if item not in theirs]
        only_theirs = [item for item in theirs if item not in mine]
        return f"has also {only_mine[:3]}, parent also {only_theirs[:3]}"
    return f"{mine!r}, parent {theirs!r}"


def _installed() -> Iterator[Installed]:
    """Yield the other packages, but for what happens to lie in the working directory: a kernel's is another."""
    here, parent = os.getcwd(), str(package_parent())
    places = [place for place in sys.path if place and os.path.realpath(place) not in (here, parent)]
    for distribution in distributions(path=[*places, parent]):
        name = distribution.metadata["Name"] if distribution.metadata is not None else None
        if name and name != PACKAGE_NAME:  # a directory that an interrupted installation left has none
            yield Installed(name.lower().replace("_", "-"), distribution.version)


def _memory() -> tuple[Fact[int], Fact[int]]:
    try:
        memory = psutil.virtual_memory()
    except (OSError, psutil.Error) as error:
        return unknown(f"psutil: {error}"), unknown(f"psutil: {error}")
    source = "psutil.virtual_memory"
    return observed(int(memory.total), source), observed(int(memory.available), source)


def _variables(variables: Mapping[str, str], parent: Path) -> tuple[Variable, ...]:
    def value(name: str) -> str | None:
        found = python_path(variables) if name == "PYTHONPATH" else variables.get(name)
        return None if found is None else _shortened(found, parent)

    return tuple(Variable(name, value(name)) for name in VARIABLES)


def _shortened(path: str, parent: Path) -> str:
    """Put `<project>` and `~` in the place of what says whose machine it is."""
    return path.replace(str(parent), "<project>").replace(str(Path.home()), "~")


def _without_identifiers(report: NvmlReport) -> NvmlReport:
    """Put digests in the place of cards' UUIDs: 122 random bits, which no digest gives away."""
    cards = tuple(
        card
        if card.uuid.value is None
        else msgspec.structs.replace(
            card, uuid=observed(digest_bytes(card.uuid.value.encode()), f"digest of {card.uuid.detail}")
        )
        for card in report.cards
    )
    return msgspec.structs.replace(report, cards=cards)
