"""What a campaign expects of its arms: every threshold, statistic and sample size, read from `expectations.toml`.

It is committed before the first run and its digest is in every request. Each statistic has its own closed set of
fields; what it means is said here, how it is computed from raw samples in `judging`. A side (`left`, `right`) or a
series without a `condition` or `key` takes the samples of all of them; in another `unit` than its own they miss it.
Warm-ups are left out at the performance gate; at the correctness gate they are samples like all others. What nothing
could miss, or nothing could meet, is no expectation and is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from inferswarm.campaigns.samples import TRUTH_UNIT
from inferswarm.campaigns.spec import (
    CampaignSpec,
    Edition,
    Name,
    Text,
    convert_document,
    parse_toml,
    read_bytes,
)
from inferswarm.documents import Document
from inferswarm.errors import DocumentError

ExpectationId = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9.-]{0,99}\Z")]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Confidence = Annotated[float, msgspec.Meta(ge=0.5, lt=1)]
"""That an interval or bound is given with; below one half it would bound nothing."""
Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
"""Of the resampling. JSON carries no larger integer."""
Gate = Literal["correctness", "performance"]


class Side(Document, frozen=True, kw_only=True):
    """The samples of one series that are held against those of another."""

    series: Name
    condition: str | None = None
    key: str | None = None

    def may_share(self, other: Side) -> bool:
        """Return whether one sample may be of both sides."""
        fields = ((self.condition, other.condition), (self.key, other.key))
        return self.series == other.series and all(None in pair or pair[0] == pair[1] for pair in fields)


class Judged(Document, frozen=True, kw_only=True):
    """What every expectation says: which arm, at which gate, and in words what it claims."""

    id: ExpectationId
    arm: Name
    gate: Gate
    claim: Text


class OfSeries(Judged, frozen=True, kw_only=True):
    """An expectation of the samples of one series."""

    series: Name
    condition: str | None = None
    key: str | None = None
    unit: Text
    samples_min: Count


class OfSides(Judged, frozen=True, kw_only=True):
    """An expectation of two series in one unit. `samples_min` is for each side."""

    left: Side
    right: Side
    unit: Text
    samples_min: Count

    def __post_init__(self) -> None:
        """Refuse to hold samples against themselves."""
        super().__post_init__()
        if self.left.may_share(self.right):
            raise ValueError("holds samples against themselves: one sample may be of both sides")


class AllTrue(OfSeries, frozen=True, kw_only=True, tag_field="statistic", tag="all-true"):
    """Every sample is 1, in the unit `bool`."""

    def __post_init__(self) -> None:
        """Refuse what are no truths."""
        super().__post_init__()
        _refuse_unit(self.unit, is_truth=True)


class Zero(OfSeries, frozen=True, kw_only=True, tag_field="statistic", tag="zero"):
    """Every sample is 0 or more, and their sum is 0."""


class Counted(OfSeries, frozen=True, kw_only=True, tag_field="statistic", tag="count"):
    """There are so many samples."""

    equals: Count | None = None
    at_least: Count | None = None
    at_most: Count | None = None

    def __post_init__(self) -> None:
        """Refuse what bounds nothing or allows nothing, and to allow fewer than there must be."""
        super().__post_init__()
        _refuse_unbounded(self.equals, self.at_least, self.at_most)
        if most := [bound for bound in (self.equals, self.at_most) if bound is not None and bound < self.samples_min]:
            raise ValueError(f"allows {most[0]} samples, and needs {self.samples_min}")


class EveryValue(OfSeries, frozen=True, kw_only=True, tag_field="statistic", tag="value"):
    """Every sample is this, or inside these bounds."""

    equals: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        """Refuse what bounds nothing or allows nothing."""
        super().__post_init__()
        _refuse_unbounded(self.equals, self.at_least, self.at_most)


class Pairwise(OfSides, frozen=True, kw_only=True, tag_field="statistic", tag="pairwise"):
    """Both sides have the same keys, one sample each, and the relation holds between the two of every key."""

    relation: Literal["<", "<=", "==", ">=", ">"]


class Proportion(OfSeries, frozen=True, kw_only=True, tag_field="statistic", tag="proportion"):
    """The lower bound of the share of samples that are 1 is at least this."""

    at_least: Share
    confidence: Confidence
    method: Literal["exact", "wilson"]

    def __post_init__(self) -> None:
        """Refuse what are no truths."""
        super().__post_init__()
        _refuse_unit(self.unit, is_truth=True)


class Quantile(OfSeries, frozen=True, kw_only=True, tag_field="statistic", tag="quantile"):
    """The upper bound of the quantile, from order statistics, is at most this."""

    q: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    at_most: float
    confidence: Confidence

    def __post_init__(self) -> None:
        """Refuse truths, which have no quantiles."""
        super().__post_init__()
        _refuse_unit(self.unit, is_truth=False)


class Median(OfSeries, frozen=True, kw_only=True, tag_field="statistic", tag="median"):
    """The bounds of the median, from order statistics, are inside these."""

    at_least: float | None = None
    at_most: float | None = None
    confidence: Confidence

    def __post_init__(self) -> None:
        """Refuse what bounds nothing or allows nothing, and truths."""
        super().__post_init__()
        _refuse_unbounded(None, self.at_least, self.at_most)
        _refuse_unit(self.unit, is_truth=False)


class Ratio(OfSides, frozen=True, kw_only=True, tag_field="statistic", tag="ratio"):
    """The interval of left divided by right lies inside [low, high]; bootstrap (BCa), blocks resampled whole."""

    low: Positive | None = None
    high: Positive | None = None
    confidence: Confidence
    resamples: Annotated[int, msgspec.Meta(ge=999, le=1_000_000)]
    """SciPy's default is 9,999; below 999 the ends of a 99 % interval rest on fewer than ten resamples."""
    seed: Seed
    of: Literal["median", "mean"]
    paired_by: Literal["key", "block", "none"]

    def __post_init__(self) -> None:
        """Refuse what bounds nothing or allows nothing, truths, and samples held against themselves."""
        super().__post_init__()
        _refuse_unbounded(None, self.low, self.high)
        _refuse_unit(self.unit, is_truth=False)


