"""A card too small for a model beside a large RAM: its states may be in the RAM when the card can compute so."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from inferswarm.planner.economics import ServiceCurve
from inferswarm.planner.problem import Policy, Workload
from inferswarm.resources.topology import read_topology
from inferswarm.strategies.dense.description import plain_decoder
from inferswarm.strategies.problem import make_problem
from inferswarm.swarm import Swarm
from inferswarm.swarm.estimating import Assumptions, Shares, estimate_economics
from tests.unit.resources.topology_samples import CARD, CPU, MEMORY, node, topology

LONG = Workload(prompt_tokens=2048, output_tokens=64)
MODEL = plain_decoder(
    architecture="test",
    vocabulary_size=32_000,
    hidden_size=4096,
    feed_forward_size=14336,
    num_blocks=32,
    num_heads=32,
    num_key_value_heads=8,
    head_size=128,
    context_positions=8192,
    tied_head=False,
)
"""Seven billion weights: 14 GB in two bytes each, more than the card has."""
LARGE = MEMORY.replace('"16 GiB"', '"64 GiB"')
WEAK = CPU.replace("1 TFLOP/s", "50 GFLOP/s").replace("500 GFLOP/s", "50 GFLOP/s")
FULL = Shares(read=1.0, arithmetic=1.0, network=1.0, copy=1.0, message_seconds=1e-6)


def machine(addressable: bool) -> str:
    return topology(node("box", LARGE, WEAK, CARD + f"states_addressable = {str(addressable).lower()}\n"))


def planned(folder: Path, addressable: bool):
    file = folder / "box.toml"
    file.write_text(machine(addressable))
    swarm = Swarm.simulated(file)
    return swarm.plan(MODEL, LONG, Policy(representations=("bf16",)), estimate=True).document


def test_the_card_computes_with_states_in_ram_when_that_is_faster(tmp_path: Path) -> None:
    without, with_it = planned(tmp_path, False), planned(tmp_path, True)
    (placement,) = (item for item in with_it.plan.placements if item.compute_unit_id.startswith("cuda"))
    assert placement.end_unit - placement.first_unit >= 32
    assert [account.memory_id for account in placement.accounts] == [
        placement.memory.memory_id,
        placement.states_memory_id,
    ]
    assert placement.states_memory_id.startswith("ram")
    assert placement.states_memory.terms[0].name == "states"
    assert "states" not in {term.name for term in placement.memory.terms}
    assert all(account.fits for account in placement.accounts)
    assert all(isinstance(item.states_memory_id, msgspec.UnsetType) for item in without.plan.placements)
    assert with_it.plan.prediction.request.point < without.plan.prediction.request.point
    assert placement.states_memory_id in with_it.explain()


@pytest.mark.parametrize("phase", ["step", "first-pass"])
def test_states_in_ram_come_at_the_rate_of_the_copies(phase: str) -> None:
    found = read_topology(machine(True), "test")
    exact = Assumptions(best=FULL, expected=FULL, worst=FULL)
    economics = estimate_economics(found, MODEL, make_problem(MODEL), exact)
    block = make_problem(MODEL).units[1]

    def curve(apart: bool) -> ServiceCurve:
        (wanted,) = (
            item
            for item in economics.services
            if item.compute_unit_id.startswith("cuda")
            and (item.cost_class, item.phase, item.representation) == (block.cost_class, phase, "bf16")
            and item.apart == apart
        )
        return wanted

    states = {item.id: item.sizes for item in make_problem(MODEL).states}
    amount = sum(size.bytes for state in block.states for size in states[state] if size.representation == "bf16")
    assert curve(False).base_seconds == pytest.approx(amount / 400e9 + 80e-6)
    assert curve(True).base_seconds == pytest.approx(amount / 20e9 + 10e-6 + 80e-6)
    assert curve(True).seconds_per_position == curve(False).seconds_per_position
    assert curve(True).basis == "declared"
