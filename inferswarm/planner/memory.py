"""Peak memory of a participant, term by term.

A participant holds a contiguous range of the chain on one Memory Resource. Its peak is the sum of

* **states**: every immutable state that its units need, once, however many of its units share it;
* **mutable state**: bytes per position of its units × positions of a session × sessions at once;
* each **transient** that its cost classes bring, at its peak. Transients are added up: they may coincide.

Two participants never share a materialization, not even on one Memory Resource; there their peaks add up. Where a
participant's states are in another Memory Resource than the nearest, they count there, and all else in the nearest.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferswarm.errors import SpecError, Violation
from inferswarm.planner.plan import MemoryAccount, MemoryTerm, PlacedState
from inferswarm.planner.problem import Implementation, PlanningProblem, Workload, bytes_in
from inferswarm.planner.sites import Leg, Route, Site
from inferswarm.resources.types import MemoryResource
from inferswarm.units import format_bytes

STATES = "states"
"""The term of immutable states."""
POSITION_GRANULE = 64
"""Sessions are allocated in multiples of this many positions."""


def allocated_positions(problem: PlanningProblem, workload: Workload) -> int:
    """Return the positions that mutable state is allocated for, per session.

    The workload's positions, rounded up to a multiple of 64, but never beyond what the strategy supports. Raises
    SpecError when the workload itself is longer than that.
    """
    if workload.positions > problem.max_positions:
        raise SpecError(
            "workload prompt_tokens + output_tokens", workload.positions, f"at most {problem.max_positions} positions"
        )
    rounded = -(-workload.positions // POSITION_GRANULE) * POSITION_GRANULE
    return min(rounded, problem.max_positions)


class RangeMemory:
    """Memory of any contiguous range of one problem's units, in one implementation, for one workload.

    Raises SpecError when the strategy states no size for the implementation's representation.
    """

    def __init__(self, problem: PlanningProblem, implementation: Implementation, workload: Workload) -> None:
        representation = implementation.representation
        self.max_positions = allocated_positions(problem, workload)
        self.sessions = workload.concurrency
        self._units = problem.units
        self._representation = representation
        self._state_bytes = {state.id: bytes_in(state.sizes, representation) for state in problem.states}
        per_session = self.max_positions * self.sessions
        self._mutable = [
            bytes_in(unit.mutable_bytes_per_position, representation) * per_session
            if unit.mutable_bytes_per_position
            else 0
            for unit in problem.units
        ]
        self._transients = [
            (
                term.name,
                frozenset(term.cost_classes),
                term.fixed_bytes + term.bytes_per_step_position * problem.chunk_positions,
            )
            for term in problem.transients
            if term.representation == representation
        ]
        self._peaks = [self._peaks_from(first) for first in range(len(self._units))]

    def states(self, first: int, end: int) -> tuple[PlacedState, ...]:
        """Return the states of units [first, end), each once, in the order in which the chain first needs them."""
        ids = dict.fromkeys(state for unit in self._units[first:end] for state in unit.states)
        return tuple(
            PlacedState(state_id=state, representation=self._representation, bytes=self._state_bytes[state])
            for state in ids
        )

    def terms(self, first: int, end: int) -> tuple[MemoryTerm, ...]:
        """Return the addends of the peak of units [first, end)."""
        ids = {state for unit in self._units[first:end] for state in unit.states}
        classes = {unit.cost_class for unit in self._units[first:end]}
        return (
            MemoryTerm(STATES, sum(self._state_bytes[state] for state in ids)),
            MemoryTerm("mutable state", sum(self._mutable[first:end])),
            *(
                MemoryTerm(name, size)
                for name, applies_to, size in self._transients
                if not applies_to or applies_to & classes
            ),
        )

    def needed_from(self, first: int) -> tuple[int, ...]:
        """Return the peaks of the ranges [first, first + 1), [first, first + 2), … up to the chain's end."""
        return self._peaks[first]

    def account(self, site: Site, first: int, end: int, others: Sequence[MemoryTerm] = ()) -> MemoryAccount:
        """Return the account of units [first, end) on the site's Memory Resource.

        `others` are the peaks of further participants on the same Memory Resource. Raises SpecError when the site
        has no Memory Resource.
        """
        if site.memory is None:
            raise SpecError(f"Compute Unit {site.id}: memory", None, "a Memory Resource that it addresses")
        return _account(site.memory, site, self.terms(first, end) + tuple(others))

    def route_accounts(self, route: Route) -> tuple[MemoryAccount, ...]:
        """Return one account for each participant.

        Where participants share a Memory Resource, each account also lists the peaks of the others there.
        """
        return tuple(accounts[0] for accounts in accounts_of(route, [self] * len(route)))

    def _peaks_from(self, first: int) -> tuple[int, ...]:
        seen: set[str] = set()
        pending = list(self._transients)
        total, peaks = 0, []
        for index in range(first, len(self._units)):
            unit = self._units[index]
            total += self._mutable[index]
            total += sum(self._state_bytes[state] for state in set(unit.states) - seen)
            seen.update(unit.states)
            total += sum(size for _, classes, size in pending if not classes or unit.cost_class in classes)
            pending = [term for term in pending if term[1] and unit.cost_class not in term[1]]
            peaks.append(total)
        return tuple(peaks)


