"""Fit how wide intervals are: the scale of a stack's errors, and its calibration on rows that no member saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.errors import TableError
from gkestimator.core.kernels import Array
from gkestimator.kernel_models.regressors import Forest, Uncertainty, disagreement, uncertainty_columns
from gkestimator.training.fit import FitProblem, StackFit
from gkestimator.training.members import fit_member

LEVEL = 0.9
_FEWEST = 40
_SCALE_TREES = 60
_FEWEST_FOR_SCALE = 100
_LARGEST_SCALE = 0.95
"""Which quantile of the scale of rows that were measured bounds it. The conformal factors are fitted with the bound in
place, so intervals hold as many rows as without."""
_LEAST_ERROR = 0.003
"""Added to |error| before its logarithm: below a third of a percent, measurements repeat no better."""


def _conformal(errors: Array, weight: Array) -> float:
    """Return the weighted split-conformal quantile: the least error that rows of ``LEVEL`` of the weight do
    not exceed, with one more row of mean weight counted as exceeding it (as ceil((n + 1) level) / n does for
    equal weights).
    """
    order = np.argsort(errors, kind="stable")
    share = np.cumsum(weight[order]) / (weight.sum() + weight.mean())
    place = min(int(np.searchsorted(share, LEVEL)), len(errors) - 1)
    return float(errors[order[place]])


def size_quantiles(predicted_us: Array, errors: Array, weight: Array, edges: Sequence[float]) -> list[float]:
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
        width = overall
        if mask.sum() >= _FEWEST:
            width = _conformal(errors[mask], weight[mask])
        widths.append(round(width, 4))
    return widths


def coverage(
    predicted_us: Array,
    errors: Array,
    weight: Array,
    shape: Array,
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


def fit_uncertainty(
    data: FitProblem, fit: StackFit, known: Array, weight: Array, *, seed: int
) -> tuple[Uncertainty, Array]:
    """Return the fitted scale, and (rows,) the scale of every row by a forest that did not see the row's
    fold.

    ``known``: rows whose GPU time is known, the only ones fitted on. Raises TableError for too few of them.
    """
    if known.sum() < _FEWEST_FOR_SCALE:
        raise TableError(
            f"{int(known.sum())} rows with a known GPU time; expected at least {_FEWEST_FOR_SCALE}"
        )
    used = [fit.member_predictions[name] for name in fit.stack.weights]
    x = uncertainty_columns(data.x, fit.out_of_fold, disagreement(used, len(data.y)), data.anchor_us)
    # The logarithm: of errors between a thousandth and ten, their scale is what can be learned.
    target = np.log(np.abs(fit.out_of_fold - data.y) + _LEAST_ERROR)

    def forest(mask: Array) -> Forest:
        fitted = fit_member(
            "lightgbm", x[mask], target[mask], weight[mask], seed=seed, estimators=_SCALE_TREES
        )
        assert isinstance(fitted, Forest)
        return fitted

    whole = Uncertainty(forest=forest(known))
    scale = whole.scale(x)
    for number in np.unique(fit.fold):
        test = fit.fold == number
        train = (fit.fold != number) & known
        if train.sum() >= _FEWEST_FOR_SCALE // 2:
            scale[test] = Uncertainty(forest=forest(train)).scale(x[test])
    largest = float(np.quantile(scale[known], _LARGEST_SCALE))
    return replace(whole, largest=largest), np.minimum(scale, largest)
