"""The explanation says, in a terminal's width, everything that a decision holds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from inferswarm.planner import Policy, Workload, decide, explain
from tests.unit.planner.planner_cases import AMBER, COPPER, make_economics, make_graph, make_problem, random_world

WORKLOAD = Workload(prompt_tokens=32, output_tokens=11)
SPLIT = decide(
    make_problem(4, mutable_bytes=1, representations=(AMBER,)),
    make_graph({"birch": 3500, "oak": 2500, "pine": 10}, reserved=5),
    WORKLOAD,
    Policy(),
    make_economics({"birch": 0.01, "oak": 0.02, "pine": 0.03}, low=0.9, high=1.2),
)


def test_a_node_that_does_not_fit_is_explained_term_by_term():
    text = explain(SPLIT)
    assert "birch, amber: technically infeasible" in text
    assert "needs 4.26 kB, has 3.50 kB, short of 761 B" in text
    for term in ("states", "mutable state", "= needed", "available"):
        assert term in text
    assert "4.00 kB" in text
    assert "256 B" in text


def test_the_plan_and_its_prediction_are_shown_with_intervals():
    text = explain(SPLIT)
    assert "stage-0: birch, 1 thread, units 0–2 (u0 … u2)" in text
    assert "stage-1: oak, 1 thread, unit 3 (u3)" in text
    assert "memory 3.19 kB of 3.50 kB" in text
    prediction = SPLIT.plan.prediction
    assert f"{prediction.decode_rate.point:.3g}  ({prediction.decode_rate.low:.3g} – " in text
    assert "stage-0, first-pass" in text
    assert "stage-1 → stage-0, feedback" in text


def test_every_compute_unit_and_every_input_digest_appears():
    text = explain(SPLIT)
    for item in SPLIT.resources:
        assert f"{item.node_name} ({item.compute_unit_id}): " in text
    for name in ("problem", "graph", "policy", "workload", "economics"):
        assert getattr(SPLIT.inputs, name) in text
    assert "proved the best of all feasible and allowed plans" in text


def test_overrides_and_missing_evidence_are_shown():
    decision = decide(
        make_problem(4, representations=(AMBER, COPPER)),
        make_graph({"birch": 9000, "oak": 9000}),
        WORKLOAD,
        Policy(pinned_nodes=("oak", "birch"), pinned_cuts=(0,)),
        make_economics({"birch": 0.01}),
    )
    text = explain(decision)
    assert "override by the operator: Nodes pinned, in this order: oak, birch" in text
    assert "Missing evidence" in text
    assert "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE" in text


def test_a_decision_explains_itself():
    assert SPLIT.explain() == explain(SPLIT)


@pytest.mark.parametrize("seed", range(40))
def test_no_explanation_is_wider_than_a_terminal(seed):
    world = random_world(seed)
    text = explain(decide(world.problem, world.graph, world.workload, Policy(max_participants=2), world.economics))
    assert max(map(len, text.splitlines())) <= 100
    assert text.endswith("\n")


def test_a_line_is_never_broken_between_a_number_and_its_unit():
    for seed in range(40):
        world = random_world(seed)
        lines = explain(decide(world.problem, world.graph, world.workload, Policy(), world.economics)).splitlines()
        for before, after in pairwise(lines):
            assert not (before[-1:].isdigit() and after.strip().split(" ")[0].rstrip(",;)") in ("B", "kB", "ms", "s"))


def test_many_families_are_counted_instead_of_listed():
    names = ("ash", "birch", "elm", "fir", "oak")
    decision = decide(
        make_problem(6),
        make_graph(dict.fromkeys(names, 10**9)),
        WORKLOAD,
        Policy(),
        make_economics({name: 0.01 + index / 1000 for index, name in enumerate(names)}),
    )
    text = explain(decision)
    assert len(decision.families) == 31
    assert "and 13 more: 13 ranked" in text
