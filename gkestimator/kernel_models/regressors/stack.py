"""Combine the stack: members' predictions, each clipped to the trained range, in a non-negative combination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from gkestimator.core.kernels import Array
from gkestimator.core.records import frozen
from gkestimator.core.stored import StoredArrays
from gkestimator.kernel_models.regressors.standardised import KernelRidge, Linear
from gkestimator.kernel_models.regressors.trees import Forest, is_tree_width

NamedArrays: TypeAlias = "dict[str, Array]"
Names: TypeAlias = "tuple[str, ...]"

MEMBERS = ("lasso", "kernel_ridge", "gradient_boosting", "xgboost", "lightgbm")
"""Names of the members, in the order of a stack's weights."""
TREE_MEMBERS = ("gradient_boosting", "xgboost", "lightgbm")
_LARGEST_TREES = 4000
_LARGEST_SUPPORT = 8000


@frozen
class Stack:
    """Hold weighted members; a member without weight is absent (None, or not among ``forest_members``).

    ``weights`` maps a member's name to its non-negative weight. ``low`` and ``high`` bound every member's
    prediction: the range of log(measured / roofline) in training.
    """

    weights: Mapping[str, float]
    low: float
    high: float
    linear: Linear | None
    kernel_ridge: KernelRidge | None
    forest: Forest | None
    forest_members: Names

    def members(self, features: Array) -> NamedArrays:
        """Return each present member's (rows,) predictions, not clipped."""
        predictions: NamedArrays = {}
        if self.linear is not None:
            predictions["lasso"] = self.linear.predict(features)
        if self.kernel_ridge is not None:
            predictions["kernel_ridge"] = self.kernel_ridge.predict(features)
        if self.forest is not None:
            sums = self.forest.predict(features)
            predictions.update(zip(self.forest_members, sums.T, strict=True))
        return predictions

    def predict(self, features: Array) -> Array:
        """Return (rows,) log ratios of time to anchor."""
        return self.predict_with_disagreement(features)[0]

    def predict_with_disagreement(self, features: Array) -> tuple[Array, Array]:
        """Return (rows,) log ratios of time to anchor, and the standard deviation of the members' own."""
        rows = len(features)
        total = np.zeros(rows)
        clipped = []
        for name, prediction in self.members(features).items():
            values = np.clip(prediction, self.low, self.high)
            total += self.weights[name] * values
            clipped.append(values)
        return np.clip(total, self.low, self.high), disagreement(clipped, rows)

    def arrays(self) -> NamedArrays:
        """Return everything as named arrays (what :meth:`from_arrays` takes)."""
        arrays = {
            "weights": np.array([self.weights.get(name, 0.0) for name in MEMBERS]),
            "bounds": np.array([self.low, self.high]),
        }
        if self.linear is not None:
            arrays |= _named("lasso", self.linear, ("mean", "scale", "weights"))
            arrays["lasso.intercept"] = np.array([self.linear.intercept])
        ridge = self.kernel_ridge
        if ridge is not None:
            arrays |= _named("kernel_ridge", ridge, ("mean", "scale", "support", "dual"))
            arrays["kernel_ridge.constants"] = np.array([ridge.gamma, ridge.intercept])
        if self.forest is not None:
            arrays |= _named("forest", self.forest, ("feature", "threshold", "leaf", "starts", "base"))
            arrays["forest.members"] = np.array([MEMBERS.index(name) for name in self.forest_members])
        return arrays

    @classmethod
    def from_arrays(cls, take: StoredArrays, *, features: int) -> Stack:
        """Return the stack that :meth:`arrays` wrote; arrays from strangers are checked.

        ``features`` is the width of the feature matrix. Raises BundleError, naming the file and the array,
        for a missing array, a wrong shape or type, a value that is not finite, or an index out of range.
        """
        weights = take("weights", (len(MEMBERS),), low=0.0, high=100.0).tolist()
        low, high = take("bounds", (2,), low=-20.0, high=20.0).tolist()
        if low > high:
            raise take.unfit("bounds", f"found {low:g} and {high:g}, expected the lower first")
        linear = ridge = forest = None
        names: Names = ()
        present = set()
        if "lasso.weights" in take:
            linear = _linear(take, features)
            present.add("lasso")
        if "kernel_ridge.dual" in take:
            ridge = _kernel_ridge(take, features)
            present.add("kernel_ridge")
        if "forest.leaf" in take:
            forest, names = _forest(take, features)
            present.update(names)
        positive = {}
        for name, weight in zip(MEMBERS, weights, strict=True):
            if weight > 0:
                positive[name] = weight
            if (weight > 0) != (name in present):
                state = "absent"
                if name in present:
                    state = "present"
                raise take.unfit("weights", f"found {weight:g} for the member {name}, which is {state}")
        return cls(
            weights=positive,
            low=low,
            high=high,
            linear=linear,
            kernel_ridge=ridge,
            forest=forest,
            forest_members=names,
        )


