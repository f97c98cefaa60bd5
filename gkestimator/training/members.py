"""Fit the members of a stack and turns them into the arrays that predict."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.extras import install_extra
from gkestimator.core.kernels import Array
from gkestimator.core.records import Names
from gkestimator.kernel_models.regressors import Forest, KernelRidge, Linear, Stack

DEPTH = 6
# Its matrix grows with the square of the rows, and every prediction passes over all of them.
KERNEL_RIDGE_ROWS = 1_000
# scikit-learn tries every value of every feature in every tree: all rows would take too long.
GRADIENT_BOOSTING_ROWS = 8_000
# More spin-wait for each other on a shared machine, and one thread gives the same trees everywhere.
THREADS = 1
# Share of the weights below which a member is left out of the stack: it costs time and adds nothing.
_DROP_BELOW = 0.03
Fitted = Linear | KernelRidge | Forest


def standard(x: Array, *, least: float = 1e-9) -> tuple[Array, Array]:
    """Return mean and standard deviation of every feature; 1 for one that moves no more than ``least``."""
    mean = x.mean(axis=0, dtype=np.float64)
    scale = x.std(axis=0, dtype=np.float64)
    return mean, np.where(scale > least, scale, 1.0)


def fit_lasso(x: Array, y: Array, w: Array, *, seed: int, estimators: int, loss: str) -> Linear:
    """Fit Lasso, alpha 1e-3, on standardised features."""
    from sklearn.linear_model import Lasso

    mean, scale = standard(x)
    model = Lasso(alpha=1e-3, max_iter=5000, tol=3e-3, random_state=seed)
    model.fit((x - mean) / scale, y, sample_weight=w)
    return Linear(
        mean=mean, scale=scale, weights=model.coef_.astype(float), intercept=float(model.intercept_)
    )


def fit_kernel_ridge(x: Array, y: Array, w: Array, *, seed: int, estimators: int, loss: str) -> KernelRidge:
    """Fit a kernel ridge, rbf with gamma 0.5 / features, alpha 0.05, on a sample drawn by the weights."""
    from sklearn.kernel_ridge import KernelRidge as Ridge

    rng = np.random.default_rng(seed)
    most = min(KERNEL_RIDGE_ROWS, int(np.count_nonzero(w)))
    pick = np.sort(rng.choice(len(x), most, replace=False, p=w / w.sum()))
    mean, scale = standard(x[pick])
    support = (x[pick] - mean) / scale
    gamma = 0.5 / x.shape[1]
    offset = float(y[pick].mean())
    model = Ridge(alpha=0.05, kernel="rbf", gamma=gamma).fit(support, y[pick] - offset)
    return KernelRidge(
        mean=mean,
        scale=scale,
        support=support,
        dual=np.asarray(model.dual_coef_, dtype=float),
        gamma=gamma,
        intercept=offset,
    )


def fit_gradient_boosting(x: Array, y: Array, w: Array, *, seed: int, estimators: int, loss: str) -> Forest:
    """Fit scikit-learn's gradient boosting: depth 6, rate 0.1, half the rows and 40 % of the features per
    tree.
    """
    from sklearn.ensemble import GradientBoostingRegressor

    pick = np.arange(len(x))
    if len(x) > GRADIENT_BOOSTING_ROWS:
        rng = np.random.default_rng(seed)
        pick = np.sort(rng.choice(len(x), GRADIENT_BOOSTING_ROWS, replace=False))
    model = GradientBoostingRegressor(
        n_estimators=estimators,
        max_depth=DEPTH,
        learning_rate=0.1,
        subsample=0.5,
        max_features=0.4,
        min_samples_leaf=3,
        random_state=seed,
    ).fit(x[pick], y[pick], sample_weight=w[pick])
    return from_gradient_boosting(model)


def fit_xgboost(
    x: Array, y: Array, w: Array, *, seed: int, estimators: int, loss: str, rising: Array | None = None
) -> Forest:
    """Fit XGBoost: depth 6, rate 0.1, 70 % of rows, 60 % of features, minimum child weight 3, histograms;
    squared or absolute errors. ``rising``: (features,) mask of those along which predictions may only rise.
    """
    import xgboost

    matrix = xgboost.QuantileDMatrix(x, y, weight=w, nthread=THREADS, max_bin=256)
    options = {
        "objective": {"squared": "reg:squarederror", "absolute": "reg:absoluteerror"}[loss],
        "max_depth": DEPTH,
        "eta": 0.1,
        "subsample": 0.7,
        "colsample_bytree": 0.6,
        "min_child_weight": 3,
        "tree_method": "hist",
        "seed": seed,
        "nthread": THREADS,
        "verbosity": 0,
    }
    if rising is not None:
        options["monotone_constraints"] = tuple(int(bound) for bound in rising)
    return from_xgboost(xgboost.train(options, matrix, num_boost_round=estimators))


def fit_lightgbm(
    x: Array, y: Array, w: Array, *, seed: int, estimators: int, loss: str, rising: Array | None = None
) -> Forest:
    """Fit LightGBM: at most 48 leaves and depth 6, rate 0.1, 70 % of rows, 60 % of features; squared or absolute
    errors; ``rising`` as :func:`fit_xgboost` has it."""
    import lightgbm

    options = {
        "objective": {"squared": "regression", "absolute": "regression_l1"}[loss],
        "num_leaves": 48,
        "max_depth": DEPTH,
        "learning_rate": 0.1,
        "bagging_fraction": 0.7,
        "bagging_freq": 1,
        "feature_fraction": 0.6,
        "min_data_in_leaf": 5,
        "num_threads": THREADS,
        "seed": seed,
        "verbosity": -1,
        "deterministic": True,
        "force_row_wise": True,
    }
    if rising is not None:
        options["monotone_constraints"] = [int(bound) for bound in rising]
    data = lightgbm.Dataset(x.astype(np.float64), y, weight=w)
    return from_lightgbm(lightgbm.train(options, data, num_boost_round=estimators))


FITTERS: Mapping[str, Callable[..., Fitted]] = {
    "lasso": fit_lasso,
    "kernel_ridge": fit_kernel_ridge,
    "gradient_boosting": fit_gradient_boosting,
    "xgboost": fit_xgboost,
    "lightgbm": fit_lightgbm,
}


def fit_member(
    name: str,
    x: Array,
    y: Array,
    w: Array,
    *,
    seed: int,
    estimators: int,
    loss: str = "squared",
    rising: Array | None = None,
) -> Fitted:
    """Fit member ``name`` of ``MEMBERS`` on float32 features, targets and row weights.

    ``loss`` (``squared`` or ``absolute``) is what XGBoost and LightGBM minimise, ``rising`` (features,) along
    which they may only rise; other members take no such mask. UsageError if the member's library is missing.
    """
    bound = {}
    if rising is not None:
        bound["rising"] = rising
    try:
        return FITTERS[name](x, y, w / w.mean(), seed=seed, estimators=estimators, loss=loss, **bound)
    except ImportError as e:
        raise UsageError(f"training {name} needs {e.name}: {install_extra('train')}") from e


def predicted(member: Fitted, x: Array) -> Array:
    """Return (rows,) what a member predicts; a forest's one group of trees stands for itself."""
    values = member.predict(x)
    if values.ndim == 2:
        return values[:, 0]
    return values


