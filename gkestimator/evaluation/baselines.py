"""What the estimator is compared with: one constant per family, and USHER's literal features with its stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import KernelTable
from gkestimator.core.records import frozen
from gkestimator.evaluation.metrics import weighted_median
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.kernel_models.regressors import MEMBERS
from gkestimator.kernel_models.roofline import roofline
from gkestimator.training.members import Fitted, fit_member
from gkestimator.training.rows import TrainingRows, shape_hash

FEATURES = ("literal", "physical")
"""Raw sizes with one-hot GPU and operator (USHER's), or a feature set of :mod:`gkestimator.kernel_models.features.vector`."""
TARGETS = ("ms", "log", "log-ratio")
"""What the members are fitted to: milliseconds, their logarithm, or log(time / roofline)."""
_FOLDS = 3


def rooflines_us(table: KernelTable, gpu: np.ndarray, gpus: Mapping[str, GpuSpec]) -> np.ndarray:
    """The roofline of every row of ``table`` on its own GPU, microseconds."""
    result = np.empty(len(table))
    for name in np.unique(gpu.astype(str)):
        at = np.flatnonzero(gpu == name)
        result[at] = roofline(table.take(at), gpus[str(name)]).roofline_us
    return result


@frozen
class Constants:
    """Time / roofline as one constant per (family, precision) and GPU, and over all GPUs for those not seen."""

    seen: Mapping[tuple[str, str, str], float]
    unseen: Mapping[tuple[str, str], float]

    def predict_us(self, table: KernelTable, gpu: np.ndarray, gpus: Mapping[str, GpuSpec]) -> np.ndarray:
        """GPU time per row in microseconds; NaN for a family and precision without training rows."""
        keys = list(zip(table.family, table.precision, gpu, strict=True))
        ratio = np.array(
            [
                self.seen.get((str(f), str(p), str(g)), self.unseen.get((str(f), str(p)), np.nan))
                for f, p, g in keys
            ],
            dtype=np.float64,
        )
        return np.asarray(ratio * rooflines_us(table, gpu, gpus))


def fit_constants(rows: TrainingRows, gpus: Mapping[str, GpuSpec]) -> Constants:
    """The constants with the least mean absolute percentage error on ``rows`` whose GPU time is known.

    sum |c r / t - 1| over rows (r roofline, t time) is least at the median of t / r weighted by r / t.
    """
    time = rows.duration_us
    known = np.isfinite(time)
    ratio = time / rooflines_us(rows.table, rows.gpu, gpus)
    family = rows.table.family.astype(str)
    precision = rows.table.precision.astype(str)
    name = rows.gpu.astype(str)
    seen: dict[tuple[str, str, str], float] = {}
    unseen: dict[tuple[str, str], float] = {}
    for f, p in sorted(set(zip(family[known], precision[known], strict=True))):
        mine = known & (family == f) & (precision == p)
        unseen[str(f), str(p)] = weighted_median(ratio[mine], 1 / ratio[mine])
        for g in np.unique(name[mine]):
            here = mine & (name == g)
            seen[str(f), str(p), str(g)] = weighted_median(ratio[here], 1 / ratio[here])
    return Constants(seen=seen, unseen=unseen)


@frozen
class FreeStack:
    """A stack of USHER's members on any features and any target; see :func:`fit_free_stack`."""

    features: str
    target: str
    gpu_names: tuple[str, ...]
    words: tuple[str, ...]
    members: Mapping[str, Fitted]
    weights: Mapping[str, float]
    low: float
    high: float

    def predict_us(self, table: KernelTable, gpu: np.ndarray, gpus: Mapping[str, GpuSpec]) -> np.ndarray:
        """GPU time per row in microseconds; at least 1 us, as negative milliseconds happen."""
        x = _matrix(self.features, table, gpu, gpus, self.gpu_names, self.words)
        value = np.zeros(len(table))
        for name, member in self.members.items():
            value += self.weights[name] * np.clip(_column(member, x), self.low, self.high)
        return np.asarray(np.maximum(_to_us(self.target, value, table, gpu, gpus), 1.0))


def fit_free_stack(
    rows: TrainingRows,
    gpus: Mapping[str, GpuSpec],
    *,
    features: str = "literal",
    target: str = "ms",
    members: Sequence[str] = MEMBERS,
    estimators: int = 100,
    seed: int = 0,
) -> FreeStack:
    """Fit ``members`` on ``features`` (``"literal"`` or a key of ``FEATURE_SETS``) to ``target`` of :data:`TARGETS`.

    Non-negative weights come from predictions out of three folds of shapes; then every member is refitted on all
    rows. ``"literal"`` with ``"ms"`` is what USHER describes (Shubha, Shen, Iyer, OSDI 2024, section 3.2): sizes as
    they are, the GPU and the operator by name, milliseconds. Only rows with a known GPU time are used, each
    weighing the same. Raises UsageError for fewer than 100 of them or an unknown target.
    """
    from scipy.optimize import nnls

    if target not in TARGETS:
        raise UsageError(f"target {target!r}: expected one of {', '.join(TARGETS)}")
    rows = rows.take(np.flatnonzero(np.isfinite(rows.duration_us)))
    if len(rows) < 100:
        raise UsageError(f"{len(rows)} rows with a known GPU time; expected at least 100")
    gpu_names = tuple(str(g) for g in np.unique(rows.gpu.astype(str)))
    words = tuple(str(w) for w in np.unique(_operator_words(rows.table)))
    x = _matrix(features, rows.table, rows.gpu, gpus, gpu_names, words)
    y = _from_us(target, rows.duration_us, rows.table, rows.gpu, gpus)
    weight = np.ones(len(y))
    low = float(y.min())
    high = float(y.max())
    fold = np.floor(shape_hash(rows.table) * 1e6).astype(int) % _FOLDS
    held = np.empty((len(y), len(members)))
    for number in range(_FOLDS):
        train = fold != number
        test = fold == number
        for j, name in enumerate(members):
            fitted = fit_member(name, x[train], y[train], weight[train], seed=seed, estimators=estimators)
            held[test, j] = np.clip(_column(fitted, x[test]), low, high)
    weights = nnls(held, y)[0]
    chosen = {name: float(w) for name, w in zip(members, weights, strict=True) if w > 0}
    return FreeStack(
        features=features,
        target=target,
        gpu_names=gpu_names,
        words=words,
        members={n: fit_member(n, x, y, weight, seed=seed, estimators=estimators) for n in chosen},
        weights=chosen,
        low=low,
        high=high,
    )


def _column(member: Fitted, x: np.ndarray) -> np.ndarray:
    value = member.predict(x)
    if value.ndim == 2:
        return value[:, 0]
    return value


def _operator_words(table: KernelTable) -> np.ndarray:
    return np.char.add(table.variant.astype(str), table.precision.astype(str))


def _matrix(
    features: str,
    table: KernelTable,
    gpu: np.ndarray,
    gpus: Mapping[str, GpuSpec],
    gpu_names: Sequence[str],
    words: Sequence[str],
) -> np.ndarray:
    if features == "literal":
        sizes = np.nan_to_num(np.stack(list(table.columns.values()), axis=1), nan=0.0)
        where = np.stack([gpu == g for g in gpu_names], axis=1)
        kind = np.stack([_operator_words(table) == w for w in words], axis=1)
        return np.hstack([sizes, where, kind]).astype(np.float32)
    result: np.ndarray | None = None
    for name in np.unique(gpu.astype(str)):
        at = np.flatnonzero(gpu == name)
        part, _ = feature_matrix(features, table.take(at), gpus[str(name)])
        if result is None:
            result = np.empty((len(table), part.shape[1]), dtype=np.float32)
        result[at] = part
    if result is None:
        raise UsageError("no rows to calculate features of")
    return result


def _from_us(
    target: str, time_us: np.ndarray, table: KernelTable, gpu: np.ndarray, gpus: Mapping[str, GpuSpec]
) -> np.ndarray:
    if target == "ms":
        return time_us / 1e3
    if target == "log":
        return np.asarray(np.log(time_us))
    return np.asarray(np.log(time_us / rooflines_us(table, gpu, gpus)))


def _to_us(
    target: str, value: np.ndarray, table: KernelTable, gpu: np.ndarray, gpus: Mapping[str, GpuSpec]
) -> np.ndarray:
    if target == "ms":
        return value * 1e3
    if target == "log":
        return np.asarray(np.exp(value))
    return np.asarray(np.exp(value) * rooflines_us(table, gpu, gpus))
