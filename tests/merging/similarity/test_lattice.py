"""The lattice's promise, window by window: a tile in every window, and a sample in every tile."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gkestimator.merging.similarity.lattice import Lattice, lattices, slacks, with_fewer_values


@pytest.mark.parametrize("window", range(1, 13))
@pytest.mark.parametrize("pattern", [1, 2, 4])
def test_every_window_holds_a_tile(window: int, pattern: int) -> None:
    for tile in range(1, window - pattern + 2):
        made = Lattice(window=(window, window), pattern=(pattern, pattern, 1), tile=(tile, tile))
        span = made.span[0]
        for size in range(window, 40):
            for slack in (0.0, 0.3, 0.5, 1.0):
                starts = made.starts(0, size, slack).tolist()
                assert all(0 <= s <= size - span for s in starts)
                for first in range(size - window + 1):
                    assert any(first <= s and s + span <= first + window for s in starts), (tile, size, slack)


def test_a_rectangle_of_enough_cells_is_as_large_as_the_window() -> None:
    for a, b in itertools.product([(3, 9, 1), (8, 8, 2), (12, 5, 1)], repeat=2):
        high, wide = min(a[0], b[0]), min(a[1], b[1])
        for cells in range(1, high * wide + 1):
            every = lattices(a, b, cells=cells)
            every = (*every, *(with_fewer_values(m, a, b, many=(1, 1)) for m in every))
            for rows, columns in itertools.product(range(1, high + 1), range(1, wide + 1)):
                if rows * columns >= cells:
                    assert any(rows >= m.window[0] and columns >= m.window[1] for m in every)
            assert all(m.span[0] <= m.window[0] and m.span[1] <= m.window[1] for m in every)
            assert all(m.window[0] <= high and m.window[1] <= wide for m in every)


@pytest.mark.parametrize("omega", [0.4, 0.1, 0.01, 0.001])
def test_work_is_below_linear(omega: float) -> None:
    shape = (768, 3072, 1)
    size = 768 * 3072
    work = 0
    for made in lattices(shape, shape, cells=int(omega * size)):
        work += np.prod([made.starts(k, shape[k], 0.5).size * made.tile[k] for k in (0, 1)])
        work += size // np.prod(made.tile)
    assert work < 30 * (size / omega) ** 0.5


def test_slacks_are_distinct_and_allowed() -> None:
    found = list(slacks())
    assert len(set(found)) == len(found)
    assert all(0 <= s <= 1 for pair in found for s in pair)