def out_of_fold(
    names: Sequence[str],
    fold: Array,
    x: Array,
    fit: Callable[[str, Array], Fitted],
    bounds: tuple[float, float],
) -> Array:
    """Return (rows, members) what each member says of every row, fitted without the row's fold, within
    ``bounds``.

    ``fit(name, rows)`` fits a member on the rows of a mask.
    """
    held = np.empty((len(fold), len(names)))
    for number in np.unique(fold):
        test = fold == number
        for j, name in enumerate(names):
            held[test, j] = np.clip(predicted(fit(name, ~test), x[test]), *bounds)
    return held


def stack_weights(held: Array, y: Array, weight: Array, *, at_most_one: bool = False) -> Array:
    """Return non-negative weights of members by their out-of-fold predictions ``held`` (rows, members).

    Members with a negligible share are dropped and the rest fitted again. ``at_most_one`` bounds the sum of the
    weights: members are alike, so the sum is what errors decide about, not single weights.
    """
    from scipy.optimize import nnls

    root = np.sqrt(weight / weight.mean())
    scaled = held * root[:, None]
    target = y * root
    keep = np.ones(held.shape[1], dtype=bool)
    weights = np.zeros(held.shape[1])
    for _ in range(held.shape[1]):
        weights[:] = 0
        weights[keep] = nnls(scaled[:, keep], target)[0]
        total = weights.sum()
        if at_most_one and total > 1:
            weights /= total
        small = keep & (weights < _DROP_BELOW * total)
        if not small.any() or not (keep & ~small).any():
            break
        keep &= ~small
    return weights


def stack_of(members: Mapping[str, Fitted], weights: Mapping[str, float], low: float, high: float) -> Stack:
    """Return the stack of fitted members, whose trees become one forest."""
    linear: Linear | None = None
    ridge: KernelRidge | None = None
    forests: dict[str, Forest] = {}
    for name, member in members.items():
        if isinstance(member, Linear):
            linear = member
        elif isinstance(member, KernelRidge):
            ridge = member
        else:
            forests[name] = member
    forest, names = join_forests(forests) if forests else (None, ())
    return Stack(
        weights=weights,
        low=low,
        high=high,
        linear=linear,
        kernel_ridge=ridge,
        forest=forest,
        forest_members=names,
    )


