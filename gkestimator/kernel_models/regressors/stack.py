"""The stack: members' predictions, each clipped to the trained range, in a non-negative combination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gkestimator.core.errors import BundleError
from gkestimator.core.records import frozen
from gkestimator.kernel_models.regressors.kernel_ridge import KernelRidge
from gkestimator.kernel_models.regressors.linear import Linear
from gkestimator.kernel_models.regressors.trees import Forest

MEMBERS = ("lasso", "kernel_ridge", "gradient_boosting", "xgboost", "lightgbm")
"""Names of the members, in the order of a stack's weights."""
TREE_MEMBERS = ("gradient_boosting", "xgboost", "lightgbm")
_LARGEST_TREES = 4000
_LARGEST_DEPTH = 10
_LARGEST_SUPPORT = 8000


@frozen
class Stack:
    """Weighted members; a member without weight is absent (None, or not among ``forest_members``).

    ``weights`` maps a member's name to its non-negative weight. ``low`` and ``high`` bound every member's
    prediction: the range of log(measured / roofline) in training.
    """

    weights: Mapping[str, float]
    low: float
    high: float
    linear: Linear | None
    kernel_ridge: KernelRidge | None
    forest: Forest | None
    forest_members: tuple[str, ...]

    def members(self, features: np.ndarray) -> dict[str, np.ndarray]:
        """Each present member's (rows,) predictions, not clipped."""
        result: dict[str, np.ndarray] = {}
        if self.linear is not None:
            result["lasso"] = self.linear.predict(features)
        if self.kernel_ridge is not None:
            result["kernel_ridge"] = self.kernel_ridge.predict(features)
        if self.forest is not None:
            sums = self.forest.predict(features)
            result.update({name: sums[:, i] for i, name in enumerate(self.forest_members)})
        return result

    def predict(self, features: np.ndarray) -> np.ndarray:
        """(rows,) log ratios of time to anchor."""
        return self.predict_with_disagreement(features)[0]

    def predict_with_disagreement(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows,) log ratios of time to anchor, and the standard deviation of the members' own."""
        values = {n: np.clip(v, self.low, self.high) for n, v in self.members(features).items()}
        total = np.zeros(len(features))
        for name, value in values.items():
            total += self.weights[name] * value
        return np.clip(total, self.low, self.high), disagreement(tuple(values.values()), len(features))

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything as named arrays (what :meth:`from_arrays` takes)."""
        result: dict[str, np.ndarray] = {
            "weights": np.array([self.weights.get(name, 0.0) for name in MEMBERS]),
            "bounds": np.array([self.low, self.high]),
        }
        if self.linear is not None:
            part = self.linear
            result.update(
                {
                    "lasso.mean": part.mean,
                    "lasso.scale": part.scale,
                    "lasso.weights": part.weights,
                    "lasso.intercept": np.array([part.intercept]),
                }
            )
        if self.kernel_ridge is not None:
            ridge = self.kernel_ridge
            result.update(
                {
                    "kernel_ridge.mean": ridge.mean,
                    "kernel_ridge.scale": ridge.scale,
                    "kernel_ridge.support": ridge.support,
                    "kernel_ridge.dual": ridge.dual,
                    "kernel_ridge.constants": np.array([ridge.gamma, ridge.intercept]),
                }
            )
        if self.forest is not None:
            forest = self.forest
            result.update(
                {
                    "forest.feature": forest.feature,
                    "forest.threshold": forest.threshold,
                    "forest.leaf": forest.leaf,
                    "forest.starts": forest.starts,
                    "forest.base": forest.base,
                    "forest.members": np.array([MEMBERS.index(name) for name in self.forest_members]),
                }
            )
        return result

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], *, features: int, where: str) -> Stack:
        """The stack that :meth:`arrays` wrote; arrays from strangers are checked.

        ``features`` is the width of the feature matrix. Raises BundleError, naming ``where`` and the array,
        for a missing array, a wrong shape or type, a value that is not finite, or an index out of range.
        """
        take = _Reader(arrays, where)
        weights = take("weights", (len(MEMBERS),), low=0.0, high=100.0)
        low, high = (float(v) for v in take("bounds", (2,), low=-20.0, high=20.0))
        if low > high:
            raise BundleError(f"{where}: bounds are {low} and {high}; expected the lower first")
        linear = ridge = forest = None
        names: tuple[str, ...] = ()
        if "lasso.weights" in arrays:
            linear = Linear(
                mean=take("lasso.mean", (features,)),
                scale=take("lasso.scale", (features,), low=1e-12),
                weights=take("lasso.weights", (features,)),
                intercept=float(take("lasso.intercept", (1,))[0]),
            )
        if "kernel_ridge.dual" in arrays:
            points = take.length("kernel_ridge.dual", _LARGEST_SUPPORT)
            constants = take("kernel_ridge.constants", (2,))
            ridge = KernelRidge(
                mean=take("kernel_ridge.mean", (features,)),
                scale=take("kernel_ridge.scale", (features,), low=1e-12),
                support=take("kernel_ridge.support", (points, features)),
                dual=take("kernel_ridge.dual", (points,)),
                gamma=float(constants[0]),
                intercept=float(constants[1]),
            )
        if "forest.leaf" in arrays:
            forest, names = _forest(take, features)
        present = {*names, *(["lasso"] if linear else []), *(["kernel_ridge"] if ridge else [])}
        for name, weight in zip(MEMBERS, weights, strict=True):
            if (weight > 0) != (name in present):
                raise BundleError(
                    f"{where}: member {name} has weight {weight:g} but "
                    f"is {'present' if name in present else 'absent'}"
                )
        return cls(
            weights={name: float(w) for name, w in zip(MEMBERS, weights, strict=True) if w > 0},
            low=low,
            high=high,
            linear=linear,
            kernel_ridge=ridge,
            forest=forest,
            forest_members=names,
        )


def disagreement(members: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """(rows,) standard deviation of the members' predictions; 0 for fewer than two."""
    if len(members) < 2:
        return np.zeros(rows)
    return np.asarray(np.std(np.stack(members, axis=1), axis=1))


