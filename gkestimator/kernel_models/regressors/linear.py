"""Predict by a linear model over standardised features (lasso, once fitted)."""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array
from gkestimator.core.records import frozen


@frozen
class Linear:
    """Hold ``intercept + ((x - mean) / scale) @ weights``; vectors of one entry per feature, float64."""

    mean: Array
    scale: Array
    weights: Array
    intercept: float

    def predict(self, features: Array) -> Array:
        """Return (rows,) predictions for (rows, features)."""
        standard = (features.astype(np.float64) - self.mean) / self.scale
        return np.asarray(standard @ self.weights + self.intercept, dtype=np.float64)
