"""Expectations in one line each, for people: which statistic of what, against which threshold."""

from __future__ import annotations

from typing import assert_never

from inferswarm.campaigns.expectations import (
    AllTrue,
    Counted,
    EveryValue,
    Expectation,
    Median,
    OfSeries,
    Pairwise,
    Proportion,
    Quantile,
    Ratio,
    RelativeError,
    Side,
    TokensEqual,
    Zero,
)

_PERCENT_DIGITS = 6
"""Significant digits of a share in percent: 99.9 stays 99.9."""


def describe(expectation: Expectation) -> str:
    """Return what is computed, its threshold, and how many samples it takes.

    >>> from inferswarm.campaigns.expectations import Side
    >>> describe(Quantile(id="a", arm="b", gate="performance", claim="c", series="step-seconds", unit="s",
    ...     samples_min=300, q=0.99, at_most=0.2, confidence=0.95))
    'quantile 99 % of step-seconds, its upper bound (95 %) at most 0.2; n at least 300, in s'
    """
    return f"{_statistic(expectation)}; {_sample_size(expectation)}"


def _statistic(wanted: Expectation) -> str:
    match wanted:
        case AllTrue():
            return f"every sample of {_series(wanted)} is true"
        case Zero():
            return f"the samples of {_series(wanted)} add up to 0"
        case Counted():
            return f"the number of samples of {_series(wanted)} is {_limits(wanted)}"
        case EveryValue():
            return f"every sample of {_series(wanted)} is {_limits(wanted)}"
        case Pairwise(relation=relation):
            return f"for every key {_series(wanted.left)} {relation} {_series(wanted.right)}"
        case Proportion():
            how = f"{percent(wanted.confidence)}, {wanted.method}"
            return f"share of true samples of {_series(wanted)}, its lower bound ({how}) at least {wanted.at_least:g}"
        case Quantile():
            bound = f"its upper bound ({percent(wanted.confidence)}) at most {wanted.at_most:g}"
            return f"quantile {percent(wanted.q)} of {_series(wanted)}, {bound}"
        case Median():
            limits = _limits(wanted)
            return f"median of {_series(wanted)}, its bounds (each {percent(wanted.confidence)}) {limits}"
        case Ratio():
            units = {"key": "pairs by key", "block": "pairs by block", "none": "each side for itself"}[
                wanted.paired_by
            ]
            how = f"{percent(wanted.confidence)}, BCa, {wanted.resamples} resamples, seed {wanted.seed}, {units}"
            both = f"{_series(wanted.left)} / {_series(wanted.right)}"
            return f"{wanted.of} of {both}, its interval ({how}) {_between(wanted.low, wanted.high)}"
        case RelativeError():
            share = (
                "every key"
                if wanted.share is None
                else f"a share of keys whose lower bound ({percent(wanted.confidence)}) is at least {wanted.share:g}"
            )
            return f"|{_series(wanted.left)} / {_series(wanted.right)} - 1| at most {wanted.at_most:g} for {share}"
        case TokensEqual():
            what = "tokens and logits" if wanted.also_logits else "tokens"
            return f"{what} of {wanted.left!r} equal those of {wanted.right!r} for every key"
        case _ as never:
            assert_never(never)


def percent(share: float) -> str:
    """Return a share in percent.

    >>> percent(0.999)
    '99.9 %'
    """
    return f"{share * 100:.{_PERCENT_DIGITS}g} %"


def _sample_size(wanted: Expectation) -> str:
    if isinstance(wanted, TokensEqual):
        return f"keys at least {wanted.keys_min}"
    sides = "" if isinstance(wanted, OfSeries) else " on each side"
    return f"n at least {wanted.samples_min}{sides}, in {wanted.unit}"


def _series(of: OfSeries | Side) -> str:
    where = [
        f"{name} {value!r}" for name, value in (("condition", of.condition), ("key", of.key)) if value is not None
    ]
    return f"{of.series} ({', '.join(where)})" if where else of.series


def _limits(wanted: Counted | EveryValue | Median) -> str:
    equals = None if isinstance(wanted, Median) else wanted.equals
    both = _between(wanted.at_least, wanted.at_most)
    return f"{equals:g}{both and f', {both}'}" if equals is not None else both


def _between(low: float | None, high: float | None) -> str:
    limits = [f"at least {low:g}" if low is not None else "", f"at most {high:g}" if high is not None else ""]
    return " and ".join(limit for limit in limits if limit)