def _below(threshold: Array) -> Array:
    """Return the largest float32 not above each float64: ``x <= t`` and ``x <= _below(t)`` agree for float32
    x.
    """
    rounded = threshold.astype(np.float32)
    return np.where(
        rounded.astype(np.float64) > threshold, np.nextafter(rounded, np.float32(-np.inf)), rounded
    )


def _complete(trees: Sequence[tuple[Array, ...]], scale: float, base: float) -> Forest:
    """Return complete trees of DEPTH from (left, right, feature, threshold, value) arrays; a leaf has left < 0.

    Where a branch ends early, its value fills all leaves below it: prediction then needs no test for leaves.
    """
    inner = 2**DEPTH - 1
    leaves = 2**DEPTH
    feature = np.zeros((len(trees), inner), dtype=np.int16)
    threshold = np.full((len(trees), inner), np.inf, dtype=np.float32)
    leaf = np.zeros((len(trees), leaves), dtype=np.float32)
    for i, (left, right, split, limit, value) in enumerate(trees):
        place = [(0, 0, 0)]
        while place:
            node, at, depth = place.pop()
            if left[node] < 0:
                width = 2 ** (DEPTH - depth)
                first = (at + 1) * width - 1 - inner
                leaf[i, first : first + width] = value[node] * scale
                continue
            feature[i, at], threshold[i, at] = split[node], limit[node]
            place += [(int(left[node]), 2 * at + 1, depth + 1), (int(right[node]), 2 * at + 2, depth + 1)]
    return Forest(
        feature=feature, threshold=threshold, leaf=leaf, starts=np.array([0]), base=np.array([base])
    )


def from_gradient_boosting(model: Any) -> Forest:
    """Return the arrays of a fitted scikit-learn GradientBoostingRegressor."""
    trees = []
    for (estimator,) in model.estimators_:
        tree = estimator.tree_
        limit = _below(tree.threshold)
        value = tree.value[:, 0, 0]
        trees.append((tree.children_left, tree.children_right, tree.feature, limit, value))
    return _complete(trees, model.learning_rate, float(np.ravel(model.init_.constant_)[0]))


def from_xgboost(booster: Any) -> Forest:
    """Return the arrays of a fitted xgboost Booster (right where not x < threshold)."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    base = float(str(learner["learner_model_param"]["base_score"]).strip("[]"))
    trees = []
    for tree in learner["gradient_booster"]["model"]["trees"]:
        limit = np.asarray(tree["split_conditions"], dtype=np.float32)
        # XGBoost goes left where x < t, our forests where x <= t.
        below = np.nextafter(limit, np.float32(-np.inf))
        left, right, split = (
            np.asarray(tree[name]) for name in ("left_children", "right_children", "split_indices")
        )
        trees.append((left, right, split, below, limit))
    return _complete(trees, 1.0, base)


def from_lightgbm(booster: Any) -> Forest:
    """Return the arrays of a fitted lightgbm Booster (left where x <= threshold).

    Its constant is inside the first tree.
    """
    trees = []
    for info in booster.dump_model()["tree_info"]:
        left: list[int] = []
        right: list[int] = []
        split: list[int] = []
        limit: list[float] = []
        value: list[float] = []
        queue = [(info["tree_structure"], -1, False)]
        while queue:
            node, parent, is_right = queue.pop()
            here = len(left)
            if parent >= 0:
                (right if is_right else left)[parent] = here
            leaf = "leaf_value" in node
            left.append(-1)
            right.append(-1)
            split.append(0 if leaf else int(node["split_feature"]))
            limit.append(0.0 if leaf else float(node["threshold"]))
            value.append(float(node["leaf_value"]) if leaf else 0.0)
            if not leaf:
                queue += [(node["left_child"], here, False), (node["right_child"], here, True)]
        trees.append(
            (np.array(left), np.array(right), np.array(split), _below(np.array(limit)), np.array(value))
        )
    return _complete(trees, 1.0, 0.0)


def join_forests(parts: Mapping[str, Forest]) -> tuple[Forest, Names]:
    """Return one forest with every member's trees, and the members' names in its order."""
    names = tuple(parts)
    forests = list(parts.values())
    sizes = [len(f.leaf) for f in forests]
    joined = Forest(
        feature=np.concatenate([f.feature for f in forests]),
        threshold=np.concatenate([f.threshold for f in forests]),
        leaf=np.concatenate([f.leaf for f in forests]),
        starts=np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64),
        base=np.concatenate([f.base for f in forests]),
    )
    return joined, names
