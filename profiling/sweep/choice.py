"""Which candidates come first: those that bring all others nearer to something measured, groups in turn.

Inside a group (a kernel family in a precision) the next candidate is the one that shortens the (weighted) distances of
all candidates to the nearest chosen one most: greedy facility location, within 1 - 1/e of the best choice of every
length at once (Nemhauser, Wolsey, Fisher 1978), evaluated lazily (Minoux 1978). Every fourth is the farthest point
instead, so that corners are inside the training range. Groups are merged by stride scheduling: each is as far as its
share says. The order does not depend on where it is cut, so every prefix is the choice for its own budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeVar

import numpy as np

Key = TypeVar("Key")
FARTHEST_EVERY = 4
_FARTHEST = 3.0  # standard deviations: one absurd size shall not outweigh everything else


def standardised(features: np.ndarray) -> np.ndarray:
    """Return columns with mean 0 and deviation 1, cut at three deviations, over the root of their number;
    constant columns are dropped. (rows, features) in float32."""
    if not len(features):
        return np.zeros((0, 1), dtype=np.float32)
    columns = np.asarray(features, dtype=np.float64)
    columns = columns[:, columns.std(axis=0) > 1e-9]
    count = columns.shape[1]
    if not count:
        return np.zeros((len(columns), 1), dtype=np.float32)
    scaled = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    cut = np.clip(scaled, -_FARTHEST, _FARTHEST)
    return np.asarray(cut / np.sqrt(count), dtype=np.float32)


def spread(points: np.ndarray, demand: np.ndarray, ease: np.ndarray, taken: np.ndarray) -> Iterator[int]:
    """Yield the rows of ``points`` that are not ``taken`` (a mask), the most valuable next one first, all in the end.

    Value: by how much the row shortens the distances of all rows to the nearest one chosen (or taken), each distance
    times the row's ``demand``, all of it times the chosen row's ``ease``. Ties go to the lower row.
    """
    squares = np.einsum("ij,ij->i", points, points)
    left = ~np.asarray(taken, dtype=bool)
    # Nothing chosen: everything is as far away as two rows can be, which makes the first the (weighted) median.
    longest = math.sqrt(float(squares.max(initial=0.0)))
    nearest = np.full(len(points), 2.0 * longest + 1e-6)

    def come_nearer(row: int) -> None:
        np.minimum(nearest, _distances(points, squares, row), out=nearest)

    def gain(row: int) -> float:
        shorter = np.maximum(nearest - _distances(points, squares, row), 0.0)
        return float(shorter @ demand) * float(ease[row])

    for row in np.flatnonzero(~left).tolist():
        come_nearer(row)
    heap = [(-gain(row), row) for row in np.flatnonzero(left).tolist()]
    heapify(heap)
    for turn in range(1, len(heap) + 1):
        if turn % FARTHEST_EVERY == 0:
            # What no candidate is near to would else come last: corners, which the training range must hold.
            row = int(np.argmax(np.where(left, nearest, -1.0)))
        else:
            row = _largest(heap, left, gain)
        left[row] = False
        yield row
        come_nearer(row)


def _largest(heap: list[tuple[float, int]], left: np.ndarray, gain: Callable[[int], float]) -> int:
    """Return the row of the largest gain: what is on the heap are gains of before, which none exceeds since."""
    while True:
        _, row = heappop(heap)
        if not left[row]:
            continue
        now = (-gain(row), row)
        if not heap or now <= heap[0]:
            return row
        heappush(heap, now)


def _distances(points: np.ndarray, squares: np.ndarray, row: int) -> np.ndarray:
    """Return the distances of all rows to one."""
    products = points @ points[row]
    # Rounding takes the square of a distance of nothing below zero.
    distances: np.ndarray = np.sqrt(np.maximum(squares + squares[row] - 2 * products, 0.0))
    return distances.astype(np.float64)


def choose_order(
    groups: Mapping[Key, Sequence[int]],
    points: Mapping[Key, np.ndarray],
    demand: np.ndarray,
    ease: np.ndarray,
    shares: Mapping[Key, float],
    taken: np.ndarray,
) -> Iterator[int]:
    """Yield candidates that are not ``taken``, the most valuable next one first.

    ``groups`` lists each group's candidates; ``points`` holds their (standardised) features in the same order;
    ``demand``, ``ease`` (see
    :func:`spread`) and ``taken`` are by candidate. A group is due half of ``1 / share`` after the start and
    then every ``1 / share``, which keeps small groups from coming last.
    """
    streams = {}
    heap: list[tuple[float, int, Key]] = []
    for number, (name, members) in enumerate(groups.items()):
        index = np.asarray(members, dtype=np.intp)
        stream = spread(points[name], demand[index], ease[index], taken[index])
        streams[name] = (index, stream)
        heap.append((0.5 / shares[name], number, name))
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
