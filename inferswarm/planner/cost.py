"""What a plan is expected to cost, from measured curves: one objective for search, prediction and proof.

With P prompt tokens in K chunks on the chunk grid, and O output tokens::

    request     = TTFT + (O - 1) × inter_token
    TTFT        = Σ chunk_s + Σ chunk_p + (K - 1) × max(chunk_s, chunk_p) + Σ once_s
    inter_token = Σ step_s + Σ step_p + feedback

over the stages s and the forward paths p between neighbors:

* `chunk_s` is the mean over the grid of the first-pass time of the stage's units (each chunk with its own size and
  context), so that a single stage's TTFT is the exact sum over its chunks; `chunk_p` likewise for the payload.
  Chunks follow each other through the stages: the slowest stage or path sets the pace of all but the first.
* `once_s` is the work of units that look at the newest position only: their step time behind the prompt, once.
* `step_s` is the step time of the stage's units at the mean context P + O / 2; `step_p` is a path's time for the
  payload of one position; `feedback` is the path from the last participant back to the first (0 when it is one).

Where the objective is throughput, with C sessions at once and one step after the other on every stage and path::

    tokens per second = C / max(Σ step_s + Σ step_p + feedback, C × the longest of them)

Few sessions wait for their own way through all stages, many for the slowest stage or path. A session then waits
C / (tokens per second) from one token to the next.

Bounds come from each curve's factors, added up as if all were low, or all high, at once.

Not covered: the way of the prompt to the first participant and of each token to the Coordinator, waiting between
sessions, contention (Nodes of one host, paths over one Link), and what steps of several sessions at once gain.
For the time of a request `Workload.concurrency` counts in memory only.

A curve is used only if it gives no negative time and its bounds enclose its point; otherwise it counts as missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import msgspec

from inferswarm.errors import SpecError
from inferswarm.planner.economics import Economics, PathCurve, Phase, ServiceCurve
from inferswarm.planner.plan import CostTerm, Interval, Prediction
from inferswarm.planner.problem import ExecutionUnit, Implementation, PlanningProblem, Workload, bytes_in
from inferswarm.planner.sites import GraphView, Route, Site
from inferswarm.resources.types import Node


class Spread(NamedTuple):
    """Seconds: a point estimate between its bounds, cheap to add up."""

    low: float
    point: float
    high: float

    def plus(self, other: Spread) -> Spread:
        """Return the sum, bound by bound."""
        return Spread(self.low + other.low, self.point + other.point, self.high + other.high)

    def times(self, factor: float) -> Spread:
        """Return the spread scaled by a factor of at least 0."""
        return Spread(self.low * factor, self.point * factor, self.high * factor)


NOTHING = Spread(0.0, 0.0, 0.0)


def total(spreads: Iterable[Spread]) -> Spread:
    """Return the sum of spreads, bound by bound."""
    result = NOTHING
    for spread in spreads:
        result = result.plus(spread)
    return result


class Price(NamedTuple):
    """What a unit or a path adds: to each chunk, once per prompt, to each step; and the records behind it."""

    chunk: Spread
    once: Spread
    step: Spread
    evidence_ids: tuple[str, ...]


class Pricing:
    """Curves of one implementation, evaluated for one workload.

    Raises SpecError when the economics hold two curves for one thing.
    """

    def __init__(
        self, problem: PlanningProblem, implementation: Implementation, workload: Workload, economics: Economics
    ) -> None:
        self.problem = problem
        self.workload = workload
        self.chunks = chunk_grid(workload.prompt_tokens, problem.chunk_positions)
        self._representation = implementation.representation
        self._services: dict[tuple[str, str, Phase], ServiceCurve] = {}
        for curve in economics.services:
            if curve.representation != implementation.representation:
                continue
            key = (curve.compute_unit_id, curve.cost_class, curve.phase)
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
        self._units: dict[tuple[str, str, bool], Price | None] = {}
        self._hops: dict[tuple[str, str, int], Price | None] = {}

    @property
    def later_chunks(self) -> int:
        """Return how many chunks follow the first: the weight of the slowest stage or path in the TTFT."""
        return len(self.chunks) - 1

    @property
    def later_tokens(self) -> int:
        """Return how many tokens follow the first: the weight of a step in the request."""
        return self.workload.output_tokens - 1

    def unit(self, site: Site, unit: ExecutionUnit) -> Price | None:
        """Return the price of one unit on one site, or None when a curve for it is missing."""
        key = (site.id, unit.cost_class, unit.only_last_position)
        if key not in self._units:
            self._units[key] = self._price_unit(*key)
        return self._units[key]

    def hop(self, source: Node, target: Node, first_unit: int) -> Price | None:
        """Return the price of the path that feeds a stage starting at `first_unit`, or None without a curve."""
        sizes = self.problem.boundaries[first_unit - 1].payload_bytes_per_position
        payload = bytes_in(sizes, self._representation)
        key = (source.id, target.id, payload)
        if key not in self._hops:
            self._hops[key] = self._price_hop(source, target, payload)
        return self._hops[key]

    def feedback(self, last: Node, first: Node) -> Price | None:
        """Return the price of the way back from the last participant to the first, or None without a curve."""
        curve = self._path(last, first)
        if curve is None:
            return None
        return Price(NOTHING, NOTHING, _path_spread(curve, self.problem.feedback_bytes), curve.evidence_ids)

    def missing(
        self, view: GraphView, sites: Iterable[Site], neighbors: Iterable[tuple[Site, Site]]
    ) -> tuple[str, ...]:
        """Name every curve that is not there and that some plan over all of these sites could need.

        `neighbors` are the directed pairs of sites that may follow each other.
        """
        lacking: dict[str, None] = {}
        for site in sites:
            for unit in self.problem.units:
                for phase in _phases(unit.only_last_position):
                    if self._service(site.id, unit.cost_class, phase) is None:
                        name = f"service curve of {site.id} ({site.node.name}) for {unit.cost_class}"
                        lacking[f"{name}, {self._representation}, {phase}"] = None
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
        return Price(chunk, NOTHING, _path_spread(curve, payload), curve.evidence_ids)

    def _price_unit(self, compute_unit_id: str, cost_class: str, only_last: bool) -> Price | None:
        step = self._service(compute_unit_id, cost_class, "step")
        if step is None:
            return None
        prompt = self.workload.prompt_tokens
        each_step = _service_spread(step, 1, prompt + self.workload.output_tokens / 2)
        if only_last:
            return Price(NOTHING, _service_spread(step, 1, prompt - 1), each_step, step.evidence_ids)
        first_pass = self._service(compute_unit_id, cost_class, "first-pass")
        if first_pass is None:
            return None
        chunk = _mean([_service_spread(first_pass, count, start) for start, count in self.chunks])
        return Price(chunk, NOTHING, each_step, (*first_pass.evidence_ids, *step.evidence_ids))

    def _service(self, compute_unit_id: str, cost_class: str, phase: Phase) -> ServiceCurve | None:
        curve = self._services.get((compute_unit_id, cost_class, phase))
        if curve is None or not 0 < curve.low <= 1 <= curve.high:
            return None
        prompt = self.workload.prompt_tokens
        if phase == "step":
            at = [(1, prompt - 1.0), (1, prompt + self.workload.output_tokens / 2)]
        else:
            at = [(count, float(start)) for start, count in self.chunks]
        return curve if all(curve.seconds(count, context) >= 0 for count, context in at) else None

    def _path(self, source: Node, target: Node) -> PathCurve | None:
        curve = self._paths.get((source.id, target.id))
        if curve is None or not 0 < curve.low <= 1 <= curve.high:
            return None
        return curve if curve.latency_seconds >= 0 and curve.seconds_per_byte >= 0 else None


def chunk_grid(prompt_tokens: int, chunk_positions: int) -> tuple[tuple[int, int], ...]:
    """Return (start, count) of each chunk of a prompt: full chunks, then the remainder.

    >>> chunk_grid(150, 64)
    ((0, 64), (64, 64), (128, 22))
    """
    return tuple(
        (start, min(chunk_positions, prompt_tokens - start)) for start in range(0, prompt_tokens, chunk_positions)
    )


def predict(pricing: Pricing, route: Route) -> Prediction | None:
    """Predict one route, or return None when a curve that it needs is missing.

    The terms add up to the request's point estimate; the term of the slowest stage or path includes the chunks
    that wait for it. Raises SpecError when the curves give a step of no time at all.
    """
    units = pricing.problem.units
    stages: list[Price] = []
    for leg in route:
        prices = [pricing.unit(leg.site, unit) for unit in units[leg.first_unit : leg.end_unit]]
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

    passing = [*stages, *hops]
    pace = Spread(*(max(bounds) for bounds in zip(*(price.chunk for price in passing), strict=True)))
    ttft = total([price.chunk for price in passing] + [price.once for price in stages])
    ttft = ttft.plus(pace.times(pricing.later_chunks))
    inter_token = total(price.step for price in (*passing, feedback))
    request = ttft.plus(inter_token.times(pricing.later_tokens))
    if inter_token.low <= 0:
        raise SpecError("economics", "a step of 0 seconds", "curves that give each step some time")

    slowest = max(range(len(passing)), key=lambda index: passing[index].chunk.point)
    names = [f"stage-{index}" for index in range(len(stages))]
    names += [f"stage-{index} → stage-{index + 1}" for index in range(len(hops))]
    terms: list[CostTerm] = []
    for index, (name, price) in enumerate(zip(names, passing, strict=True)):
        waiting = pricing.later_chunks if index == slowest else 0
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
        throughput=_throughput(pricing.workload, [price.step for price in (*passing, feedback)]),
    )


def _throughput(workload: Workload, steps: list[Spread]) -> Interval | msgspec.UnsetType:
    if workload.throughput is None:
        return msgspec.UNSET
    sessions = workload.concurrency
    each = [max(sum(bounds) / sessions, max(bounds)) for bounds in zip(*steps, strict=True)]
    return Interval(1 / each[2], 1 / each[1], 1 / each[0])


def _joined(prices: list[Price]) -> Price:
    return Price(
        chunk=total(price.chunk for price in prices),
        once=total(price.once for price in prices),
        step=total(price.step for price in prices),
        evidence_ids=tuple(item for price in prices for item in price.evidence_ids),
    )


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
