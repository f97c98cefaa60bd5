"""Fit one stack: out-of-fold members, non-negative weights, members refitted on all rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gkestimator.bundles.models import Chip, chip_of, same_chip
from gkestimator.core.errors import TableError
from gkestimator.core.kernels import Array
from gkestimator.core.records import Names, frozen
from gkestimator.hardware.gpu_spec import GpuSpecs
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.kernel_models.anchors import ANCHORS
from gkestimator.kernel_models.regressors import Stack
from gkestimator.kernel_models.roofline import MATRIX_FAMILIES
from gkestimator.training.members import Fitted, fit_member, out_of_fold, stack_of, stack_weights
from gkestimator.training.plan import ModelPlan
from gkestimator.training.rows import TrainingRows, by_gpu, feature_rows, layer_hash, rooflines_us, shape_hash

FOLDS = 3
_FEW_ROWS, _FOLDS_OF_FEW = 2_000, 8  # few rows: members of a fold must not see a third less
# Below the first lies what is left of launch gaps, above the second what was throttled.
_UNSEEN_TAILS = (0.002, 0.97)
_HIDDEN_WEIGHT = 0.1
# How well launch gaps are known: their spread over operators of one GPU, and a tenth of gaps that drift within a
# file (convolutions').
_GAP_ERROR_US = 4.0
_GAP_ERROR = 0.1


@frozen
class FitProblem:
    """Hold what a member sees: float32 features (rows, features), targets log(time / anchor), weights.

    ``hidden`` rows have an analytical target, because the launch hides their GPU time. ``shape`` are hashes
    of the shapes, ``chip`` numbers of the chips: what folds leave out together.
    """

    x: Array
    y: Array
    weight: Array
    hidden: Array
    shape: Array
    chip: Array
    names: Names
    anchor_us: Array


@frozen
class StackFit:
    """Hold a fitted stack and what it predicted of every row while that row's fold was left out.

    ``out_of_fold``: (rows,) log(time / anchor) by the stack's weights; ``member_predictions``: the same of
    each member alone, clipped to the range of the targets. ``fold``: (rows,) the number of each row's fold.
    """

    stack: Stack
    fold: Array
    out_of_fold: Array
    member_predictions: Mapping[str, Array]


def chip_numbers(names: Array, gpus: GpuSpecs) -> Array:
    """Return a number per row that boards of one chip (``same_chip``) share."""
    chips: list[Chip] = []
    number = {}
    for name in sorted(set(names.tolist())):
        chip = chip_of(gpus[name])
        equal = [place for place, other in enumerate(chips) if same_chip(other, chip, matrix=True)]
        if not equal:
            equal = [len(chips)]
            chips.append(chip)
        number[name] = equal[0]
    return np.array([number[name] for name in names.tolist()], dtype=np.int64)


def problem(plan: ModelPlan, rows: TrainingRows, gpus: GpuSpecs) -> FitProblem:
    """Return features and targets of ``rows``. Raises TableError without rows."""
    if not len(rows):
        raise TableError(f"regressor {plan.name!r}: no measured rows to train on")
    x, names = feature_rows(plan.features, rows.table, rows.gpu, gpus)
    anchor_of = ANCHORS[plan.anchor]
    base = np.empty(len(rows))
    likely = np.empty(len(rows))
    for name, index in by_gpu(rows.gpu):
        part = rows.table.take(index)
        base[index] = anchor_of(part, gpus[name])
        likely[index] = analytical_duration_us(part, gpus[name])
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
    narrow = np.where(rows.hold_us > 0, (rows.hold_us / most) ** 2, 1.0)
    trust = np.where(hidden, _HIDDEN_WEIGHT * narrow, trust)
    shape = shape_hash(rows.table)
    if plan.folds == "layer":
        shape = layer_hash(rows.table)
    return FitProblem(
        x=x,
        y=np.log(duration / base),
        weight=rows.weight * trust,
        hidden=hidden,
        shape=shape,
        chip=chip_numbers(rows.gpu, gpus),
        names=names,
        anchor_us=base,
    )


def sample(rows: TrainingRows, most: int, seed: int, gpus: GpuSpecs) -> tuple[Array, Array]:
    """Return the indices of at most ``most`` rows, and how many rows each stands for.

    Heavy-weighted rows first, the others evenly over GPU, source and size of work.
    """
    if len(rows) <= most:
        return np.arange(len(rows)), np.ones(len(rows))
    rng = np.random.default_rng(seed)
    size = np.floor(np.log2(rooflines_us(rows.table, rows.gpu, gpus))).astype(int)
    keys = np.char.add(np.char.add(rows.gpu.astype(str), rows.source.astype(str)), size.astype(str))
    _, stratum, counts = np.unique(keys, return_inverse=True, return_counts=True)
    # Square root of the count: common sizes still count for more, without crowding out the rare ones.
    chance = rows.weight / np.sqrt(counts[stratum])
    index = np.sort(rng.choice(len(rows), most, replace=False, p=chance / chance.sum()))
    drawn = np.bincount(stratum[index], minlength=len(counts))
    return index, counts[stratum[index]] / drawn[stratum[index]]


def _folds(plan: ModelPlan, data: FitProblem) -> Array:
    """Return a fold number per row: by shape, or one fold per chip."""
    if plan.folds == "gpu":
        return data.chip
    count = FOLDS if len(data.y) >= _FEW_ROWS else _FOLDS_OF_FEW
    return np.asarray(np.floor(data.shape * 1e6).astype(int) % count)


def _bounds(plan: ModelPlan, data: FitProblem) -> tuple[float, float]:
    """Return what log(time / anchor) is held to: the range of the targets.

    For GPUs not trained on it is the range without its tails by weight, because the shortest kernels' targets
    there are mostly what is left of the launch gap.
    """
    if plan.scope == "seen":
        return float(np.min(data.y)), float(np.max(data.y))
    order = np.argsort(data.y, kind="stable")
    share = np.cumsum(data.weight[order]) / data.weight.sum()
    low, high = (int(np.searchsorted(share, at)) for at in _UNSEEN_TAILS)
    return float(data.y[order][low]), float(data.y[order][min(high, len(order) - 1)])


def _rising(plan: ModelPlan, data: FitProblem) -> Array | None:
    """Return the mask of the features along which the plan's members may only rise; None for no bound."""
    if not plan.rising:
        return None
    for name in plan.rising:
        if name not in data.names:
            known = ", ".join(data.names)
            raise TableError(f"regressor {plan.name}: feature {name!r} is to rise; expected one of {known}")
    return np.isin(data.names, plan.rising)


def fit_stack(plan: ModelPlan, data: FitProblem, *, seed: int, members: Names | None = None) -> StackFit:
    """Return the stack fitted on ``data``; ``members`` default to the plan's."""
    members = plan.members if members is None else members
    rising = _rising(plan, data)

    def fit(name: str, rows: Array) -> Fitted:
        return fit_member(
            name,
            data.x[rows],
            data.y[rows],
            data.weight[rows],
            seed=seed,
            estimators=plan.estimators.get(name, 0),
            loss=plan.loss,
            rising=rising,
        )

    low, high = _bounds(plan, data)
    fold = _folds(plan, data)
    held = out_of_fold(members, fold, data.x, fit, (low, high))
    weights = stack_weights(held, data.y, data.weight) * plan.shrink
    every_row = np.ones(len(data.y), dtype=bool)
    chosen = {name: float(w) for name, w in zip(members, weights, strict=True) if w > 0}
    fitted = {name: fit(name, every_row) for name in chosen}
    return StackFit(
        stack=stack_of(fitted, chosen, low, high),
        fold=fold,
        out_of_fold=np.clip(held @ weights, low, high),
        member_predictions={name: held[:, j] for j, name in enumerate(members)},
    )
