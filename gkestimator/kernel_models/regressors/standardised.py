"""Predict by regressors over standardised features, once fitted: a linear model (lasso), and kernel ridge regression
with a radial basis function."""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array
from gkestimator.core.records import frozen


def _standardised(features: Array, mean: Array, scale: Array) -> Array:
    return np.asarray((features.astype(np.float64) - mean) / scale)


@frozen
class Linear:
    """Hold ``intercept + ((x - mean) / scale) @ weights``; vectors of one entry per feature, float64."""

    mean: Array
    scale: Array
    weights: Array
    intercept: float

    def predict(self, features: Array) -> Array:
        """Return (rows,) predictions for (rows, features)."""
        standard = _standardised(features, self.mean, self.scale)
        return np.asarray(standard @ self.weights + self.intercept, dtype=np.float64)


_CHUNK = 1 << 20


@frozen
class KernelRidge:
    """Hold ``intercept + sum_i dual_i exp(-gamma |z - support_i|^2)`` with z the standardised features.

    ``support`` is (points, features) in standardised units, ``dual`` (points,); float64.
    """

    mean: Array
    scale: Array
    support: Array
    dual: Array
    gamma: float
    intercept: float

    def predict(self, features: Array) -> Array:
        """Return (rows,) predictions for (rows, features)."""
        standard = _standardised(features, self.mean, self.scale)
        squares = np.einsum("ij,ij->i", self.support, self.support)
        result = np.empty(len(standard))
        step = max(1, _CHUNK // max(len(squares), 1))
        for start in range(0, len(standard), step):
            part = standard[start : start + step]
            distance = part @ self.support.T
            distance *= -2.0
            distance += squares
            distance += np.einsum("ij,ij->i", part, part)[:, None]
            np.maximum(distance, 0.0, out=distance)
            distance *= -self.gamma
            np.exp(distance, out=distance)
            result[start : start + step] = distance @ self.dual
        return result + self.intercept
