"""How uncertain each prediction of a stack is, relative to the others: a forest on the features and on how the
members disagree."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gkestimator.core.errors import BundleError
from gkestimator.core.records import frozen
from gkestimator.kernel_models.regressors.stack import read_trees
from gkestimator.kernel_models.regressors.trees import Forest

EXTRA_COLUMNS = ("predicted", "disagreement", "log_time")
"""Columns after the features: the predicted log ratio, the standard deviation of the members' predictions, and the
logarithm of the predicted microseconds."""
_LEAST = 1e-4
_MOST = 5.0


def uncertainty_columns(
    features: np.ndarray, predicted: np.ndarray, disagreement: np.ndarray, anchor_us: np.ndarray
) -> np.ndarray:
    """(rows, features + 3) float32: what an :class:`Uncertainty` looks at, in fitting and in predicting."""
    extra = np.stack([predicted, disagreement, np.log(anchor_us) + predicted], axis=1)
    return np.hstack([features, extra.astype(np.float32)])


@frozen
class Uncertainty:
    """A forest that predicts log of |error of log(time)|; conformal factors turn it into intervals."""

    forest: Forest

    def scale(self, columns: np.ndarray) -> np.ndarray:
        """(rows,) typical |error| of log(time), from 1e-4 to 5, for what :func:`uncertainty_columns` gives."""
        values = self.forest.predict(columns)[:, 0]
        return np.asarray(np.clip(np.exp(np.clip(values, -20.0, 5.0)), _LEAST, _MOST))

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything as named arrays."""
        part = self.forest
        return {
            "uncertainty.feature": part.feature,
            "uncertainty.threshold": part.threshold,
            "uncertainty.leaf": part.leaf,
            "uncertainty.base": part.base,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], *, features: int, where: str) -> Uncertainty:
        """What :meth:`arrays` wrote, checked; ``features`` is the width of the feature matrix. Raises
        BundleError."""
        feature, threshold, leaf = read_trees(
            arrays, "uncertainty", features=features + len(EXTRA_COLUMNS), where=where
        )
        base = arrays.get("uncertainty.base")
        if base is None or base.shape != (1,) or base.dtype.kind != "f" or not np.isfinite(base).all():
            raise BundleError(f"{where}: array 'uncertainty.base' is missing or no finite number")
        return cls(
            forest=Forest(
                feature=feature,
                threshold=threshold,
                leaf=leaf,
                starts=np.array([0]),
                base=base.astype(np.float64),
            )
        )
