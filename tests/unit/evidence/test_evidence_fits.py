from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferswarm.errors import MeasurementError
from inferswarm.evidence.fits import PathPoint, ServicePoint, fit_path, fit_service

GRID = [(8, 0), (64, 0), (64, 64), (64, 448)]


def service_points(
    base: float, position: float, context: float, grid: list[tuple[int, int]], num: int = 5
) -> list[ServicePoint]:
    return [ServicePoint(n, c, (base + position * n + context * n * (c + n / 2),) * num) for n, c in grid]


def test_exact_samples_give_their_coefficients_back() -> None:
    fit = fit_service(service_points(1e-4, 2e-5, 3e-8, GRID))
    assert fit.base_seconds == pytest.approx(1e-4, rel=1e-6)
    assert fit.seconds_per_position == pytest.approx(2e-5, rel=1e-6)
    assert fit.seconds_per_position_context == pytest.approx(3e-8, rel=1e-6)
    assert fit.low == pytest.approx(1)
    assert fit.high == pytest.approx(1)
    assert fit.num_samples == 20
    assert all(abs(residual.relative) < 1e-9 for residual in fit.residuals)


COEFFICIENT = st.floats(1e-9, 1e-2)


@settings(deadline=None, max_examples=60)
@given(base=COEFFICIENT, position=COEFFICIENT, context=st.floats(1e-12, 1e-4))
def test_any_exact_cost_is_predicted_at_every_point(base: float, position: float, context: float) -> None:
    points = service_points(base, position, context, GRID)
    fit = fit_service(points)
    for point, residual in zip(points, fit.residuals, strict=True):
        assert residual.predicted_seconds == pytest.approx(point.samples[0], rel=1e-6)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3))
def test_noise_gives_ordered_factors_and_no_negative_cost(seed: int, scale: float) -> None:
    generator = random.Random(seed)
    points = [
        ServicePoint(n, c, tuple(scale * (1 + n / 8) * generator.lognormvariate(0, 0.2) for _ in range(9)))
        for n, c in GRID
    ]
    fit = fit_service(points)
    assert 0 < fit.low <= 1 <= fit.high
    for coefficient in (fit.base_seconds, fit.seconds_per_position, fit.seconds_per_position_context):
        assert coefficient >= 0
        assert math.isfinite(coefficient)


def test_the_factors_hold_the_middle_of_the_samples() -> None:
    samples = tuple(1.0 + step / 100 for step in range(-50, 51))
    fit = fit_service([ServicePoint(1, 0, samples)])
    assert fit.base_seconds == pytest.approx(1.0)
    assert (fit.low, fit.high) == (pytest.approx(0.6, abs=0.011), pytest.approx(1.4, abs=0.011))


def test_an_error_of_the_formula_widens_the_factors() -> None:
    # Falling cost cannot be described by coefficients of at least 0, and the samples themselves have no noise.
    fit = fit_service([ServicePoint(8, 0, (2.0,) * 5), ServicePoint(64, 0, (1.0,) * 5)])
    assert (fit.seconds_per_position, fit.seconds_per_position_context) == (0.0, 0.0)
    assert fit.low < 0.9
    assert fit.high > 1.1
    assert [round(residual.relative, 3) for residual in fit.residuals] == [0.4, -0.2]


def test_one_outlier_does_not_move_the_curve() -> None:
    calm = service_points(1e-3, 1e-4, 0, GRID, num=9)
    shaken = [ServicePoint(n, c, (*samples[:-1], 1000.0)) for n, c, samples in calm]
    assert fit_service(shaken)[:3] == pytest.approx(fit_service(calm)[:3])


def test_a_fast_point_counts_as_much_as_a_slow_one() -> None:
    # Absolute least squares would ignore the first point: its error is a thousandth of the last one's.
    points = [ServicePoint(1, 0, (1e-4,) * 5), ServicePoint(64, 0, (6.4e-3,) * 5), ServicePoint(128, 0, (0.2,) * 5)]
    assert abs(fit_service(points).residuals[0].relative) < 0.5


@pytest.mark.parametrize(
    ("grid", "fitted"),
    [
        ([(1, 0)], ("base",)),
        ([(64, 0)], ("base",)),
        ([(1, 0), (1, 512)], ("base", "context")),
        ([(8, 0), (64, 0)], ("base", "position")),
        (GRID, ("base", "position", "context")),
    ],
)
def test_only_what_the_points_can_tell_is_fitted(grid: list[tuple[int, int]], fitted: tuple[str, ...]) -> None:
    fit = fit_service(service_points(1e-3, 1e-4, 1e-6, grid))
    values = {
        "base": fit.base_seconds,
        "position": fit.seconds_per_position,
        "context": fit.seconds_per_position_context,
    }
    assert tuple(name for name, value in values.items() if value > 0) == fitted


def test_a_path_gives_its_latency_and_rate_back() -> None:
    fit = fit_path([PathPoint(size, (5e-5 + size / 1e9,) * 4) for size in (64, 4096, 262_144)])
    assert fit.latency_seconds == pytest.approx(5e-5, rel=1e-6)
    assert fit.seconds_per_byte == pytest.approx(1e-9, rel=1e-6)
    assert [residual.point for residual in fit.residuals] == ["64 B", "4096 B", "262144 B"]


def test_one_size_tells_no_rate() -> None:
    with pytest.raises(MeasurementError, match=r"at least two sizes, has \[4096\] B"):
        fit_path([PathPoint(4096, (1e-4,) * 20)])


@pytest.mark.parametrize(
    "samples",
    [
        (1.0,) * 4,
        (),
        (1.0, 1.0, 1.0, 1.0, 0.0),
        (1.0, 1.0, 1.0, 1.0, -1.0),
        (1.0,) * 4 + (math.nan,),
        (math.inf,) * 5,
    ],
)
def test_samples_that_say_nothing_are_refused(samples: tuple[float, ...]) -> None:
    with pytest.raises(MeasurementError):
        fit_service([ServicePoint(1, 0, samples)])
    with pytest.raises(MeasurementError):
        fit_path([PathPoint(1, samples), PathPoint(2, samples)], min_samples=10)


def test_the_samples_are_left_as_they_were() -> None:
    points = [ServicePoint(1, 0, (3.0, 1.0, 2.0, 5.0, 4.0))]
    fit_service(points)
    assert points == [ServicePoint(1, 0, (3.0, 1.0, 2.0, 5.0, 4.0))]
