"""Facts in force of each address pair of a path: a record of messages is about one pair and goes stale with it.

The subject of such a record is the pair. An address that is gone takes its pairs with it: they are not among what is
present. Another MTU, or another speed where a network lies between, is another fact of exactly the pairs that have
that interface at an end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferswarm.evidence.facts import FactTable, SubjectFacts, path_subject
from inferswarm.resources.address_pairs import AddressPair
from inferswarm.resources.types import Fact, NamedFact, observed, unknown

PairsByPath = Mapping[tuple[str, str], Sequence[AddressPair]]
"""The address pairs of directed pairs of Nodes, by the Nodes' ids."""


def with_address_pairs(table: FactTable, pairs: PairsByPath) -> FactTable:
    """Return a table that lists each address pair of the paths that it has, beside the paths themselves.

    A pair has the facts of its path, its addresses, and the MTU and the speed of the two interfaces. Pairs of paths
    that are not in the table are left out: no Link joins their Nodes.
    """
    found = {item.subject: item for item in table.subjects}
    for (source, target), listed in pairs.items():
        path = table.of(path_subject(source, target))
        for pair in listed if path is not None else ():
            assert path is not None
            facts = {item.name: item.fact for item in path.facts}
            facts["addresses"] = observed(">".join(pair.addresses), "the Nodes' interfaces")
            facts["mtu"] = _both("MTU", pair.source.mtu_bytes, pair.target.mtu_bytes)
            if path.kind == "path":  # between Nodes of one host nothing moves at an interface's speed
                facts["link.rate"] = _both("speed", pair.source.bits_per_second, pair.target.bits_per_second)
            subject = path_subject(source, target, pair.addresses)
            named = tuple(NamedFact(name=name, fact=facts[name]) for name in sorted(facts))
            found[subject] = SubjectFacts(subject=subject, kind=path.kind, facts=named)
    return FactTable(subjects=tuple(found[subject] for subject in sorted(found)))


def _both(what: str, source: Fact[int], target: Fact[int]) -> Fact[str]:
    for end, fact in (("source", source), ("target", target)):
        if fact.value is None:
            return unknown(f"{what} at the {end}: {fact.detail}")
    return observed(f"{source.value}>{target.value}", source.detail)
