"""Correct the base for a measured GPU: how its kernels differ from what a base bundle says of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gkestimator.bundles.models import BORROWED, SIZE_EDGES_US, Pair, is_pair_of
from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import Array, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.anchors import ANCHORS
from gkestimator.kernel_models.features.columns import Features
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.kernel_models.regressors import Stack

BASE = "base"
"""Reference of a correction: the base bundle's prediction. Any anchor's name: the regressor stands alone."""
_FEATURES = {
    "linear": "product",
    "bmm": "product",
    "conv": "conv_seen",
    "conv_transpose": "conv",
    "depthwise": "conv",
    "attention": "attention",
    "decode": "decode_unseen",
    "elementwise": "elementwise",
    "layernorm": "layernorm",
}
_FULL = ("fp32", "fp64")
_FAR = 0.5
_FADES = 0.5
"""How far beyond the measured range, in lengths of it, a correction still counts in full, and where it is down to 1/e
after that. Judged: on sizes a hundred times those measured nothing is known of how the GPU differs from the base."""


def feature_set(family: str, precision: str) -> str:
    """Return the features that a correction of ``family`` looks at; sizes and traffic where the family has none of its
    own."""
    features = _FEATURES.get(family, "memory")
    if features == "product" and precision not in _FULL:
        return "matrix_half"
    return features


def correction_features(
    table: KernelTable, gpu: GpuSpec, base_us: Array, features: str, variants: Sequence[str]
) -> Features:
    """Return the (rows, features) float32 matrix and its names: the family's physical features, the logarithm
    of what the base says, and one column per operator among ``variants``."""
    matrix, names = feature_matrix(features, table, gpu)
    one_hot = [(table.variant == variant).astype(np.float32) for variant in variants]
    more = np.stack([np.log(base_us).astype(np.float32), *one_hot], axis=1)
    return np.hstack([matrix, more]), (*names, "log_base", *(f"variant_{v}" for v in variants))


def reference_us(reference: str, table: KernelTable, gpu: GpuSpec, base_us: Array) -> Array:
    """Return (rows,) microseconds that a correction's target log(time / reference) is relative to."""
    if reference == BASE:
        return base_us
    return ANCHORS[reference](table, gpu)


@frozen
class Correction:
    """Correct one family in one precision on the measured chip: log(time / reference) by a stack.

    ``trains``: its (family, precision); ``covers``: those it answers, ``trains`` among them. ``variants``: operators
    with a column of their own; ``known_variants``: all that were measured. ``low`` and ``high``: range of every feature
    in training, to which features are held. ``factors``: 90 % half-widths of log(time) by size class of the prediction
    (``SIZE_EDGES_US``). ``runtimes``: what ran the rows.
    """

    name: str
    features: str
    feature_names: tuple[str, ...]
    reference: str
    trains: Pair
    covers: frozenset[Pair]
    variants: tuple[str, ...]
    known_variants: frozenset[str]
    runtimes: frozenset[str]
    low: Array
    high: Array
    factors: tuple[float, ...]
    stack: Stack

    def predict(
        self, table: KernelTable, gpu: GpuSpec, base_us: Array, base_width: Array
    ) -> tuple[Array, Array, Array]:
        """Return microseconds, 90 % half-widths of their logarithms, and whether inside the measured range, per row.

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
        own = is_pair_of(table, {self.trains})
        known = np.array([v in self.known_variants for v in table.variant], dtype=bool)
        in_range = (x >= self.low - slack) & (x <= self.high + slack)
        inside = in_range.all(axis=1) & own & known
        held = np.clip(x, self.low, self.high).astype(np.float32)
        log_base = np.log(base_us)
        log_reference = np.log(reference_us(self.reference, table, gpu, base_us))
        moved = log_reference + self.stack.predict(held) - log_base
        result = np.exp(log_base + self._trust(x) * moved)
        width = np.asarray(self.factors)[np.searchsorted(SIZE_EDGES_US, result)]
        width = np.where(inside, width, np.maximum(width, base_width))
        width = np.where(own, width, np.maximum(width, BORROWED))
        return result, width, inside

    def _trust(self, x: Array) -> Array:
        """Return (rows,) from 1 in the measured range and near it to 0 far from it, by the size or time that
        is furthest."""
        scaled = np.array([name.startswith("log_") for name in self.feature_names], dtype=bool)
        values = x[:, scaled]
        low = self.low[scaled]
        high = self.high[scaled]
        outside = np.maximum(low - values, values - high)
        beyond = outside / np.maximum(high - low, 1.0)
        furthest = np.maximum(beyond.max(axis=1, initial=0.0) - _FAR, 0.0)
        return np.asarray(np.exp(-furthest / _FADES))
