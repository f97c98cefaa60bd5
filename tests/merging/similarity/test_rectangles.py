"""The largest rectangle of ones against every rectangle there is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gkestimator.merging.similarity.rectangles import largest_rectangles


def by_definition(mask: np.ndarray) -> tuple[int, int, int, int]:
    best, key = (0, 0, 0, 0), (0, 0, 0, 0)
    for top in range(mask.shape[0]):
        for left in range(mask.shape[1]):
            for bottom in range(top + 1, mask.shape[0] + 1):
                for right in range(left + 1, mask.shape[1] + 1):
                    area = (bottom - top) * (right - left)
                    if mask[top:bottom, left:right].all() and (-area, top, left, top - bottom) < key:
                        best, key = (top, left, bottom - top, right - left), (-area, top, left, top - bottom)
    return best


@pytest.mark.parametrize("share", [0.3, 0.6, 0.85, 1.0])
def test_every_rectangle_of_random_masks(share: float) -> None:
    rng = np.random.default_rng(int(share * 100))
    for shape in [(1, 1), (1, 7), (7, 1), (5, 6), (6, 5), (4, 4)]:
        masks = rng.random((40, *shape)) < share
        found = np.stack(largest_rectangles(masks), axis=1).tolist()
        assert found == [list(by_definition(m)) for m in masks]


@pytest.mark.parametrize("shape", [(60, 90), (90, 60)])
def test_rows_and_columns_that_are_alike(shape: tuple[int, int]) -> None:
    """A large mask made of few blocks has the rectangle of its blocks; by every pair of edges."""
    rng = np.random.default_rng(8)
    for _ in range(15):
        row_edges = [0, *sorted(rng.choice(range(1, shape[0]), 4, replace=False).tolist()), shape[0]]
        column_edges = [0, *sorted(rng.choice(range(1, shape[1]), 5, replace=False).tolist()), shape[1]]
        small = rng.random((5, 6)) < 0.7
        mask = np.repeat(np.repeat(small, np.diff(row_edges), 0), np.diff(column_edges), 1)
        key = (0, 0, 0, 0)
        for t, u in itertools.combinations(row_edges, 2):
            for f, e in itertools.combinations(column_edges, 2):
                if mask[t:u, f:e].all():
                    key = min(key, (-(u - t) * (e - f), t, f, t - u))
        row, column, rows, columns = (int(v[0]) for v in largest_rectangles(mask[None]))
        assert (-rows * columns, row, column, -rows) == key


def test_no_ones() -> None:
    assert [v.tolist() for v in largest_rectangles(np.zeros((2, 3, 4), np.bool_))] == [[0, 0]] * 4


def test_a_mask_without_cells() -> None:
    assert [v.tolist() for v in largest_rectangles(np.zeros((1, 0, 4), np.bool_))] == [[0]] * 4
