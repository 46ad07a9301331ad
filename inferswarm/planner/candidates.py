"""Candidate families: every implementation over every set of Compute Units, and what is technically true of each.

Sets are formed of the available Compute Units; one that is not available appears alone, so that its reason is
there. A family is feasible when one of its members passes every technical gate. Its best member is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import combinations, permutations, product
from typing import NamedTuple

from inferswarm.errors import Violation
from inferswarm.planner.assemble import Case
from inferswarm.planner.memory import memory_violation
from inferswarm.planner.modes import modes_of, site_refusals
from inferswarm.planner.plan import MemoryAccount
from inferswarm.planner.search import best_routes, quick_routes
from inferswarm.planner.sites import NEAR, GraphView, Leg, Route, Site, unit_range
from inferswarm.planner.solvers.building import build_instance
from inferswarm.planner.solvers.instance import Instance
from inferswarm.planner.spaces import (
    Restriction,
    bytes_together,
    fitting_space,
    headroom_space,
    least_totals,
    priced_space,
    route_of,
    shares_memory,
)

SiteIds = tuple[str, ...]


class Finding(NamedTuple):
    """What is technically true of one family. Feasible when there are no refusals; then there is a route.

    `seconds` is the request time of the route, the best one; None when no member could be priced, and then the
    route is one that fits. `missing` names the curves that some member lacks. For an infeasible family `accounts`
    show what decided: a single participant, or the split that lacks least (an example, where sites share memory).
    """

    sites: tuple[Site, ...]
    refusals: tuple[str, ...] = ()
    route: Route | None = None
    seconds: float | None = None
    missing: tuple[str, ...] = ()
    accounts: tuple[MemoryAccount, ...] = ()

    @property
    def ids(self) -> SiteIds:
        """Return the Compute Units' ids, sorted."""
        return tuple(site.id for site in self.sites)


def technical_findings(case: Case, view: GraphView, known: float = math.inf) -> tuple[Finding, ...]:
    """Judge every family of one implementation, smaller sets first; each gate is named by its reason.

    `known` is the value of another plan: of a family that has no better one, any plan or none is shown.
    """
    standing = tuple(site for site in view.sites if site.compute_unit.available)
    refusals = {site.id: site_refusals(case, site) for site in view.sites}
    able = tuple(site for site in standing if not refusals[site.id])
    feasible = feasible_members(case, view, able, Restriction(), known)
    findings = []
    for sites in [(site,) for site in view.sites if not site.compute_unit.available] + _subsets(standing):
        blocked = tuple(reason for site in sites for reason in refusals[site.id])
        ids = tuple(site.id for site in sites)
        finding = Finding(sites, refusals=blocked) if blocked else feasible[ids]
        if len(sites) == 1 and sites[0].memory is not None:
            mode = NEAR if finding.route is None else finding.route[0].mode
            whole = Leg(sites[0], 0, len(case.problem.units), mode)
            finding = finding._replace(accounts=case.accounts((whole,))[0])
        findings.append(finding)
    return tuple(findings)


def feasible_members(
    case: Case,
    view: GraphView,
    sites: tuple[Site, ...],
    restriction: Restriction,
    known: float = math.inf,
) -> dict[SiteIds, Finding]:
    """Find the best member of every family over these sites, or why there is none, under a restriction.

    All sites must have passed the gates for Compute Units and capacity. `known` is as for `technical_findings`.
    """
    built = build_instance(case, view, sites, restriction.min_tokens_per_second)
    instance = built.instance
    groups = [
        frozenset(group) for size in range(1, len(sites) + 1) for group in combinations(range(len(sites)), size)
    ]
    totals = least_totals(instance, len(sites))
    holding = [group for group in groups if totals[len(group) - 1] <= bytes_together(instance, group)]
    space = priced_space(built, restriction)
    priced = best_routes(space.space, holding, known)
    lacking = {group: _missing(case, view, sites, group, restriction) for group in groups}
    # Where everything can be priced, what is not below `known` is settled: whether it fits matters to nobody.
    open_ = [group for group in groups if group not in priced and (known == math.inf or lacking[group])]
    unpriced = build_instance(case, view, sites, priced=False) if open_ else built
    headroom = headroom_space(unpriced, restriction)
    roomiest = quick_routes(headroom.space) if open_ else {}
    unsure = [group for group in open_ if group in holding and group in roomiest and roomiest[group].value > 0]
    if unsure and shares_memory(instance):
        roomiest |= best_routes(fitting_space(unpriced, restriction).space, unsure)
    findings: dict[SiteIds, Finding] = {}
    for group in groups:
        members = tuple(sites[index] for index in sorted(group))
        missing = lacking[group]
        if group in priced:
            route = route_of(built, space, priced[group])
            finding = Finding(members, route=route, seconds=priced[group].value, missing=missing)
        elif known < math.inf and not missing:
            finding = Finding(members, refusals=("no plan over them is better than one that is known",))
        elif group not in roomiest:
            finding = Finding(members, refusals=_no_route(instance, view, members))
        elif roomiest[group].value <= 0:
            finding = Finding(members, route=route_of(unpriced, headroom, roomiest[group]), missing=missing)
        else:
            route = route_of(unpriced, headroom, roomiest[group])
            finding = _too_large(case, instance, group, members, route, totals[len(group) - 1])
        findings[finding.ids] = finding
    return findings


