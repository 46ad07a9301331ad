"""Facts in force: what is true now of each resource that a record may be about, as a table of text values.

The table is made of a resource graph and of what a probe states beside it (a driver's version, a slot). A fact that
is unknown stays so, with its reason: it is equal to nothing, and it makes nothing stale.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from inferswarm.documents import Document
from inferswarm.errors import SpecError
from inferswarm.evidence.dependencies import SubjectKind
from inferswarm.resources.types import ComputeUnit, Fact, Link, NamedFact, ResourceGraph, observed, unknown


class SubjectFacts(Document, frozen=True, kw_only=True):
    """What is true of one subject; its facts sorted by name, each name once."""

    subject: str
    kind: SubjectKind
    facts: tuple[NamedFact, ...]

    def __post_init__(self) -> None:
        """Refuse an order that is not the sorted one, and two values for one name."""
        super().__post_init__()
        names = [item.name for item in self.facts]
        if names != sorted(set(names)):
            raise ValueError(f"facts of {self.subject} are not sorted by name, each once: {names}")

    def fact(self, key: str) -> Fact[str] | None:
        """Return the fact of this name, or None when nothing is said about it."""
        return next((item.fact for item in self.facts if item.name == key), None)


class FactTable(Document, frozen=True, kw_only=True, tag_field="document", tag="inferswarm.facts/1"):
    """The facts of all subjects at one moment, sorted by subject."""

    subjects: tuple[SubjectFacts, ...]

    def __post_init__(self) -> None:
        """Refuse a subject that is listed twice, or out of order."""
        super().__post_init__()
        names = [item.subject for item in self.subjects]
        if names != sorted(set(names)):
            raise ValueError("subjects are not sorted, each once")

    def of(self, subject: str) -> SubjectFacts | None:
        """Return what is true of a subject, or None when it is not among what is present."""
        place = bisect.bisect_left(self.subjects, subject, key=lambda item: item.subject)
        found = self.subjects[place] if place < len(self.subjects) else None
        return found if found is not None and found.subject == subject else None


def path_subject(source: str, target: str, addresses: tuple[str, str] | None = None) -> str:
    """Return the subject of records about messages from one Node (id) to another, over two addresses when given."""
    over = "" if addresses is None else f" over {addresses[0]}->{addresses[1]}"
    return f"path:{source}->{target}{over}"


def facts_of(graph: ResourceGraph, stated: Mapping[str, Sequence[NamedFact]] | None = None) -> FactTable:
    """Return the facts that a graph holds, and those `stated` beside it by the id of a resource or a path.

    A Compute Unit, a Memory Resource and a Node have the facts of their Node; what is stated of the resource itself
    goes before what is stated of its Node. A loopback has the CPU and the kernel of its computer. Raises SpecError
    for facts about a resource that the graph does not have.
    """
    extra = {subject: _by_name(facts) for subject, facts in (stated or {}).items()}
    nodes = {node.id: _by_name(node.facts) | extra.get(node.id, {}) for node in graph.nodes}
    found: dict[str, SubjectFacts] = {}

    def add(subject: str, kind: SubjectKind, *layers: Mapping[str, Fact[str]]) -> None:
        merged: dict[str, Fact[str]] = {}
        for layer in layers:
            merged |= layer
        facts = tuple(NamedFact(name=name, fact=merged[name]) for name in sorted(merged))
        found[subject] = SubjectFacts(subject=subject, kind=kind, facts=facts)

    threads: dict[str, list[int]] = {}
    bound: dict[str, list[ComputeUnit]] = {}
    for unit in graph.compute_units:
        for memory_id in unit.memory_ids[:1]:
            bound.setdefault(memory_id, []).append(unit)
        if unit.kind == "cpu":
            threads.setdefault(unit.node_id, []).append(unit.threads)
    for node in graph.nodes:
        add(node.id, "node", _node_threads(threads.get(node.id, [])), nodes[node.id])
    for unit in graph.compute_units:
        isa = ",".join(sorted(tag.removeprefix("isa:") for tag in unit.capabilities if tag.startswith("isa:")))
        own: dict[str, Fact[str]] = {
            "threads": observed(str(unit.threads), "the resource graph"),
            "isa": observed(isa, "the resource graph") if isa else unknown("the graph states no instruction sets"),
        }
        add(unit.id, unit.kind, nodes[unit.node_id], own | _binding([unit]), extra.get(unit.id, {}))
    for memory in graph.memory_resources:
        binding = _binding(bound.get(memory.id, []))
        add(memory.id, memory.kind, nodes[memory.node_id], binding, extra.get(memory.id, {}))
    joining: dict[tuple[str, str], list[Link]] = {}
    for link in graph.links:
        joining.setdefault((link.source, link.target), []).append(link)
    within = Counter(unit.node_id for unit in graph.compute_units)
    for node_id in (node_id for node_id, num in within.items() if num > 1):  # its participants talk as any two do
        subject = path_subject(node_id, node_id)
        add(subject, "loopback", _INSIDE, _computer(nodes[node_id]), extra.get(subject, {}))
    for (source, target), links in sorted(joining.items()):
        subject = path_subject(source, target)
        if {link.kind for link in links} == {"loopback"}:
            add(subject, "loopback", _path_facts(links), _computer(nodes[source]), extra.get(subject, {}))
        else:
            add(subject, "path", _path_facts(links), extra.get(subject, {}))
    if strangers := sorted(set(extra) - set(found)):
        raise SpecError("stated facts", strangers, "resources and paths of the graph")
    return FactTable(subjects=tuple(found[subject] for subject in sorted(found)))


def _by_name(facts: Iterable[NamedFact]) -> dict[str, Fact[str]]:
    return {item.name: item.fact for item in facts}


def _node_threads(counts: Sequence[int]) -> dict[str, Fact[str]]:
    if not counts:
        return {"threads": unknown("the Node has no CPU Compute Unit, and no count of threads")}
    return {"threads": observed("+".join(map(str, sorted(counts))), "its CPUs in the resource graph")}


def _binding(units: Sequence[ComputeUnit]) -> dict[str, Fact[str]]:
    """Return which logical CPUs these Compute Units are bound to, where they state it."""
    cpus = {cpu for unit in units for cpu in (() if isinstance(unit.cpus, msgspec.UnsetType) else unit.cpus)}
    return {"numa.binding": observed(",".join(map(str, sorted(cpus))), "the resource graph")} if cpus else {}


_INSIDE: dict[str, Fact[str]] = {"link.kind": observed("loopback", "it does not leave the Node")}


def _computer(node: Mapping[str, Fact[str]]) -> dict[str, Fact[str]]:
    return {key: node[key] for key in ("cpu", "kernel") if key in node}


def _path_facts(links: Sequence[Link]) -> dict[str, Fact[str]]:
    kinds = ",".join(sorted({link.kind for link in links}))
    rates = [link.nominal_bits_per_second for link in links]
    missing = [rate.detail for rate in rates if rate.value is None]
    text = ",".join(sorted(str(rate.value) for rate in rates))
    rate: Fact[str] = unknown(missing[0]) if missing else observed(text, "the resource graph")
    return {"link.kind": observed(kinds, "the resource graph"), "link.rate": rate}
