"""The cheapest edit path that keeps the order of execution.

Models of one family are sequences of blocks; what differs is blocks put in between. An assignment node by node tears
such a sequence apart, an alignment of the two orders (Needleman and Wunsch 1970) does not.
"""

from __future__ import annotations

import numpy as np

from gkestimator.merging.grouping.costs import absent, replaced
from gkestimator.merging.grouping.skeletons import Skeleton

MOST_CELLS = 16_000_000
"""Cells of the table, a byte each; where the graphs are larger, only a band along the diagonal is looked at."""
_REPLACE = 0
_DELETE = 1
_ADD = 2


def aligned(a: Skeleton, b: Skeleton, *, most_cells: int = MOST_CELLS) -> np.ndarray:
    """[nodes of a]: the node of b that each becomes, or -1; increasing where it is not -1.

    Needs nodes of a <= nodes of b. Costs of nodes as in :mod:`gkestimator.merging.grouping.costs`. Time and memory
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
