"""Find the cheapest edit path that keeps the order of execution, and say what an edit path costs.

Adding, deleting or replacing an operator costs 1, adding or deleting an edge 1 (our reading of USHER's
"operators added, deleted, replaced", section 3.4). Edges count because without them the distance is the
difference of two multisets of operator types, whatever the models do with them. An edge whose ends are both
kept or replaced stays, at no cost, where the other graph has an edge between the same two.

Half of an edge's cost is booked at each of its ends. A node i that becomes j then costs at least ``[labels
differ] + |in_i - in_j| / 2 + |out_i - out_j| / 2``, and a node added or deleted exactly ``1 + (in + out) /
2`` (BRANCH: Blumenthal and Gamper, "Improved lower bounds for graph edit distance", TKDE 2018, with edges
that have a direction and no label). This is a metric on (label, in, out) with "no node" as one more point, so
replacing is never dearer than deleting and adding, and nodes of equal class can be paired first at no loss.

Models of one family are sequences of blocks; what differs is blocks put in between. An assignment node by
node tears such a sequence apart, an alignment of the two orders (Needleman and Wunsch 1970) does not.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gkestimator.merging.grouping.skeletons import Skeleton

Ints: TypeAlias = "npt.NDArray[np.int64]"

MOST_CELLS = 16_000_000
"""Cells of the table, a byte each; where the graphs are larger, only a band along the diagonal is looked at."""
_REPLACE = 0
_DELETE = 1
_ADD = 2
_NOBODY = -1


def replaced(a: Ints, b: Ints) -> np.ndarray:
    """Return [n, m] least cost of replacing a node of class ``a[i]`` ([n, 3]) by one of class ``b[j]`` ([m,
    3]).
    """
    label, entering, leaving = (np.subtract.outer(a[:, k], b[:, k]) for k in range(3))
    edges = np.abs(entering) + np.abs(leaving)
    return np.asarray(edges * 0.5 + (label != 0))


def absent(classes: Ints) -> np.ndarray:
    """Return [n] cost of adding or deleting nodes of these classes ([n, 3]), with half of every edge."""
    return np.asarray(1.0 + 0.5 * (classes[:, 1] + classes[:, 2]))


def complete(chosen: Ints, a: Skeleton, b: Skeleton) -> Ints:
    """Return ``chosen`` with the nodes left over on both sides paired in order.

    Replacing costs no more than delete and add. ``chosen``: [nodes of a], the node of b that each becomes, or
    -1. Nodes with one label are paired first.
    """
    path = chosen.copy()
    labels = (a.labels, b.labels)
    no_labels = (np.zeros_like(a.labels), np.zeros_like(b.labels))
    for of_a, of_b in (labels, no_labels):
        free: dict[int, list[int]] = defaultdict(list)
        for j in np.setdiff1d(np.arange(b.nodes), path)[::-1].tolist():
            free[int(of_b[j])].append(j)
        for i in np.flatnonzero(path == _NOBODY).tolist():
            stack = free[int(of_a[i])]
            if stack:
                path[i] = stack.pop()
    return path


def path_cost(chosen: Ints, a: Skeleton, b: Skeleton) -> int:
    """Return the exact cost of the edit path that turns each node i of a into ``chosen[i]`` of b (-1: deletes
    it).

    Any such path bounds the graph edit distance from above.
    """
    stays = chosen != _NOBODY
    staying = int(stays.sum())
    other_label = a.labels[stays] != b.labels[chosen[stays]]
    nodes = int(other_label.sum()) + (a.nodes - staying) + (b.nodes - staying)
    ends = chosen[a.edges]
    ends = ends[(ends != _NOBODY).all(axis=1)]
    # an edge as one number
    weights = np.array([max(1, b.nodes), 1])
    common = int(np.isin(ends @ weights, b.edges @ weights).sum())
    return nodes + (len(a.edges) - common) + (len(b.edges) - common)


def aligned(a: Skeleton, b: Skeleton, *, most_cells: int = MOST_CELLS) -> Ints:
    """Return [nodes of a]: the node of b that each becomes, or -1; increasing where it is not -1.

    Needs nodes of a <= nodes of b. Time and memory O(min(n m, most_cells) + n + m).
    """
    n = a.nodes
    m = b.nodes
    chosen = _nobody(n)
    first = _common(a.classes, b.classes)
    last = _common(a.classes[first:][::-1], b.classes[first:][::-1])
    chosen[:first] = np.arange(first)
    chosen[n - last :] = np.arange(m - last, m)
    middle = _table(a.classes[first : n - last], b.classes[first : m - last], most_cells)
    chosen[first : n - last] = np.where(middle == _NOBODY, _NOBODY, middle + first)
    return chosen


def _nobody(count: int) -> Ints:
    return np.full(count, _NOBODY, dtype=np.int64)


def _common(a: Ints, b: Ints) -> int:
    """Return how many rows are equal from the start on."""
    short = min(len(a), len(b))
    differ = np.flatnonzero((a[:short] != b[:short]).any(axis=1))
    if len(differ):
        return int(differ[0])
    return short


def _doubled(costs: np.ndarray) -> Ints:
    """Return twice the costs: whole numbers, so that ties are ties on every machine."""
    doubled: Ints = np.rint(2 * costs).astype(np.int64)
    return doubled


def _table(a: Ints, b: Ints, most_cells: int) -> Ints:
    """Return the alignment of two lists of classes, [len(a)].

    Row i of the table holds the (doubled) costs of turning the first i nodes of a into the first j of b, for
    the columns j of a band ``low[i] .. low[i] + width``.
    """
    n = len(a)
    m = len(b)
    if not n or not m:
        return _nobody(n)
    width = min(m, max(m // n + 2, most_cells // (n + 1)))  # at least so wide that neighbouring bands overlap
    low = np.arange(n + 1, dtype=np.int64) * (m - width) // n
    delete = _doubled(absent(a))
    add = np.concatenate([[0], np.cumsum(_doubled(absent(b)))])
    far = 2 * int(delete.sum() + add[-1]) + 4
    moves = np.empty((n + 1, width + 1), dtype=np.uint8)
    moves[0] = _ADD
    costs = add[: width + 1].copy()
    for i in range(1, n + 1):
        start = int(low[i])
        shift = start - int(low[i - 1])
        # columns start - 1 .. start + width of the row before
        above = np.full(width + 2, far, dtype=np.int64)
        above[max(0, 1 - shift) : width + 2 - shift] = costs[max(0, shift - 1) :]
        down = above[1:] + delete[i - 1]
        across = above[:-1].copy()
        exchange = _doubled(replaced(a[i - 1 : i], b[max(0, start - 1) : start + width])[0])
        # before the first node of b nothing can be replaced
        if start == 0:
            across[0] = far
            across[1:] += exchange
        else:
            across += exchange
        best = np.minimum(down, across)
        moves[i] = np.where(across <= down, _REPLACE, _DELETE)
        span = add[start : start + width + 1]
        # adding nodes of b runs along the row: a running minimum instead of a loop over columns
        costs = np.minimum.accumulate(best - span) + span
        moves[i][costs < best] = _ADD
    return _traced(moves, low, m)


def _traced(moves: np.ndarray, low: Ints, column: int) -> Ints:
    """Return the node of b for each node of a, by the moves that led to the table's last cell."""
    row = len(moves) - 1
    chosen = _nobody(row)
    while row > 0:
        move = moves[row, column - low[row]]
        if move == _ADD:
            column -= 1
            continue
        row -= 1
        if move == _REPLACE:
            column -= 1
            chosen[row] = column
    return chosen
