"""Whether a better plan is worth the change: gain against preparation, confidence, interruption, and calm.

An optimization is worth it when all of these hold, each checked and each named when it does not::

    gain per request × expected remaining requests  >  preparation
    confidence that the gain is real and will last  ≥  min_confidence
    interruption                                    ≤  max_interruption_seconds
    gain per request / present request time         ≥  min_gain_share          (hysteresis)
    time since the last change                      ≥  min_seconds_between_changes
    changes are not suppressed                                                 (flap damping, below)

Flap damping: each change adds `penalty_per_change` to a penalty that halves every `penalty_half_life_seconds`. When a
change brings it to `suppress_at`, optimizations are suppressed until it has decayed to `reuse_at`. A resource that
comes and goes thus moves a plan a few times and then waits for it to settle.

A recovery is no optimization: where the present plan cannot go on, economics do not count, and neither does calm; it
still adds to the penalty. Everything here is a pure function of its arguments: times are seconds on the caller's own
clock, and what was decided is kept by the caller.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from inferswarm.documents import Document
from inferswarm.errors import SpecError
from inferswarm.planner.plan import Interval
from inferswarm.units import format_seconds

Reason = Literal["optimization", "recovery"]


class ChangePolicy(Document, frozen=True, kw_only=True):
    """How much better a plan must be, and how calm it must have been. Shares are of 1, times in seconds."""

    min_confidence: float = 0.9
    max_interruption_seconds: float = 90.0
    min_gain_share: float = 0.05
    min_seconds_between_changes: float = 0.0
    penalty_per_change: float = 1.0
    penalty_half_life_seconds: float = 900.0
    suppress_at: float = 3.0
    reuse_at: float = 1.0

    def __post_init__(self) -> None:
        """Raise SpecError for parameters that make no policy."""
        super().__post_init__()
        for name in ("min_confidence", "min_gain_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise SpecError(f"change policy {name}", getattr(self, name), "a share between 0 and 1")
        for name in ("max_interruption_seconds", "min_seconds_between_changes", "penalty_per_change"):
            if getattr(self, name) < 0:
                raise SpecError(f"change policy {name}", getattr(self, name), "at least 0")
        if self.penalty_half_life_seconds <= 0:
            raise SpecError("change policy penalty_half_life_seconds", self.penalty_half_life_seconds, "more than 0")
        if not 0 < self.reuse_at < self.suppress_at:
            raise SpecError("change policy reuse_at", self.reuse_at, f"above 0 and below {self.suppress_at}")


class ProposedChange(Document, frozen=True, kw_only=True):
    """One change that might be made. Times in seconds; requests are a number and may be a fraction of one."""

    present_request_seconds: float
    """What a request takes under the plan that is active. For a recovery it counts for nothing."""
    proposed_request_seconds: float
    remaining_requests: float
    """Expected until the plan is replaced anyway, or the work ends."""
    preparation_seconds: float
    """What it takes to bring the other plan up, beside the work or instead of it."""
    interruption_seconds: float = 0.0
    """How long nothing is served."""
    confidence: float
    """That the gain is real and lasts: a probability. See `gain_confidence` for what the predictions alone say."""
    reason: Reason = "optimization"

    def __post_init__(self) -> None:
        """Raise SpecError for numbers that describe no change."""
        super().__post_init__()
        for name in (
            "present_request_seconds",
            "proposed_request_seconds",
            "remaining_requests",
            "preparation_seconds",
            "interruption_seconds",
        ):
            if getattr(self, name) < 0:
                raise SpecError(f"proposed change {name}", getattr(self, name), "at least 0")
        if not 0 <= self.confidence <= 1:
            raise SpecError("proposed change confidence", self.confidence, "a probability between 0 and 1")

    @property
    def gain_seconds(self) -> float:
        """What each request gains; below 0 when it loses."""
        return self.present_request_seconds - self.proposed_request_seconds


class ChangeHistory(Document, frozen=True, kw_only=True):
    """What is remembered of earlier changes. A scope that never changed has none of it."""

    penalty: float = 0.0
    """At `at_seconds`; it decays from there."""
    at_seconds: float = 0.0
    last_change_seconds: float | None = None
    suppressed: bool = False
    """Whether optimizations wait for the penalty to decay to `ChangePolicy.reuse_at`."""


class ChangeVerdict(Document, frozen=True, kw_only=True):
    """Go or stay, with every number that it came from."""

    go: bool
    reasons: tuple[str, ...]
    """For `go` why it may; otherwise everything that speaks against it."""
    benefit_seconds: float
    """Gain per request × expected remaining requests."""
    preparation_seconds: float
    break_even_requests: float | None
    """More requests than this must remain; None when nothing is gained."""
    penalty: float
    """Of flap damping, decayed to the time of the question."""


def judge_change(
    change: ProposedChange,
    policy: ChangePolicy | None = None,
    history: ChangeHistory | None = None,
    now_seconds: float = 0.0,
) -> ChangeVerdict:
    """Say whether to make a change now. Raises SpecError when `now_seconds` is before what is remembered."""
    policy, history = policy or ChangePolicy(), history or ChangeHistory()
    gain = change.gain_seconds
    benefit = gain * change.remaining_requests
    penalty = decayed_penalty(history, policy, now_seconds)
    against: list[str] = []
    if change.reason == "optimization":
        against = [*_economics(change, policy, benefit), *_calm(policy, history, penalty, now_seconds)]
        reasons = (f"it gains {format_seconds(benefit)} and costs {format_seconds(change.preparation_seconds)}",)
    else:
        reasons = ("recovery: the present plan cannot go on, so the economics of change do not count",)
    return ChangeVerdict(
        go=not against,
        reasons=tuple(against) or reasons,
        benefit_seconds=benefit,
        preparation_seconds=change.preparation_seconds,
        break_even_requests=change.preparation_seconds / gain if gain > 0 else None,
        penalty=penalty,
    )


def after_change(history: ChangeHistory, policy: ChangePolicy, now_seconds: float) -> ChangeHistory:
    """Return what to remember once a change was made, a recovery as well. Raises SpecError as `judge_change` does."""
    penalty = decayed_penalty(history, policy, now_seconds) + policy.penalty_per_change
    return ChangeHistory(
        penalty=penalty,
        at_seconds=now_seconds,
        last_change_seconds=now_seconds,
        suppressed=penalty >= policy.suppress_at or is_suppressed(history, policy, now_seconds),
    )


def decayed_penalty(history: ChangeHistory, policy: ChangePolicy, now_seconds: float) -> float:
    """Return what is left of the penalty. Raises SpecError when `now_seconds` is before what is remembered."""
    elapsed = now_seconds - history.at_seconds
    if history.penalty and elapsed < 0:
        raise SpecError("now_seconds", now_seconds, f"at least {history.at_seconds}, what is remembered")
    return history.penalty * 0.5 ** (elapsed / policy.penalty_half_life_seconds) if history.penalty else 0.0


def is_suppressed(history: ChangeHistory, policy: ChangePolicy, now_seconds: float) -> bool:
    """Return whether optimizations still wait for calm: from `suppress_at` on, until the penalty is at `reuse_at`."""
    return history.suppressed and decayed_penalty(history, policy, now_seconds) > policy.reuse_at


def gain_confidence(present: Interval, proposed: Interval) -> float:
    """Return the probability that the proposed plan's time is less than the present one's.

    Each time is taken as uniform within its bounds and independent of the other. That is a careful reading where both
    plans rest on the same curves, which then err together. Equal times are no gain.
    """
    for name, interval in (("present", present), ("proposed", proposed)):
        if not interval.low <= interval.point <= interval.high:
            raise SpecError(f"{name} interval", interval, "a point between its bounds")
    if present.low == present.high and proposed.low == proposed.high:
        return float(proposed.point < present.point)
    if proposed.low == proposed.high:
        return _share_above(present, proposed.low)
    if present.low == present.high:
        return 1 - _share_above(proposed, present.low)
    # The mean, over the proposed plan's times, of the share of the present plan's times above: linear in pieces.
    edges = sorted({proposed.low, proposed.high, *_within(present, proposed)})
    area = sum(
        (after - before) * (_share_above(present, before) + _share_above(present, after)) / 2
        for before, after in pairwise(edges)
    )
    return min(1.0, max(0.0, area / (proposed.high - proposed.low)))


def _within(edges: Interval, outer: Interval) -> tuple[float, ...]:
    return tuple(edge for edge in (edges.low, edges.high) if outer.low < edge < outer.high)


def _share_above(interval: Interval, value: float) -> float:
    """Return which share of an interval of some width is above a value."""
    return min(1.0, max(0.0, (interval.high - value) / (interval.high - interval.low)))


def _economics(change: ProposedChange, policy: ChangePolicy, benefit: float) -> list[str]:
    against = []
    gain = change.gain_seconds
    if gain <= 0:
        against.append(f"no gain: a request would take {format_seconds(-gain)} more")
    elif gain < policy.min_gain_share * change.present_request_seconds:
        share = gain / change.present_request_seconds
        against.append(f"the gain is {share:.1%} of a request, at least {policy.min_gain_share:.1%} is asked for")
    if gain > 0 and benefit <= change.preparation_seconds:
        against.append(
            f"{change.remaining_requests:g} remaining requests gain {format_seconds(benefit)}, the preparation costs "
            f"{format_seconds(change.preparation_seconds)}"
        )
    if change.confidence < policy.min_confidence:
        against.append(f"confidence {change.confidence:.2f}, at least {policy.min_confidence:.2f} is asked for")
    if change.interruption_seconds > policy.max_interruption_seconds:
        against.append(
            f"nothing would be served for {format_seconds(change.interruption_seconds)}, at most "
            f"{format_seconds(policy.max_interruption_seconds)} is allowed"
        )
    return against


def _calm(policy: ChangePolicy, history: ChangeHistory, penalty: float, now_seconds: float) -> list[str]:
    against = []
    if history.last_change_seconds is not None:
        since = now_seconds - history.last_change_seconds
        if since < policy.min_seconds_between_changes:
            least = format_seconds(policy.min_seconds_between_changes)
            against.append(f"the last change was {format_seconds(since)} ago, at least {least} must pass")
    if is_suppressed(history, policy, now_seconds):
        against.append(
            f"suppressed after too many changes: the penalty is {penalty:.2f}, at {policy.reuse_at:g} changes go on"
        )
    return against
