"""Calibrate by split-conformal prediction: intervals on rows that no member saw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEVEL = 0.9
_FEWEST = 40


def _conformal(errors: np.ndarray, weight: np.ndarray) -> float:
    """Return the weighted split-conformal quantile: the least error that rows of ``LEVEL`` of the weight do
    not exceed, with one more row of mean weight counted as exceeding it (as ceil((n + 1) level) / n does for
    equal weights).
    """
    order = np.argsort(errors, kind="stable")
    share = np.cumsum(weight[order]) / (weight.sum() + weight.mean())
    place = min(int(np.searchsorted(share, LEVEL)), len(errors) - 1)
    return float(errors[order[place]])


def size_quantiles(
    predicted_us: np.ndarray, errors: np.ndarray, weight: np.ndarray, edges: Sequence[float]
) -> list[float]:
    """Return the 90 % quantile of ``errors`` per size class of the prediction; a class with few rows takes
    that of all.

    ``weight`` is how much each row counts: rows whose GPU time is blurred by the launch count less, as in the
    fit.
    """
    overall = _conformal(errors, weight)
    size = np.searchsorted(edges, predicted_us)
    widths = []
    for i in range(len(edges) + 1):
        mask = size == i
        width = _conformal(errors[mask], weight[mask]) if mask.sum() >= _FEWEST else overall
        widths.append(round(width, 4))
    return widths


def coverage(
    predicted_us: np.ndarray,
    errors: np.ndarray,
    weight: np.ndarray,
    shape: np.ndarray,
    edges: Sequence[float],
) -> float:
    """Return the percent of the weight inside its interval when each half of the shapes is calibrated on the
    other half.
    """
    half = np.floor(shape * 1e7).astype(int) % 2 == 0
    size = np.searchsorted(edges, predicted_us)
    held = np.zeros(len(errors), dtype=bool)
    for fit in (half, ~half):
        if fit.any() and (~fit).any():
            width = np.asarray(size_quantiles(predicted_us[fit], errors[fit], weight[fit], edges))
            held[~fit] = errors[~fit] <= width[size[~fit]]
    return float(100 * np.average(held, weights=weight))