def accounts_of(route: Route, memories: Sequence[RangeMemory]) -> tuple[tuple[MemoryAccount, ...], ...]:
    """Return the accounts of each participant: of the nearest Memory Resource, then of the one that holds its states.

    The second is there only where it is another. `memories` are those of the participants. Where participants share
    a Memory Resource, each account also lists what the others hold there. Raises SpecError for a site without one.
    """
    held = [_held(leg, memory) for leg, memory in zip(route, memories, strict=True)]
    accounts = []
    for index, (leg, own) in enumerate(zip(route, held, strict=True)):
        mine = []
        for memory, terms in own:
            others = tuple(
                MemoryTerm(f"held by stage-{other}", sum(term.bytes for term in theirs))
                for other, parts in enumerate(held)
                for elsewhere, theirs in parts
                if other != index and elsewhere.id == memory.id
            )
            mine.append(_account(memory, leg.site, terms + others))
        accounts.append(tuple(mine))
    return tuple(accounts)


def _held(leg: Leg, memory: RangeMemory) -> list[tuple[MemoryResource, tuple[MemoryTerm, ...]]]:
    """Return what a participant holds on each of its Memory Resources, the nearest first."""
    near, apart = leg.site.memory, leg.states_memory
    if near is None:
        raise SpecError(f"Compute Unit {leg.site.id}: memory", None, "a Memory Resource that it addresses")
    terms = memory.terms(leg.first_unit, leg.end_unit)
    if apart is None:
        return [(near, terms)]
    return [
        (near, tuple(term for term in terms if term.name != STATES)),
        (apart, tuple(term for term in terms if term.name == STATES)),
    ]


def _account(memory: MemoryResource, site: Site, terms: tuple[MemoryTerm, ...]) -> MemoryAccount:
    return MemoryAccount(
        memory_id=memory.id,
        node_name=site.node.name,
        capacity_bytes=memory.capacity_bytes.value,
        reserved_bytes=memory.reserved_bytes.value,
        terms=terms,
    )


def memory_violation(account: MemoryAccount, representation: str) -> Violation:
    """Return the violation that an account which does not fit amounts to, with its terms as the detail."""
    return Violation(
        resource=f"{account.node_name} ({account.memory_id})",
        constraint=f"peak memory in {representation}",
        required=account.needed_bytes,
        available=account.available_bytes,
        unit="B",
        detail=" + ".join(f"{term.name} {format_bytes(term.bytes)}" for term in account.terms),
    )
