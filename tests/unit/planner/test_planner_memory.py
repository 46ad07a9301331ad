"""Peak memory of ranges, against numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from inferswarm.errors import SpecError
from inferswarm.planner import Workload, allocated_positions
from inferswarm.planner.memory import RangeMemory, memory_violation
from inferswarm.planner.problem import TransientTerm
from inferswarm.planner.sites import GraphView, Leg
from tests.unit.planner.planner_cases import AMBER, COPPER, make_graph, make_problem

WORKLOAD = Workload(prompt_tokens=50, output_tokens=20, concurrency=3)
TRANSIENTS = (
    TransientTerm(name="buffer", representation=AMBER, fixed_bytes=7, bytes_per_step_position=2),
    TransientTerm(name="closing", representation=AMBER, cost_classes=("ochre",), fixed_bytes=100),
    TransientTerm(name="other", representation=COPPER, fixed_bytes=10**6),
)


def range_memory(**options) -> RangeMemory:
    problem = make_problem(4, mutable_bytes=5, transients=TRANSIENTS, last_only=True, tied=True, **options)
    return RangeMemory(problem, problem.implementations[0], WORKLOAD)


def terms(memory: RangeMemory, first: int, end: int) -> dict[str, int]:
    return {term.name: term.bytes for term in memory.terms(first, end)}


def test_a_range_counts_states_mutable_state_and_the_transients_of_its_classes():
    # 70 positions take 128; 2 units × 5 bytes × 128 positions × 3 sessions; 7 + 2 × 16 positions of a chunk.
    assert terms(range_memory(), 0, 2) == {"states": 2000, "mutable state": 2 * 5 * 128 * 3, "buffer": 39}


def test_a_state_that_two_units_of_a_range_share_is_counted_once():
    memory = range_memory()
    assert terms(memory, 0, 4) == {"states": 3000, "mutable state": 4 * 5 * 128 * 3, "buffer": 39, "closing": 100}
    assert [state.state_id for state in memory.states(0, 4)] == ["s0", "s1", "s2"]


def test_two_participants_hold_a_shared_state_each():
    memory = range_memory()
    assert terms(memory, 0, 2)["states"] + terms(memory, 2, 4)["states"] == 4000


@pytest.mark.parametrize("first", range(4))
def test_peaks_of_growing_ranges_are_the_sums_of_their_terms(first):
    memory = range_memory()
    expected = [sum(terms(memory, first, end).values()) for end in range(first + 1, 5)]
    assert list(memory.needed_from(first)) == expected


@pytest.mark.parametrize(
    ("prompt", "output", "limit", "expected"),
    [(1, 1, 4096, 64), (60, 4, 4096, 64), (60, 5, 4096, 128), (60, 5, 100, 100), (60, 40, 100, 100)],
)
def test_sessions_are_allocated_in_multiples_of_64_up_to_the_longest(prompt, output, limit, expected):
    problem = make_problem(max_positions=limit)
    assert allocated_positions(problem, Workload(prompt_tokens=prompt, output_tokens=output)) == expected


def test_a_workload_beyond_the_longest_session_is_refused():
    with pytest.raises(SpecError) as error:
        allocated_positions(make_problem(max_positions=100), Workload(prompt_tokens=100, output_tokens=1))
    assert (error.value.found, error.value.needed) == (101, "at most 100 positions")


def test_a_representation_without_a_stated_size_is_refused():
    problem = make_problem(representations=(AMBER,))
    other = make_problem(representations=(COPPER,)).implementations[0]
    with pytest.raises(SpecError, match="copper"):
        RangeMemory(problem, other, WORKLOAD)


@pytest.mark.parametrize(("capacity", "reserved", "fits"), [(3000, 0, True), (2999, 0, False), (3010, 11, False)])
def test_an_account_fits_up_to_the_last_byte_beside_the_reservation(capacity, reserved, fits):
    problem = make_problem(3)
    site = GraphView(make_graph({"a": capacity}, reserved=reserved)).sites[0]
    account = RangeMemory(problem, problem.implementations[0], Workload()).account(site, 0, 3)
    assert account.needed_bytes == 3000
    assert account.fits is fits


@pytest.mark.parametrize(("capacity", "reserved"), [(None, 0), (10**9, None)])
def test_an_unknown_capacity_or_reservation_never_fits(capacity, reserved):
    problem = make_problem(1, state_bytes=0)
    site = GraphView(make_graph({"a": capacity}, reserved=reserved)).sites[0]
    account = RangeMemory(problem, problem.implementations[0], Workload()).account(site, 0, 1)
    assert account.available_bytes is None
    assert not account.fits
    assert "has unknown" in str(memory_violation(account, AMBER))


def test_participants_on_one_memory_resource_count_each_other():
    problem = make_problem(4)
    site = GraphView(make_graph({"a": 10**6})).sites[0]
    memory = RangeMemory(problem, problem.implementations[0], Workload())
    first, second = memory.route_accounts((Leg(site, 0, 1), Leg(site, 1, 4)))
    assert {term.name: term.bytes for term in first.terms} == {
        "states": 1000,
        "mutable state": 0,
        "held by stage-1": 3000,
    }
    assert first.needed_bytes == second.needed_bytes == 4000


def test_a_violation_states_need_and_supply_in_numbers_and_every_term():
    problem = make_problem(3, mutable_bytes=1)
    site = GraphView(make_graph({"a": 2500}, reserved=500)).sites[0]
    account = RangeMemory(problem, problem.implementations[0], Workload(prompt_tokens=60, output_tokens=4)).account(
        site, 0, 3
    )
    violation = memory_violation(account, AMBER)
    assert (violation.required, violation.available, violation.unit) == (3192, 2000, "B")
    assert violation.detail == "states 3.00 kB + mutable state 192 B"
    assert violation.resource == "a (mem-a)"
