"""The chosen plan as lines of text: who holds what, what is expected, and which part of it dominates."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from inferswarm.planner.naming import Names
from inferswarm.planner.plan import (
    ESTIMATE,
    Decision,
    ExecutionPlan,
    Interval,
    MemoryAccount,
    Placement,
    Prediction,
    Share,
)
from inferswarm.planner.sites import unit_range
from inferswarm.units import format_bytes, format_seconds

MOST_PARTS = 4
"""Parts of a figure that are written out."""
LEAST_SHARE = 0.005
"""Of a figure: smaller parts than this are not written out."""


def account_lines(account: MemoryAccount) -> Iterator[str]:
    """Write an account that does not fit: what is needed, term by term, against what is there."""
    needed, available = account.needed_bytes, account.available_bytes
    have = "an unknown amount" if available is None else format_bytes(available)
    lack = "" if available is None else f", short of {format_bytes(needed - available)}"
    yield f"  needs {format_bytes(needed)}, has {have}{lack}"
    for term in account.terms:
        yield f"    {term.name:<28}{format_bytes(term.bytes):>10}"
    yield f"    {'= needed':<28}{format_bytes(needed):>10}"
    if account.capacity_bytes is not None and account.reserved_bytes is not None:
        yield (
            f"    {'available':<28}{have:>10}   ({format_bytes(account.capacity_bytes)} capacity, "
            f"{format_bytes(account.reserved_bytes)} reserved)"
        )


def plan_lines(plan: ExecutionPlan, names: Names) -> Iterator[str]:
    """Write what the plan is, and what each participant holds."""
    payload = plan.payload_representation
    mixed = "" if isinstance(payload, msgspec.UnsetType) else f", payloads in {payload}"
    yield (
        f"{plan.representation} by {plan.primitive}{mixed}; {plan.max_positions} positions for {plan.sessions} "
        f"{'session' if plan.sessions == 1 else 'sessions'}; prompt in chunks of {plan.chunk_positions}"
    )
    for placement in plan.placements:
        yield from _placement(placement, names)


def _placement(placement: Placement, names: Names) -> Iterator[str]:
    account = placement.memory
    who = names.unit(placement.compute_unit_id, placement.node_name)
    own = placement.representation
    in_what = "" if isinstance(own, msgspec.UnsetType) else f", in {own}"
    yield (
        f"{placement.participant}: {who}, {names.hardware(placement.compute_unit_id, placement.threads)}{in_what}, "
        f"{unit_range(placement.first_unit, placement.end_unit)} ({_span(placement.unit_ids)})"
    )
    available = "unknown" if account.available_bytes is None else format_bytes(account.available_bytes)
    verdict = "" if account.fits else ": DOES NOT FIT"
    yield f"  memory {format_bytes(account.needed_bytes)} of {available}{verdict}"
    yield "    " + ", ".join(f"{term.name} {format_bytes(term.bytes)}" for term in account.terms)
    elsewhere = placement.states_memory
    if not isinstance(elsewhere, msgspec.UnsetType):
        there = "unknown" if elsewhere.available_bytes is None else format_bytes(elsewhere.available_bytes)
        verdict = "" if elsewhere.fits else ": DOES NOT FIT"
        needed = format_bytes(elsewhere.needed_bytes)
        yield f"  its states apart, in {elsewhere.memory_id}: {needed} of {there}{verdict}"


def predicted_lines(plan: ExecutionPlan) -> Iterator[str]:
    """Write what the plan is expected to do, with its bounds, and where a request's time goes."""
    prediction = plan.prediction
    if prediction is None:
        yield "no prediction: curves are missing"
        return
    workload = plan.workload
    if prediction.is_estimate:
        yield f"{ESTIMATE}; nothing here was measured"
    yield f"for {workload.prompt_tokens} prompt tokens and {workload.output_tokens} output tokens:"
    yield f"{'time to first token':<26}{_seconds(prediction.ttft)}"
    yield f"{'time between tokens':<26}{_seconds(prediction.inter_token)}"
    rate = prediction.decode_rate
    yield f"{'tokens per second':<26}{rate.point:.3g}  ({rate.low:.3g} – {rate.high:.3g})"
    yield f"{'whole request':<26}{_seconds(prediction.request)}"
    if not isinstance(prediction.throughput, msgspec.UnsetType):
        together = prediction.throughput
        yield f"{'tokens per second of all':<26}{together.point:.3g}  ({together.low:.3g} – {together.high:.3g})"
    yield "where the request's time goes, largest first:"
    yield from _terms(prediction)
    source = "declared figures and records" if prediction.is_estimate else "records of evidence"
    yield f"from {len(prediction.evidence_ids)} {source}"


def _terms(prediction: Prediction) -> Iterator[str]:
    for term in sorted(prediction.terms, key=lambda term: -term.seconds):
        share = term.seconds / prediction.request.point
        yield f"  {term.subject + ', ' + term.what:<34}{format_seconds(term.seconds):>10}{share:>8.1%}"


def bottleneck_lines(decision: Decision, names: Names) -> Iterator[str]:
    """Say which part dominates each figure of the chosen plan, then the others that matter."""
    parts = decision.breakdown
    if isinstance(parts, msgspec.UnsetType) or decision.plan is None or decision.plan.prediction is None:
        return
    prediction = decision.plan.prediction
    for name, whole, shares in (
        ("time to first token", prediction.ttft.point, parts.ttft),
        ("time between tokens", prediction.inter_token.point, parts.inter_token),
    ):
        if shares:
            yield f"{name}, {format_seconds(whole)}: {_part(shares[0], names)} dominates"
            others = [share for share in shares[1:MOST_PARTS] if share.share >= LEAST_SHARE]
            rest = ", ".join(_part(share, names) for share in others)
            if rest:
                yield f"  then {rest}"
    slowest = parts.cadence[0]
    yield (
        f"with ever more sessions: at most {1 / slowest.seconds:.3g} tokens/s, one each "
        f"{format_seconds(slowest.seconds)}, set by {_where(slowest, names)}"
    )


def _part(share: Share, names: Names) -> str:
    return f"{_where(share, names)} {format_seconds(share.seconds)} ({share.share:.0%})"


def _where(share: Share, names: Names) -> str:
    what = {"waiting": "later chunks", "newest-position": "newest position"}.get(share.what, share.what)
    return f"{names.part(share.subject)} {what}"


def _span(unit_ids: tuple[str, ...]) -> str:
    return unit_ids[0] if len(unit_ids) == 1 else f"{unit_ids[0]} … {unit_ids[-1]}"


def _seconds(interval: Interval) -> str:
    low, high = format_seconds(interval.low), format_seconds(interval.high)
    return f"{format_seconds(interval.point)}  ({low} – {high})"
