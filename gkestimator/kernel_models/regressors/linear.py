"""A linear model over standardised features (lasso, once fitted)."""

from __future__ import annotations

import numpy as np

from gkestimator.core.records import frozen


@frozen
class Linear:
    """``intercept + ((x - mean) / scale) @ weights``; vectors of one entry per feature, float64."""

    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    intercept: float

    def predict(self, features: np.ndarray) -> np.ndarray:
        """(rows,) predictions for (rows, features)."""
        standard = (features.astype(np.float64) - self.mean) / self.scale
        return np.asarray(standard @ self.weights + self.intercept, dtype=np.float64)
