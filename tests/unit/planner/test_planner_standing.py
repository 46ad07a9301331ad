"""Health closes the gate of its axis, for the scope that it is about, and no other."""

from __future__ import annotations

import msgspec
import pytest

from inferswarm.errors import InfeasiblePlan
from inferswarm.evidence.events import Scope
from inferswarm.evidence.health import AxisState, Health
from inferswarm.planner import Decision, Inputs, Policy, Workload, counterfactuals, decide, force_plan
from inferswarm.planner.standing import implementation_scope
from tests.unit.planner.planner_cases import AMBER, COPPER, make_economics, make_graph, make_problem

WORKLOAD = Workload(prompt_tokens=16, output_tokens=11)
BAD = {
    "availability": "unavailable",
    "compatibility": "incompatible",
    "integrity": "quarantined",
    "qualification": "suspended",
    "performance": "degraded",
}
STATUS = {
    "availability": "TECHNICALLY_INFEASIBLE",
    "compatibility": "TECHNICALLY_INFEASIBLE",
    "integrity": "INTEGRITY_EXCLUDED",
    "qualification": "POLICY_EXCLUDED",
    "performance": "RANKED",
}
SPEEDS = {"birch": 0.01, "oak": 0.02}
MANY = {**SPEEDS, **{f"n{index}": 0.5 for index in range(6)}}


def bad(axis: str, *scopes: Scope) -> tuple[Health, ...]:
    state = AxisState(axis=axis, state=BAD[axis], detail="seen to be so")
    return tuple(Health(scope=scope, **{axis: state}) for scope in scopes)


def make_decision(health=(), speeds=SPEEDS, room=9000, representations=(AMBER,), **policy) -> Decision:
    return decide(
        make_problem(4, representations=representations),
        make_graph(dict.fromkeys(speeds, room)),
        WORKLOAD,
        Policy(**policy),
        make_economics(speeds, representations=representations),
        health=health,
    )


def alone(decision: Decision, name: str) -> str:
    (status,) = {family.status for family in decision.families if family.node_names == (name,)}
    return status


def nodes_of(decision: Decision) -> list[str]:
    return [placement.node_name for placement in decision.plan.placements]


@pytest.mark.parametrize("speeds", [SPEEDS, MANY], ids=["few", "many"])
@pytest.mark.parametrize("axis", BAD)
@pytest.mark.parametrize(
    "scope", [Scope("node", "node-birch"), Scope("compute-unit", "cu-birch"), Scope("memory-resource", "mem-birch")]
)
def test_each_axis_closes_its_own_gate(axis: str, scope: Scope, speeds) -> None:
    decision = make_decision(bad(axis, scope), speeds)
    assert alone(decision, "birch") == STATUS[axis]
    assert alone(decision, "oak") == "RANKED"
    assert nodes_of(decision) == (["birch"] if axis == "performance" else ["oak"])


@pytest.mark.parametrize("speeds", [SPEEDS, MANY], ids=["few", "many"])
def test_the_unused_unit_has_the_reason(speeds) -> None:
    decision = make_decision(bad("integrity", Scope("node", "node-birch")), speeds)
    (reason,) = (item.reason for item in decision.resources if item.node_name == "birch")
    assert reason.startswith("no plan with it can be trusted: integrity: node node-birch is quarantined")


@pytest.mark.parametrize("speeds", [SPEEDS, MANY], ids=["few", "many"])
def test_when_everything_is_in_quarantine_the_summary_says_so(speeds) -> None:
    decision = make_decision(bad("integrity", *(Scope("node", f"node-{name}") for name in speeds)), speeds)
    assert decision.outcome == "NO_FEASIBLE_PLAN"
    assert decision.plan is None
    if len(speeds) <= 6:
        assert "quarantine" in decision.summary
        assert {family.status for family in decision.families} == {"INTEGRITY_EXCLUDED"}


@pytest.mark.parametrize("axis", ["availability", "integrity"])
def test_a_path_that_is_shut_is_no_link(axis: str) -> None:
    needing_both = make_decision(room=2500)
    assert len(nodes_of(needing_both)) == 2
    decision = make_decision(bad(axis, Scope("path", "node-oak->node-birch")), room=2500)
    assert decision.plan is None
    both = next(family for family in decision.families if len(family.node_names) == 2)
    assert f"path node-oak->node-birch is {BAD[axis]}" in both.reasons[0]


def test_an_implementation_is_shut_in_its_own_representation_only() -> None:
    scope = implementation_scope("plain", COPPER, "cu-birch")
    decision = make_decision(bad("integrity", scope), representations=(AMBER, COPPER))
    statuses = {
        family.representation: family.status for family in decision.families if family.node_names == ("birch",)
    }
    assert statuses == {AMBER: "RANKED", COPPER: "INTEGRITY_EXCLUDED"}


def test_policy_and_quarantine_do_not_hide_each_other() -> None:
    decision = make_decision(bad("integrity", Scope("node", "node-birch")), excluded_nodes=("oak",))
    assert (alone(decision, "birch"), alone(decision, "oak")) == ("INTEGRITY_EXCLUDED", "POLICY_EXCLUDED")


def test_pins_do_not_open_a_quarantine() -> None:
    decision = make_decision(bad("integrity", Scope("node", "node-birch")), pinned_nodes=("birch",))
    assert decision.plan is None
    assert alone(decision, "birch") == "INTEGRITY_EXCLUDED"


def test_a_named_plan_over_what_is_in_quarantine_is_refused() -> None:
    problem, graph, economics = make_problem(4), make_graph(dict.fromkeys(SPEEDS, 9000)), make_economics(SPEEDS)
    with pytest.raises(InfeasiblePlan, match="quarantined"):
        force_plan(
            problem,
            graph,
            WORKLOAD,
            economics,
            ("birch",),
            (),
            AMBER,
            health=bad("integrity", Scope("node", "node-birch")),
        )


def test_health_that_speaks_against_nothing_changes_only_the_digest() -> None:
    with_it, without = make_decision(bad("performance", Scope("node", "node-birch"))), make_decision()
    assert without.health is msgspec.UNSET
    assert with_it.health is not msgspec.UNSET
    assert msgspec.structs.replace(with_it, health=msgspec.UNSET) == without


def test_what_if_questions_keep_the_quarantine() -> None:
    inputs = Inputs(
        make_problem(4),
        make_graph({"birch": 3500, "oak": 9000}),
        WORKLOAD,
        Policy(),
        make_economics(SPEEDS),
        health=bad("integrity", Scope("node", "node-birch")),
    )
    found = counterfactuals(inputs)
    assert all(item.node_name != "birch" for item in found.items)
