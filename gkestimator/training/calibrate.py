"""Split-conformal calibration of intervals on rows that no member saw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["LEVEL", "coverage", "log_errors", "size_quantiles"]

LEVEL = 0.9
_FEWEST = 40


def log_errors(predicted_us: np.ndarray, measured_us: np.ndarray) -> np.ndarray:
    """|log(predicted / measured)| per row."""
    return np.asarray(np.abs(np.log(predicted_us / measured_us)))


def _conformal(errors: np.ndarray) -> float:
    """The ceil((n + 1) level) / n quantile: covers a new exchangeable row with probability of at least ``LEVEL``."""
    n = len(errors)
    return float(np.quantile(errors, min(1.0, np.ceil((n + 1) * LEVEL) / n), method="higher"))


def size_quantiles(predicted_us: np.ndarray, errors: np.ndarray, edges: Sequence[float]) -> list[float]:
    """Interval half-widths of log(time) per size class of the prediction; a class with few rows takes that of all."""
    overall = _conformal(errors)
    size = np.searchsorted(edges, predicted_us)
    return [
        round(_conformal(part) if len(part := errors[size == i]) >= _FEWEST else overall, 4)
        for i in range(len(edges) + 1)
    ]


def coverage(
    predicted_us: np.ndarray, errors: np.ndarray, shape: np.ndarray, edges: Sequence[float]
) -> float:
    """Percent of rows inside their interval when each half of the shapes is calibrated on the other half."""
    half = np.floor(shape * 1e7).astype(int) % 2 == 0
    size = np.searchsorted(edges, predicted_us)
    held = np.zeros(len(errors), dtype=bool)
    for fit in (half, ~half):
        if fit.any() and (~fit).any():
            width = np.asarray(size_quantiles(predicted_us[fit], errors[fit], edges))
            held[~fit] = errors[~fit] <= width[size[~fit]]
    return float(100 * held.mean())
