"""Calculate figures that say how good estimates and their intervals are; arrays in, frozen summaries out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import Array
from gkestimator.core.records import frozen


@frozen
class ErrorSummary:
    """Hold the absolute errors of ``n`` cases: mean, median, 90th percentile and worst, in the unit they came
    in.
    """

    n: int
    mean: float
    median: float
    p90: float
    worst: float


@frozen
class IntervalSummary:
    """Say how ``n`` intervals did.

    Percent that hold the measurement, median of (high - low) / estimate in percent, the median absolute error in
    percent, and the width as a multiple of that error (None where the error is 0).
    """

    n: int
    inside_pct: float
    width_pct: float
    median_error_pct: float
    width_over_error: float | None


def absolute_errors_pct(estimated: Array, measured: Array) -> Array:
    """Return 100 |estimated / measured - 1| per case (float64).

    Raises UsageError for lengths that differ or a measurement that is not a positive number.
    """
    estimated = np.asarray(estimated, dtype=np.float64)
    measured = np.asarray(measured, dtype=np.float64)
    if estimated.shape != measured.shape:
        raise UsageError(
            f"{estimated.size} estimates for {measured.size} measurements; expected one for each"
        )
    if not np.all(np.isfinite(measured) & (measured > 0)):
        raise UsageError("a measurement is not a positive number, so it has no relative error")
    return np.asarray(100 * np.abs(estimated / measured - 1))


def summarise(errors: Array | Sequence[float]) -> ErrorSummary | None:
    """Return a summary of absolute errors; None for no errors (unknown, not 0). Raises UsageError if one is
    NaN.
    """
    values = np.asarray(errors, dtype=np.float64)
    if not values.size:
        return None
    if np.isnan(values).any():
        raise UsageError(f"{int(np.isnan(values).sum())} of {values.size} errors are unknown (NaN)")
    return ErrorSummary(
        n=int(values.size),
        mean=float(values.mean()),
        median=float(np.median(values)),
        p90=float(np.quantile(values, 0.9)),
        worst=float(values.max()),
    )


def interval_summary(estimated: Array, low: Array, high: Array, measured: Array) -> IntervalSummary | None:
    """Return a summary of intervals ``low`` ..

    ``high`` (ends included) around ``estimated``; None for no cases.
    """
    if not len(measured):
        return None
    error = float(np.median(absolute_errors_pct(estimated, measured)))
    width = float(np.median(100 * (np.asarray(high) - low) / estimated))
    inside = (np.asarray(low) <= measured) & (measured <= np.asarray(high))
    width_over_error = None
    if error > 0:
        width_over_error = width / error
    return IntervalSummary(
        n=len(measured),
        inside_pct=float(100 * np.mean(inside)),
        width_pct=width,
        median_error_pct=error,
        width_over_error=width_over_error,
    )


def inside_at_scales(
    estimated: Array, low: Array, high: Array, measured: Array, scales: Sequence[float]
) -> Array:
    """Return the percent of measurements inside when every interval is stretched ``scale`` times about its
    estimate.

    It is stretched on the logarithmic axis on which intervals are symmetric. At scale 1 it is the share
    inside the interval itself.
    """
    away = np.log(np.asarray(measured) / estimated)
    above = np.log(np.asarray(high) / estimated)
    below = np.log(np.asarray(estimated) / low)
    # A measurement at the very end of its interval is inside, however its logarithm is rounded.
    reach = np.where(away >= 0, above, below) * (1 + 1e-12)
    return np.array([100 * np.mean(np.abs(away) <= scale * reach) for scale in scales])


def weighted_median(values: Array, weight: Array) -> float:
    """Return the value at which half of the weight is reached: it minimises sum(weight |value - x|) over x.

    Raises UsageError for no values or no weight.
    """
    values = np.asarray(values, dtype=np.float64)
    weight = np.asarray(weight, dtype=np.float64)
    if not values.size or not weight.sum() > 0:
        raise UsageError("a weighted median needs at least one value with a positive weight")
    # Stable, so that equal values keep the order of the rows and the answer does not depend on the platform.
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    return float(values[order][int(np.searchsorted(reached, reached[-1] / 2))])
