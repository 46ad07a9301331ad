"""What a topology file may say: its tables and keys, nothing else. An unknown key is refused with its place.

Quantities are texts with units (`"32 GiB"`, `"1 Gbit/s"`, `"0.2 ms"`); see `quantities`. What a key means is written
beside it here, and `topology` turns the whole into a graph.
"""

from __future__ import annotations

import tomllib
from typing import Annotated, Literal

import msgspec

from inferswarm.errors import DocumentError
from inferswarm.resources.types import LinkKind

FORMAT = "inferswarm.topology/1"
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}\Z")]
"""Letters, digits, `_`, `.` and `-`, at most 60."""
Tag = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,40}\Z")]
Pattern = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.*-]{1,60}\Z")]
"""The name of a Node, or several at once: `*` stands for any part of a name."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every table: unknown keys are refused."""


class MemoryEntry(Entry, frozen=True, kw_only=True):
    """`[[node.memory]]`: one Memory Resource of a Node."""

    name: Name
    kind: Literal["ram", "vram"]
    capacity: str | None = None
    """Unknown when it is not there, and then nothing is placed on it."""
    reserved: str | None = None
    """What is taken before any model state; unknown when it is not there, and then nothing is placed on it."""
    read_bandwidth: str | None = None
    """Nominal rate at which a Compute Unit that is nearest to it reads it."""


class CopyEntry(Entry, frozen=True, kw_only=True):
    """`copy`: how an accelerator exchanges data with the RAM of its Node, nominally (PCIe)."""

    into: str
    """Rate from RAM into its own memory."""
    out: str
    """Rate from its own memory into RAM."""
    latency: str
    """Of one copy, either way."""


class UnitEntry(Entry, frozen=True, kw_only=True):
    """`[[node.compute_unit]]`: one Compute Unit of a Node."""

    name: Name
    kind: Literal["cpu", "cuda", "hip", "xpu", "mps"]
    model: str = ""
    """What people call it."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    memory: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1)]
    """Names of the Node's memories that it addresses, nearest first."""
    backends: tuple[Tag, ...]
    representations: tuple[Tag, ...]
    instruction_sets: tuple[Tag, ...] = ()
    arithmetic: dict[Tag, str] = {}
    """Nominal operations per second for each representation."""
    unit_overhead: str | None = None
    """Nominal time that one unit of work costs beside reading and computing (launches, scheduling)."""
    copy: CopyEntry | None = None
    states_addressable: bool = False
    """It can compute with states that are in one of the further memories; everything else is in the nearest."""
    available: bool = True


class NodeEntry(Entry, frozen=True, kw_only=True):
    """`[[node]]`: one Node, or `copies` alike ones named `NAME-1`, `NAME-2`, …."""

    name: Name
    copies: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    same_computer: Name | None = None
    """Nodes that name the same computer are virtual Nodes on it: they fail together and share memory bandwidth."""
    facts: dict[Name, str] = {}
    """What people read about it."""
    memory: Annotated[tuple[MemoryEntry, ...], msgspec.Meta(min_length=1)]
    compute_unit: tuple[UnitEntry, ...] = ()


class SegmentEntry(Entry, frozen=True, kw_only=True):
    """`[[segment]]`: a stretch that several Links share, for `segments` of `[[link]]`."""

    name: Name
    kind: LinkKind
    rate: str


class LinkEntry(Entry, frozen=True, kw_only=True):
    """`[[link]]`: a Link from one Node to another, or both ways."""

    source: Name = msgspec.field(name="from")
    target: Name = msgspec.field(name="to")
    kind: LinkKind
    rate: str | None = None
    latency: str | None = None
    both_ways: bool = False
    segments: tuple[Name, ...] = ()
    available: bool = True


class PortEntry(Entry, frozen=True, kw_only=True):
    """`[[network.port]]`: a port of a network that is not like the others, with a rate for each direction."""

    nodes: Annotated[tuple[Pattern, ...], msgspec.Meta(min_length=1)]
    send: str
    receive: str


class NetworkEntry(Entry, frozen=True, kw_only=True):
    """`[[network]]`: Links between every two of its Nodes, both ways.

    With `sharing = "switch"` each Node has a port that sends and receives at once, and shares it with nobody but its
    own Links; with `"medium"` all Links share one segment that carries one message at a time (radio).
    """

    name: Name
    kind: LinkKind
    nodes: Annotated[tuple[Pattern, ...], msgspec.Meta(min_length=1)]
    sharing: Literal["switch", "medium"]
    rate: str
    """Of each port, or of the medium."""
    latency: str
    fabric: str | None = None
    """What a switch can carry in all; a segment of every Link when it is there."""
    port: tuple[PortEntry, ...] = ()


class BridgeEntry(Entry, frozen=True, kw_only=True):
    """`[[bridge]]`: Links from every Node of one network to every Node of another, over one shared stretch."""

    name: Name
    kind: LinkKind
    between: tuple[Name, Name]
    rate: str
    rate_back: str | None = None
    """From the second network to the first, where it differs."""
    latency: str


class TopologyFile(Entry, frozen=True, kw_only=True):
    """A whole file."""

    format: Literal["inferswarm.topology/1"]
    name: Name
    summary: str
    """What it is, in a sentence or two."""
    figures_from: str
    """Where the nominal figures come from."""
    node: Annotated[tuple[NodeEntry, ...], msgspec.Meta(min_length=1)]
    segment: tuple[SegmentEntry, ...] = ()
    link: tuple[LinkEntry, ...] = ()
    network: tuple[NetworkEntry, ...] = ()
    bridge: tuple[BridgeEntry, ...] = ()


def parse_topology(text: str | bytes, source: str) -> TopologyFile:
    """Read the text of a topology file.

    Raises DocumentError naming `source` for what is not TOML, and for a key that is unknown, missing or of the wrong
    type, with its place (`$.node[1].memory[0]`).
    """
    try:
        data = tomllib.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    # ValueError: what is not TOML, bytes that are not text, and integers of thousands of digits.
    except (ValueError, RecursionError) as error:
        raise DocumentError(source, f"is not TOML: {error}") from error
    if data.get("format") != FORMAT:
        raise DocumentError(source, f"has the format {data.get('format')!r}, needed {FORMAT!r}")
    try:
        return msgspec.convert(data, TopologyFile, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DocumentError(source, f"is not a topology: {error}") from error
