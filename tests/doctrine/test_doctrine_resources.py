"""Rules about what exists: identities, paths, the separation of Compute Units and memory, and no tiers."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

import inferswarm.resources
from inferswarm.evidence.applicability import select
from inferswarm.evidence.types import Observation, make_context
from inferswarm.resources.graph import SwarmGraph
from inferswarm.resources.types import ComputeUnit, Link, MemoryResource, Node, ResourceGraph
from inferswarm.resources.virtual import graph_of_host
from tests.unit.resources.resources_samples import make_accelerator, make_interface, make_inventory

TWO_CARDS = (make_accelerator("aaaa", "Card A"), make_accelerator("bbbb", "Card B"))


def identities(graph: ResourceGraph) -> dict[str, str]:
    """Map each resource, told by what does not change, to its identity."""
    found = {node.name: node.id for node in graph.nodes}
    found |= {unit.name: unit.id for unit in graph.compute_units}
    owners = {unit.memory_ids[0]: unit.name for unit in graph.compute_units}
    return found | {f"memory of {owners[memory.id]}": memory.id for memory in graph.memory_resources}


@pytest.mark.rule(8)
def test_identities_do_not_depend_on_order_names_or_addresses() -> None:
    """Reordered cards and interfaces, renamed interfaces and changed addresses leave every identity as it was.

    Mutation: derive `accelerator_id` from the index in the inventory instead of the UUID.
    """
    interfaces = (make_interface("eth0", "192.0.2.1"), make_interface("eth1", "192.0.2.2"))
    expected = identities(graph_of_host(make_inventory(accelerators=TWO_CARDS, interfaces=interfaces), "swarm"))
    assert len(expected) == 7
    renamed = (make_interface("enp3s0", "198.51.100.7"),)
    for cards, nets in itertools.product(itertools.permutations(TWO_CARDS), [interfaces, interfaces[::-1], renamed]):
        graph = graph_of_host(make_inventory(accelerators=cards, interfaces=nets), "swarm")
        assert identities(graph) == expected


@pytest.mark.rule(9)
def test_a_replaced_card_has_a_new_identity_and_inherits_no_evidence() -> None:
    """Another UUID at the same index and of the same name is another Compute Unit; old records do not apply to it.

    Mutation: derive `accelerator_id` from the card's name, or drop the comparison of subjects in `select`.
    """
    before = graph_of_host(make_inventory(accelerators=(make_accelerator("old"),)), "swarm")
    after = graph_of_host(make_inventory(accelerators=(make_accelerator("new"),)), "swarm")
    old, new = before.compute_units[1], after.compute_units[1]
    assert old.name == new.name
    assert old.id != new.id
    assert before.memory_resources[1].id != after.memory_resources[1].id
    assert before.compute_units[0].id == after.compute_units[0].id  # the CPU stayed
    record = Observation(
        subject=old.id,
        metric="unit-seconds",
        unit="s",
        samples=(1.0,),
        context=make_context(threads=1),
        protocol="test/1",
        taken_at_ns="1",
        producer="test",
    )
    assert select([record], old.id, "unit-seconds", {}).applicable == (record,)
    assert select([record], new.id, "unit-seconds", {}).applicable == ()


@pytest.mark.rule(10)
def test_a_path_between_two_cards_is_the_staged_copies_that_exist() -> None:
    """Two accelerators that address only their own memory and RAM are two hops apart, through RAM.

    Mutation: in `SwarmGraph._movement_graph`, join all memories of one Node with each other.
    """
    swarm = SwarmGraph(graph_of_host(make_inventory(accelerators=TWO_CARDS), "swarm"))
    cards = [unit for unit in swarm.document.compute_units if unit.kind == "cuda"]
    path = swarm.path(cards[0].id, cards[1].id)
    assert path is not None
    ram = next(memory.id for memory in swarm.document.memory_resources if memory.kind == "ram")
    assert [(hop.source, hop.target, hop.carrier) for hop in path] == [
        (cards[0].memory_ids[0], ram, cards[0].id),
        (ram, cards[1].memory_ids[0], cards[1].id),
    ]


@pytest.mark.rule(11)
def test_memory_and_compute_are_separate_and_many_to_many() -> None:
    """RAM is one resource that three Compute Units address; a card addresses two; neither owns the other.

    Mutation: give each Compute Unit a Memory Resource of its own in `graph_of_host`, or drop RAM from a card's list.
    """
    swarm = SwarmGraph(graph_of_host(make_inventory(accelerators=TWO_CARDS), "swarm"))
    (ram,) = (memory for memory in swarm.document.memory_resources if memory.kind == "ram")
    assert [ram in swarm.memory_of(unit.id) for unit in swarm.document.compute_units] == [True, True, True]
    assert [len(swarm.memory_of(unit.id)) for unit in swarm.document.compute_units] == [1, 2, 2]
    units = {unit.id for unit in swarm.document.compute_units}
    assert units.isdisjoint(memory.id for memory in swarm.document.memory_resources)


RANKING_WORDS = re.compile(
    r"primary|secondary|hot|cold|warm|tier|rank|master|slave|main|backup|l[0-3]|level|priority"
)


@pytest.mark.rule(12)
def test_no_resource_type_has_a_role_or_a_tier() -> None:
    """No field, literal value or identifier of the resource types ranks one resource above another.

    Mutation: add a field `tier: int` to Node, or a kind "primary" to MemoryResource.
    """
    for kind in (Node, ComputeUnit, MemoryResource, Link, ResourceGraph):
        for field in msgspec.structs.fields(kind):
            words = field.name.split("_")
            words += [str(value) for value in get_args(get_type_hints(kind)[field.name])]
            assert [word for word in words if RANKING_WORDS.fullmatch(word.lower())] == []
    allowed = {"level"}  # a cache's level is a fact of the chip
    for path in sorted(Path(inferswarm.resources.__file__).parent.glob("*.py")):
        for tree in ast.walk(ast.parse(path.read_text())):
            if isinstance(tree, ast.AnnAssign) and isinstance(tree.target, ast.Name):
                words = set(tree.target.id.split("_")) - allowed
                assert [word for word in words if RANKING_WORDS.fullmatch(word.lower())] == [], path.name
