"""The planner's rules about what an operator demands: correctness is never traded, and policy is never physics."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.planner import (
    Decision,
    Policy,
    QualificationRecord,
    QualifiedMake,
    Reservation,
    Workload,
    counterfactuals,
)
from inferswarm.planner.resolving import Inputs
from tests.unit.planner.planner_cases import AMBER, COPPER, make_economics, make_graph, make_problem

BOTH = (AMBER, COPPER)
PROBLEM = make_problem(4, representations=BOTH)
WORKLOAD = Workload(prompt_tokens=16, output_tokens=11)
SPEEDS = {"oak": 0.01, "pine": 0.02}
EXACT = Policy(bit_exact_required=True)


def record(*units: str, representation: str = AMBER) -> QualificationRecord:
    """Accepted: that the make of these Compute Units, told apart by their threads, is bit-exact."""
    threads = {"oak": 4, "pine": 1}
    return QualificationRecord(
        id=f"{representation} on {' '.join(units)}",
        problem_id=PROBLEM.id,
        strategy=PROBLEM.strategy,
        comparator=PROBLEM.comparator,
        chunk_positions=PROBLEM.chunk_positions,
        primitive="plain",
        representation=representation,
        makes=tuple(
            QualifiedMake(representation=representation, kind="cpu", threads=threads[unit], capabilities=())
            for unit in units
        ),
        agreement="bit-exact",
        disposition="PASS",
        accepted=True,
        evidence_ids=("measured",),
    )


def inputs(policy: Policy, *records: QualificationRecord, rooms=None) -> Inputs:
    graph = make_graph(rooms or {"oak": 9000, "pine": 9000})
    units = tuple(
        msgspec.structs.replace(unit, threads=4 if unit.name == "oak" else 1) for unit in graph.compute_units
    )
    graph = msgspec.structs.replace(graph, compute_units=units)
    economics = make_economics(SPEEDS, representations=BOTH)
    return Inputs(PROBLEM, graph, WORKLOAD, policy, economics, qualification=records)


def decided(policy: Policy, *records: QualificationRecord, rooms=None) -> Decision:
    return inputs(policy, *records, rooms=rooms).decide()


def route_of(decision: Decision) -> tuple[str, list[str]]:
    assert decision.plan is not None
    return decision.plan.representation, [placement.node_name for placement in decision.plan.placements]


@pytest.mark.rule(91)
def test_the_fastest_candidate_without_a_record_is_excluded_with_its_reason():
    """Oak is twice as fast; only Pine's make has a record, so Pine is used and Oak says why it is not.

    Mutation: let `exactness_refusal` return None where no record matches, or leave the threads out of
    `QualifiedMake.key`.
    """
    assert route_of(decided(Policy())) == (AMBER, ["oak"])
    decision = decided(EXACT, record("pine"))
    assert route_of(decision) == (AMBER, ["pine"])
    fastest = next(item for item in decision.families if item.node_names == ("oak",))
    assert fastest.status == "POLICY_EXCLUDED"
    assert "NO_ACCEPTED_QUALIFICATION_EVIDENCE" in fastest.reasons[0]
    unused = next(item for item in decision.resources if item.node_name == "oak")
    assert "NO_ACCEPTED_QUALIFICATION_EVIDENCE" in unused.reason


@pytest.mark.rule(94)
def test_bit_exactness_that_nothing_proves_leaves_no_plan_and_nothing_gives_it_up():
    """No record, and a record in another representation or for less than the plan needs: there is no plan.

    Mutation: skip `exactness_refusal` in `Rules.set_refusals`, or take a record for one make as one for all.
    """
    tight = {"oak": 2500, "pine": 2500}
    for records in ((), (record("oak", representation="zinc"),)):
        decision = decided(EXACT, *records)
        assert (decision.outcome, decision.plan) == ("NO_FEASIBLE_PLAN", None)
        assert {family.status for family in decision.families} == {"POLICY_EXCLUDED"}
    apart = (record("oak"), record("pine"))
    assert decided(EXACT, *apart, rooms=tight).plan is None
    assert set(route_of(decided(EXACT, record("oak", "pine"), rooms=tight))[1]) == {"oak", "pine"}
    # Nor do the questions around a decision give it up.
    assert counterfactuals(inputs(EXACT)).items == ()


@pytest.mark.rule("99a")
def test_a_missing_record_is_no_distrust():
    """What lacks a record is excluded by the policy alone: nothing is in quarantine, and undemanded it is used.

    Mutation: report it as INTEGRITY_EXCLUDED or TECHNICALLY_INFEASIBLE.
    """
    decision = decided(EXACT)
    assert not [item for item in decision.families if item.status == "INTEGRITY_EXCLUDED"]
    assert decided(Policy()).proved_optimal


@pytest.mark.rule(1)
def test_what_an_operator_keeps_free_is_not_used_and_stays_possible():
    """Of 9,000 bytes Oak keeps 6,000 free: it is no longer chosen alone, and still technically feasible alone.

    Mutation: apply reservations to the snapshot that the technical gates judge, or only to what is shown.
    """
    kept = decided(Policy(reservations=(Reservation("oak", 6000),), representations=(AMBER,)))
    alone = next(item for item in kept.families if item.node_names == ("oak",) and item.representation == AMBER)
    assert alone.status == "POLICY_EXCLUDED"
    assert "6.00 kB kept free on oak" in alone.reasons[0]
    for placement in kept.plan.placements:
        assert placement.memory.needed_bytes <= (3000 if placement.node_name == "oak" else 9000)
