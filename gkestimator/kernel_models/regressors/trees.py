"""Hold ensembles of regression trees as flat arrays, evaluated for all rows and trees at once."""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array
from gkestimator.core.records import frozen

# (row, tree) pairs walked at once: index, value and comparison arrays stay within a core's L2.
_CHUNK = 1 << 17
_LARGEST_DEPTH = 10


def is_tree_width(leaves: int) -> bool:
    """Return whether complete binary trees of an allowed depth have so many leaves."""
    if leaves & (leaves - 1):
        return False
    return 2 <= leaves <= 1 << _LARGEST_DEPTH


@frozen
class Forest:
    """Hold complete binary trees of one depth, possibly of several members.

    ``feature`` (trees, 2**depth - 1), ``threshold`` likewise, ``leaf`` (trees, 2**depth). A row goes right
    where its float32 feature is greater than the threshold; the children of node i are 2i + 1 and 2i + 2. A
    tree that ends early repeats its leaf below a threshold of +inf. ``starts`` are the first trees of the
    members; ``base`` their constants.
    """

    feature: Array
    threshold: Array
    leaf: Array
    starts: Array
    base: Array

    @classmethod
    def of_trees(cls, feature: Array, threshold: Array, leaf: Array) -> Forest:
        """Return the forest of one member without a constant."""
        return cls(
            feature=feature.astype(np.intp),
            threshold=threshold.astype(np.float32),
            leaf=leaf.astype(np.float32),
            starts=np.array([0]),
            base=np.zeros(1),
        )

    @property
    def depth(self) -> int:
        """Return the comparisons per row and tree."""
        return int(self.leaf.shape[1]).bit_length() - 1

    def predict(self, features: Array) -> Array:
        """Return (rows, members) sums of leaves plus bases, float64, for (rows, features) float32."""
        rows, width = features.shape
        trees = self.feature.shape[0]
        result = np.empty((rows, len(self.starts)))
        if not rows:
            return result
        flat = np.ascontiguousarray(features, dtype=np.float32).reshape(-1)
        inner = self.feature.shape[1]
        # take() wants intp indices, and mode="clip" spares it a second pass over them; they are in range by
        # construction.
        feature = self.feature.reshape(-1).astype(np.intp, copy=False)
        threshold = self.threshold.reshape(-1)
        leaf = self.leaf.reshape(-1)
        first = np.arange(trees, dtype=np.intp) * inner  # of each tree's nodes among all
        to_child = 1 - first
        to_leaf = np.arange(trees, dtype=np.intp) * (inner + 1) - inner - first
        step = max(1, _CHUNK // trees)
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            row = (np.arange(start, stop, dtype=np.intp) * width)[:, None]
            node = np.broadcast_to(first, (stop - start, trees)).copy()
            for _ in range(self.depth):
                at = feature.take(node, mode="clip")
                at += row
                right = flat.take(at, mode="clip") > threshold.take(node, mode="clip")
                node += node
                node += to_child
                node += right
            node += to_leaf
            leaves = leaf.take(node, mode="clip")
            result[start:stop] = np.add.reduceat(leaves, self.starts, axis=1, dtype=np.float64)
        return np.asarray(result + self.base)