def priced_members(
    case: Case, view: GraphView, sites: tuple[Site, ...], restriction: Restriction, wanted: Iterable[SiteIds]
) -> dict[SiteIds, tuple[float, Route]]:
    """Return the value and the route of the best member of each wanted family over these sites that can be priced."""
    built = build_instance(case, view, sites, restriction.min_tokens_per_second)
    space = priced_space(built, restriction)
    place = {site.id: index for index, site in enumerate(sites)}
    groups = {frozenset(place[name] for name in ids): ids for ids in wanted}
    found = best_routes(space.space, groups)
    return {groups[group]: (member.value, route_of(built, space, member)) for group, member in found.items()}


def _missing(
    case: Case, view: GraphView, sites: tuple[Site, ...], group: frozenset[int], restriction: Restriction
) -> tuple[str, ...]:
    """Name the curves that some member of a family lacks."""
    members = tuple(sites[index] for index in sorted(group))
    neighbors = _neighbors(sites, members, restriction)
    return case.pricing.missing(view, members, neighbors, lambda site: modes_of(case, site))


def _neighbors(
    sites: tuple[Site, ...], members: tuple[Site, ...], restriction: Restriction
) -> list[tuple[Site, Site]]:
    """Return the directed pairs that may follow each other in a route, or close it."""
    if restriction.seats is None:
        return list(permutations(members, 2))
    seats = [[sites[index] for index in sorted(seat)] for seat in restriction.seats]
    return [
        (before, after)
        for here, there in zip(seats, (*seats[1:], seats[0]), strict=True)
        for before, after in product(here, there)
        if before in members and after in members and before != after
    ]


def _too_large(
    case: Case, instance: Instance, group: frozenset[int], members: tuple[Site, ...], route: Route, least_total: float
) -> Finding:
    accounts = tuple(account for own in case.accounts(route) for account in own)
    representation = case.implementation.representation
    lacking = [str(memory_violation(account, representation)) for account in accounts if not account.fits]
    if len(members) > 1:
        spans = ", ".join(f"{leg.site.node.name} {unit_range(leg.first_unit, leg.end_unit)}" for leg in route)
        which = "for example" if shares_memory(instance) else "the split that lacks least"
        lacking.insert(0, f"no order and no legal cut fits; {which}: {spans}")
        together = bytes_together(instance, group)
        if least_total > together:
            names = " + ".join(site.node.name for site in members)
            whole = f"peak memory of {len(members)} parts together in {representation}"
            lacking.insert(
                0, str(Violation(names, whole, least_total, together, "B", "at least, wherever it is cut"))
            )
    return Finding(members, refusals=tuple(lacking), accounts=accounts)


def _no_route(instance: Instance, view: GraphView, members: tuple[Site, ...]) -> tuple[str, ...]:
    most = instance.num_atoms
    if len(members) > most:
        return (f"{len(members)} participants, but the legal cuts give at most {most} parts",)
    broken = view.missing_links(members)
    if broken:
        return (f"no order connects all participants and leads back: no available Link {', '.join(broken)}",)
    return ("no member meets the restriction",)


def _subsets(sites: tuple[Site, ...]) -> list[tuple[Site, ...]]:
    return [group for size in range(1, len(sites) + 1) for group in combinations(sites, size)]
