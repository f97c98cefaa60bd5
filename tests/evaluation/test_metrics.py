"""Error and interval figures on cases whose answers are known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.core.errors import UsageError
from gkestimator.evaluation.metrics import (
    absolute_errors_pct,
    inside_at_scales,
    interval_summary,
    summarise,
    weighted_median,
)


def test_errors_are_relative_to_the_measurement() -> None:
    errors = absolute_errors_pct(np.array([110.0, 50.0, 30.0]), np.array([100.0, 100.0, 10.0]))
    assert errors.tolist() == pytest.approx([10, 50, 200])


@pytest.mark.parametrize("measured", [0.0, -1.0, np.nan, np.inf])
def test_a_measurement_that_is_no_positive_number_is_refused(measured: float) -> None:
    with pytest.raises(UsageError, match="positive"):
        absolute_errors_pct(np.array([1.0]), np.array([measured]))


def test_lengths_must_agree() -> None:
    with pytest.raises(UsageError, match="2 estimates for 1"):
        absolute_errors_pct(np.array([1.0, 2.0]), np.array([1.0]))


def test_summary_of_known_errors() -> None:
    summary = summarise(np.arange(11.0))
    assert summary is not None
    assert (summary.n, summary.mean, summary.median, summary.p90, summary.worst) == (11, 5, 5, 9, 10)
    assert summarise([]) is None
    with pytest.raises(UsageError, match="1 of 2"):
        summarise([1.0, np.nan])


def test_interval_summary_counts_ends_as_inside() -> None:
    estimated = np.array([10.0, 10.0, 10.0, 10.0])
    low, high = estimated * 0.8, estimated * 1.3
    summary = interval_summary(estimated, low, high, np.array([8.0, 13.0, 7.9, 12.5]))
    assert summary is not None
    assert summary.inside_pct == 75
    assert summary.width_pct == pytest.approx(50)
    assert summary.width_over_error == pytest.approx(
        50 / np.median([25, 100 - 1000 / 13, 10 / 7.9 * 100 - 100, 20])
    )
    assert interval_summary(*(np.empty(0),) * 4) is None


def test_exact_estimates_have_no_width_over_error() -> None:
    one = np.ones(3)
    summary = interval_summary(one, one * 0.9, one * 1.1, one)
    assert summary is not None and summary.width_over_error is None


def test_stretching_an_interval_by_its_own_reach() -> None:
    estimated = np.full(3, 10.0)
    low, high = np.full(3, 5.0), np.full(3, 40.0)  # factors 2 down and 4 up
    measured = np.array([10 / 2**0.5, 20.0, 160.0])  # half the way down, half the way up, twice the way up
    assert inside_at_scales(estimated, low, high, measured, [0.4, 0.5, 1, 2]).tolist() == pytest.approx(
        [0, 200 / 3, 200 / 3, 100]
    )


def test_weighted_median_minimises_the_weighted_distance() -> None:
    rng = np.random.default_rng(1)
    values, weight = rng.normal(size=101), rng.uniform(0.1, 2, size=101)
    best = weighted_median(values, weight)
    distance = [float(np.sum(weight * np.abs(values - v))) for v in values]
    assert np.sum(weight * np.abs(values - best)) == pytest.approx(min(distance))
    with pytest.raises(UsageError):
        weighted_median(np.array([1.0]), np.array([0.0]))
