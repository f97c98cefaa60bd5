"""What an edit path costs, and the costs of single nodes that bound it.

Adding, deleting or replacing an operator costs 1, adding or deleting an edge 1 (our reading of USHER's "operators
added, deleted, replaced", section 3.4). Edges count because without them the distance is the difference of two
multisets of operator types, whatever the models do with them. An edge whose ends are both kept or replaced stays, at
no cost, where the other graph has an edge between the same two.

Half of an edge's cost is booked at each of its ends. A node i that becomes j then costs at least
``[labels differ] + |in_i - in_j| / 2 + |out_i - out_j| / 2``, and a node added or deleted exactly
``1 + (in + out) / 2`` (BRANCH: Blumenthal and Gamper, "Improved lower bounds for graph edit distance", TKDE 2018, with
edges that have a direction and no label). This is a metric on (label, in, out) with "no node" as one more point, so
replacing is never dearer than deleting and adding, and nodes of equal class can be paired first at no loss.
"""

from __future__ import annotations

import numpy as np

from gkestimator.merging.grouping.skeletons import Skeleton


def replaced(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[n, m] least cost of replacing a node of class ``a[i]`` ([n, 3]) by one of class ``b[j]`` ([m, 3])."""
    cost = np.abs(a[:, None, 1] - b[None, :, 1]) + np.abs(a[:, None, 2] - b[None, :, 2])
    return np.asarray(cost * 0.5 + (a[:, None, 0] != b[None, :, 0]))


def absent(classes: np.ndarray) -> np.ndarray:
    """[n] cost of adding or deleting nodes of these classes ([n, 3]), with half of every edge."""
    return np.asarray(1.0 + 0.5 * (classes[:, 1] + classes[:, 2]))


def complete(chosen: np.ndarray, a: Skeleton, b: Skeleton) -> np.ndarray:
    """``chosen`` with the nodes left over on both sides paired in order: replacing costs no more than delete and add.

    ``chosen``: [nodes of a], the node of b that each becomes, or -1. Nodes with one label are paired first.
    """
    found = chosen.copy()
    for by_label in (True, False):
        free_b: dict[int, list[int]] = {}
        for j in np.setdiff1d(np.arange(b.nodes), found[found >= 0])[::-1].tolist():
            free_b.setdefault(int(b.labels[j]) if by_label else 0, []).append(j)
        for i in np.flatnonzero(found < 0).tolist():
            stack = free_b.get(int(a.labels[i]) if by_label else 0)
            if stack:
                found[i] = stack.pop()
    return found


def path_cost(chosen: np.ndarray, a: Skeleton, b: Skeleton) -> int:
    """Exact cost of the edit path that turns each node i of a into ``chosen[i]`` of b (-1: deletes it).

    Any such path bounds the graph edit distance from above.
    """
    kept = chosen >= 0
    nodes = int((a.labels[kept] != b.labels[chosen[kept]]).sum()) + a.nodes + b.nodes - 2 * int(kept.sum())
    ends = chosen[a.edges]
    ends = ends[(ends >= 0).all(axis=1)]
    wide = max(1, b.nodes)
    common = int(np.isin(ends[:, 0] * wide + ends[:, 1], b.edges[:, 0] * wide + b.edges[:, 1]).sum())
    return nodes + len(a.edges) + len(b.edges) - 2 * common
