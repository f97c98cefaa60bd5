"""Fit a stack on few rows of one chip: what corrects a base prediction, and what predicts achieved occupancy.

Ten rows are enough for an offset, held towards zero by what its spread leaves unsure; more rows earn a ridge,
a kernel ridge and trees their weights. All weights come from out-of-fold predictions that leave whole shapes
out, so that a member which does not carry over to other shapes gets none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gkestimator.core.kernels import Array
from gkestimator.core.records import NamedNumbers, frozen
from gkestimator.kernel_models.regressors import KernelRidge, Linear, Stack
from gkestimator.training.members import Fitted, fit_member, predicted, stack_of, stack_weights, standard

FEWEST = 10
"""Rows below which nothing is fitted: a 90 % interval of so few errors is their largest (conformal, n >= 9)."""
FEWEST_FOR_TREES = 60
_FOLDS = 8
_PRIOR_SD = 0.25
"""Spread of a base bundle's typical error, of log(time), over families and chips that were left out of its training
(docs/explanation/transfer.md): what an offset is held towards zero with."""
_RIDGE = tuple(10.0**p for p in range(-2, 5))
_GAMMAS = (0.03, 0.1, 0.3, 1.0)  # over the number of features
_ALPHAS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
# It is stored in the bundle, and every prediction passes over it.
_SUPPORT = 600
_TREES = 120
_DOUBT = 6
_STILL = 1e-6  # a feature that moves less is the same in all rows


@frozen
class SmallFit:
    """Hold a fitted stack; ``out_of_fold``: (rows,) its prediction of every row while the row's shape was
    left out.

    ``member_error``: mean |error| of each member alone, out of fold; ``low`` and ``high``: (features,) what
    features are held to before the stack sees them.
    """

    stack: Stack
    out_of_fold: Array
    member_error: NamedNumbers
    low: Array
    high: Array


def folds_by_shape(shape: Array) -> Array:
    """Return (rows,) fold numbers from 0 that keep equal shapes together; as many folds as shapes below eight."""
    distinct, which = np.unique(shape, return_inverse=True)
    return np.asarray(np.arange(len(distinct)) % min(_FOLDS, len(distinct)))[which]


def fit_small_stack(x: Array, y: Array, weight: Array, shape: Array, *, seed: int) -> SmallFit:
    """Return the stack for float32 features (rows, features), targets, row weights and shapes.

    Equal numbers in ``shape`` are one shape.
    """
    fold = folds_by_shape(shape)
    names = ["offset", "ridge", "kernel_ridge"]
    if len(y) >= FEWEST_FOR_TREES:
        names += ["xgboost", "lightgbm"]
    held = np.zeros((len(y), len(names)))
    if fold.max(initial=0) > 0:
        for number in np.unique(fold):
            train = fold != number
            held[~train] = _held_out(names, x, y, weight, train, seed)
    # Few rows choose weights that suit them: as if _DOUBT more rows had shown that the base needs no correction.
    weights = stack_weights(held, y, weight, at_most_one=True) * len(y) / (len(y) + _DOUBT)
    errors = {}
    for j, name in enumerate(names):
        errors[name] = round(float(np.average(np.abs(held[:, j] - y), weights=weight)), 4)
    return SmallFit(
        stack=_assemble(names, weights, x, y, weight, seed),
        out_of_fold=np.clip(held @ weights, y.min(), y.max()),
        member_error=errors,
        low=x.min(axis=0).astype(float),
        high=x.max(axis=0).astype(float),
    )


def _held_out(names: list[str], x: Array, y: Array, weight: Array, train: Array, seed: int) -> Array:
    """Return (rows left out, members) what members fitted on the rows ``train`` say, within what those saw."""
    seen = x[train]
    targets = y[train]
    # As the stack does: beyond what it saw a linear member would run away.
    part = np.clip(x[~train], seen.min(axis=0), seen.max(axis=0))
    columns = []
    for name in names:
        member = _fit(name, seen, targets, weight[train], seed)
        columns.append(np.clip(predicted(member, part), float(targets.min()), float(targets.max())))
    return np.stack(columns, axis=1)


def _assemble(names: list[str], weights: Array, x: Array, y: Array, weight: Array, seed: int) -> Stack:
    """Return the members with weight, fitted on all rows; offset and ridge are one linear model."""
    slope = np.zeros(x.shape[1])
    intercept = 0.0
    members: dict[str, Fitted] = {}
    shares: NamedNumbers = {}
    for name, share in zip(names, weights.tolist(), strict=True):
        if share <= 0:
            continue
        fitted = _fit(name, x, y, weight, seed)
        if isinstance(fitted, Linear):
            slope = slope + share * fitted.weights
            intercept += share * fitted.intercept
            members["lasso"] = replace(fitted, weights=slope, intercept=intercept)
            shares["lasso"] = 1.0
        else:
            members[name] = fitted
            shares[name] = share
    if not shares:  # nothing carries over from shape to shape: the base stands as it is
        members["lasso"] = Linear(mean=slope, scale=slope + 1.0, weights=slope, intercept=0.0)
        shares["lasso"] = 1.0
    return stack_of(members, shares, min(float(y.min()), 0.0), max(float(y.max()), 0.0))


def _fit(name: str, x: Array, y: Array, w: Array, seed: int) -> Fitted:
    if name == "offset":
        mean, scale = standard(x, least=_STILL)
        return Linear(mean=mean, scale=scale, weights=np.zeros(x.shape[1]), intercept=_shrunken_mean(y, w))
    if name == "ridge":
        return _ridge(x, y, w)
    if name == "kernel_ridge":
        return _kernel_ridge(x, y, w, seed)
    return fit_member(name, x, y, w, seed=seed, estimators=_TREES)


def _shrunken_mean(y: Array, w: Array) -> float:
    """Return the weighted mean times prior variance / (prior variance + variance of the mean)."""
    share = w / w.sum()
    mean = float(share @ y)
    one_in_n = float(share @ share)
    spread = float(share @ (y - mean) ** 2) * one_in_n / max(1.0 - one_in_n, 1e-6)
    prior = _PRIOR_SD**2
    return mean * prior / (prior + spread)


def _ridge(x: Array, y: Array, w: Array) -> Linear:
    """Fit a ridge about the shrunken mean; the penalty with the least leave-one-out error (closed form)."""
    mean, scale = standard(x, least=_STILL)
    offset = _shrunken_mean(y, w)
    root = np.sqrt(w / w.mean())[:, None]
    z = root * ((x - mean) / scale)
    u, s, vt = np.linalg.svd(z, full_matrices=False)
    target = root[:, 0] * (y - offset)
    projected = u.T @ target
    best: tuple[float, Array] | None = None
    for penalty in _RIDGE:
        shrink = s**2 / (s**2 + penalty)
        leverage = np.einsum("ij,j,ij->i", u, shrink, u)
        error = (target - u @ (shrink * projected)) / np.maximum(1.0 - leverage, 1e-3)
        score = float(np.mean(error**2))
        if best is None or score < best[0]:
            best = score, vt.T @ (s / (s**2 + penalty) * projected)
    assert best is not None
    return Linear(mean=mean, scale=scale, weights=best[1], intercept=offset)


def _kernel_ridge(x: Array, y: Array, w: Array, seed: int) -> KernelRidge:
    """Fit a kernel ridge (radial basis) about the shrunken mean.

    Width and penalty are those with the least leave-one-out error.
    """
    offset = _shrunken_mean(y, w)
    pick = np.arange(len(y))
    if len(y) > _SUPPORT:
        chance = w / w.sum()
        pick = np.sort(np.random.default_rng(seed).choice(len(y), _SUPPORT, replace=False, p=chance))
    mean, scale = standard(x[pick], least=_STILL)
    z = (x[pick] - mean) / scale
    target = y[pick] - offset
    noise = w.mean() / w[pick]
    squares = np.einsum("ij,ij->i", z, z)
    distance = np.maximum(squares[:, None] + squares[None, :] - 2 * z @ z.T, 0.0)
    features = max(1, int(np.count_nonzero(x.std(axis=0) > _STILL)))
    best: tuple[float, float, Array] | None = None
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
