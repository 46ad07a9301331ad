"""What exists: Nodes, Compute Units, Memory Resources and Links, each fact with its provenance.

Sizes are bytes, rates are bits per second where the field says so. An unknown fact has a reason, and nothing
in this package ever puts a number in its place.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

from inferswarm.documents import Document
from inferswarm.errors import SpecError
from inferswarm.units import parse_bytes

Value = TypeVar("Value", int, float, str)
Provenance = Literal["observed", "declared", "unknown"]


class Fact(Document, Generic[Value], frozen=True, kw_only=True):
    """One fact: its value, or the reason why it is unknown. Exactly one of the two is there."""

    value: Value | None = None
    provenance: Provenance
    detail: str = ""
    """The reason when unknown; otherwise where the value comes from (a file, a call, a declaration)."""

    def __post_init__(self) -> None:
        """Refuse a value without provenance, and an unknown without a reason."""
        super().__post_init__()
        if (self.provenance == "unknown") != (self.value is None):
            raise ValueError(f"a fact is a value or an unknown, not {self.value!r} with provenance {self.provenance}")
        if self.provenance == "unknown" and not self.detail:
            raise ValueError("an unknown fact needs its reason")

    @property
    def known(self) -> bool:
        """Whether there is a value."""
        return self.value is not None


def observed(value: Value, detail: str) -> Fact[Value]:
    """Make a fact that was read from the machine; `detail` says where."""
    return Fact(value=value, provenance="observed", detail=detail)


def declared(value: Value, detail: str = "declared by the operator") -> Fact[Value]:
    """Make a fact that somebody stated."""
    return Fact(value=value, provenance="declared", detail=detail)


def unknown(reason: str) -> Fact[Value]:
    """Make an unknown with its reason."""
    return Fact(value=None, provenance="unknown", detail=reason)


class NamedFact(Document, frozen=True, kw_only=True):
    """A fact about a Node that people read and no gate uses (CPU model, kernel, libc, address …)."""

    name: str
    fact: Fact[str]


class Node(Document, frozen=True, kw_only=True):
    """One host under one local authority, or a declared envelope on one (a *virtual Node*).

    Virtual Nodes share `host_id`: a failure domain, memory bandwidth, and a network that is not one.
    """

    id: str
    name: str
    host_id: str
    virtual: bool = False
    facts: tuple[NamedFact, ...] = ()


class ComputeUnit(Document, frozen=True, kw_only=True):
    """Something that executes. `capabilities` are opaque tags that implementations ask for.

    Tags are `backend:NAME`, `representation:NAME`, `isa:NAME` (a CPU's instruction sets that decide kernels), and
    `states:addressable`: it can compute with immutable states that are in a Memory Resource that is not the nearest.
    """

    id: str
    node_id: str
    kind: Literal["cpu", "cuda", "hip", "xpu", "mps"]
    name: str
    threads: int
    memory_ids: tuple[str, ...]
    """Memory Resources that it addresses directly, nearest first."""
    capabilities: tuple[str, ...] = ()
    available: bool = True
    cpus: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """The logical CPUs that whatever executes on it is bound to. Left out, and not written: bound to none."""
    core_set_id: str | msgspec.UnsetType = msgspec.UNSET
    """The cores that it shares with other Compute Units. Left out, and not written: its cores are its own."""


class CoreSet(Document, frozen=True, kw_only=True):
    """Cores that several Compute Units share, as virtual Nodes of one machine do.

    Each executes at its measured pace only while all that are at work have no more threads than there are cores.
    """

    id: str
    num_cores: int


class MemoryResource(Document, frozen=True, kw_only=True):
    """An addressable domain with its own accounting."""

    id: str
    node_id: str
    kind: Literal["ram", "vram"]
    capacity_bytes: Fact[int]
    reserved_bytes: Fact[int]
    """What is taken before any model state: the measured base of the processes that must run there."""
    enforcement: str
    """The mechanism that enforces the capacity: cgroup-v1, cgroup-v2, rlimit-data or none."""


LinkKind = Literal["loopback", "ethernet", "wireless", "other"]
_LATENCY_NOT_STATED: Fact[float] = unknown("nobody stated it")


class Segment(Document, frozen=True, kw_only=True):
    """A stretch that several Links go over and share: a switch's port, a cable between buildings, a radio channel.

    What moves over one Link of a segment is missing on the others for as long.
    """

    id: str
    name: str
    kind: LinkKind
    nominal_bits_per_second: Fact[int]


class Link(Document, frozen=True, kw_only=True):
    """A directed way to move data from one Node to another."""

    id: str
    source: str
    target: str
    kind: LinkKind
    nominal_bits_per_second: Fact[int]
    nominal_latency_seconds: Fact[float] = _LATENCY_NOT_STATED
    """One way, of the wire alone: no software."""
    segments: tuple[str, ...] = ()
    """The shared segments that it goes over, in the order in which data passes them; empty where none is known."""
    available: bool = True


class Envelope(Document, frozen=True, kw_only=True):
    """What the operator declares a virtual Node to be: threads and memory of a real host."""

    name: str
    threads: int
    """Threads of its CPU Compute Unit, or of the first of several."""
    memory_bytes: int
    """One Memory Resource, which all of its Compute Units share."""
    more_threads: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """Threads of each further CPU Compute Unit. Left out, and not written: there is one."""

    def __post_init__(self) -> None:
        """Raise SpecError for a name, a thread count or a size that cannot be."""
        super().__post_init__()
        if not self.name or not self.name.replace("-", "").replace("_", "").isalnum() or len(self.name) > 40:
            raise SpecError("node name", self.name, "1 to 40 letters, digits, '-' or '_'")
        for threads in self.unit_threads:
            if threads < 1:
                raise SpecError(f"node {self.name}: threads", threads, "at least 1")
        if self.memory_bytes < 1:
            raise SpecError(f"node {self.name}: memory", self.memory_bytes, "more than 0 B")

    @property
    def unit_threads(self) -> tuple[int, ...]:
        """Return the threads of each of its CPU Compute Units, the first one first."""
        return (self.threads, *(() if isinstance(self.more_threads, msgspec.UnsetType) else self.more_threads))

    @classmethod
    def parse(cls, text: str) -> Envelope:
        """Read `NAME:threads=N,memory=SIZE`; `threads=N+M` declares two CPU Compute Units that share the memory.

        Raises SpecError naming what is wrong.

        >>> Envelope.parse("birch:threads=1,memory=300MB").memory_bytes
        300000000
        >>> Envelope.parse("oak:threads=1+2,memory=1GB").unit_threads
        (1, 2)
        """
        name, _, rest = text.partition(":")
        fields = dict(item.partition("=")[::2] for item in rest.split(",") if item)
        if set(fields) != {"threads", "memory"}:
            raise SpecError("node", text, "NAME:threads=N,memory=SIZE")
        counts = fields["threads"].split("+")
        if not all(count.isascii() and count.isdigit() for count in counts):
            needed = "a whole number, or one for each Compute Unit with '+' between them"
            raise SpecError(f"node {name}: threads", fields["threads"], needed)
        first, *more = map(int, counts)
        return cls(
            name=name,
            threads=first,
            memory_bytes=parse_bytes(fields["memory"], f"node {name}: memory"),
            more_threads=tuple(more) if more else msgspec.UNSET,
        )


class ResourceGraph(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.resource-graph/1"):
    """The frozen snapshot that a plan is made for. Its digest identifies it."""

    swarm_id: str
    nodes: tuple[Node, ...]
    compute_units: tuple[ComputeUnit, ...]
    memory_resources: tuple[MemoryResource, ...]
    links: tuple[Link, ...]
    segments: tuple[Segment, ...] = ()
    core_sets: tuple[CoreSet, ...] | msgspec.UnsetType = msgspec.UNSET
    """Left out, and not written: no Compute Units share cores."""
