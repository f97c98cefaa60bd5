"""Fits one stack: out-of-fold members, non-negative weights, members refitted on all rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gkestimator.bundles.models import Chip, chip_of
from gkestimator.core.errors import TableError
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.kernel_models.anchors import ANCHORS
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.kernel_models.regressors import Forest, KernelRidge, Linear, Stack
from gkestimator.kernel_models.roofline import MATRIX_FAMILIES, roofline
from gkestimator.training.members import Fitted, fit_member, join_forests
from gkestimator.training.plan import ModelPlan
from gkestimator.training.rows import TrainingRows, shape_hash

FOLDS = 3
_FEW_ROWS, _FOLDS_OF_FEW = 2_000, 8  # few rows: members of a fold must not see a third less
_UNSEEN_TAILS = (0.002, 0.97)
_DROP_BELOW = (
    0.03  # share of the weights below which a member is left out of the stack: it costs time and adds nothing
)
_HIDDEN_WEIGHT = 0.1
# How well launch gaps are known: their spread over operators of one GPU, and a tenth of gaps that drift within a
# file (convolutions').
_GAP_ERROR_US = 4.0
_GAP_ERROR = 0.1


@frozen
class FitProblem:
    """What a member sees: float32 features (rows, features), targets log(time / anchor), weights.

    ``hidden`` rows have an analytical target, because the launch hides their GPU time. ``shape`` are hashes
    of the shapes, ``chip`` numbers of the chips: what folds leave out together.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    hidden: np.ndarray
    shape: np.ndarray
    chip: np.ndarray
    names: tuple[str, ...]
    anchor_us: np.ndarray


@frozen
class StackFit:
    """A fitted stack and what it predicted of every row while that row's fold was left out.

    ``out_of_fold``: (rows,) log(time / anchor) by the stack's weights; ``member_predictions``: the same of
    each member alone, clipped to the range of the targets. ``fold``: (rows,) the number of each row's fold.
    """

    stack: Stack
    fold: np.ndarray
    out_of_fold: np.ndarray
    member_predictions: Mapping[str, np.ndarray]


def chip_numbers(names: np.ndarray, gpus: Mapping[str, GpuSpec]) -> np.ndarray:
    """A number per row that boards of one chip (``chip_of``) share."""
    chips: dict[Chip, int] = {}
    number = {name: chips.setdefault(chip_of(gpus[name]), len(chips)) for name in sorted(set(names.tolist()))}
    return np.array([number[name] for name in names.tolist()], dtype=np.int64)


def problem(plan: ModelPlan, rows: TrainingRows, gpus: Mapping[str, GpuSpec]) -> FitProblem:
    """Features and targets of ``rows``. Raises TableError without rows."""
    anchor_of = ANCHORS[plan.anchor]
    x: np.ndarray | None = None
    names: tuple[str, ...] = ()
    base = np.empty(len(rows))
    likely = np.empty(len(rows))
    for gpu in np.unique(rows.gpu.astype(str)):
        mask = np.flatnonzero(rows.gpu == gpu)
        part = rows.table.take(mask)
        matrix, names = feature_matrix(plan.features, part, gpus[gpu])
        if x is None:
            x = np.empty((len(rows), matrix.shape[1]), dtype=np.float32)
        x[mask] = matrix
        base[mask] = anchor_of(part, gpus[gpu])
        likely[mask] = analytical_duration_us(part, gpus[gpu])
    if x is None:
        raise TableError(f"regressor {plan.name!r}: no measured rows to train on")
    measured = rows.duration_us
    # Of a kernel hidden by the launch only an upper limit is known. The analytical time, so capped, stands in at a
    # tenth of the weight, less where the limit says little: without it trees would carry the ratios of larger
    # kernels, launch noise included, down to small ones. A memory-bound kernel that should be hidden and yet was
    # measured above the floor is such noise.
    hidden = ~np.isfinite(measured)
    matrix = np.isin(rows.table.family.astype(str), [str(f) for f in MATRIX_FAMILIES])
    hidden |= ~matrix & (likely < 0.7 * rows.hold_us)
    most = np.where(rows.hold_us > 0, rows.hidden_below_us, np.inf)
    duration = np.where(hidden, np.minimum(likely, most), measured)
    doubt = np.maximum(_GAP_ERROR_US, _GAP_ERROR * rows.gap_us)
    trust = np.where(rows.gap_us > 0, (duration / (duration + doubt)) ** 2, 1.0)
    told = np.where(rows.hold_us > 0, (rows.hold_us / most) ** 2, 1.0)
    trust = np.where(hidden, _HIDDEN_WEIGHT * told, trust)
    return FitProblem(
        x=x,
        y=np.log(duration / base),
        weight=rows.weight * trust,
        hidden=hidden,
        shape=shape_hash(rows.table),
        chip=chip_numbers(rows.gpu, gpus),
        names=names,
        anchor_us=base,
    )


