"""What a plan is expected to cost, from measured curves: one objective for search, prediction and proof.

With P prompt tokens in K chunks on the chunk grid, and O output tokens::

    request     = TTFT + (O - 1) × inter_token
    TTFT        = Σ chunk_s + Σ chunk_p + (K - 1) × max(chunk_s, chunk_p) + Σ once_s + Σ once_p
    inter_token = Σ step_s + Σ step_p + feedback

over the stages s and the forward paths p between neighbors, where the paths that go over one shared segment of the
network count as one part in the max, with their sum, and so do the stages whose Compute Units share one set of cores,
weighed as `core_sharing` says.

* `chunk_s` is the mean over the grid of the first-pass time of the stage's units (each chunk with its own size and
  context), so that a single stage's TTFT is the exact sum over its chunks; `chunk_p` likewise for the payload.
  Chunks follow each other through the stages: the slowest stage or path sets the pace of all but the first.
* `once_s` is what a request takes once: the step time behind the prompt of units that look at the newest position
  only, and what opening it costs the first unit; `once_p` is what its first chunk takes longer over a path, because
  the stage at the path's end was at rest.
* `step_s` is the step time of the stage's units at the mean context P + O / 2; `step_p` is a path's time for the
  payload of one position; `feedback` is the path from the last participant back to the first (0 when it is one).

Where many sessions count in the objective, with C sessions at once and one step after the other on every part::

    tokens per second = C / max(Σ step_s + Σ step_p + feedback, C × the longest of them)

Few sessions wait for their own way through all stages, many for the slowest stage, path, segment or set of cores. A
session waits C / (tokens per second) from one token to the next.

Bounds come from each curve's factors, added up as if all were low, or all high, at once.

Not covered: the way of the prompt to the first participant and of each token to the Coordinator, waiting between
sessions, contention of Nodes of one host for memory bandwidth, and what steps of several sessions at once gain. The
searches price paths and stages one by one, without what they share: what they prove is a lower bound, which is a
plan's own value unless a segment or a set of cores sets its pace.
For the time of a request `Workload.concurrency` counts in memory only.

A curve is used only if its bounds enclose its point and every time that it gives is from 0 to `LONGEST_SECONDS`;
otherwise it counts as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from inferswarm.errors import SpecError
from inferswarm.planner.core_sharing import core_shares, most_shares
from inferswarm.planner.economics import Economics, PathCurve, Phase, ServiceCurve
from inferswarm.planner.plan import CostTerm, Interval, Prediction
from inferswarm.planner.problem import ExecutionUnit, Implementation, Mixture, PlanningProblem, Workload, bytes_in
from inferswarm.planner.sites import NEAR, GraphView, Mode, Route, Site
from inferswarm.planner.spreads import NOTHING, Price, Spread, Together, alike, total
from inferswarm.resources.types import CoreSet, Node

LONGEST_SECONDS = 1e12
"""What no unit and no message takes, about 30,000 years: whatever says so measured nothing. Sums stay finite."""
SHORTEST_SECONDS = 1e-15
"""What every step takes at least; its inverse stays finite."""


class Pricing:
    """Curves of one implementation or mixture, evaluated for one workload.

    Raises SpecError when the economics hold two curves for one thing.
    """

    def __init__(
        self,
        problem: PlanningProblem,
        implementation: Implementation,
        workload: Workload,
        economics: Economics,
        later_tokens: int | None = None,
        view: GraphView | None = None,
    ) -> None:
        """Index the curves. `later_tokens` is the weight of a step in a route's value, if not the workload's."""
        self._later_tokens = workload.output_tokens - 1 if later_tokens is None else later_tokens
        self.problem = problem
        self.workload = workload
        self._view = view
        self.chunks = chunk_grid(workload.prompt_tokens, problem.chunk_positions)
        mixture = mixture_of(problem, implementation)
        self._representation = implementation.representation
        self._payload = implementation.representation if mixture is None else mixture.payload_representation
        used = (implementation.representation,) if mixture is None else mixture.representations
        self._services: dict[tuple[str, str, str, bool, Phase], ServiceCurve] = {}
        for curve in economics.services:
            if curve.representation not in used:
                continue
            key = (curve.compute_unit_id, curve.cost_class, curve.representation, curve.apart, curve.phase)
            if key in self._services:
                raise SpecError("economics", f"two curves for {key}", "one service curve for each")
            self._services[key] = curve
        self._paths: dict[tuple[str, str], PathCurve] = {}
        for path in economics.paths:
            if (path.source, path.target) in self._paths:
                raise SpecError(
                    "economics", f"two curves for {(path.source, path.target)}", "one path curve for each"
                )
            self._paths[(path.source, path.target)] = path
        sizes = [size.bytes for boundary in problem.boundaries for size in boundary.payload_bytes_per_position]
        self._most_bytes = max([problem.feedback_bytes, *(size * problem.chunk_positions for size in sizes)])
        self._opening = {unit.cost_class for unit in problem.units if unit.opens_requests is True}
        self._units: dict[tuple[str, Mode, str, bool], Price | None] = {}
        self._hops: dict[tuple[str, str, int], Price | None] = {}

    @property
    def later_chunks(self) -> int:
        """Return how many chunks follow the first: the weight of the slowest stage or path in the TTFT."""
        return len(self.chunks) - 1

    @property
    def later_tokens(self) -> int:
        """Return how many tokens follow the first: the weight of a step in the request."""
        return self._later_tokens

    def unit(self, site: Site, unit: ExecutionUnit, mode: Mode = NEAR) -> Price | None:
        """Return the price of one unit on one site that works in a mode, or None when a curve for it is missing."""
        key = (site.id, mode, unit.cost_class, unit.only_last_position)
        if key not in self._units:
            self._units[key] = self._price_unit(*key)
        return self._units[key]

    def payload_bytes(self, first_unit: int) -> int:
        """Return the bytes per position of what feeds a stage that starts at `first_unit`."""
        return bytes_in(self.problem.boundaries[first_unit - 1].payload_bytes_per_position, self._payload)

    def hop(self, source: Node, target: Node, first_unit: int) -> Price | None:
        """Return the price of the path that feeds a stage starting at `first_unit`, or None without a curve."""
        payload = self.payload_bytes(first_unit)
        key = (source.id, target.id, payload)
        if key not in self._hops:
            self._hops[key] = self._price_hop(source, target, payload)
        return self._hops[key]

    def feedback(self, last: Node, first: Node) -> Price | None:
        """Return the price of the way back from the last participant to the first, or None without a curve."""
        curve = self._path(last, first)
        if curve is None:
            return None
        spread = _path_spread(curve, self.problem.feedback_bytes)
        return Price(NOTHING, NOTHING, spread, curve.evidence_ids, curve.provenance == "declared")

    def segments(self, source: Node, target: Node) -> frozenset[str]:
        """Return the shared segments that the path between two Nodes goes over."""
        return frozenset() if self._view is None else self._view.segments(source, target)

    def cores(self, site: Site) -> CoreSet | None:
        """Return the cores that a site shares with others, or None when it has its own."""
        return None if self._view is None else self._view.cores(site)

    def missing(
        self,
        view: GraphView,
        sites: Iterable[Site],
        neighbors: Iterable[tuple[Site, Site]],
        modes: Callable[[Site], Iterable[Mode]] = lambda _: (NEAR,),
    ) -> tuple[str, ...]:
        """Name every curve that is not there and that some plan over all of these sites could need.

        `neighbors` are the directed pairs of sites that may follow each other; `modes` says how a site may work.
        """
        lacking: dict[str, None] = {}
        for site in sites:
            for mode in modes(site):
                computing = f"{mode.representation or self._representation}{', states apart' if mode.apart else ''}"
                for unit in self.problem.units:
                    phases = _phases(unit.only_last_position)
                    if not unit.only_last_position and self._takes_opening(site.id, mode, unit.cost_class):
                        phases = (*phases, "opening")
                    for phase in phases:
                        if self._service(site.id, mode, unit.cost_class, phase) is None:
                            name = f"service curve of {site.id} ({site.node.name}) for {unit.cost_class}"
                            lacking[f"{name}, {computing}, {phase}"] = None
        for source, target in neighbors:
            linked = view.linked(source.node, target.node)
            if linked and self._path(source.node, target.node) is None:
                lacking[f"path curve {source.node.name} → {target.node.name}"] = None
        return tuple(lacking)

    def _price_hop(self, source: Node, target: Node, payload: int) -> Price | None:
        curve = self._path(source, target)
        if curve is None:
            return None
        chunk = _mean([_path_spread(curve, count * payload) for _, count in self.chunks])
        once = Spread(curve.once_seconds * curve.low, curve.once_seconds, curve.once_seconds * curve.high)
        return Price(chunk, once, _path_spread(curve, payload), curve.evidence_ids, curve.provenance == "declared")

    def _price_unit(self, compute_unit_id: str, mode: Mode, cost_class: str, only_last: bool) -> Price | None:
        step = self._service(compute_unit_id, mode, cost_class, "step")
        if step is None:
            return None
        prompt = self.workload.prompt_tokens
        each_step = _service_spread(step, 1, prompt + self.workload.output_tokens / 2)
        if only_last:
            once = _service_spread(step, 1, prompt - 1)
            return Price(NOTHING, once, each_step, step.evidence_ids, step.provenance == "declared")
        first_pass = self._service(compute_unit_id, mode, cost_class, "first-pass")
        if first_pass is None:
            return None
        chunk = _mean([_service_spread(first_pass, count, start) for start, count in self.chunks])
        curves = [first_pass, step]
        once = NOTHING
        if self._takes_opening(compute_unit_id, mode, cost_class):
            opening = self._service(compute_unit_id, mode, cost_class, "opening")
            if opening is None:
                return None
            curves.append(opening)
            once = _service_spread(opening, 1, 0)
        ids = tuple(item for curve in curves for item in curve.evidence_ids)
        return Price(chunk, once, each_step, ids, any(curve.provenance == "declared" for curve in curves))

    def _takes_opening(self, compute_unit_id: str, mode: Mode, cost_class: str) -> bool:
        """Whether a request costs something once: the problem says so, or there is a curve for it, usable or not."""
        representation = mode.representation or self._representation
        known = (compute_unit_id, cost_class, representation, mode.apart, "opening") in self._services
        return known or cost_class in self._opening

    def _service(self, compute_unit_id: str, mode: Mode, cost_class: str, phase: Phase) -> ServiceCurve | None:
        representation = mode.representation or self._representation
        curve = self._services.get((compute_unit_id, cost_class, representation, mode.apart, phase))
        if curve is None or not 0 < curve.low <= 1 <= curve.high:
            return None
        prompt = self.workload.prompt_tokens
        if phase == "opening":
            at = [(1, 0.0)]
        elif phase == "step":
            at = [(1, prompt - 1.0), (1, prompt + self.workload.output_tokens / 2)]
        else:
            at = [(count, float(start)) for start, count in self.chunks]
        return curve if all(_possible(curve.seconds(count, context), curve.high) for count, context in at) else None

    def _path(self, source: Node, target: Node) -> PathCurve | None:
        curve = self._paths.get((source.id, target.id))
        if curve is None or not 0 < curve.low <= 1 <= curve.high:
            return None
        if curve.latency_seconds < 0 or curve.seconds_per_byte < 0 or curve.once_seconds < 0:
            return None
        return curve if _possible(curve.once_seconds + curve.seconds(self._most_bytes), curve.high) else None


def mixture_of(problem: PlanningProblem, implementation: Implementation) -> Mixture | None:
    """Return the problem's mixture of which an implementation has the name; None for one that is none."""
    mixtures = () if isinstance(problem.mixtures, msgspec.UnsetType) else problem.mixtures
    for mixture in mixtures:
        if (mixture.name, mixture.primitive) == (implementation.representation, implementation.primitive):
            return mixture
    return None


