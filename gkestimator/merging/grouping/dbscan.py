"""DBSCAN on a matrix of distances (scikit-learn's takes longer to import than a merge; a test compares the two)."""

from __future__ import annotations

import numpy as np

ALONE = -1


def dbscan(distances: np.ndarray, *, epsilon: float, least: int) -> np.ndarray:
    """[n], the cluster of each point, numbered from 0 in the order of their first core points; ``ALONE``: in none.

    ``distances``: [n, n], symmetric, 0 on the diagonal. Points within ``epsilon`` (inclusive) are neighbours; a point
    with at least ``least`` neighbours, itself among them, is a core point. A cluster is what can be reached from a
    core point by steps from core points to neighbours; a point that is no core point belongs to the first cluster that
    reaches it (Ester, Kriegel, Sander, Xu: "A density-based algorithm for discovering clusters", KDD 1996). O(n^2).
    """
    near = distances <= epsilon
    core = near.sum(axis=1) >= least
    found = np.full(len(distances), ALONE, dtype=np.int64)
    clusters = 0
    for first in np.flatnonzero(core).tolist():
        if found[first] != ALONE:
            continue
        stack = [first]
        found[first] = clusters
        while stack:
            point = stack.pop()
            if core[point]:
                reached = np.flatnonzero(near[point] & (found == ALONE))
                found[reached] = clusters
                stack.extend(reached.tolist())
        clusters += 1
    return found
