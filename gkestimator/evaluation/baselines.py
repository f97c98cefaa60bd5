"""Fit what the estimator is compared with: one constant per family, and USHER's literal features with its
stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import Array, KernelTable
from gkestimator.core.records import Names, frozen
from gkestimator.evaluation.metrics import weighted_median
from gkestimator.hardware.gpu_spec import GpuSpecs
from gkestimator.kernel_models.regressors import MEMBERS
from gkestimator.training.members import Fitted, fit_member, out_of_fold, predicted
from gkestimator.training.rows import TrainingRows, feature_rows, rooflines_us, shape_hash

# Raw sizes with one-hot GPU and operator (USHER's), or a feature set of gkestimator.kernel_models.features.
FEATURES = ("literal", "physical")
# What the members are fitted to: milliseconds, their logarithm, or log(time / roofline).
TARGETS = ("ms", "log", "log-ratio")
# As in training: what the baselines are given must not be less.
_FOLDS = 3


@frozen
class Constants:
    """Hold time / roofline as one constant per (family, precision) and GPU, and over all GPUs for those not
    seen.
    """

    seen: Mapping[tuple[str, str, str], float]
    unseen: Mapping[tuple[str, str], float]

    def predict_us(self, table: KernelTable, gpu: Array, gpus: GpuSpecs) -> Array:
        """Return the GPU time per row in microseconds; NaN for a family and precision without training rows."""
        ratio = np.empty(len(table))
        for i, (family, precision, name) in enumerate(zip(*_key_columns(table, gpu), strict=True)):
            unseen = self.unseen.get((family, precision), np.nan)
            ratio[i] = self.seen.get((family, precision, name), unseen)
        return np.asarray(ratio * rooflines_us(table, gpu, gpus))


def _key_columns(table: KernelTable, gpu: Array) -> tuple[list[str], list[str], list[str]]:
    """Return family, precision and GPU of every row as words."""
    columns = (table.family, table.precision, gpu)
    family, precision, name = (column.astype(str).tolist() for column in columns)
    return family, precision, name


def fit_constants(rows: TrainingRows, gpus: GpuSpecs) -> Constants:
    """Return the constants with the least mean absolute percentage error on ``rows`` whose GPU time is known.

    sum |c r / t - 1| over rows (r roofline, t time) is least at the median of t / r weighted by r / t.
    """
    rows = rows.take(np.flatnonzero(np.isfinite(rows.duration_us)))
    ratio = rows.duration_us / rooflines_us(rows.table, rows.gpu, gpus)
    seen: dict[tuple[str, str, str], list[float]] = {}
    unseen: dict[tuple[str, str], list[float]] = {}
    keys = zip(*_key_columns(rows.table, rows.gpu), strict=True)
    for key, value in zip(keys, ratio.tolist(), strict=True):
        seen.setdefault(key, []).append(value)
        unseen.setdefault(key[:2], []).append(value)
    return Constants(
        seen={key: _constant(values) for key, values in seen.items()},
        unseen={key: _constant(values) for key, values in unseen.items()},
    )


def _constant(ratios: list[float]) -> float:
    values = np.array(ratios)
    return weighted_median(values, 1 / values)


@frozen
class FreeStack:
    """Hold a stack of USHER's members on any features and any target; see :func:`fit_free_stack`."""

    features: str
    target: str
    gpu_names: Names
    words: Names
    members: Mapping[str, Fitted]
    weights: Mapping[str, float]
    low: float
    high: float

    def predict_us(self, table: KernelTable, gpu: Array, gpus: GpuSpecs) -> Array:
        """Return the GPU time per row in microseconds; at least 1 us, as negative milliseconds happen."""
        x = _matrix(self.features, table, gpu, gpus, self.gpu_names, self.words)
        value = np.zeros(len(table))
        for name, member in self.members.items():
            value += self.weights[name] * np.clip(predicted(member, x), self.low, self.high)
        if self.target == "ms":
            time_us = value * 1e3
        elif self.target == "log":
            time_us = np.exp(value)
        else:
            time_us = np.exp(value) * rooflines_us(table, gpu, gpus)
        return np.asarray(np.maximum(time_us, 1.0))


def fit_free_stack(
    rows: TrainingRows,
    gpus: GpuSpecs,
    *,
    features: str = "literal",
    target: str = "ms",
    members: Sequence[str] = MEMBERS,
    estimators: int = 100,
    seed: int = 0,
) -> FreeStack:
    """Fit ``members`` on ``features`` (``"literal"`` or a key of ``FEATURE_SETS``) to ``target`` of
    :data:`TARGETS`.

    Non-negative weights come from predictions out of three folds of shapes; then every member is refitted on
    all rows. ``"literal"`` with ``"ms"`` is what USHER describes (Shubha, Shen, Iyer, OSDI 2024, section
    3.2): sizes as they are, the GPU and the operator by name, milliseconds. Only rows with a known GPU time
    are used, each weighing the same. Raises UsageError for fewer than 100 of them or an unknown target.
    """
    from scipy.optimize import nnls

    if target not in TARGETS:
        raise UsageError(f"target {target!r}: expected one of {', '.join(TARGETS)}")
    rows = rows.take(np.flatnonzero(np.isfinite(rows.duration_us)))
    if len(rows) < 100:
        raise UsageError(f"{len(rows)} rows with a known GPU time; expected at least 100")
    gpu_names = tuple(np.unique(rows.gpu.astype(str)).tolist())
    words = tuple(np.unique(_operator_words(rows.table)).tolist())
    x = _matrix(features, rows.table, rows.gpu, gpus, gpu_names, words)
    times = rows.duration_us
    if target == "ms":
        y = times / 1e3
    elif target == "log":
        y = np.log(times)
    else:
        y = np.log(times / rooflines_us(rows.table, rows.gpu, gpus))
    weight = np.ones(len(y))
    bounds = (float(y.min()), float(y.max()))

    def fit(name: str, of: Array) -> Fitted:
        return fit_member(name, x[of], y[of], weight[of], seed=seed, estimators=estimators)

    fold = np.floor(shape_hash(rows.table) * 1e6).astype(int) % _FOLDS
    weights = nnls(out_of_fold(members, fold, x, fit, bounds), y)[0]
    chosen = {name: float(w) for name, w in zip(members, weights, strict=True) if w > 0}
    every_row = np.ones(len(y), dtype=bool)
    return FreeStack(
        features=features,
        target=target,
        gpu_names=gpu_names,
        words=words,
        members={name: fit(name, every_row) for name in chosen},
        weights=chosen,
        low=bounds[0],
        high=bounds[1],
    )


def _operator_words(table: KernelTable) -> Array:
    return np.char.add(table.variant.astype(str), table.precision.astype(str))


def _matrix(
    features: str,
    table: KernelTable,
    gpu: Array,
    gpus: GpuSpecs,
    gpu_names: Sequence[str],
    words: Sequence[str],
) -> Array:
    if features == "literal":
        sizes = np.nan_to_num(np.stack(list(table.columns.values()), axis=1), nan=0.0)
        where = gpu[:, None] == np.array(gpu_names, dtype=object)
        kind = _operator_words(table)[:, None] == np.array(words)
        return np.hstack([sizes, where, kind]).astype(np.float32)
    return feature_rows(features, table, gpu, gpus)[0]
