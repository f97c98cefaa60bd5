"""Fits a stack on few rows of one chip: what corrects a base prediction, and what predicts achieved occupancy.

Ten rows are enough for an offset, held towards zero by what its spread leaves unsure; more rows earn a ridge, a
kernel ridge and trees their weights. All weights come from out-of-fold predictions that leave whole shapes out, so
that a member which does not carry over to other shapes gets none.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.kernel_models.regressors import Forest, KernelRidge, Linear, Stack
from gkestimator.training.members import Fitted, fit_member, join_forests

FEWEST = 10
"""Rows below which nothing is fitted: a 90 % interval of so few errors is their largest (conformal, n >= 9)."""
FEWEST_FOR_TREES = 60
_FOLDS = 8
_PRIOR_SD = 0.25
"""Spread of a base bundle's typical error, of log(time), over families and chips that were left out of its training
(docs/transfer.md): what an offset is held towards zero with."""
_RIDGE = tuple(10.0**p for p in range(-2, 5))
_GAMMAS = (0.03, 0.1, 0.3, 1.0)  # over the number of features
_ALPHAS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_SUPPORT = 600
_TREES = 120
_DROP_BELOW = 0.03
_DOUBT = 6


@frozen
class SmallFit:
    """A fitted stack; ``out_of_fold``: (rows,) its prediction of every row while the row's shape was left out;
    ``member_error``: mean |error| of each member alone, out of fold; ``low`` and ``high``: (features,) what features
    are held to before the stack sees them."""

    stack: Stack
    out_of_fold: np.ndarray
    member_error: dict[str, float]
    low: np.ndarray
    high: np.ndarray


def folds_by_shape(shape: np.ndarray) -> np.ndarray:
    """(rows,) fold numbers from 0 that keep equal shapes together; as many folds as shapes below eight."""
    distinct, which = np.unique(shape, return_inverse=True)
    return np.asarray(np.arange(len(distinct)) % min(_FOLDS, len(distinct)))[which]


def fit_small_stack(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray, shape: np.ndarray, *, seed: int
) -> SmallFit:
    """The stack for float32 features (rows, features), targets, row weights and shapes (equal numbers: one shape)."""
    from scipy.optimize import nnls

    fold = folds_by_shape(shape)
    names = ["offset", "ridge", "kernel_ridge"]
    if len(y) >= FEWEST_FOR_TREES:
        names += ["xgboost", "lightgbm"]
    held = np.zeros((len(y), len(names)))
    if fold.max(initial=0) > 0:
        for number in np.unique(fold):
            train = fold != number
            test = fold == number
            low = x[train].min(axis=0)
            high = x[train].max(axis=0)
            part = np.clip(x[test], low, high)
            bounds = float(y[train].min()), float(y[train].max())
            for j, name in enumerate(names):
                held[test, j] = np.clip(_fit(name, x[train], y[train], weight[train], seed)[0](part), *bounds)
    root = np.sqrt(weight / weight.mean())
    # Few rows choose weights that suit them: as if _DOUBT more rows had shown that the base needs no correction.
    weights = _weights(nnls, held, y, root) * len(y) / (len(y) + _DOUBT)
    stack = _assemble(names, weights, x, y, weight, seed)
    return SmallFit(
        stack=stack,
        out_of_fold=np.clip(held @ weights, y.min(), y.max()),
        member_error={
            name: round(float(np.average(np.abs(held[:, j] - y), weights=weight)), 4)
            for j, name in enumerate(names)
        },
        low=x.min(axis=0).astype(float),
        high=x.max(axis=0).astype(float),
    )


def _weights(nnls: object, held: np.ndarray, y: np.ndarray, root: np.ndarray) -> np.ndarray:
    """Non-negative weights whose sum is at most 1: a base prediction is the default, a correction must earn its way.

    The bound is a row of its own: members are alike, so the sum is what errors decide about, not single weights.
    """
    scaled = held * root[:, None]
    target = y * root
    keep = np.ones(held.shape[1], dtype=bool)
    weights = np.zeros(held.shape[1])
    for _ in range(held.shape[1]):
        weights[:] = 0
        weights[keep] = nnls(scaled[:, keep], target)[0]  # type: ignore[operator]
        total = weights.sum()
        if total > 1:
            weights /= total
        small = keep & (weights < _DROP_BELOW * max(total, 1e-9))
        if not small.any() or not (keep & ~small).any():
            break
        keep &= ~small
    return weights


def _assemble(
    names: list[str], weights: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray, seed: int
) -> Stack:
    """Members with weight, fitted on all rows; offset and ridge are one linear model."""
    linear: Linear | None = None
    ridge: KernelRidge | None = None
    forests: dict[str, Forest] = {}
    shares: dict[str, float] = {}
    for name, share in zip(names, weights.tolist(), strict=True):
        if share <= 0:
            continue
        fitted = _fit(name, x, y, weight, seed)[1]
        if isinstance(fitted, Linear):
            linear = _sum(linear, fitted, share)
            shares["lasso"] = 1.0
        elif isinstance(fitted, KernelRidge):
            ridge = fitted
            shares["kernel_ridge"] = share
        else:
            forests[name] = fitted
            shares[name] = share
    if not shares:  # nothing carries over from shape to shape: the base stands as it is
        zero = np.zeros(x.shape[1])
        linear = Linear(mean=zero, scale=zero + 1.0, weights=zero, intercept=0.0)
        shares = {"lasso": 1.0}
    forest, order = join_forests(forests) if forests else (None, ())
    return Stack(
        weights=shares,
        low=min(float(y.min()), 0.0),
        high=max(float(y.max()), 0.0),
        linear=linear,
        kernel_ridge=ridge,
        forest=forest,
        forest_members=order,
    )


def _sum(before: Linear | None, one: Linear, share: float) -> Linear:
    if before is None:
        return Linear(
            mean=one.mean, scale=one.scale, weights=share * one.weights, intercept=share * one.intercept
        )
    return Linear(
        mean=before.mean,
        scale=before.scale,
        weights=before.weights + share * one.weights,
        intercept=before.intercept + share * one.intercept,
    )


def _fit(
    name: str, x: np.ndarray, y: np.ndarray, w: np.ndarray, seed: int
) -> tuple[Callable[[np.ndarray], np.ndarray], Fitted]:
    if name == "offset":
        fitted: Linear | KernelRidge = _offset(x, y, w)
    elif name == "ridge":
        fitted = _ridge(x, y, w)
    elif name == "kernel_ridge":
        fitted = _kernel_ridge(x, y, w, seed)
    else:
        made = fit_member(name, x, y, w, seed=seed, estimators=_TREES)
        return (lambda part: _column(made.predict(part))), made
    return fitted.predict, fitted


def _column(values: np.ndarray) -> np.ndarray:
    if values.ndim == 2:
        return values[:, 0]
    return values


def _standard(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = x.mean(axis=0, dtype=np.float64)
    scale = x.std(axis=0, dtype=np.float64)
    return mean, np.where(scale > 1e-6, scale, 1.0)


def _shrunken_mean(y: np.ndarray, w: np.ndarray) -> float:
    """The weighted mean times prior variance / (prior variance + variance of the mean)."""
    share = w / w.sum()
    mean = float(share @ y)
    spread = float(share @ (y - mean) ** 2) * float(share @ share) / max(1.0 - float(share @ share), 1e-6)
    return mean * _PRIOR_SD**2 / (_PRIOR_SD**2 + spread)


def _offset(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> Linear:
    mean, scale = _standard(x)
    return Linear(mean=mean, scale=scale, weights=np.zeros(x.shape[1]), intercept=_shrunken_mean(y, w))


def _ridge(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> Linear:
    """Ridge about the shrunken mean; the penalty with the least leave-one-out error (closed form)."""
    mean, scale = _standard(x)
    offset = _shrunken_mean(y, w)
    root = np.sqrt(w / w.mean())[:, None]
    z = root * ((x - mean) / scale)
    u, s, vt = np.linalg.svd(z, full_matrices=False)
    target = root[:, 0] * (y - offset)
    projected = u.T @ target
    best: tuple[float, np.ndarray] | None = None
    for penalty in _RIDGE:
        shrink = s**2 / (s**2 + penalty)
        leverage = np.einsum("ij,j,ij->i", u, shrink, u)
        error = (target - u @ (shrink * projected)) / np.maximum(1.0 - leverage, 1e-3)
        score = float(np.mean(error**2))
        if best is None or score < best[0]:
            best = score, vt.T @ (s / (s**2 + penalty) * projected)
    assert best is not None
    return Linear(mean=mean, scale=scale, weights=best[1], intercept=offset)


def _kernel_ridge(x: np.ndarray, y: np.ndarray, w: np.ndarray, seed: int) -> KernelRidge:
    """Kernel ridge (radial basis) about the shrunken mean; width and penalty with the least leave-one-out error."""
    offset = _shrunken_mean(y, w)
    pick = np.arange(len(y))
    if len(y) > _SUPPORT:
        chance = w / w.sum()
        pick = np.sort(np.random.default_rng(seed).choice(len(y), _SUPPORT, replace=False, p=chance))
    mean, scale = _standard(x[pick])
    z = (x[pick] - mean) / scale
    target = y[pick] - offset
    noise = w.mean() / w[pick]
    squares = np.einsum("ij,ij->i", z, z)
    distance = np.maximum(squares[:, None] + squares[None, :] - 2 * z @ z.T, 0.0)
    features = max(1, int(np.count_nonzero(x.std(axis=0) > 1e-6)))
    best: tuple[float, float, np.ndarray] | None = None
    for width in _GAMMAS:
        kernel = np.exp(-width / features * distance)
        # K + alpha N = N^1/2 (N^-1/2 K N^-1/2 + alpha) N^1/2, one eigendecomposition for all penalties.
        half = 1.0 / np.sqrt(noise)
        values, vectors = np.linalg.eigh(half[:, None] * kernel * half[None, :])
        rotated = vectors.T @ (half * target)
        for alpha in _ALPHAS:
            inverse = 1.0 / (np.maximum(values, 0.0) + alpha)
            dual = half * (vectors @ (inverse * rotated))
            diagonal = half**2 * np.einsum("ij,j,ij->i", vectors, inverse, vectors)
            error = dual / np.maximum(diagonal, 1e-12)  # leave-one-out residuals
            score = float(np.average(error**2, weights=1.0 / noise))
            if best is None or score < best[0]:
                best = score, width / features, dual
    assert best is not None
    return KernelRidge(mean=mean, scale=scale, support=z, dual=best[2], gamma=best[1], intercept=offset)