def read_trees(
    arrays: Mapping[str, np.ndarray], prefix: str, *, features: int, where: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checked (feature, threshold, leaf) arrays ``<prefix>.feature`` and so on. Raises BundleError."""
    take = _Reader(arrays, where)
    trees = take.length(f"{prefix}.leaf", _LARGEST_TREES)
    leaves = take.width(f"{prefix}.leaf")
    if leaves < 2 or leaves & (leaves - 1) or leaves > 1 << _LARGEST_DEPTH:
        raise BundleError(
            f"{where}: {prefix}.leaf has {leaves} leaves a tree; expected a power of two from 2 to 1024"
        )
    return (
        take(f"{prefix}.feature", (trees, leaves - 1), low=0, high=features - 1).astype(np.intp),
        take(f"{prefix}.threshold", (trees, leaves - 1), infinite=True).astype(np.float32),
        take(f"{prefix}.leaf", (trees, leaves)).astype(np.float32),
    )


def _forest(take: _Reader, features: int) -> tuple[Forest, tuple[str, ...]]:
    feature, threshold, leaf = read_trees(take.arrays, "forest", features=features, where=take.where)
    trees = len(leaf)
    count = take.length("forest.starts", len(TREE_MEMBERS))
    starts = take("forest.starts", (count,), low=0, high=trees - 1).astype(np.int64)
    members = take("forest.members", (count,), low=0, high=len(MEMBERS) - 1).astype(np.int64)
    names = tuple(MEMBERS[i] for i in members)
    if (
        starts[0] != 0
        or np.any(np.diff(starts) <= 0)
        or len(set(names)) != count
        or not set(names) <= set(TREE_MEMBERS)
    ):
        raise BundleError(
            f"{take.where}: forest.starts and forest.members do not describe distinct tree members"
        )
    forest = Forest(
        feature=feature,
        threshold=threshold,
        leaf=leaf,
        starts=starts,
        base=take("forest.base", (count,)),
    )
    return forest, names


class _Reader:
    """Takes arrays by name and refuses what does not fit."""

    def __init__(self, arrays: Mapping[str, np.ndarray], where: str) -> None:
        self.arrays = arrays
        self.where = where

    def _raw(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise BundleError(f"{self.where}: array {name!r} is missing")
        return self.arrays[name]

    def length(self, name: str, largest: int) -> int:
        array = self._raw(name)
        if array.ndim < 1 or not 1 <= array.shape[0] <= largest:
            raise BundleError(
                f"{self.where}: array {name!r} has shape {array.shape}; expected 1 to {largest} entries"
            )
        return int(array.shape[0])

    def width(self, name: str) -> int:
        array = self._raw(name)
        if array.ndim != 2:
            raise BundleError(f"{self.where}: array {name!r} has {array.ndim} dimensions; expected 2")
        return int(array.shape[1])

    def __call__(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        low: float = -1e12,
        high: float = 1e12,
        infinite: bool = False,
    ) -> np.ndarray:
        array = self._raw(name)
        if array.dtype.kind not in "fiu" or array.shape != shape:
            raise BundleError(
                f"{self.where}: array {name!r} is {array.dtype}{array.shape}; expected numbers{shape}"
            )
        if array.dtype.kind in "iu":
            within = bool(np.all(array >= low) and np.all(array <= high))
            if not within:
                raise BundleError(f"{self.where}: array {name!r} leaves the range {low:g} .. {high:g}")
            return array
        values = array.astype(np.float64)
        checked = values[values != np.inf] if infinite else values
        if not np.all(np.isfinite(checked)) or np.any(checked < low) or np.any(checked > high):
            raise BundleError(
                f"{self.where}: array {name!r} has values that are not finite or leave {low:g} .. {high:g}"
            )
        return values
