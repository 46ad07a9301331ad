"""How a participant may work on a site: what it computes in, and which Memory Resource holds its immutable states.

In a plan of one implementation every participant computes in the same. In a plan of a mixture each chooses among
those that its Compute Unit can execute. Where a Compute Unit says that it can compute with states that are in another
Memory Resource than the nearest one (`ADDRESSABLE`), they may be in any of its Node that it addresses.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from inferswarm.planner.assemble import Case
from inferswarm.planner.gates import capacity_refusals, integrity_refusals, qualification_refusals, unit_refusals
from inferswarm.planner.problem import Implementation, PlanningProblem, Policy
from inferswarm.planner.sites import Mode, Site

ADDRESSABLE = "states:addressable"
"""The capability of a Compute Unit whose states may be in a Memory Resource that is not the nearest one."""


def modes_of(case: Case, site: Site) -> tuple[Mode, ...]:
    """Return how a participant may work on a site whose own gates are open; the nearest memory comes first."""
    mixed = len(case.parts) > 1
    return tuple(
        Mode(part.representation if mixed else "", place)
        for part in case.parts
        if not unit_refusals(site, part) and not (mixed and _shut(part, site))
        for place in _places(site)
    )


def site_refusals(case: Case, site: Site) -> tuple[str, ...]:
    """Return why nothing of a case can be on a site at all."""
    refusals = unit_refusals(site, case.implementation) + capacity_refusals(site)
    if refusals or modes_of(case, site):
        return refusals
    each = (reason for part in case.parts for reason in unit_refusals(site, part) + _shut(part, site))
    return tuple(dict.fromkeys(each))


def searched(problem: PlanningProblem, policy: Policy) -> PlanningProblem:
    """Return the problem with the mixtures that a policy asks for: none, or those of what it allows.

    A mixture of which it allows one representation alone is none.
    """
    mixtures = () if isinstance(problem.mixtures, msgspec.UnsetType) else problem.mixtures
    if not mixtures:
        return problem
    wanted = policy.mix_representations is True
    allowed = policy.representations
    kept = tuple(
        msgspec.structs.replace(
            item, representations=tuple(name for name in item.representations if not allowed or name in allowed)
        )
        for item in (mixtures if wanted else ())
    )
    kept = tuple(item for item in kept if len(item.representations) > 1)
    return msgspec.structs.replace(problem, mixtures=kept or msgspec.UNSET)


def families_of(problem: PlanningProblem) -> tuple[Implementation, ...]:
    """Return what is searched, in the order in which it is: each implementation, then each mixture by its name."""
    mixtures = () if isinstance(problem.mixtures, msgspec.UnsetType) else problem.mixtures
    mixed = [Implementation(primitive=item.primitive, representation=item.name) for item in mixtures]

    def names(item: Implementation) -> tuple[str, str]:
        return item.representation, item.primitive

    return (*sorted(problem.implementations, key=names), *sorted(mixed, key=names))


def _shut(part: Implementation, site: Site) -> tuple[str, ...]:
    return integrity_refusals(part, (site,)) + qualification_refusals(part, (site,))


def _places(site: Site) -> Iterator[int]:
    yield 0
    if ADDRESSABLE in site.compute_unit.capabilities:
        for place, memory in enumerate(site.further, start=1):
            capacity, reserved = memory.capacity_bytes.value, memory.reserved_bytes.value
            if capacity is not None and reserved is not None and capacity >= reserved:
                yield place
