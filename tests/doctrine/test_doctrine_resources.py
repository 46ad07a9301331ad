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
from inferswarm.planner.problem import Workload
from inferswarm.resources import topology_file
from inferswarm.resources.graph import SwarmGraph
from inferswarm.resources.topology import Topology, read_topology
from inferswarm.resources.types import ComputeUnit, Link, MemoryResource, Node, ResourceGraph
from inferswarm.resources.virtual import graph_of_host
from inferswarm.strategies.dense.description import plain_decoder
from inferswarm.swarm.simulated import LABEL, SimulatedSwarm
from tests.unit.resources.resources_samples import make_accelerator, make_interface, make_inventory
from tests.unit.resources.topology_samples import CARD, CPU, LAN, MEMORY, link, node, topology

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
    for kind in vars(topology_file).values():
        if isinstance(kind, type) and issubclass(kind, topology_file.Entry):
            words = {word for name in kind.__struct_encode_fields__ for word in name.split("_")}
            assert [word for word in words if RANKING_WORDS.fullmatch(word.lower())] == [], kind.__name__


def declared(*tables: str) -> Topology:
    return read_topology(topology(*tables), "test")


@pytest.mark.rule(8)
def test_declared_identities_do_not_depend_on_the_order_of_the_file() -> None:
    """Tables in another order declare the same Nodes, Compute Units, memories and Links, by identity.

    Mutation: derive an identity in `topology._Builder` from how many records there are already.
    """
    a, b = node("a", MEMORY, CPU, CARD), node("b")

    def ids(found: ResourceGraph) -> set[str]:
        records = (*found.nodes, *found.compute_units, *found.memory_resources, *found.links, *found.segments)
        return {record.id for record in records}

    assert ids(declared(a, b, LAN).graph) == ids(declared(b, a, LAN).graph)


@pytest.mark.rule(10)
def test_a_declared_topology_has_the_links_that_its_file_joins_and_no_others() -> None:
    """Of three Nodes in a row the ends have no Link; data between them takes two hops, and one way only if declared.

    Mutation: in `Wiring._add_declared`, add a Link from every earlier Link's source to the new one's target.
    """
    row = (link("a", "b", both_ways=True), link("b", "c"))
    swarm = SwarmGraph(declared(*map(node, "abc"), *row).graph)
    a, b, c = (swarm.node_named(name).id for name in "abc")
    assert {(item.source, item.target) for item in swarm.document.links} == {(a, b), (b, a), (b, c)}
    there = swarm.path(a, c)
    assert there is not None
    assert [hop.kind for hop in there] == ["link", "link"]
    assert swarm.path(c, a) is None


TINY = plain_decoder(
    architecture="test",
    vocabulary_size=1000,
    hidden_size=64,
    feed_forward_size=128,
    num_blocks=2,
    num_heads=4,
    num_key_value_heads=2,
    head_size=16,
    context_positions=512,
)


@pytest.mark.rule(26)
def test_declared_figures_are_no_measurement_and_an_estimate_from_them_says_so() -> None:
    """Declared figures select a plan only for whoever asks for an estimate; then the decision and its plan say so.

    Mutation: make `estimate` of `SimulatedSwarm.plan` true by default, or curves of `estimate_economics` measured.
    """
    swarm = SimulatedSwarm(declared(node("a"), node("b"), LAN))
    workload = Workload(prompt_tokens=32, output_tokens=8)
    silent = swarm.plan(TINY, workload).document
    assert silent.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    assert silent.plan is None
    asked = swarm.plan(TINY, workload, estimate=True).document
    assert asked.outcome == "SELECTED"
    assert LABEL in asked.summary
    assert asked.plan is not None
    assert asked.plan.prediction is not None
    assert {item.split(":")[0] for item in asked.plan.prediction.evidence_ids} == {"declared"}


@pytest.mark.rule(27)
def test_a_figure_that_nobody_declared_is_unknown_and_makes_no_plan_cheap() -> None:
    """A Node without a declared bandwidth can be used and is never ranked, not even when an estimate is asked for.

    Mutation: let `_Estimator._figure` return infinity, or any number, for a figure that is not there.
    """
    bare = MEMORY.replace("read_bandwidth", "# read_bandwidth")
    swarm = SimulatedSwarm(declared(node("known"), node("bare", bare, CPU), LAN))
    document = swarm.plan(TINY, Workload(prompt_tokens=32, output_tokens=8), estimate=True).document
    alone = {family.node_names: family.status for family in document.families if len(family.node_names) == 1}
    assert alone == {("known",): "RANKED", ("bare",): "FEASIBLE_UNRANKED"}
    assert document.plan is not None
    assert [placement.node_name for placement in document.plan.placements] == ["known"]
    assert not document.proved_optimal
    assert any("no read-bandwidth" in reason for reason in document.missing_evidence)


@pytest.mark.rule(24)
def test_what_is_declared_as_taken_counts_before_anything_is_placed() -> None:
    """The same memory with more of it declared as taken no longer holds what it held; undeclared, it holds nothing.

    Mutation: let `MemoryResource.reserved_bytes` of a declared memory be 0 when the file does not state it.
    """
    outcomes = []
    for reserved in ('reserved = "2 GiB"', 'reserved = "15.99 GiB"', "# reserved"):
        memory = MEMORY.replace('reserved = "2 GiB"', reserved)
        swarm = SimulatedSwarm(declared(node("a", memory, CPU)))
        outcomes.append(swarm.plan(TINY, Workload(prompt_tokens=32, output_tokens=8), estimate=True).document.outcome)
    assert outcomes == ["SELECTED", "NO_FEASIBLE_PLAN", "NO_FEASIBLE_PLAN"]
