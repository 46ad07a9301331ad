"""The pure parts of the comparison of splits: stand-ins hold what they stand for, rules cut as they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferswarm.planner import Policy, Workload, decide
from inferswarm.swarm.simulated import SimulatedSwarm
from tests.bench.bench_planner import instance_of, make_swarm, others, split_steps
from tests.bench.split_rows import (
    OURS,
    Answer,
    Ratio,
    Route,
    Served,
    Split,
    as_it_is,
    compared_rows,
    print_rows,
    ratio_of,
    route_of,
)
from tests.bench.stand_ins import STAND_INS, Need, Seat, envelopes_of, need_of, seats_of

TOPOLOGIES = Path(__file__).resolve().parents[2] / "experiments" / "topologies"
WORKLOAD = Workload(prompt_tokens=448, output_tokens=24)


@pytest.fixture(scope="module")
def seats() -> dict[str, tuple[Seat, ...]]:
    found = {}
    for stand in STAND_INS:
        simulated = SimulatedSwarm.load(TOPOLOGIES / f"{stand.topology}.toml")
        need = need_of(simulated.problem(stand.model, WORKLOAD), "bf16", WORKLOAD)
        found[stand.title] = seats_of(simulated.topology, need)
    return found


def test_a_stand_in_has_its_topology_s_nodes_and_the_fastest_has_most_threads(seats):
    found = {name: [(seat.name, seat.threads) for seat in row] for name, row in seats.items()}
    assert found == {
        "8B-like": [("desktop", 2), ("laptop", 1)],
        "24B-like": [("gaming", 2), ("office", 1), ("server", 1)],
    }


def test_the_fastest_node_never_holds_the_model_alone_and_all_together_do(seats):
    for row in seats.values():
        assert max(row, key=lambda seat: seat.threads).share < 1 < sum(seat.share for seat in row)
    assert {name: sum(seat.share > 1 for seat in row) for name, row in seats.items()} == {
        "8B-like": 0,
        "24B-like": 1,
    }
    # 11 GiB of a card and 12 GiB of a laptop, for 16 GB of weights.
    assert [round(seat.share, 2) for seat in seats["8B-like"]] == [0.73, 0.8]


def test_an_envelope_holds_its_share_beside_what_does_not_shrink():
    rows = (Seat("one", "", 0.5, 2), Seat("two", "", 0.2, 1))
    nodes = envelopes_of(rows, {"one": 100, "two": 200}, Need(own=1000, passing=30))
    assert [(node.name, node.threads, node.memory_bytes) for node in nodes] == [("one", 2, 630), ("two", 1, 430)]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"a": 1.0, "b": 1.0, "c": 1.0}, Route(("a", "b", "c"), (11, 21, 32))),
        ({"a": 3.0, "b": 1.0}, Route(("a", "b"), (24, 32))),
        ({"a": 1.0, "b": 1e-3, "c": 1.0}, Route(("a", "c"), (16, 32))),
        ({"c": 1.0}, Route(("c",), (32,))),
    ],
)
def test_a_rule_as_it_is_cuts_in_proportion(weights, expected):
    assert as_it_is(32, weights) == expected


def test_a_route_says_its_cuts_and_sizes():
    route = Route(("a", "b", "c"), (11, 21, 32))
    assert (route.cuts, route.name) == ((10, 20), "a 11 | b 10 | c 11")


def test_a_ratio_compares_answers_of_one_round_only():
    def rounds(*requests: tuple[float, float]) -> list[list[Answer]]:
        return [[Answer(0.0, 0.0, seconds) for seconds in pair] for pair in requests]

    # The machine is four times slower in the last round, for both: the ratio does not know of it.
    assert ratio_of(rounds((1.0, 2.0), (2.0, 4.0), (8.0, 8.0)), rounds((1.0, 1.0), (2.0, 2.0), (4.0, 4.0))) == Ratio(
        1.5, 1.5, 2.0
    )


def test_other_splits_cover_the_chain_and_equal_goes_through_nodes_as_listed():
    instance = instance_of(make_swarm(12, 3, seed=3))
    listed = (2, 0, 1)
    found = split_steps(instance, listed)
    for steps in found.values():
        assert steps is None or steps[-1][1] == instance.num_atoms
    equal = found["equal"]
    assert equal is not None
    assert [site for site, _ in equal] == [site for site in listed if site in {taken for taken, _ in equal}]
    assert [name for name, value in others(instance).items() if value is None] == [
        name for name, steps in split_steps(instance).items() if steps is None
    ]


def test_rows_name_what_is_one_plan_what_does_not_fit_and_what_a_limit_stopped(capsys):
    swarm = make_swarm(12, 3, seed=3)
    plan, other = (
        decide(swarm.problem, swarm.graph, WORKLOAD, policy, swarm.economics).plan
        for policy in (Policy(), Policy(pinned_nodes=("node-002", "node-001", "node-000")))
    )
    assert plan is not None
    assert other is not None
    assert route_of(plan) != route_of(other)
    asked = [Split(OURS, plan), Split("equal", plan), Split("greedy", None, "too much"), Split("other", other)]
    taken = {(route_of(plan), WORKLOAD): [[Answer(0.1, 0.01, 0.5), Answer(0.3, 0.03, 0.7)]]}
    rows = compared_rows(Served({WORKLOAD: asked}, taken, {route_of(other): "stopped by its limit"}), WORKLOAD)
    assert [row.get("served_as") for row in rows] == [OURS, OURS, None, "other"]
    assert [row.get("ratio") for row in rows] == [Ratio(1, 1, 1), Ratio(1, 1, 1), None, None]
    assert rows[0]["measured"] == pytest.approx((0.2, 0.02, 0.6))
    assert rows[3]["predicted_ratio"] >= 1
    print_rows(rows)
    lines = capsys.readouterr().out.splitlines()[2:]
    assert "200     20.00     0.600" in lines[0]
    assert "the same plan as ours" in lines[1]
    assert "does not fit" in lines[2]
    assert lines[3].strip() == "too much"
    assert "stopped by its limit" in lines[4]
