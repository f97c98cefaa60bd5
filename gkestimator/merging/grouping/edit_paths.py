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


MOST_CELLS = 16_000_000
"""Cells of the table, a byte each; where the graphs are larger, only a band along the diagonal is looked at."""
_REPLACE = 0
_DELETE = 1
_ADD = 2


def aligned(a: Skeleton, b: Skeleton, *, most_cells: int = MOST_CELLS) -> np.ndarray:
    """[nodes of a]: the node of b that each becomes, or -1; increasing where it is not -1.

    Needs nodes of a <= nodes of b. Costs of nodes as in :mod:`gkestimator.merging.grouping.edit_paths`. Time and memory
    O(min(n m, most_cells) + n + m).
    """
    n = a.nodes
    m = b.nodes
    chosen = np.full(n, -1, dtype=np.int64)
    first = _common(a.classes, b.classes)
    last = _common(a.classes[first:][::-1], b.classes[first:][::-1])
    chosen[:first] = np.arange(first)
    chosen[n - last :] = np.arange(m - last, m)
    middle = _table(a.classes[first : n - last], b.classes[first : m - last], most_cells)
    chosen[first : n - last] = np.where(middle >= 0, middle + first, -1)
    return chosen


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """How many rows are equal from the start on."""
    short = min(len(a), len(b))
    differ = np.flatnonzero((a[:short] != b[:short]).any(axis=1))
    if len(differ):
        return int(differ[0])
    return short


def _table(a: np.ndarray, b: np.ndarray, most_cells: int) -> np.ndarray:
    """The alignment of two lists of classes, [len(a)].

    Row i of the table holds the costs of turning the first i nodes of a into the first j of b, for the columns j of a
    band ``low[i] .. low[i] + width``. Costs are doubled: whole numbers, so that ties are ties on every machine.
    """
    n = len(a)
    m = len(b)
    chosen = np.full(n, -1, dtype=np.int64)
    if not n or not m:
        return chosen
    width = min(m, max(m // n + 2, most_cells // (n + 1)))  # at least so wide that neighbouring bands overlap
    low = np.arange(n + 1, dtype=np.int64) * (m - width) // n
    far = 4 * int(absent(a).sum() + absent(b).sum()) + 4
    add = np.concatenate([[0], np.cumsum(np.rint(2 * absent(b)).astype(np.int64))])
    delete = np.rint(2 * absent(a)).astype(np.int64)
    moves = np.empty((n + 1, width + 1), dtype=np.uint8)
    moves[0] = _ADD
    before = add[: width + 1].copy()
    for i in range(1, n + 1):
        start = int(low[i])
        shift = int(low[i] - low[i - 1])
        above = np.full(
            width + 2, far, dtype=np.int64
        )  # columns start - 1 .. start + width of the row before
        above[max(0, 1 - shift) : width + 2 - shift] = before[max(0, shift - 1) :]
        down = above[1:] + delete[i - 1]
        across = above[:-1].copy()
        one = slice(1 if start == 0 else 0, width + 1)
        columns = np.arange(start, start + width + 1)[one] - 1
        across[one] += np.rint(2 * replaced(a[i - 1 : i], b[columns])[0]).astype(np.int64)
        if start == 0:
            across[0] = far
        best = np.minimum(down, across)
        moves[i] = np.where(across <= down, _REPLACE, _DELETE)
        span = add[start : start + width + 1]
        now = np.minimum.accumulate(best - span) + span
        moves[i][now < best] = _ADD
        before = now
    i = n
    j = m
    while i > 0:
        move = moves[i, j - low[i]]
        if move == _ADD:
            j -= 1
            continue
        i -= 1
        if move == _REPLACE:
            j -= 1
            chosen[i] = j
    return chosen