def _named(prefix: str, part: object, names: Sequence[str]) -> NamedArrays:
    return {f"{prefix}.{name}": getattr(part, name) for name in names}


def _linear(take: StoredArrays, features: int) -> Linear:
    return Linear(
        mean=take("lasso.mean", (features,)),
        scale=take("lasso.scale", (features,), low=1e-12),
        weights=take("lasso.weights", (features,)),
        intercept=float(take("lasso.intercept", (1,))[0]),
    )


def _kernel_ridge(take: StoredArrays, features: int) -> KernelRidge:
    points = take.length("kernel_ridge.dual", _LARGEST_SUPPORT)
    gamma, intercept = take("kernel_ridge.constants", (2,)).tolist()
    if gamma < 0:  # would grow with the distance, beyond all numbers
        raise take.unfit("kernel_ridge.constants", f"found the width {gamma:g}, expected none below 0")
    return KernelRidge(
        mean=take("kernel_ridge.mean", (features,)),
        scale=take("kernel_ridge.scale", (features,), low=1e-12),
        support=take("kernel_ridge.support", (points, features)),
        dual=take("kernel_ridge.dual", (points,)),
        gamma=gamma,
        intercept=intercept,
    )


def disagreement(members: Sequence[Array], rows: int) -> Array:
    """Return the (rows,) standard deviation of the members' predictions; 0 for fewer than two."""
    if len(members) < 2:
        return np.zeros(rows)
    return np.asarray(np.std(np.stack(members, axis=1), axis=1))


def read_trees(
    take: StoredArrays, prefix: str, *, features: int, most: int = _LARGEST_TREES
) -> tuple[Array, Array, Array]:
    """Return checked (feature, threshold, leaf) arrays ``<prefix>.feature`` and so on. Raises BundleError."""
    trees = take.length(f"{prefix}.leaf", most)
    leaves = take.width(f"{prefix}.leaf")
    if not is_tree_width(leaves):
        raise take.unfit(
            f"{prefix}.leaf", f"found {leaves} leaves a tree, expected a power of two from 2 to 1024"
        )
    nodes = (trees, leaves - 1)
    feature = take(f"{prefix}.feature", nodes, low=0, high=features - 1)
    threshold = take(f"{prefix}.threshold", nodes, infinite=True)
    leaf = take(f"{prefix}.leaf", (trees, leaves))
    return feature.astype(np.intp), threshold.astype(np.float32), leaf.astype(np.float32)


def _forest(take: StoredArrays, features: int) -> tuple[Forest, Names]:
    feature, threshold, leaf = read_trees(take, "forest", features=features)
    count = take.length("forest.starts", len(TREE_MEMBERS))
    starts = take("forest.starts", (count,), low=0, high=len(leaf) - 1).astype(np.int64)
    members = take("forest.members", (count,), low=0, high=len(MEMBERS) - 1).astype(np.int64)
    names = tuple(MEMBERS[i] for i in members)
    rising = starts[0] == 0 and np.all(np.diff(starts) > 0)
    if not rising or len(set(names)) != count or not set(names) <= set(TREE_MEMBERS):
        raise take.unfit("forest.starts", "found no distinct tree members, with forest.members")
    base = take("forest.base", (count,))
    return Forest(feature=feature, threshold=threshold, leaf=leaf, starts=starts, base=base), names
