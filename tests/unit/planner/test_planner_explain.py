"""The explanation says, in a terminal's width, everything that a decision holds."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from inferswarm.planner import Inputs, Mix, Policy, Reservation, Workload, decide, explain, varied
from inferswarm.planner.naming import Names
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


def one_node_of(*kinds: str):
    """A Node `big` with a Compute Unit of each kind, ids alike but for their ends, and a Node `small`."""
    graph = make_graph(dict.fromkeys((*map(str, range(len(kinds))), "small"), 9000))
    units = [
        msgspec.structs.replace(unit, id=f"{kind}-0123{index}9", kind=kind, name=f"{kind} part", node_id="node-0")
        for index, (unit, kind) in enumerate(zip(graph.compute_units, kinds, strict=False))
    ]
    nodes = (msgspec.structs.replace(graph.nodes[0], name="big"), graph.nodes[-1])
    return msgspec.structs.replace(graph, nodes=nodes, compute_units=(*units, graph.compute_units[-1]), links=())


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("cpu",), ["big"]),
        (("cpu", "cuda"), ["big/cpu", "big/cuda"]),
        (("cpu", "cuda", "cuda"), ["big/cpu", "big/cuda-01231", "big/cuda-01232"]),
    ],
)
def test_a_compute_unit_is_called_by_the_shortest_name_that_means_only_it(kinds, expected):
    decision = decide(make_problem(2), one_node_of(*kinds), WORKLOAD, Policy(), make_economics({}))
    names = Names(decision)
    units = [item for item in decision.resources if item.node_name == "big"]
    assert [names.unit(item.compute_unit_id, item.node_name) for item in units] == expected
    assert names.unit("cu-small", "small") == "small"


def test_of_a_node_with_several_compute_units_the_best_set_is_written_and_the_rest_counted():
    text = explain(decide(make_problem(2), one_node_of("cpu", "cuda"), WORKLOAD, Policy(), make_economics({})))
    alone = text.split("One Node alone")[1].split("\n\n")[0]
    assert len([line for line in alone.splitlines() if "big" in line and not line.startswith("   ")]) == 1
    assert "and 2 more sets of its Compute Units: 2 feasible unranked" in alone


def test_every_demand_is_written_where_the_decision_is():
    policy = Policy(
        reservations=(Reservation("birch", 200),),
        excluded_nodes=("pine",),
        max_machines=2,
        max_first_token_seconds=60.0,
        excluded_link_kinds=("wireless",),
    )
    decision = decide(
        make_problem(4, mutable_bytes=1, representations=(AMBER,)),
        make_graph({"birch": 3500, "oak": 2500, "pine": 10}, reserved=5),
        WORKLOAD,
        policy,
        make_economics({"birch": 0.01, "oak": 0.02, "pine": 0.03}),
    )
    text = explain(decision)
    for demand in ("200 B kept free on birch", "not on the Nodes pine", "on at most 2 machines", "kind wireless"):
        assert demand in text.split("One Node alone")[0]
    assert "the first token within 60.0 s" in text


def test_a_weighed_objective_says_what_it_weighs():
    mixed = msgspec.structs.replace(WORKLOAD, concurrency=2, objective=Mix(request_weight=0.25))
    decision = decide(make_problem(4), make_graph({"birch": 9000}), mixed, Policy(), make_economics({"birch": 0.01}))
    text = " ".join(explain(decision).split())
    assert "0.25 × (time to first token" in text
    assert "2 sessions at once to give" in text
    assert "(weighed)" in text


def test_asked_what_if_it_also_says_what_would_change_and_what_to_measure():
    inputs = Inputs(
        make_problem(4),
        make_graph({"birch": 3500, "oak": 9000}),
        WORKLOAD,
        Policy(),
        make_economics({"birch": 0.01, "oak": 0.02}, low=0.5, high=2.0),
    )
    decision = inputs.decide()
    text = explain(decision, varied(inputs, decision, 20.0))
    assert "What would change the decision" not in explain(decision)
    changes = text.split("What would change the decision")[1].split("\n\n")[0]
    assert "more on birch (mem-birch)" in changes
    assert "measure " in text.split("Worth measuring")[1].split("\n\n")[0]


def test_compute_units_with_one_reason_are_counted_and_still_named():
    names = [f"n{index}" for index in range(8)]
    decision = decide(
        make_problem(4),
        make_graph(dict.fromkeys(names, 10**9)),
        WORKLOAD,
        Policy(),
        make_economics({name: 0.01 + index / 1000 for index, name in enumerate(names)}, path_seconds=1.0),
    )
    text = explain(decision).split("Compute Units\n")[-1].split("\n\n")[0]
    assert "7 Compute Units: not needed" in text
    assert all(name in text for name in names)


def test_every_node_has_one_reason_also_one_without_a_compute_unit():
    graph = one_node_of("cpu", "cuda")
    bare = msgspec.structs.replace(graph.nodes[0], id="node-bare", name="bare")
    graph = msgspec.structs.replace(graph, nodes=(*graph.nodes, bare))
    curves = make_economics({"small": 0.01})
    decision = decide(make_problem(2), graph, WORKLOAD, Policy(), curves)
    assert {item.node_name: (item.used, item.reason) for item in decision.nodes} == {
        "bare": (False, "it has no Compute Unit"),
        "small": (True, "used: stage-0 holds units 0–1"),
        "big": (False, next(f"{item.compute_unit_id}: {item.reason}" for item in decision.resources)),
    }
    assert "bare: it has no Compute Unit" in explain(decision)
