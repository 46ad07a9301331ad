"""Planning on paper: an estimate only on request, labeled wherever it goes, and nothing that could run."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferswarm.documents import write_document
from inferswarm.errors import DocumentError, InfeasiblePlan, SpecError
from inferswarm.planner.problem import Policy, Workload
from inferswarm.resources.topology import read_topology
from inferswarm.strategies.dense.description import DecoderDescription, plain_decoder
from inferswarm.swarm.simulated import LABEL, SimulatedSwarm
from inferswarm.swarm.swarm import Swarm
from tests.unit.resources.topology_samples import CPU, LAN, MEMORY, link, node, topology

LIBRARY = Path(__file__).resolve().parents[2] / "experiments" / "topologies"
SHORT = Workload(prompt_tokens=128, output_tokens=64)


def decoder(num_blocks: int, hidden: int, feed_forward: int, heads: int) -> DecoderDescription:
    return plain_decoder(
        architecture="test",
        vocabulary_size=128_256,
        hidden_size=hidden,
        feed_forward_size=feed_forward,
        num_blocks=num_blocks,
        num_heads=heads,
        num_key_value_heads=8,
        head_size=128,
        context_positions=8192,
        tied_head=False,
    )


EIGHT = decoder(32, 4096, 14336, 32)
"""A model of eight billion weights, as far as its sizes go."""
SEVENTY = decoder(80, 8192, 28672, 64)


def library(name: str) -> SimulatedSwarm:
    return Swarm.simulated(LIBRARY / f"{name}.toml")


def test_without_being_asked_declared_figures_select_nothing() -> None:
    decision = library("home-pair").plan(EIGHT, SHORT)
    assert decision.document.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    assert decision.document.plan is None
    assert any("on request" in reason for reason in decision.document.missing_evidence)
    assert "no evidence" in repr(decision)
    with pytest.raises(InfeasiblePlan):
        _ = decision.plan


def test_what_is_feasible_is_known_without_an_estimate() -> None:
    families = library("home-pair").plan(EIGHT, SHORT).document.families
    assert {family.status for family in families} == {"TECHNICALLY_INFEASIBLE", "FEASIBLE_UNRANKED"}


def test_an_estimate_says_so_wherever_it_goes() -> None:
    decision = library("home-pair").plan(EIGHT, SHORT, estimate=True)
    assert decision.document.outcome == "SELECTED"
    prediction = decision.plan.prediction
    assert prediction is not None
    assert prediction.evidence_ids
    assert all(item.startswith("declared:") for item in prediction.evidence_ids)
    assert decision.document.summary.startswith(LABEL)
    assert LABEL in write_document(decision.document)
    assert decision.explain().startswith("Estimate from declared figures. Nothing here was measured.")
    assert LABEL in repr(decision)
    assert LABEL in decision._repr_html_()


def test_the_same_topology_gives_the_same_decision() -> None:
    first, second = (library("home-pair").plan(EIGHT, SHORT, estimate=True) for _ in range(2))
    assert first.document == second.document


def test_a_model_that_one_card_holds_stays_on_it() -> None:
    decision = library("x1-riser").plan(EIGHT, SHORT, estimate=True)
    assert [placement.node_name for placement in decision.plan.placements] == ["frame"]
    assert decision.document.proved_optimal


def test_a_model_that_no_card_holds_is_spread_and_fits_everywhere() -> None:
    decision = library("two-islands").plan(SEVENTY, SHORT, estimate=True)
    placements = decision.plan.placements
    assert len({placement.node_name for placement in placements}) == 6
    assert all(placement.memory.fits for placement in placements)
    # The thin line between the islands is crossed once on the way there, and once back to the start.
    islands = [placement.node_name.split("-")[0] for placement in placements]
    assert islands == sorted(islands) or islands == sorted(islands, reverse=True)


def test_what_no_topology_holds_is_infeasible_with_its_numbers() -> None:
    document = library("home-pair").plan(SEVENTY, SHORT, estimate=True).document
    assert document.outcome == "NO_FEASIBLE_PLAN"
    assert all(family.memory or family.reasons for family in document.families)


def test_the_policy_counts() -> None:
    tiny = decoder(2, 1024, 2048, 8)
    free = library("home-pair").plan(tiny, SHORT, estimate=True)
    bound = library("home-pair").plan(tiny, SHORT, Policy(excluded_nodes=("desktop",)), estimate=True)
    assert [placement.node_name for placement in free.plan.placements] == ["desktop"]
    assert [placement.node_name for placement in bound.plan.placements] == ["laptop"]


def test_a_barred_kind_of_link_leaves_the_estimate_of_the_others() -> None:
    """Mutation: let `SimulatedSwarm.plan` estimate without its policy."""
    small = MEMORY.replace("16 GiB", "3 GiB").replace("2 GiB", "1 GiB")
    air = "".join(
        link(*ends, kind="wireless", rate="10 Gbit/s", latency="0.01 ms") for ends in (("a", "b"), ("b", "a"))
    )
    swarm = SimulatedSwarm(read_topology(topology(node("a", small, CPU), node("b", small, CPU), LAN, air), "test"))
    wide = decoder(16, 2048, 6144, 16)
    free = swarm.plan(wide, SHORT, estimate=True)
    bound = swarm.plan(wide, SHORT, Policy(excluded_link_kinds=("wireless",)), estimate=True)
    kinds = {item.id: item.kind for item in swarm.topology.graph.links}
    for decision, kind in ((free, "wireless"), (bound, "ethernet")):
        assert len(decision.plan.placements) == 2
        assert decision.plan.prediction is not None
        ids = (item.removeprefix("declared:") for item in decision.plan.prediction.evidence_ids)
        assert {kinds[item] for item in ids if item in kinds} == {kind}


def test_a_workload_beyond_the_context_is_refused() -> None:
    with pytest.raises(SpecError, match="context"):
        library("home-pair").plan(EIGHT, Workload(prompt_tokens=8192, output_tokens=1), estimate=True)


def test_a_memory_without_a_reservation_holds_nothing() -> None:
    bare = MEMORY.replace("reserved", "# reserved")
    swarm = SimulatedSwarm(read_topology(topology(node("a", bare, CPU)), "test"))
    document = swarm.plan(decoder(1, 1024, 2048, 8), SHORT, estimate=True).document
    assert document.outcome == "NO_FEASIBLE_PLAN"
    assert any("reservation is unknown" in reason for family in document.families for reason in family.reasons)


@pytest.mark.parametrize("what", ["measure", "realize", "generate"])
def test_what_needs_hardware_is_refused(what: str) -> None:
    swarm = library("home-pair")
    with pytest.raises(SpecError, match="home-pair") as caught:
        getattr(swarm, what)("anything", run_ahead=2)
    assert caught.value.field == what
    assert "Swarm.local" in caught.value.needed


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("[[node]]\n")
    with pytest.raises(DocumentError, match=r"x\.toml"):
        Swarm.simulated(tmp_path / "x.toml")


def test_the_graph_shows_itself_and_claims_no_measurement() -> None:
    swarm = library("home-pair")
    assert swarm.graph.paths == ()
    assert "desktop" in str(swarm.graph)
    assert "nothing measured" in repr(swarm)
    assert "nothing measured" in swarm._repr_html_()


def test_what_is_declared_is_explained_with_the_assumptions() -> None:
    text = library("home-pair").explain()
    assert "Declared figures, not measured" in text
    assert "desktop, NVIDIA GeForce RTX 3060 12 GB: arithmetic in bf16 25,500 GFLOP/s" in text
    assert "laptop, memory: read-bandwidth 68.3 GB/s" in text
    assert "unit-overhead 120 µs" in text
    assert "expected  70%, 40%, 90%, 80%; 120 µs" in text


def test_the_pictures_are_drawn(tmp_path: Path) -> None:
    swarm = library("home-pair")
    swarm.draw(tmp_path / "graph.svg", tmp_path / "graph.png")
    swarm.plan(EIGHT, SHORT, estimate=True).draw(tmp_path / "plan.svg", tmp_path / "plan.png")
    assert "desktop" in (tmp_path / "graph.svg").read_text(encoding="utf-8")
    assert (tmp_path / "plan.png").stat().st_size > 1000


def test_two_alike_nodes_tie_and_one_is_chosen() -> None:
    swarm = SimulatedSwarm(read_topology(topology(node("a"), node("b"), LAN), "test"))
    decision = swarm.plan(decoder(2, 1024, 2048, 8), SHORT, estimate=True)
    assert len(decision.plan.placements) == 1


def test_many_nodes_are_shown_by_kind_and_planned_one_by_one() -> None:
    swarm = library("mixed-24")
    text = swarm.explain()
    assert "gaming-1 and 3 alike" in text
    assert "gaming-2" not in text
    assert len(text.splitlines()) < 200
    assert len(swarm.graph.document.nodes) == 24
    assert swarm._repr_html_().count("laptop-1 and 5 alike") >= 1
