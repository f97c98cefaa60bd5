"""Say how uncertain each prediction of a stack is, relative to the others: a forest on the features and on how the
members disagree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gkestimator.core.kernels import Array
from gkestimator.core.records import frozen
from gkestimator.core.stored import StoredArrays
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
    """Hold a forest that predicts log of |error of log(time)|; conformal factors turn it into intervals.

    ``largest``: the most that it may say, from what the rows of its training showed. A sum of trees runs away
    where no row was: kernels of 2 us, which every launch hides, came out as uncertain as a factor of a hundred.
    """

    forest: Forest
    largest: float = _MOST

    def scale(self, columns: Array) -> Array:
        """Return the (rows,) typical |error| of log(time), from 1e-4 to ``largest``, for what
        :func:`uncertainty_columns` gives."""
        values = self.forest.predict(columns)[:, 0]
        return np.asarray(np.clip(np.exp(np.clip(values, -20.0, 5.0)), _LEAST, self.largest))

    def arrays(self) -> dict[str, Array]:
        """Return everything as named arrays."""
        forest = self.forest
        return {
            "uncertainty.feature": forest.feature,
            "uncertainty.threshold": forest.threshold,
            "uncertainty.leaf": forest.leaf,
            "uncertainty.base": forest.base,
            "uncertainty.largest": np.array([self.largest]),
        }

    @classmethod
    def from_arrays(cls, take: StoredArrays, *, features: int) -> Uncertainty:
        """Return what :meth:`arrays` wrote, checked; ``features`` is the width of the feature matrix. Raises
        BundleError."""
        trees = read_trees(take, "uncertainty", features=features + len(EXTRA_COLUMNS))
        forest = replace(Forest.of_trees(*trees), base=take("uncertainty.base", (1,)))
        largest = _MOST
        if "uncertainty.largest" in take:  # bundles written before 0.2 have no bound of their own
            largest = float(take("uncertainty.largest", (1,), low=_LEAST, high=_MOST)[0])
        return cls(forest=forest, largest=largest)