def chunk_grid(prompt_tokens: int, chunk_positions: int) -> tuple[tuple[int, int], ...]:
    """Return (start, count) of each chunk of a prompt: full chunks, then the remainder.

    >>> chunk_grid(150, 64)
    ((0, 64), (64, 64), (128, 22))
    """
    return tuple(
        (start, min(chunk_positions, prompt_tokens - start)) for start in range(0, prompt_tokens, chunk_positions)
    )


class RoutePrices(NamedTuple):
    """What the parts of one route cost: its stages, the paths between them, and the way back (of no time alone)."""

    stages: tuple[Price, ...]
    hops: tuple[Price, ...]
    feedback: Price
    shared: tuple[Together, ...] = ()
    """What two or more parts share: a segment of the network, or a set of cores."""

    @property
    def passing(self) -> tuple[Price, ...]:
        """Return what the work of a prompt passes through: all stages, then all forward paths."""
        return (*self.stages, *self.hops)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of each part of `passing`."""
        stages = [f"stage-{index}" for index in range(len(self.stages))]
        return (*stages, *(f"stage-{index} → stage-{index + 1}" for index in range(len(self.hops))))

    @property
    def slowest(self) -> Together:
        """Return which part of `passing` takes longest for a chunk, or which parts do together: they set the pace."""
        return max(self.paced, key=lambda group: group.of(self.chunks).point)

    @property
    def paced(self) -> tuple[Together, ...]:
        """Return what may set the pace of chunks: each part of `passing`, and those that share something."""
        alone = [alike((index,)) for index in range(len(self.passing))]
        return (*alone, *(group for group in map(self._forward, self.shared) if len(group.members) > 1))

    def _forward(self, group: Together) -> Together:
        """Return the group without the way back, which no chunk takes."""
        kept = [at for at, index in enumerate(group.members) if index < len(self.passing)]
        least, factors, most = (tuple(column[at] for at in kept) for column in group[1:])
        return Together(tuple(group.members[at] for at in kept), least, factors, most)

    @property
    def chunks(self) -> tuple[Spread, ...]:
        """Return what each part of `passing` takes for one chunk."""
        return tuple(price.chunk for price in self.passing)

    @property
    def steps(self) -> tuple[Spread, ...]:
        """Return what each part takes for one step, the way back last."""
        return tuple(price.step for price in (*self.passing, self.feedback))


def price_route(pricing: Pricing, route: Route) -> RoutePrices | None:
    """Return what each part of a route costs, or None when a curve that it needs is missing."""
    units = pricing.problem.units
    stages: list[Price] = []
    for leg in route:
        prices = [pricing.unit(leg.site, unit, leg.mode) for unit in units[leg.first_unit : leg.end_unit]]
        known = [price for price in prices if price is not None]
        if len(known) < len(prices):
            return None
        stages.append(_joined(known))
    hops: list[Price] = []
    for before, after in pairwise(route):
        hop = pricing.hop(before.site.node, after.site.node, after.first_unit)
        if hop is None:
            return None
        hops.append(hop)
    feedback: Price | None = Price(NOTHING, NOTHING, NOTHING, ())
    if len(route) > 1:
        feedback = pricing.feedback(route[-1].site.node, route[0].site.node)
    if feedback is None:
        return None
    return RoutePrices(tuple(stages), tuple(hops), feedback, parts_together(pricing, [leg.site for leg in route]))


def predict(pricing: Pricing, route: Route) -> Prediction | None:
    """Predict one route, or return None when a curve that it needs is missing.

    The terms add up to the request's point estimate; the term of the slowest stage or path includes the chunks
    that wait for it (where several share what is slowest, each its own). Raises SpecError when the curves give a
    step of no time at all.
    """
    prices = price_route(pricing, route)
    if prices is None:
        return None
    stages, passing, feedback, names = prices.stages, prices.passing, prices.feedback, prices.names
    together = [group.of(prices.chunks) for group in prices.paced]
    pace = Spread(*(max(bounds) for bounds in zip(*together, strict=True)))
    ttft = total([price.chunk for price in passing] + [price.once for price in passing])
    ttft = ttft.plus(pace.times(pricing.later_chunks))
    inter_token = total(price.step for price in (*passing, feedback))
    request = ttft.plus(inter_token.times(pricing.later_tokens))
    if inter_token.low < SHORTEST_SECONDS:
        raise SpecError("economics", "a step of 0 seconds", "curves that give each step some time")

    terms: list[CostTerm] = []
    slowest = dict(zip(prices.slowest.members, prices.slowest.factors, strict=True))
    for index, (name, price) in enumerate(zip(names, passing, strict=True)):
        waiting = pricing.later_chunks * slowest.get(index, 0.0)
        first = price.chunk.point * (1 + waiting) + price.once.point
        steps = price.step.point * pricing.later_tokens
        if index < len(stages):
            terms.append(CostTerm(subject=name, what="first-pass", seconds=first))
            terms.append(CostTerm(subject=name, what="step", seconds=steps))
        else:
            terms.append(CostTerm(subject=name, what="path", seconds=first + steps))
    if len(route) > 1:
        back = f"{names[len(stages) - 1]} → stage-0"
        terms.append(CostTerm(subject=back, what="feedback", seconds=feedback.step.point * pricing.later_tokens))
    return Prediction(
        ttft=Interval(*ttft),
        inter_token=Interval(*inter_token),
        request=Interval(*request),
        decode_rate=Interval(1 / inter_token.high, 1 / inter_token.point, 1 / inter_token.low),
        terms=tuple(terms),
        evidence_ids=tuple(sorted({item for price in (*passing, feedback) for item in price.evidence_ids})),
        throughput=msgspec.UNSET
        if isinstance(pricing.workload.objective, msgspec.UnsetType)
        else rate_together(pricing.workload.concurrency, prices),
        basis="declared" if any(price.declared for price in (*passing, feedback)) else msgspec.UNSET,
    )


def rate_together(sessions: int, prices: RoutePrices) -> Interval:
    """Return the tokens per second that `sessions` sessions at once get together over a route."""
    steps = prices.steps
    parts = [*steps, *(group.of(steps) for group in prices.shared)]
    way = total(steps).times(1 / sessions)
    each = [max(bounds) for bounds in zip(way, *parts, strict=True)]
    return Interval(1 / each[2], 1 / each[1], 1 / each[0])


def parts_together(pricing: Pricing, sites: Sequence[Site]) -> tuple[Together, ...]:
    """Return which parts of a route over these sites, in order, share a segment, or cores too few for all of them."""
    over: dict[str, list[int]] = {}
    if len(sites) > 1:
        for index, (source, target) in enumerate(zip(sites, (*sites[1:], sites[0]), strict=True)):
            place = len(sites) + index  # after the stages; the way back comes after all forward paths
            for segment in pricing.segments(source.node, target.node):
                over.setdefault(segment, []).append(place)
    on: dict[CoreSet, list[tuple[int, int]]] = {}
    for index, site in enumerate(sites):
        if (cores := pricing.cores(site)) is not None:
            on.setdefault(cores, []).append((index, site.compute_unit.threads))
    paths = sorted({tuple(places) for places in over.values() if len(places) > 1})
    found = [alike(places) for places in paths]
    for cores, members in on.items():
        counts, places = [threads for _, threads in members], tuple(index for index, _ in members)
        shares = core_shares(counts, cores.num_cores)
        for place, each in enumerate(shares):
            most = each if place else most_shares(counts, cores.num_cores)
            found.append(Together(places, shares[0], each, most))
    return tuple(found)


def _joined(prices: list[Price]) -> Price:
    return Price(
        chunk=total(price.chunk for price in prices),
        once=total(price.once for price in prices),
        step=total(price.step for price in prices),
        evidence_ids=tuple(item for price in prices for item in price.evidence_ids),
        declared=any(price.declared for price in prices),
    )


def _possible(seconds: float, high: float) -> bool:
    """Whether something can take that long, at its high bound too."""
    return seconds >= 0 and seconds * high <= LONGEST_SECONDS


def _phases(only_last_position: bool) -> tuple[Phase, ...]:
    return ("step",) if only_last_position else ("first-pass", "step")


def _mean(spreads: list[Spread]) -> Spread:
    return total(spreads).times(1 / len(spreads))


def _service_spread(curve: ServiceCurve, positions: int, context: float) -> Spread:
    seconds = curve.seconds(positions, context)
    return Spread(seconds * curve.low, seconds, seconds * curve.high)


def _path_spread(curve: PathCurve, payload_bytes: int) -> Spread:
    seconds = curve.seconds(payload_bytes)
    return Spread(seconds * curve.low, seconds, seconds * curve.high)
