"""Rules that hold where a Node has several Compute Units: every process counts, and what is unknown never fits."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from inferswarm.planner import decide
from inferswarm.planner.decide import force_plan
from inferswarm.planner.economics import Economics
from inferswarm.planner.problem import Policy, Workload
from inferswarm.resources.virtual import graph_of_envelopes
from inferswarm.strategies.problem import make_problem
from inferswarm.swarm.reservations import with_participants
from tests.unit.backends.backends_support import small_description
from tests.unit.resources.resources_samples import make_inventory
from tests.units_rig import AGENT, ELM, OAK, STAGE, Machine, Rig, of_envelopes

WORKLOAD = Workload(prompt_tokens=16, output_tokens=8)
NOTHING = Economics(services=(), paths=())


def measured(rig: Rig) -> Rig:
    """Return the rig with its measured reservations in its graph."""
    reserved, envelopes = rig.reserved.nodes, rig.envelopes
    rig.graph = graph_of_envelopes(make_inventory(), "swarm-1", envelopes, reserved, "none", backends=("torch",))
    return rig


@pytest.mark.rule(24)
def test_a_second_participant_on_a_memory_is_charged_for_its_process(tmp_path: Path) -> None:
    """Mutation: `with_participants` returns the problem unchanged."""
    rig = of_envelopes(tmp_path, OAK)
    rig.measure(Machine())
    measured(rig)
    problem = with_participants(make_problem(small_description()), rig.reserved.participant_bytes)
    first, second = (unit.id for unit in rig.graph.compute_units)

    def charged(units: tuple[str, ...], cuts: tuple[int, ...]) -> int:
        account = force_plan(problem, rig.graph, WORKLOAD, NOTHING, units, cuts, "fp32").placements[0].memory
        states = sum(term.bytes for term in account.terms if term.name in ("states", "mutable state"))
        assert account.reserved_bytes is not None
        return account.reserved_bytes + account.needed_bytes - states

    alone, both = charged((first,), ()), charged((first, second), (2,))
    assert AGENT + STAGE < alone < AGENT + 2 * STAGE < both


@pytest.mark.rule(27)
def test_what_a_further_process_takes_is_unknown_until_it_was_measured_and_then_nothing_fits(tmp_path: Path) -> None:
    """Mutation: `reservations_of` reserves the base of a Node whose further stage was not measured."""
    earlier = of_envelopes(tmp_path, ELM)
    earlier.measure(Machine())
    now = measured(of_envelopes(tmp_path, msgspec.structs.replace(ELM, more_threads=(1,))))
    decision = decide(make_problem(small_description()), now.graph, WORKLOAD, Policy(), NOTHING)
    assert decision.outcome == "NO_FEASIBLE_PLAN"
    assert {family.status for family in decision.families} == {"TECHNICALLY_INFEASIBLE"}
