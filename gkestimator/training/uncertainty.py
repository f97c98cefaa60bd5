"""Fit the scale of a stack's errors on its out-of-fold predictions."""

from __future__ import annotations

import numpy as np

from gkestimator.core.errors import TableError
from gkestimator.kernel_models.regressors import Forest, Uncertainty, disagreement, uncertainty_columns
from gkestimator.training.fit import FitProblem, StackFit
from gkestimator.training.members import fit_member

_TREES = 60
_FEWEST = 100
_FLOOR = 0.003
"""Added to |error| before its logarithm: below a third of a percent, measurements repeat no better."""


def fit_uncertainty(
    data: FitProblem, fit: StackFit, known: np.ndarray, weight: np.ndarray, *, seed: int
) -> tuple[Uncertainty, np.ndarray]:
    """Return the fitted scale, and (rows,) the scale of every row by a forest that did not see the row's
    fold.

    ``known``: rows whose GPU time is known, the only ones fitted on. Raises TableError for too few of them.
    """
    if known.sum() < _FEWEST:
        raise TableError(f"{int(known.sum())} rows with a known GPU time; expected at least {_FEWEST}")
    used = [fit.member_predictions[name] for name in fit.stack.weights]
    x = uncertainty_columns(data.x, fit.out_of_fold, disagreement(used, len(data.y)), data.anchor_us)
    # The logarithm: of errors between a thousandth and ten, their scale is what can be learned.
    target = np.log(np.abs(fit.out_of_fold - data.y) + _FLOOR)

    def forest(mask: np.ndarray) -> Forest:
        fitted = fit_member("lightgbm", x[mask], target[mask], weight[mask], seed=seed, estimators=_TREES)
        assert isinstance(fitted, Forest)
        return fitted

    whole = Uncertainty(forest=forest(known))
    scale = whole.scale(x)
    for number in np.unique(fit.fold):
        test = fit.fold == number
        train = (fit.fold != number) & known
        if train.sum() >= _FEWEST // 2:
            scale[test] = Uncertainty(forest=forest(train)).scale(x[test])
    return whole, scale
