from __future__ import annotations

import random

import pytest

from inferswarm.documents import digest, read_document, write_document
from inferswarm.errors import MeasurementError, SpecError
from inferswarm.evidence.comparison import Comparison, ComparisonRule, compare, repeat_noise
from inferswarm.evidence.drift import DRIFT_KEY, DriftReport, DriftRule, check_drift, record_run
from inferswarm.evidence.types import question_of
from tests.unit.evidence.evidence_samples import make_record, noisy

REFERENCE = [noisy(1e-3, seed=seed) for seed in range(3)]


@pytest.mark.parametrize(
    ("factor", "lower_is_better", "higher_is_better"),
    [
        (0.5, "improved", "degraded"),
        (0.85, "improved", "degraded"),
        (1.0, "none", "none"),
        (1.05, "none", "none"),
        (0.95, "none", "none"),
        (1.3, "degraded", "improved"),
        (2.0, "degraded", "improved"),
    ],
)
def test_a_change_beyond_the_limit_is_named_by_what_the_metric_calls_better(
    factor: float, lower_is_better: str, higher_is_better: str
) -> None:
    new = [noisy(factor * 1e-3, seed=9)]
    assert compare(REFERENCE, new, "lower").outcome == lower_is_better
    assert compare(REFERENCE, new, "higher").outcome == higher_is_better


def test_the_interval_holds_the_ratio_of_medians() -> None:
    found = compare(REFERENCE, [noisy(1.3e-3)], "lower")
    assert found.ratio == pytest.approx(1.3, rel=0.01)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 1.3 <= found.high
    assert found.high - found.low < 0.1
    assert (found.num_reference, found.num_new, found.limit) == (72, 24, 1.1)


def test_samples_that_lie_across_the_limit_do_not_tell() -> None:
    found = compare(REFERENCE, [noisy(1.1e-3)], "lower")
    assert found.outcome == "insufficient"
    assert found.low < 1.1 < found.high  # type: ignore[operator]
    assert "more samples are needed" in found.detail


@pytest.mark.parametrize(("num_reference", "num_new", "side"), [(7, 24, "reference"), (24, 7, "new"), (24, 0, "new")])
def test_too_few_samples_conclude_nothing(num_reference: int, num_new: int, side: str) -> None:
    new = [noisy(5e-3, num_new)] if num_new else []
    found = compare([noisy(1e-3, num_reference)], new, "lower")
    assert (found.outcome, found.ratio, found.low, found.high) == ("insufficient", None, None, None)
    assert f"{side} samples, needed 8" in found.detail


