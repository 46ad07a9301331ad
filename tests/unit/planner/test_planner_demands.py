"""Hard constraints of a policy: each removes plans with its numbers, and none makes anything technically infeasible.

Every demand is asked of few Compute Units, whose sets are all listed, and of many, which are searched.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from inferswarm.documents import digest, read_document, write_document
from inferswarm.errors import SpecError
from inferswarm.planner import Decision, Inputs, Policy, SolverLimits, Throughput, Workload, decide, explain, grouping
from inferswarm.planner.problem import Reservation
from inferswarm.planner.qualification import QualificationRecord, QualifiedMake
from inferswarm.planner.resolving import Best, Resolver
from inferswarm.resources.types import Segment, observed
from tests.unit.planner.planner_cases import AMBER, make_economics, make_graph, make_problem

replace = msgspec.structs.replace
PROBLEM = make_problem(6)
WORKLOAD = Workload(prompt_tokens=32, output_tokens=17)
FILLERS = tuple(f"filler{index}" for index in range(6))
ROOM = 4000
"""Bytes of each Node that matters: four of the six units."""


def decided(size: str, policy: Policy, graph_changes=lambda graph: graph, workload=WORKLOAD, **options) -> Decision:
    """Decide over a, b and c, which are ever slower, alone or beside Nodes with room for nothing."""
    speeds = {"a": 0.01, "b": 0.02, "c": 0.04}
    names = dict.fromkeys(speeds, ROOM) | (dict.fromkeys(FILLERS, 1) if size == "many" else {})
    graph = graph_changes(make_graph(names))
    economics = make_economics({name: speeds.get(name, 0.01) for name in names})
    return decide(PROBLEM, graph, workload, policy, economics, **options)


def nodes(decision: Decision) -> list[str]:
    return [] if decision.plan is None else [placement.node_name for placement in decision.plan.placements]


def reasons(decision: Decision) -> str:
    return " ".join(reason for family in decision.families for reason in family.reasons)


def hosted(graph):
    """Two Nodes on one machine, the third on another."""
    machines = {"node-a": "north", "node-b": "south"}
    return replace(graph, nodes=tuple(replace(node, host_id=machines.get(node.id, "south")) for node in graph.nodes))


def radio(graph):
    """Every Link from or to b goes over one radio channel."""
    segment = Segment(id="air", name="channel-6", kind="wireless", nominal_bits_per_second=observed(10**8, "test"))
    links = tuple(
        replace(link, segments=("air",)) if "node-b" in (link.source, link.target) else link for link in graph.links
    )
    return replace(graph, links=links, segments=(segment,))


SIZES = pytest.mark.parametrize("size", ["few", "many"])


@SIZES
@pytest.mark.parametrize(
    ("demand", "change", "used", "reason"),
    [
        ({}, None, {"a", "b"}, ""),
        ({"approved_nodes": ("a", "c")}, None, {"a", "c"}, "Node b is not among the approved ones: a, c"),
        ({"excluded_compute_units": ("cu-b",)}, None, {"a", "c"}, "Compute Unit cu-b on b is excluded"),
        ({"approved_compute_units": ("cu-b", "cu-c")}, None, {"b", "c"}, "cu-a on a is not among the approved ones"),
        (
            {"approved_machines": ("south",)},
            hosted,
            {"b", "c"},
            "Node a is on the machine north, not on an approved one",
        ),
        ({"max_machines": 1}, hosted, {"b", "c"}, "on 2 machines, at most 1 are allowed"),
        ({"reservations": (Reservation("b", 3500),)}, None, {"a", "c"}, "3.50 kB kept free on b"),
        ({"reservations": (Reservation("mem-b", 3500),)}, None, {"a", "c"}, "3.50 kB kept free on b (mem-b)"),
        ({"excluded_link_kinds": ("wireless",)}, radio, {"a", "c"}, "it goes over wireless, which is excluded"),
        ({"excluded_segments": ("channel-6",)}, radio, {"a", "c"}, "over the segment channel-6, which is excluded"),
    ],
)
def test_a_demand_removes_plans_and_says_which_in_numbers(size, demand, change, used, reason):
    decision = decided(size, Policy(**demand), change or (lambda graph: graph))
    assert set(nodes(decision)) == used
    if size == "few":
        assert reason in reasons(decision)
        technical = [item for item in decision.families if item.status == "TECHNICALLY_INFEASIBLE"]
        assert [item.node_names for item in technical] == [("a",), ("b",), ("c",)]
    assert decision.proved_optimal


@SIZES
@pytest.mark.parametrize("objective", [msgspec.UNSET, Throughput()])
def test_more_kept_free_than_there_is_of_a_memory_that_several_share_leaves_plans_elsewhere(size, objective):
    def shared(graph):
        units = tuple(
            replace(unit, node_id="node-b", memory_ids=("mem-b",)) if unit.id == "cu-c" else unit
            for unit in graph.compute_units
        )
        memories = tuple(
            replace(memory, capacity_bytes=replace(memory.capacity_bytes, value=10 * ROOM))
            if memory.id == "mem-a"
            else memory
            for memory in graph.memory_resources
        )
        return replace(graph, compute_units=units, memory_resources=memories)

    workload = replace(WORKLOAD, objective=objective)
    decision = decided(size, Policy(reservations=(Reservation("mem-b", 100 * ROOM),)), shared, workload)
    assert (nodes(decision), [report.status for report in decision.solvers]) == (["a"], ["OPTIMAL"])


@pytest.mark.parametrize("seed", [2, 5])
def test_with_too_many_sets_of_machines_some_are_searched_and_the_bound_still_holds(monkeypatch, seed):
    rng = random.Random(seed)
    names = "abcdefgh"
    graph = make_graph({name: rng.choice((1000, 1000, 2000, 3000)) for name in names})
    graph = replace(graph, nodes=tuple(replace(node, host_id=node.name) for node in graph.nodes))
    economics = make_economics({name: rng.uniform(0.01, 0.04) for name in names}, path_seconds=0.005)

    def under(most: int) -> Decision:
        return decide(PROBLEM, graph, WORKLOAD, Policy(max_machines=most), economics)

    monkeypatch.setattr(grouping, "MOST_MACHINE_SETS", 100)
    exact = under(3)
    monkeypatch.setattr(grouping, "MOST_MACHINE_SETS", 16)
    some = under(3)
    assert exact.proved_optimal
    assert "not all sets of machines" in some.solvers[0].why
    assert len(some.plan.placements) <= 3
    least = exact.plan.prediction.request.point
    assert some.bound <= least * (1 + 1e-9) <= some.plan.prediction.request.point * (1 + 2e-9)


@SIZES
def test_what_stays_free_is_not_in_the_room_that_the_plan_states(size):
    decision = decided(size, Policy(reservations=(Reservation("a", 600), Reservation("node-a", 500))))
    account = decision.plan.placements[nodes(decision).index("a")].memory
    assert (account.reserved_bytes, account.available_bytes) == (1100, 2900)
    assert account.fits


@SIZES
@pytest.mark.parametrize(
    ("demand", "reason"),
    [
        ({"max_first_token_seconds": 1e-3}, "no plan gives the first token within 1.00 ms"),
        ({"max_request_seconds": 1.0}, "no plan answers a request within 1.00 s"),
    ],
)
def test_a_service_that_nothing_gives_leaves_no_plan_and_says_what_is_best(size, demand, reason):
    decision = decided(size, Policy(**demand))
    assert (decision.outcome, decision.plan) == ("NO_FEASIBLE_PLAN", None)
    if size == "few":
        assert reason in reasons(decision)


@SIZES
def test_a_limit_that_the_best_plan_keeps_changes_nothing(size):
    free = decided(size, Policy())
    bound = decided(size, Policy(max_first_token_seconds=10.0, max_request_seconds=100.0))
    assert (bound.plan, bound.proved_optimal) == (free.plan, True)


@SIZES
def test_a_limit_on_the_first_token_is_kept_by_a_plan_that_decodes_slower(size):
    # A long prompt wants two stages at work; a long answer wants the fast Node alone.
    names = {"a": 10**6, "b": 10**6} | (dict.fromkeys(FILLERS, 1) if size == "many" else {})
    economics = make_economics({name: {"a": 0.01}.get(name, 0.015) for name in names}, path_seconds=0.002)
    workload = Workload(prompt_tokens=1600, output_tokens=2400)

    def under(policy: Policy) -> Decision:
        return decide(PROBLEM, make_graph(names), workload, policy, economics)

    free = under(Policy())
    first, request = free.plan.prediction.ttft.point, free.plan.prediction.request.point
    bound = under(Policy(max_first_token_seconds=first * 0.8))
    assert nodes(free) == ["a"]
    assert set(nodes(bound)) == {"a", "b"}
    assert bound.plan.prediction.ttft.point <= first * 0.8
    assert request < bound.bound <= bound.plan.prediction.request.point
    assert bound.proved_optimal == (bound.gap < 1e-9)


def test_the_limits_of_objective_and_policy_hold_both():
    strict = Workload(prompt_tokens=32, output_tokens=17, objective=Throughput(max_first_token_seconds=1e-3))
    decision = decided("few", Policy(max_first_token_seconds=100.0), workload=strict)
    assert decision.plan is None
    assert "the first token" in reasons(decision)


def test_a_plan_found_for_the_first_token_keeps_the_limit_on_the_wait_between_tokens():
    # Three Nodes have room; more of them give the first token sooner, and each token of a session later.
    names = {"a": 10**6, "b": 10**6, "c": 10**6} | dict.fromkeys(FILLERS, 1)
    economics = make_economics({name: {"a": 0.01}.get(name, 0.015) for name in names}, path_seconds=0.002)

    def under(objective: Throughput) -> Decision:
        workload = Workload(prompt_tokens=1600, output_tokens=400, objective=objective)
        return decide(PROBLEM, make_graph(names), workload, Policy(), economics)

    free = under(Throughput()).plan.prediction
    first, wait = free.ttft.point * 0.8, 1 / free.throughput.point
    assert under(Throughput(max_first_token_seconds=first)).plan is not None
    both = Throughput(max_first_token_seconds=first, max_inter_token_seconds=wait * 1.001)
    decision = under(both)
    assert decision.outcome == "NO_FEASIBLE_PLAN"
    assert "not proved" not in decision.summary
    # Of three Nodes with room all plans are searched, and asked again the answer is the same.
    workload = Workload(prompt_tokens=1600, output_tokens=400, objective=both)
    inputs = Inputs(PROBLEM, make_graph(names), workload, Policy(), economics)
    assert Resolver(SolverLimits(), most_solves=1).best(inputs) == Best()


def apart(graph):
    """The Compute Unit of a may keep its states in a further memory, which nobody has a curve for; b is away."""
    near = next(memory for memory in graph.memory_resources if memory.id == "mem-a")
    near, far = (
        replace(near, id=name, capacity_bytes=replace(near.capacity_bytes, value=10**6)) for name in ("mem-a", "far")
    )
    more = {"capabilities": ("states:addressable",), "memory_ids": ("mem-a", "far")}
    changes = {"cu-a": more, "cu-b": {"available": False}, "cu-c": {"available": False}}
    units = tuple(replace(unit, **changes.get(unit.id, {})) for unit in graph.compute_units)
    others = tuple(memory for memory in graph.memory_resources if memory.id != "mem-a")
    return replace(graph, compute_units=units, memory_resources=(near, far, *others))


@SIZES
@pytest.mark.parametrize(
    "demand", [{"min_tokens_per_second": 1000.0}, {"max_first_token_seconds": 1e-3}, {"max_request_seconds": 1e-2}]
)
def test_a_plan_that_nobody_can_price_may_keep_what_the_priced_one_breaks(size, demand):
    assert decided(size, Policy(), apart).plan is not None
    decision = decided(size, Policy(**demand), apart)
    assert (decision.outcome, decision.plan) == ("NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE", None)
    assert any("states apart" in name for name in decision.missing_evidence)


@pytest.mark.parametrize(
    ("demand", "field", "needed"),
    [
        ({"approved_nodes": ("z",)}, "policy approved_nodes", "one of the Nodes ['a', 'b', 'c']"),
        ({"excluded_compute_units": ("z",)}, "policy excluded_compute_units", "['cu-a', 'cu-b', 'cu-c']"),
        ({"approved_machines": ("z",)}, "policy approved_machines", "one of ['somewhere']"),
        ({"reservations": (Reservation("z", 1),)}, "policy reservations", "one of the Nodes"),
        ({"excluded_link_kinds": ("rope",)}, "policy excluded_link_kinds", "'wireless'"),
        ({"excluded_segments": ("z",)}, "policy excluded_segments", "one of []"),
        ({"max_machines": 0}, "policy max_machines", "at least 1"),
        ({"max_request_seconds": 0.0}, "policy max_request_seconds", "more than 0"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(demand, field, needed):
    with pytest.raises(SpecError) as error:
        decided("few", Policy(**demand))
    assert error.value.field == field
    assert needed in error.value.needed


def test_a_policy_that_demands_nothing_new_is_written_as_before():
    assert msgspec.to_builtins(Policy()) == {
        "representations": (),
        "excluded_nodes": (),
        "pinned_nodes": (),
        "pinned_cuts": (),
        "max_participants": None,
        "min_tokens_per_second": None,
    }
    demanding = Policy(reservations=(Reservation("a", 5),), bit_exact_required=True, max_machines=2)
    assert read_document(Policy, write_document(demanding), "policy") == demanding


def record(name="r1", kinds=("cpu",), **changes) -> QualificationRecord:
    makes = tuple(
        QualifiedMake(representation=changes.pop("make", AMBER), kind=kind, threads=1, capabilities=())
        for kind in kinds
    )
    subject = {
        "problem_id": PROBLEM.id,
        "strategy": PROBLEM.strategy,
        "comparator": PROBLEM.comparator,
        "chunk_positions": PROBLEM.chunk_positions,
        "primitive": "plain",
        "representation": AMBER,
        "agreement": "bit-exact",
        "disposition": "PASS",
        "accepted": True,
        "evidence_ids": ("e1",),
    }
    return QualificationRecord(id=name, makes=makes, **(subject | changes))


EXACT = Policy(bit_exact_required=True)


@SIZES
@pytest.mark.parametrize(
    ("records", "verdict"),
    [
        ((), "records: there are none"),
        ((record(representation="zinc"),), "r1: QUALIFICATION_SUBJECT_MISMATCH"),
        ((record(make="zinc"),), "r1: QUALIFICATION_SUBJECT_MISMATCH"),
        ((record(kinds=("cuda",)),), "r1: QUALIFICATION_SUBJECT_MISMATCH"),
        ((record(problem_id="other"),), "r1: QUALIFICATION_SUBJECT_MISMATCH"),
        ((record(agreement="numerical"),), "r1: QUALIFICATION_SUBJECT_MISMATCH"),
        ((record(disposition="INCOMPLETE"),), "r1: QUALIFICATION_NOT_TERMINAL_PASS"),
        ((record(accepted=False),), "r1: NO_ACCEPTED_QUALIFICATION_EVIDENCE"),
        ((record(use_state="stale"),), "r1: NO_ACCEPTED_QUALIFICATION_EVIDENCE"),
        ((record(), record("r2", disposition="FAIL")), "r2: QUALIFICATION_NOT_TERMINAL_PASS"),
    ],
)
def test_without_an_accepted_record_bit_exactness_leaves_no_plan(size, records, verdict):
    decision = decided(size, EXACT, qualification=records)
    assert (decision.outcome, decision.plan) == ("NO_FEASIBLE_PLAN", None)
    assert not [family for family in decision.families if family.status == "RANKED"]
    if size == "few":
        assert "policy: NO_ACCEPTED_QUALIFICATION_EVIDENCE" in reasons(decision)
        assert verdict in reasons(decision)


@SIZES
def test_with_an_accepted_record_the_plan_is_the_one_that_would_be_chosen_anyway(size):
    decision = decided(size, EXACT, qualification=(record(),))
    assert decision.plan == decided(size, Policy()).plan
    assert decision.proved_optimal


@SIZES
def test_only_what_the_record_is_about_is_used(size):
    def tagged(graph):
        units = tuple(
            replace(unit, capabilities=("isa:new",)) if unit.id == "cu-b" else unit for unit in graph.compute_units
        )
        return replace(graph, compute_units=units)

    decision = decided(size, EXACT, tagged, qualification=(record(),))
    assert set(nodes(decision)) == {"a", "c"}
    assert decision.qualification == digest([record()])


@SIZES
def test_a_record_that_did_not_pass_speaks_against_every_plan_with_such_a_participant(size):
    def mixed(graph):
        units = tuple(replace(unit, kind="cuda") if unit.id == "cu-c" else unit for unit in graph.compute_units)
        return replace(graph, compute_units=units)

    both = record(kinds=("cpu", "cuda"))
    assert decided(size, EXACT, mixed, qualification=(both,)).plan is not None
    refused = decided(size, EXACT, mixed, qualification=(both, record("r2", disposition="FAIL")))
    assert (refused.outcome, refused.plan) == ("NO_FEASIBLE_PLAN", None)


def test_what_exactness_keeps_out_of_many_is_not_called_unneeded():
    def other(graph):
        units = tuple(replace(unit, kind="cuda") if unit.id == "cu-b" else unit for unit in graph.compute_units)
        return replace(graph, compute_units=units)

    decision = decided("many", EXACT, other, qualification=(record(),))
    reason = next(item.reason for item in decision.resources if item.compute_unit_id == "cu-b")
    assert reason.startswith("no plan with it is allowed: policy: NO_ACCEPTED_QUALIFICATION_EVIDENCE")


@pytest.mark.parametrize("missing", ["makes", "evidence_ids"])
def test_a_record_about_nothing_or_from_nothing_is_refused(missing):
    with pytest.raises(ValueError, match="names no"):
        replace(record(), **{missing: ()})


def also_on_the_air(graph):
    """Every two Nodes are joined by radio beside their cable."""
    waves = tuple(replace(link, id=f"air-{link.id}", kind="wireless") for link in graph.links)
    return replace(graph, links=(*graph.links, *waves))


@SIZES
@pytest.mark.parametrize(
    ("taken", "used", "said"),
    [
        (None, {"c"}, "nothing says over which of them the messages went that were priced"),
        (("air-link-a-b",), {"c"}, "the price is not that of messages over that one alone"),
        (("link-a-b", "air-link-a-b"), {"c"}, "the price is not that of messages over that one alone"),
        (("no-such-link",), {"c"}, "the price is not that of messages over that one alone"),
        (("link-a-b",), {"a", "b"}, ""),
    ],
)
def test_a_pair_with_another_link_is_priced_only_where_its_messages_went_over_one_that_is_allowed(
    size, taken, used, said
):
    """Mutation: drop the loop over `barred` in `GraphView`, or pass no curves from `decide` to `resolve_policy`."""
    names = {"a": ROOM, "b": ROOM, "c": 10 * ROOM} | (dict.fromkeys(FILLERS, 1) if size == "many" else {})
    speeds = {"a": 0.01, "b": 0.02, "c": 0.4}
    graph = also_on_the_air(make_graph(names))
    economics = make_economics({name: speeds.get(name, 0.4) for name in names})
    between = ({"node-a", "node-b"},)
    back = None if taken is None else tuple(name.replace("a-b", "b-a") for name in taken)
    paths = tuple(
        replace(path, link_ids=msgspec.UNSET if taken is None else taken if path.source == "node-a" else back)
        if {path.source, path.target} in between
        else path
        for path in economics.paths
    )
    inputs = Inputs(
        PROBLEM, graph, WORKLOAD, Policy(excluded_link_kinds=("wireless",)), replace(economics, paths=paths)
    )
    decision = inputs.decide()
    assert set(nodes(decision)) == used
    assert set(nodes(inputs._replace(policy=Policy()).decide())) == {"a", "b"}
    assert set(nodes_of_best(inputs)) == used
    if said and size == "few":
        assert said in " ".join(explain(decision).split())
    assert said in reasons(decision) or size == "many"


def test_a_pair_with_another_link_that_nobody_measured_stays_unknown_and_is_not_refused():
    graph = also_on_the_air(make_graph({"a": ROOM, "b": ROOM}))
    economics = replace(make_economics({"a": 0.01, "b": 0.02}), paths=())
    decision = decide(PROBLEM, graph, WORKLOAD, Policy(excluded_link_kinds=("wireless",)), economics)
    assert decision.outcome == "NO_AUTOMATIC_SELECTION_INSUFFICIENT_EVIDENCE"
    assert any("path curve a → b" in text for text in decision.missing_evidence)


def nodes_of_best(inputs: Inputs) -> list[str]:
    """Return the Nodes of the best plan as what-if questions find it."""
    best = Resolver(SolverLimits(), 1).best(inputs)
    return [] if best is None or best.plan is None else [item.node_name for item in best.plan.placements]