def sample(
    rows: TrainingRows, most: int, seed: int, gpus: Mapping[str, GpuSpec]
) -> tuple[np.ndarray, np.ndarray]:
    """Indices of at most ``most`` rows, and how many rows each stands for.

    Heavy-weighted rows first, the others evenly over GPU, source and size of work.
    """
    if len(rows) <= most:
        return np.arange(len(rows)), np.ones(len(rows))
    rng = np.random.default_rng(seed)
    base = np.empty(len(rows))
    for gpu in np.unique(rows.gpu.astype(str)):
        mask = np.flatnonzero(rows.gpu == gpu)
        base[mask] = roofline(rows.table.take(mask), gpus[gpu]).roofline_us
    size = np.floor(np.log2(base)).astype(int)
    keys = np.char.add(np.char.add(rows.gpu.astype(str), rows.source.astype(str)), size.astype(str))
    _, stratum, counts = np.unique(keys, return_inverse=True, return_counts=True)
    chance = rows.weight / np.sqrt(counts[stratum])
    index = np.sort(rng.choice(len(rows), most, replace=False, p=chance / chance.sum()))
    drawn = np.bincount(stratum[index], minlength=len(counts))
    return index, counts[stratum[index]] / drawn[stratum[index]]


def _predict(member: Fitted, x: np.ndarray) -> np.ndarray:
    result = member.predict(x)
    if result.ndim == 2:
        return result[:, 0]
    return result


def _folds(plan: ModelPlan, data: FitProblem) -> np.ndarray:
    """A fold number per row: by shape, or one fold per chip."""
    if plan.folds == "gpu":
        return data.chip
    count = FOLDS if len(data.y) >= _FEW_ROWS else _FOLDS_OF_FEW
    return np.asarray(np.floor(data.shape * 1e6).astype(int) % count)


def _bounds(plan: ModelPlan, data: FitProblem) -> tuple[float, float]:
    """What log(time / anchor) is held to: the range of the targets; for GPUs not trained on, the range without its
    tails by weight, because the shortest kernels' targets there are mostly what is left of the launch gap."""
    if plan.scope == "seen":
        return float(np.min(data.y)), float(np.max(data.y))
    order = np.argsort(data.y, kind="stable")
    share = np.cumsum(data.weight[order]) / data.weight.sum()
    low, high = (int(np.searchsorted(share, at)) for at in _UNSEEN_TAILS)
    return float(data.y[order][low]), float(data.y[order][min(high, len(order) - 1)])


def fit_stack(
    plan: ModelPlan, data: FitProblem, *, seed: int, members: tuple[str, ...] | None = None
) -> StackFit:
    """The stack fitted on ``data``; ``members`` default to the plan's."""
    from scipy.optimize import nnls

    members = plan.members if members is None else members
    low, high = _bounds(plan, data)
    fold = _folds(plan, data)
    held = np.empty((len(data.y), len(members)))
    for number in np.unique(fold):
        train = fold != number
        test = fold == number
        for j, name in enumerate(members):
            fitted = fit_member(
                name,
                data.x[train],
                data.y[train],
                data.weight[train],
                seed=seed,
                estimators=plan.estimators.get(name, 0),
                loss=plan.loss,
            )
            held[test, j] = np.clip(_predict(fitted, data.x[test]), low, high)
    root = np.sqrt(data.weight / data.weight.mean())
    weights = _weights(nnls, held, data.y, root) * plan.shrink
    linear = ridge = None
    forests: dict[str, Forest] = {}
    for j, name in enumerate(members):
        if weights[j] <= 0:
            continue
        fitted = fit_member(
            name,
            data.x,
            data.y,
            data.weight,
            seed=seed,
            estimators=plan.estimators.get(name, 0),
            loss=plan.loss,
        )
        if isinstance(fitted, Linear):
            linear = fitted
        elif isinstance(fitted, KernelRidge):
            ridge = fitted
        else:
            forests[name] = fitted
    forest, names = join_forests(forests) if forests else (None, ())
    stack = Stack(
        weights={name: float(w) for name, w in zip(members, weights, strict=True) if w > 0},
        low=low,
        high=high,
        linear=linear,
        kernel_ridge=ridge,
        forest=forest,
        forest_members=names,
    )
    return StackFit(
        stack=stack,
        fold=fold,
        out_of_fold=np.clip(held @ weights, low, high),
        member_predictions={name: held[:, j] for j, name in enumerate(members)},
    )


def _weights(nnls: object, held: np.ndarray, y: np.ndarray, root: np.ndarray) -> np.ndarray:
    """Non-negative weights of the members; members with a negligible share are dropped and the rest fitted
    again."""
    keep = np.ones(held.shape[1], dtype=bool)
    weights = np.zeros(held.shape[1])
    for _ in range(held.shape[1]):
        weights[:] = 0
        weights[keep] = nnls(held[:, keep] * root[:, None], y * root)[0]  # type: ignore[operator]
        small = keep & (weights < _DROP_BELOW * weights.sum())
        if not small.any():
            break
        keep &= ~small
    return weights