@pytest.mark.parametrize("outlier", [1e-6, 1.0, 1e6])
def test_one_outlier_changes_no_outcome(outlier: float) -> None:
    samples = list(noisy(1e-3))
    samples[len(samples) // 2] = outlier
    assert compare(REFERENCE, [samples], "lower").outcome == "none"


def test_a_change_within_the_spread_of_repeated_runs_is_not_called_degraded() -> None:
    runs = [noisy(1e-3), noisy(1.25e-3)]
    assert repeat_noise(runs) == pytest.approx(0.25, rel=0.02)
    found = compare(runs, [noisy(1.3e-3)], "lower")
    assert found.limit == pytest.approx(1 + repeat_noise(runs))
    assert found.outcome == "insufficient"
    assert compare([runs[0]], [noisy(1.3e-3)], "lower").outcome == "degraded"


def test_a_new_run_that_drifts_concludes_nothing() -> None:
    ramp = tuple(1e-3 * (1 + index / 12) for index in range(24))
    found = compare(REFERENCE, [noisy(2e-3), ramp], "lower")
    assert found.outcome == "insufficient"
    assert "new run 2 of 2 is not steady" in found.detail


def test_equal_input_gives_an_equal_document() -> None:
    first, second = (compare(REFERENCE, [noisy(1.2e-3, seed=4)], "lower") for _ in range(2))
    assert digest(first) == digest(second)
    assert read_document(Comparison, write_document(first), "test") == first


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_sample_that_is_no_amount_is_refused(bad: float) -> None:
    with pytest.raises(MeasurementError, match="positive finite"):
        compare(REFERENCE, [(*noisy(1e-3), bad)], "lower")
    with pytest.raises(MeasurementError, match="positive finite"):
        check_drift((*noisy(1e-3), bad))


@pytest.mark.parametrize(
    "fields",
    [{"min_change": 0.0}, {"confidence": 1.0}, {"confidence": 0.2}, {"num_resamples": 10}, {"min_samples": 2}],
)
def test_a_rule_that_could_not_decide_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a comparison needs"):
        ComparisonRule(**fields)  # type: ignore[arg-type]


def test_steady_samples_are_called_degraded_no_more_often_than_the_confidence_allows() -> None:
    """40 pairs of equal distributions, at a limit that an equal pair comes near: none may be called a change."""
    generator = random.Random(5)
    rule = ComparisonRule(min_change=0.02, num_resamples=400)
    outcomes = [
        compare(
            [[generator.lognormvariate(0, 0.1) for _ in range(30)]],
            [[generator.lognormvariate(0, 0.1) for _ in range(30)]],
            "lower",
            rule,
        ).outcome
        for _ in range(40)
    ]
    assert outcomes.count("degraded") + outcomes.count("improved") <= 1


# -- drift --


@pytest.mark.parametrize(
    ("samples", "outcome"),
    [
        (noisy(1e-3, 24), "none"),
        ((1e-3,) * 24, "none"),
        (tuple(1e-3 * (1 + index / 100) for index in range(24)), "drift"),
        (tuple(1e-3 * (1 - index / 100) for index in range(24)), "drift"),
        ((1e-3,) * 12 + (1.2e-3,) * 12, "drift"),
        (tuple(1e-3 * (1 + index / 2000) for index in range(24)), "none"),
        ((1e-3,) * 8 + (5e-3,) * 8 + (1e-3,) * 8, "none"),
        ((*noisy(1e-3, 23), 1.0), "none"),
        (tuple(1e-3 * (1 + index / 10) for index in range(14)), "insufficient"),
        (tuple(1e-3 * (1 + index / 10) for index in range(15)), "drift"),
        ((), "insufficient"),
    ],
)
def test_the_first_third_against_the_last_shows_drift(samples: tuple[float, ...], outcome: str) -> None:
    report = check_drift(samples)
    assert (report.outcome, report.num_samples) == (outcome, len(samples))
    assert (report.ratio is None) == (outcome == "insufficient")
    assert read_document(DriftReport, write_document(report), "test") == report


@pytest.mark.parametrize(("alpha", "needed"), [(0.05, 12), (0.01, 15), (0.001, 21)])
def test_fewer_samples_than_the_test_could_decide_with_are_insufficient(alpha: float, needed: int) -> None:
    rule = DriftRule(alpha=alpha)
    rising = [1.0 + index for index in range(needed)]
    assert rule.min_samples == needed
    assert check_drift(rising, rule).outcome == "drift"
    assert check_drift(rising[:-1], rule).outcome == "insufficient"


def test_steady_noise_is_called_drift_no_more_often_than_alpha_allows() -> None:
    generator = random.Random(3)
    rule = DriftRule(alpha=0.05, min_change=0.0)
    runs = [[generator.lognormvariate(0, 0.2) for _ in range(24)] for _ in range(200)]
    assert 0 < sum(check_drift(run, rule).outcome == "drift" for run in runs) < 20


def test_the_order_of_samples_matters_to_drift_alone() -> None:
    ramp = [1e-3 * (1 + index / 50) for index in range(24)]
    shuffled = ramp[:]
    random.Random(1).shuffle(shuffled)
    assert check_drift(ramp).outcome == "drift"
    assert check_drift(shuffled).outcome == "none"


@pytest.mark.parametrize("fields", [{"alpha": 0.0}, {"alpha": 0.5}, {"min_change": -0.1}])
def test_a_drift_rule_that_would_always_or_never_find_it_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="alpha is"):
        DriftRule(**fields)


def test_a_record_says_how_its_run_went_and_answers_the_same_question() -> None:
    record = make_record()
    noted = record_run(record, num_warm_up=3, interleaving="turns", clocks_mhz=1800)
    assert {item.key: item.value for item in noted.context if item.key.startswith("run.")} == {
        "run.clocks.mhz": "1800",
        DRIFT_KEY: "none",
        "run.drift.p": noted.context_value("run.drift.p"),
        "run.drift.ratio": noted.context_value("run.drift.ratio"),
        "run.interleaving": "turns",
        "run.warm.up": "3",
    }
    assert noted.samples == record.samples
    assert question_of(noted) == question_of(record)


def test_a_drifting_record_keeps_its_samples_and_says_so() -> None:
    ramp = tuple(1e-3 * (1 + index / 12) for index in range(24))
    noted = record_run(make_record(samples=ramp), num_warm_up=0, interleaving="alone")
    assert noted.samples == ramp
    assert noted.context_value(DRIFT_KEY) == "drift"


def test_what_a_run_said_once_is_not_said_over() -> None:
    noted = record_run(make_record(), num_warm_up=0, interleaving="alone")
    with pytest.raises(SpecError, match=r"does not state run\.drift yet"):
        record_run(noted, num_warm_up=0, interleaving="alone")
    with pytest.raises(SpecError, match="conditions of the run"):
        record_run(make_record(), num_warm_up=0, interleaving="alone", drift="none")
    with pytest.raises(SpecError, match="warm-up samples"):
        record_run(make_record(), num_warm_up=-1, interleaving="alone")
