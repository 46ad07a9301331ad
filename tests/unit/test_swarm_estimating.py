"""The roofline: what declared figures let one expect, checked against arithmetic done by hand."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from inferswarm.planner.economics import Economics, PathCurve, ServiceCurve
from inferswarm.planner.problem import PlanningProblem
from inferswarm.resources.topology import Topology, read_topology
from inferswarm.strategies.dense.description import DecoderDescription, plain_decoder
from inferswarm.strategies.problem import make_problem
from inferswarm.swarm.estimating import Assumptions, Shares, estimate_economics, work_of
from tests.unit.resources.topology_samples import CARD, CPU, LAN, MEMORY, link, node, topology

FULL = Shares(read=1.0, arithmetic=1.0, network=1.0, copy=1.0, message_seconds=1e-6)
EXACT = Assumptions(best=FULL, expected=FULL, worst=FULL)
"""Nominal figures taken at their word, so that sums can be done by hand."""
HIDDEN, FEED, BLOCKS, VOCABULARY, KEPT = 64, 160, 3, 1000, 2 * 2 * 16
BLOCK_WEIGHTS = 2 * HIDDEN + 2 * HIDDEN * HIDDEN + 2 * 32 * HIDDEN + 3 * FEED * HIDDEN


def small_model() -> DecoderDescription:
    return plain_decoder(
        architecture="test",
        vocabulary_size=VOCABULARY,
        hidden_size=HIDDEN,
        feed_forward_size=FEED,
        num_blocks=BLOCKS,
        num_heads=4,
        num_key_value_heads=2,
        head_size=16,
        context_positions=512,
    )


MODEL = small_model()
PROBLEM = make_problem(MODEL)


def declared(*tables: str) -> Topology:
    return read_topology(topology(*tables), "test")


def estimated(found: Topology, assumptions: Assumptions = EXACT, problem: PlanningProblem = PROBLEM) -> Economics:
    return estimate_economics(found, MODEL, problem, assumptions)


def curve(economics: Economics, index: int, phase: str, representation: str = "bf16", kind: str = "") -> ServiceCurve:
    (found,) = (
        item
        for item in economics.services
        if (item.cost_class, item.phase, item.representation)
        == (PROBLEM.units[index].cost_class, phase, representation)
        and item.compute_unit_id.startswith(kind)
    )
    return found


def path(economics: Economics, found: Topology, source: str, target: str) -> PathCurve:
    ids = {item.name: item.id for item in found.graph.nodes}
    (result,) = (item for item in economics.paths if (item.source, item.target) == (ids[source], ids[target]))
    return result


def test_the_work_of_a_block_is_its_weights_and_what_it_keeps() -> None:
    work = work_of(MODEL, PROBLEM, 1, "bf16")
    assert work.weights == BLOCK_WEIGHTS
    assert work.weight_bytes == 2 * BLOCK_WEIGHTS
    assert work.kept_bytes_per_position == 2 * KEPT
    assert work_of(MODEL, PROBLEM, 1, "fp32").weight_bytes == 4 * BLOCK_WEIGHTS


def test_the_embedding_reads_one_row_and_the_head_its_whole_table() -> None:
    embedding, head = (work_of(MODEL, PROBLEM, index, "bf16") for index in (0, BLOCKS + 1))
    assert (embedding.weight_bytes, embedding.row_bytes, embedding.weights) == (0, 2 * HIDDEN, 0)
    assert head.weights == VOCABULARY * HIDDEN + HIDDEN


def test_a_step_is_bound_by_reading_where_arithmetic_is_plenty() -> None:
    found = curve(estimated(declared(node("a"))), 1, "step")
    assert found.base_seconds == pytest.approx(2 * BLOCK_WEIGHTS / 40e9 + 50e-6)
    assert found.seconds_per_position_context == pytest.approx(2 * KEPT / 40e9)
    assert (found.low, found.high) == (1.0, 1.0)


def test_a_step_is_bound_by_arithmetic_where_that_is_scarce() -> None:
    slow = CPU.replace('bf16 = "1 TFLOP/s"', 'bf16 = "1 GFLOP/s"')
    found = curve(estimated(declared(node("a", MEMORY, slow))), 1, "step")
    assert found.base_seconds == pytest.approx(2 * BLOCK_WEIGHTS / 1e9 + 50e-6)


def test_a_first_pass_reads_once_and_computes_for_each_position() -> None:
    found = curve(estimated(declared(node("a"))), 1, "first-pass")
    assert found.base_seconds == pytest.approx(2 * BLOCK_WEIGHTS / 40e9 + 50e-6)
    assert found.seconds_per_position == pytest.approx(2 * BLOCK_WEIGHTS / 1e12)
    assert found.seconds_per_position_context == pytest.approx(4 * HIDDEN / 1e12)
    assert 0.5 <= found.low < 1.0  # reading and computing may go on at once


def test_fewer_bytes_make_a_representation_faster() -> None:
    economics = estimated(declared(node("a")))
    wide, narrow = (curve(economics, 1, "step", name).base_seconds - 50e-6 for name in ("fp32", "bf16"))
    assert wide == pytest.approx(2 * narrow)


def test_the_nearest_memory_counts() -> None:
    found = declared(node("a", MEMORY, CPU, CARD))
    economics = estimated(found)
    assert curve(economics, 1, "step", kind="cuda").base_seconds == pytest.approx(2 * BLOCK_WEIGHTS / 400e9 + 80e-6)


def test_a_message_takes_latency_software_and_its_bytes() -> None:
    found = declared(node("a"), node("b"), LAN)
    curve_ = path(estimated(found), found, "a", "b")
    assert curve_.latency_seconds == pytest.approx(200e-6 + 1e-6)
    assert curve_.seconds_per_byte == pytest.approx(8 / 1e9)


def test_directions_are_priced_apart() -> None:
    found = declared(node("a"), node("b"), link("a", "b", rate="20 Mbit/s"), link("b", "a", rate="200 Mbit/s"))
    economics = estimated(found)
    there, back = path(economics, found, "a", "b"), path(economics, found, "b", "a")
    assert there.seconds_per_byte == pytest.approx(10 * back.seconds_per_byte)


def test_copies_of_an_accelerator_are_part_of_the_way() -> None:
    found = declared(node("a", MEMORY, CPU, CARD), node("b"), LAN)
    economics = estimated(found)
    out, into = path(economics, found, "a", "b"), path(economics, found, "b", "a")
    assert out.seconds_per_byte == pytest.approx(8 / 1e9 + 1 / 10e9)
    assert into.seconds_per_byte == pytest.approx(8 / 1e9 + 1 / 20e9)
    assert out.latency_seconds == pytest.approx(211e-6)
    assert out.low < 1.0  # from the CPU nothing is copied
    within = path(economics, found, "a", "a")
    assert within.seconds_per_byte == pytest.approx(1 / 10e9 + 1 / 20e9)
    assert within.latency_seconds == pytest.approx(21e-6)


def test_a_node_with_one_compute_unit_has_no_way_to_itself() -> None:
    found = declared(node("a"), node("b"), LAN)
    assert all(item.source != item.target for item in estimated(found).paths)


def test_the_faster_of_two_links_counts() -> None:
    slow, fast = link("a", "b", rate="10 Mbit/s"), LAN
    found = declared(node("a"), node("b"), slow, fast)
    assert path(estimated(found), found, "a", "b").seconds_per_byte == pytest.approx(8 / 1e9)


def test_a_link_that_is_not_available_is_not_priced() -> None:
    assert estimated(declared(node("a"), node("b"), link("a", "b", available=False))).paths == ()


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ((node("a", MEMORY.replace("read_bandwidth", "#"), CPU),), "no read-bandwidth of the memory nearest to cpu"),
        ((node("a", MEMORY, CPU.replace("unit_overhead", "#")),), "no unit-overhead of cpu"),
        ((node("a", MEMORY, CPU.replace("arithmetic", "#")),), "no arithmetic of cpu in bf16"),
        ((node("a"), node("b"), link("a", "b", rate=None)), "a → b: no Link between them declares both"),
        ((node("a"), node("b"), link("a", "b", latency=None)), "a → b: no Link between them declares both"),
        ((node("a", MEMORY, CPU, CARD.replace("copy =", "#")),), "a → a: the topology declares no copy-out-rate"),
    ],
)
def test_what_is_not_declared_is_missing_with_its_reason(tables: tuple[str, ...], says: str) -> None:
    economics = estimated(declared(*tables))
    assert any(says in reason for reason in economics.missing)


def test_a_unit_that_cannot_execute_is_neither_priced_nor_missing() -> None:
    economics = estimated(declared(node("a", MEMORY, CPU.replace('["torch"]', '["other"]'))))
    assert (economics.services, economics.missing) == ((), ())


def test_curves_name_declared_figures_and_no_record() -> None:
    found = declared(node("a", MEMORY, CPU, CARD), node("b"), LAN)
    economics = estimated(found)
    ids = {item for one in (*economics.services, *economics.paths) for item in one.evidence_ids}
    links = {f"declared:{item.id}" for item in found.graph.links}
    assert ids <= {figure.id for figure in found.figures} | links
    assert links <= ids
    assert all(item.startswith("declared:") for item in ids)


def all_under(shares: Shares, found: Topology) -> Economics:
    return estimated(found, Assumptions(best=shares, expected=shares, worst=shares))


def test_bounds_enclose_the_best_and_the_worst_case() -> None:
    """The same figures under only the best, or only the worst, shares lie within the bounds of the expected ones."""
    found = declared(node("a", MEMORY, CPU, CARD), node("b"), LAN)
    default = Assumptions()
    best, middle, worst = all_under(default.best, found), estimated(found, default), all_under(default.worst, found)
    assert best.services
    for low, point, high in zip(best.services, middle.services, worst.services, strict=True):
        assert point.low < 1.0 < point.high
        for positions, context in itertools.product((1, 16, 64), (0, 300)):
            seconds = point.seconds(positions, context)
            assert seconds * point.low <= low.seconds(positions, context) * (1 + 1e-12)
            assert high.seconds(positions, context) <= seconds * point.high * (1 + 1e-12)
    for low_, point_, high_ in zip(best.paths, middle.paths, worst.paths, strict=True):
        for size in (0, 8192, 10**7):
            assert point_.seconds(size) * point_.low <= low_.seconds(size) * (1 + 1e-12)
            assert high_.seconds(size) <= point_.seconds(size) * point_.high * (1 + 1e-12)


@pytest.mark.parametrize(
    ("field", "value"), [("read", 0.0), ("network", 1.5), ("copy", -1.0), ("message_seconds", 0.0)]
)
def test_a_share_that_is_none_is_refused(field: str, value: float) -> None:
    fields = {"read": 0.5, "arithmetic": 0.5, "network": 0.5, "copy": 0.5, "message_seconds": 1e-4} | {field: value}
    with pytest.raises(ValueError, match=field):
        Shares(**fields)


def test_shares_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="out of order"):
        Assumptions(worst=FULL)


def test_opening_a_request_takes_the_software_of_two_messages() -> None:
    found = curve(estimated(declared(node("a"))), 0, "opening")
    assert found.base_seconds == pytest.approx(2e-6)
    assumed = Assumptions()
    found = curve(estimated(declared(node("a")), assumed), 0, "opening")
    assert found.low * found.base_seconds == pytest.approx(2 * assumed.best.message_seconds)
    assert found.high * found.base_seconds == pytest.approx(2 * assumed.worst.message_seconds)


def test_a_link_that_may_not_be_used_carries_nothing_and_the_next_best_one_is_named() -> None:
    """Mutation: look at all Links of the graph in `_paths`."""
    found = declared(node("a"), node("b"), LAN, link("a", "b", kind="wireless", rate="10 Gbit/s", latency="0.05 ms"))
    links = {item.kind: item.id for item in found.graph.links if item.source == path_ends(found)[0]}

    def curves(*kinds: str) -> list[tuple[float, tuple[str, ...]]]:
        barred = [links[kind] for kind in kinds]
        economics = estimate_economics(found, MODEL, PROBLEM, EXACT, barred=barred)
        ends = path_ends(found)
        return [
            (item.latency_seconds, item.link_ids)
            for item in economics.paths
            if (item.source, item.target) == ends and not isinstance(item.link_ids, msgspec.UnsetType)
        ]

    assert curves() == [(pytest.approx(51e-6), (links["wireless"],))]
    assert curves("wireless") == [(pytest.approx(201e-6), (links["ethernet"],))]
    assert curves("wireless", "ethernet") == []


def path_ends(found: Topology) -> tuple[str, str]:
    first, second = (item.id for item in found.graph.nodes)
    return first, second
