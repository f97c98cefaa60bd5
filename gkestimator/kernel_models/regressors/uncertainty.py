"""Say how uncertain each prediction of a stack is, relative to the others: a forest on the features and on how the
members disagree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import Array, Arrays
from gkestimator.core.records import frozen
from gkestimator.kernel_models.regressors.stack import read_trees
from gkestimator.kernel_models.regressors.trees import Forest

EXTRA_COLUMNS = ("predicted", "disagreement", "log_time")
"""Columns after the features: the predicted log ratio, the standard deviation of the members' predictions, and the
logarithm of the predicted microseconds."""
_LEAST = 1e-4
_MOST = 5.0


def uncertainty_columns(features: Array, predicted: Array, disagreement: Array, anchor_us: Array) -> Array:
    """Return (rows, features + 3) float32: what an :class:`Uncertainty` looks at, in fitting and in predicting."""
    extra = np.stack([predicted, disagreement, np.log(anchor_us) + predicted], axis=1)
    return np.hstack([features, extra.astype(np.float32)])


@frozen
class Uncertainty:
    """Hold a forest that predicts log of |error of log(time)|; conformal factors turn it into intervals."""

    forest: Forest

    def scale(self, columns: Array) -> Array:
        """Return the (rows,) typical |error| of log(time), from 1e-4 to 5, for what
        :func:`uncertainty_columns` gives."""
        values = self.forest.predict(columns)[:, 0]
        return np.asarray(np.clip(np.exp(np.clip(values, -20.0, 5.0)), _LEAST, _MOST))

    def arrays(self) -> dict[str, Array]:
        """Return everything as named arrays."""
        forest = self.forest
        return {
            "uncertainty.feature": forest.feature,
            "uncertainty.threshold": forest.threshold,
            "uncertainty.leaf": forest.leaf,
            "uncertainty.base": forest.base,
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays, *, features: int, where: str) -> Uncertainty:
        """Return what :meth:`arrays` wrote, checked; ``features`` is the width of the feature matrix. Raises
        BundleError."""
        feature, threshold, leaf = read_trees(
            arrays, "uncertainty", features=features + len(EXTRA_COLUMNS), where=where
        )
        base = arrays.get("uncertainty.base")
        if base is None or base.shape != (1,) or base.dtype.kind != "f" or not np.isfinite(base).all():
            raise BundleError(f"{where}: array 'uncertainty.base' is missing or no finite number")
        forest = Forest.of_trees(feature, threshold, leaf)
        return cls(forest=replace(forest, base=base.astype(np.float64)))