class RelativeError(OfSides, frozen=True, kw_only=True, tag_field="statistic", tag="error"):
    """|left / right − 1| is at most this: for every key, or at the lower bound of the share of keys."""

    at_most: Annotated[float, msgspec.Meta(ge=0)]
    share: Share | None = None
    """None: every key."""
    confidence: Confidence

    def __post_init__(self) -> None:
        """Refuse truths, and samples held against themselves."""
        super().__post_init__()
        _refuse_unit(self.unit, is_truth=False)


class TokensEqual(Judged, frozen=True, kw_only=True, tag_field="statistic", tag="tokens-equal"):
    """The answers of two conditions have the same keys, prompts and tokens (and logits)."""

    left: str
    right: str
    keys_min: Count
    also_logits: bool

    def __post_init__(self) -> None:
        """Refuse to compare answers with themselves."""
        super().__post_init__()
        if self.left == self.right:
            raise ValueError(f"compares the answers of {self.left!r} with themselves")


Expectation = (
    AllTrue
    | Zero
    | Counted
    | EveryValue
    | Pairwise
    | Proportion
    | Quantile
    | Median
    | Ratio
    | RelativeError
    | TokensEqual
)


class Expectations(Document, frozen=True, kw_only=True):
    """All that one edition of a campaign expects. The file calls the list `expect`."""

    campaign: Name
    edition: Edition
    expect: tuple[Expectation, ...]

    def of_arm(self, arm: str) -> tuple[Expectation, ...]:
        """Return what is expected of an arm, in the order of the file."""
        return tuple(item for item in self.expect if item.arm == arm)


def read_expectations(path: Path) -> Expectations:
    """Read an `expectations.toml`.

    Raises SpecError for a file that cannot be read; DocumentError for what `parse_expectations` refuses.
    """
    return parse_expectations(read_bytes(path, "expectations"), str(path))


def parse_expectations(data: bytes, source: str) -> Expectations:
    """Return the expectations that the bytes of an `expectations.toml` say.

    Raises DocumentError naming `source` for what is not TOML, an unknown statistic or field, a missing or mistyped
    one, bounds that bound nothing, and ids that repeat.
    """
    expectations = convert_document(parse_toml(data, source), Expectations, source)
    ids = [item.id for item in expectations.expect]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise DocumentError(source, f"has the expectation {twice!r} twice")
    return expectations


def refuse_mismatch(campaign: CampaignSpec, expectations: Expectations, source: str) -> None:
    """Refuse expectations that are not those of this campaign.

    Raises DocumentError naming `source` for another campaign or edition, an arm that it does not have, and an arm of
    which nothing correct is expected: it could only pass by nobody looking.
    """
    mine, theirs = (campaign.campaign, campaign.edition), (expectations.campaign, expectations.edition)
    if mine != theirs:
        raise DocumentError(source, f"is for campaign and edition {theirs}, needed {mine}")
    names = {arm.name for arm in campaign.arms}
    if unknown := sorted({item.arm for item in expectations.expect} - names):
        raise DocumentError(source, f"expects something of {', '.join(unknown)}, which the campaign does not have")
    if bare := sorted(names - {item.arm for item in expectations.expect if item.gate == "correctness"}):
        raise DocumentError(source, f"expects nothing at the correctness gate of {', '.join(bare)}")


def _refuse_unbounded(equals: float | None, low: float | None, high: float | None) -> None:
    if equals is None and low is None and high is None:
        raise ValueError("names no bound")
    if equals is not None and (low is not None or high is not None):
        raise ValueError("names a value and a bound")
    if low is not None and high is not None and low > high:
        raise ValueError(f"allows nothing: at least {low} and at most {high}")


def _refuse_unit(unit: str, is_truth: bool) -> None:
    if (unit == TRUTH_UNIT) is not is_truth:
        raise ValueError(f"is of samples in {unit!r}, needed {'truths, in' if is_truth else 'numbers, not'} 'bool'")
