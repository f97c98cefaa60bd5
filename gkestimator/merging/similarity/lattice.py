"""Choose where anchors are: few places of one weight, and a grid of places of the other, of which two must
meet.

Derivation. A common rectangle of at least F cells of weights of R x C and R' x C' cells has at least ``h0 =
ceil(F / min(C, C'))`` rows and ``w0 = ceil(F / min(R, R'))`` columns. A *tile* is ``s1`` x ``s2``
neighbouring places of the first weight, each the corner of a *pattern* of ``k1`` x ``k2`` cells: it spans
``e1 = s1 + k1 - 1`` rows and ``e2 = s2 + k2 - 1`` columns. Tiles that start at most ``h0 - e1 + 1`` rows and
``w0 - e2 + 1`` columns apart leave no room for a window of h0 x w0 that holds none of them wholly. Where a
rectangle that holds a tile lies in the second weight, the tile's places are ``s1`` x ``s2`` neighbours there
too, and exactly one of these has a row that ``s1`` divides and a column that ``s2`` divides. So the patterns
at all places of all tiles of the first weight, and at every ``s1``-th row and ``s2``-th column of the second,
are enough. With s1 s2 about the root of the number of cells, both are about that many: the search is below
linear.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.merging.operators import Pair
from gkestimator.merging.similarity.equality import Ints

VALUES = 16  # of a pattern, at most: a hash of few values meets by chance too often
_MOST_TILE = 64  # places along one axis of a tile
_RATIOS = (1 << 40, 16, 4, 2)  # of the heights of one class
_FIXED = 2000  # what a lattice costs for each weight besides its places, in places

Shape: TypeAlias = tuple[int, int, int]


@frozen
class Lattice:
    """Hold ``window``: least rows and columns of a rectangle; ``pattern``: rows, columns, taps; ``tile``:
    rows, columns.
    """

    window: Pair
    pattern: tuple[int, int, int]
    tile: Pair

    @property
    def span(self) -> Pair:
        """Return rows and columns of a tile and its patterns: a rectangle has them wholly."""
        return self.tile[0] + self.pattern[0] - 1, self.tile[1] + self.pattern[1] - 1

    @property
    def values(self) -> int:
        """Return how many values a pattern has."""
        return math.prod(self.pattern)

    def starts(self, axis: int, size: int, slack: float) -> Ints:
        """Return where tiles start along ``axis`` of a weight with ``size`` rows or columns.

        Every window has one wholly. ``slack`` in [0, 1] says which of the allowed places are taken.
        """
        window = self.window[axis]
        span = self.span[axis]
        windows = size - window + 1
        count = _ceiling(windows, window - span + 1)
        step = _ceiling(windows, count)
        first = np.arange(0, windows, step, dtype=np.int64)
        last = np.minimum(first + step, windows) - 1
        # A window that starts anywhere in [first, last] holds a tile that starts in [last, first + window - span].
        room = first + window - span - last
        chosen: Ints = last + np.floor(room * slack).astype(np.int64)
        return chosen


def _ceiling(number: int, divisor: int) -> int:
    return -(-number // divisor)


def slacks() -> Iterator[tuple[float, float]]:
    """Yield choices of the tiles' places, for weights where some places tell little (zeros)."""
    for rows in (0.5, 0.0, 1.0, 0.25, 0.75):
        for columns in (0.5, 0.0, 1.0):
            yield rows, columns


def lattices(
    a: Shape, b: Shape, *, cells: int, many: Pair = (1, 1), values: int = VALUES
) -> tuple[Lattice, ...]:
    """Return lattices that together find every rectangle of at least ``cells`` cells in weights of shapes
    ``a`` and ``b``.

    One window for all heights is small where rectangles may be flat as well as tall, so heights are cut into
    classes (from ``h`` to some multiple of it), each with its own lattice and window, if that is less work.
    ``many``: how many weights there are of each, which share the lattices. ``cells`` is at most min(rows) x
    min(columns).
    """
    high = min(a[0], b[0])
    wide = min(a[1], b[1])
    choices: list[tuple[int, list[Lattice]]] = []
    for ratio in _RATIOS:
        made = [_lattice(a, b, window, many, values) for window in _windows(high, wide, cells, ratio)]
        work = sum(own for own, _ in made) + _FIXED * sum(many) * len(made)
        choices.append((work, [lattice for _, lattice in made]))
    _, best = min(choices, key=lambda choice: choice[0])
    return tuple(best)


def with_fewer_values(made: Lattice, a: Shape, b: Shape, *, many: Pair) -> Lattice:
    """Return the lattice for the same window with patterns of half as many values."""
    return _lattice(a, b, made.window, many, max(1, made.values // 2))[1]


def _windows(high: int, wide: int, cells: int, ratio: int) -> Iterator[Pair]:
    """Yield the least rows and columns of rectangles of ``cells`` cells, by classes of their height."""
    low = _ceiling(cells, wide)
    while low <= high:
        top = min(high, low * ratio - 1)
        yield low, _ceiling(cells, top)
        low = top + 1


def _lattice(a: Shape, b: Shape, window: Pair, many: Pair, values: int) -> tuple[int, Lattice]:
    """Return the lattice for one window with the tile of the least work, and how many places it hashes."""
    # taps first, then columns: what lies side by side in memory
    taps = min(a[2], values)
    columns = _part(values // taps, window[1])
    rows = _part(values // (taps * columns), window[0])
    choices: list[tuple[int, Lattice]] = []
    for high in _sizes(window[0] - rows + 1):
        for wide in _sizes(window[1] - columns + 1):
            made = Lattice(window=window, pattern=(rows, columns, taps), tile=(high, wide))
            of_a = _places(made, a, 0) * _places(made, a, 1)
            of_b = _ceiling(b[0], high) * _ceiling(b[1], wide)
            choices.append((many[0] * of_a + many[1] * of_b, made))
    return min(choices, key=lambda choice: choice[0])


def _part(wanted: int, window: int) -> int:
    """Return how much of a window the pattern takes: half at most where that is less than wanted."""
    return max(1, min(wanted, (window + 1) // 2))


def _sizes(most: int) -> list[int]:
    """Return tile sizes worth a try: at most ``most``, and no more than leaves some choice of the places."""
    top = min(_MOST_TILE, max(1, most // 2))
    return [1 << k for k in range(top.bit_length())]


def _places(made: Lattice, shape: Shape, axis: int) -> int:
    window = made.window[axis]
    span = made.span[axis]
    return _ceiling(shape[axis] - window + 1, window - span + 1) * made.tile[axis]
