"""Facts in force: what is true now of each resource that a record may be about, as a table of text values.

The table is made of a resource graph and of what a probe states beside it (a driver's version, a slot). A fact that
is unknown stays so, with its reason: it is equal to nothing, and it makes nothing stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from inferswarm.documents import Document
from inferswarm.errors import SpecError
from inferswarm.evidence.dependencies import SubjectKind
from inferswarm.resources.types import Fact, Link, NamedFact, Node, ResourceGraph, observed, unknown


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
        return next((item for item in self.subjects if item.subject == subject), None)


def path_subject(source: str, target: str) -> str:
    """Return the subject of records about messages from one Node (id) to another."""
    return f"path:{source}->{target}"


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

    for node in graph.nodes:
        add(node.id, "node", _node_threads(graph, node), nodes[node.id])
    for unit in graph.compute_units:
        isa = ",".join(sorted(tag.removeprefix("isa:") for tag in unit.capabilities if tag.startswith("isa:")))
        own: dict[str, Fact[str]] = {
            "threads": observed(str(unit.threads), "the resource graph"),
            "isa": observed(isa, "the resource graph") if isa else unknown("the graph states no instruction sets"),
        }
        add(unit.id, unit.kind, nodes[unit.node_id], own, extra.get(unit.id, {}))
    for memory in graph.memory_resources:
        add(memory.id, memory.kind, nodes[memory.node_id], extra.get(memory.id, {}))
    for source, target in sorted({(link.source, link.target) for link in graph.links}):
        links = [link for link in graph.links if (link.source, link.target) == (source, target)]
        subject = path_subject(source, target)
        if {link.kind for link in links} == {"loopback"}:
            both: dict[str, Fact[str]] = {
                key: nodes[source][key] for key in ("cpu", "kernel") if key in nodes[source]
            }
            add(subject, "loopback", _path_facts(links), both, extra.get(subject, {}))
        else:
            add(subject, "path", _path_facts(links), extra.get(subject, {}))
    if strangers := sorted(set(extra) - set(found)):
        raise SpecError("stated facts", strangers, "resources and paths of the graph")
    return FactTable(subjects=tuple(found[subject] for subject in sorted(found)))


def _by_name(facts: Iterable[NamedFact]) -> dict[str, Fact[str]]:
    return {item.name: item.fact for item in facts}


def _node_threads(graph: ResourceGraph, node: Node) -> dict[str, Fact[str]]:
    counts = [unit.threads for unit in graph.compute_units if unit.node_id == node.id and unit.kind == "cpu"]
    if len(counts) == 1:
        return {"threads": observed(str(counts[0]), "its one CPU in the resource graph")}
    return {"threads": unknown(f"the Node has {len(counts)} CPU Compute Units, and not one count of threads")}


def _path_facts(links: Sequence[Link]) -> dict[str, Fact[str]]:
    kinds = ",".join(sorted({link.kind for link in links}))
    rates = [link.nominal_bits_per_second for link in links]
    missing = [rate.detail for rate in rates if rate.value is None]
    text = ",".join(sorted(str(rate.value) for rate in rates))
    rate: Fact[str] = unknown(missing[0]) if missing else observed(text, "the resource graph")
    return {"link.kind": observed(kinds, "the resource graph"), "link.rate": rate}
