"""Regressors of a measured GPU: how its kernels differ from what a base bundle says of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gkestimator.bundles.models import SIZE_EDGES_US, pairs
from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.anchors import ANCHORS
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.kernel_models.regressors import Stack

BASE = "base"
"""Reference of a correction: the base bundle's prediction. Any anchor's name: the regressor stands alone."""
_FEATURES = {
    ("linear", False): "product",
    ("linear", True): "matrix_half",
    ("bmm", False): "product",
    ("bmm", True): "matrix_half",
    ("conv", False): "conv_seen",
    ("conv", True): "conv_seen",
    ("conv_transpose", False): "conv",
    ("conv_transpose", True): "conv",
    ("depthwise", False): "conv",
    ("depthwise", True): "conv",
    ("attention", False): "attention",
    ("attention", True): "attention",
    ("elementwise", False): "elementwise",
    ("elementwise", True): "elementwise",
    ("layernorm", False): "layernorm",
    ("layernorm", True): "layernorm",
}
_FULL = ("fp32", "fp64")
_BORROWED = float(np.log(1.35))
"""As for the public regressors: least half-width where a precision answers for another."""
_FAR = 0.5
_FADES = 0.5
"""How far beyond the measured range, in lengths of it, a correction still counts in full, and where it is down to 1/e
after that. Judged: on sizes a hundred times those measured nothing is known of how the GPU differs from the base."""


def feature_set(family: str, precision: str) -> str:
    """The features that a correction of ``family`` looks at; sizes and traffic where the family has none of its own."""
    return _FEATURES.get((family, precision not in _FULL), "memory")


def correction_features(
    table: KernelTable, gpu: GpuSpec, base_us: np.ndarray, features: str, variants: Sequence[str]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The (rows, features) float32 matrix and its names: the family's physical features, the logarithm of what the base
    says, and one column per operator among ``variants``."""
    matrix, names = feature_matrix(features, table, gpu)
    one_hot = [(table.variant == variant).astype(np.float32) for variant in variants]
    more = np.stack([np.log(base_us).astype(np.float32), *one_hot], axis=1)
    return np.hstack([matrix, more]), (*names, "log_base", *(f"variant_{v}" for v in variants))


def reference_us(reference: str, table: KernelTable, gpu: GpuSpec, base_us: np.ndarray) -> np.ndarray:
    """(rows,) microseconds that a correction's target log(time / reference) is relative to."""
    if reference == BASE:
        return base_us
    return ANCHORS[reference](table, gpu)


@frozen
class Correction:
    """One family in one precision on the measured chip: log(time / reference) by a stack.

    ``trains``: its (family, precision); ``covers``: those it answers, ``trains`` among them. ``variants``: operators
    with a column of their own; ``known_variants``: all that were measured. ``low`` and ``high``: range of every feature
    in training, to which features are held. ``factors``: 90 % half-widths of log(time) by size class of the prediction
    (``SIZE_EDGES_US``). ``runtimes``: what ran the rows.
    """

    name: str
    features: str
    feature_names: tuple[str, ...]
    reference: str
    trains: tuple[str, str]
    covers: frozenset[tuple[str, str]]
    variants: tuple[str, ...]
    known_variants: frozenset[str]
    runtimes: frozenset[str]
    low: np.ndarray
    high: np.ndarray
    factors: tuple[float, ...]
    stack: Stack

    def predict(
        self, table: KernelTable, gpu: GpuSpec, base_us: np.ndarray, base_width: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Microseconds, 90 % half-widths of their logarithms, and whether inside the measured range, per row.

        ``base_us`` and ``base_width`` are what the base says, all positive. Outside the range an interval is no
        narrower than the base's; far outside the prediction returns to the base's, too. Raises BundleError where the
        features are not this version's.
        """
        x, names = correction_features(table, gpu, base_us, self.features, self.variants)
        if names != self.feature_names:
            raise BundleError(
                f"correction {self.name}: features differ from this version's; train the bundle again"
            )
        slack = 1e-4 + 1e-4 * np.abs(self.high)
        inside = ((x >= self.low - slack) & (x <= self.high + slack)).all(axis=1)
        own = np.fromiter((pair == self.trains for pair in pairs(table)), bool, len(table))
        inside &= own & np.fromiter((v in self.known_variants for v in table.variant), bool, len(table))
        held = np.clip(x, self.low, self.high).astype(np.float32)
        log_base = np.log(base_us)
        moved = (
            np.log(reference_us(self.reference, table, gpu, base_us)) + self.stack.predict(held) - log_base
        )
        result = np.exp(log_base + self._trust(x) * moved)
        width = np.asarray(self.factors)[np.searchsorted(SIZE_EDGES_US, result)]
        width = np.where(inside, width, np.maximum(width, base_width))
        return result, np.where(own, width, np.maximum(width, _BORROWED)), inside

    def _trust(self, x: np.ndarray) -> np.ndarray:
        """(rows,) from 1 in the measured range and near it to 0 far from it, by the size or time that is furthest."""
        scaled = np.fromiter((name.startswith("log_") for name in self.feature_names), bool, x.shape[1])
        low = self.low[scaled]
        high = self.high[scaled]
        beyond = np.maximum(low - x[:, scaled], x[:, scaled] - high) / np.maximum(high - low, 1.0)
        return np.asarray(np.exp(-np.maximum(beyond.max(axis=1, initial=0.0) - _FAR, 0.0) / _FADES))
