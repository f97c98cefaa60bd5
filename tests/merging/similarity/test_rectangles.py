"""The largest rectangle of ones against every rectangle there is."""

from __future__ import annotations

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


def test_no_ones() -> None:
    assert [v.tolist() for v in largest_rectangles(np.zeros((2, 3, 4), np.bool_))] == [[0, 0]] * 4


def test_a_mask_without_cells() -> None:
    assert [v.tolist() for v in largest_rectangles(np.zeros((1, 0, 4), np.bool_))] == [[0]] * 4
