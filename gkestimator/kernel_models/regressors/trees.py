"""Ensembles of regression trees as flat arrays, evaluated for all rows and trees at once."""

from __future__ import annotations

import numpy as np

from gkestimator.core.records import frozen

_CHUNK = (
    1 << 17
)  # (row, tree) pairs walked at once: index, value and comparison arrays stay within a core's L2


@frozen
class Forest:
    """Complete binary trees of one depth, possibly of several members.

    ``feature`` (trees, 2**depth - 1), ``threshold`` likewise, ``leaf`` (trees, 2**depth). A row goes right
    where its float32 feature is greater than the threshold; the children of node i are 2i + 1 and 2i + 2. A
    tree that ends early repeats its leaf below a threshold of +inf. ``starts`` are the first trees of the
    members; ``base`` their constants.
    """

    feature: np.ndarray
    threshold: np.ndarray
    leaf: np.ndarray
    starts: np.ndarray
    base: np.ndarray

    @property
    def depth(self) -> int:
        """Comparisons per row and tree."""
        return int(self.leaf.shape[1]).bit_length() - 1

    def predict(self, features: np.ndarray) -> np.ndarray:
        """(rows, members) sums of leaves plus bases, float64, for (rows, features) float32."""
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
