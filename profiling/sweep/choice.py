"""Which candidates come first: space-filling in each group of kernels, groups in proportion to their shares.

Inside a group (a kernel family in a precision) the next candidate is the one farthest from everything chosen
(farthest-point traversal, Gonzalez 1985: at most twice the best possible covering radius, for every length at
once), its distance weighted. Groups are merged by stride scheduling: each is as far as its share says. The order
does not depend on where it is cut, so every prefix is the choice for its own budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import TypeVar

import numpy as np

__all__ = ["choose_order", "spread", "standardised"]

Key = TypeVar("Key")
_FARTHEST = 3.0  # standard deviations: one absurd size shall not outweigh everything else


def standardised(features: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and deviation 1, cut at three deviations, over the root of their number; constant columns are
    dropped. (rows, features) in float32."""
    if not len(features):
        return np.zeros((0, 1), dtype=np.float32)
    found = np.asarray(features, dtype=np.float64)
    deviation = found.std(axis=0)
    kept = deviation > 1e-9
    if not kept.any():
        return np.zeros((len(found), 1), dtype=np.float32)
    scaled = (found[:, kept] - found[:, kept].mean(axis=0)) / deviation[kept]
    return np.asarray(np.clip(scaled, -_FARTHEST, _FARTHEST) / np.sqrt(kept.sum()), dtype=np.float32)


def spread(points: np.ndarray, weights: np.ndarray, taken: np.ndarray) -> Iterator[int]:
    """Rows of ``points`` that are not ``taken`` (a mask), the most valuable next one first, all in the end.

    Value: distance to the nearest row taken or given so far, times the row's weight. With nothing taken the first is
    the heaviest of those nearest to the centre. Ties go to the lower row.
    """
    count = len(points)
    squares = np.einsum("ij,ij->i", points, points)
    left = ~np.asarray(taken, dtype=bool)
    nearest = np.full(count, np.inf, dtype=np.float64)
    for given in np.flatnonzero(~left):
        np.minimum(nearest, _distances(points, squares, int(given)), out=nearest)
    if left.all() and count:
        central = np.sqrt(squares) / weights
        first = int(np.argmin(central))
        left[first] = False
        yield first
        np.minimum(nearest, _distances(points, squares, first), out=nearest)
    for _ in range(int(left.sum())):
        value = np.where(left, np.sqrt(nearest) * weights, -1.0)
        row = int(np.argmax(value))
        left[row] = False
        yield row
        np.minimum(nearest, _distances(points, squares, row), out=nearest)


def _distances(points: np.ndarray, squares: np.ndarray, row: int) -> np.ndarray:
    """Squared distances of all rows to one."""
    found: np.ndarray = np.maximum(squares + squares[row] - 2 * (points @ points[row]), 0.0)
    return found.astype(np.float64)


def choose_order(
    groups: Mapping[Key, Sequence[int]],
    points: Mapping[Key, np.ndarray],
    weights: np.ndarray,
    shares: Mapping[Key, float],
    taken: np.ndarray,
) -> Iterator[int]:
    """Candidates that are not ``taken``, the most valuable next one first.

    ``groups`` lists each group's candidates; ``points`` holds their (standardised) features in the same order;
    ``weights`` and ``taken`` are by candidate. A group is due after ``1 / share`` of every entry it had.
    """
    streams = {}
    heap: list[tuple[float, int, Key]] = []
    for number, (name, members) in enumerate(groups.items()):
        index = np.asarray(members, dtype=np.intp)
        streams[name] = (index, spread(points[name], weights[index], taken[index]))
        heap.append((1.0 / shares[name], number, name))
    heapify(heap)
    while heap:
        due, number, name = heap[0]
        index, stream = streams[name]
        row = next(stream, None)
        if row is None:
            heap[0] = heap[-1]
            heap.pop()
            heapify(heap)
            continue
        heapreplace(heap, (due + 1.0 / shares[name], number, name))
        yield int(index[row])
