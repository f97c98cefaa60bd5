"""Weights of few distinct values: found all the same, or said not to be certain."""

from __future__ import annotations

import numpy as np
import pytest
from _largest import by_anchors, by_every_shift, largest_common_rectangle
from _rectangle_oracle import largest_block
from _weight_cases import block, matrix

from gkestimator.merging.similarity import growing, search, similar_pairs
from gkestimator.merging.similarity.reaching import Reach


def normal(rows: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns, 1)).astype("f4")


def test_zero_rows_at_different_places() -> None:
    """Channels set to zero: 100 rows of one, 120 of the other; at most shifts some zeros meet zeros."""
    a, b = normal(192, 256, 1), normal(192, 256, 2)
    a[:100] = 0
    b[72:] = 0
    found = largest_common_rectangle(a, b, tolerance=1e-7, least=192 * 256 * 2 // 5)
    assert block(found) == (100, 256, 0, 0, 72, 0) and found is not None and found.exact


def test_all_zero_but_one_value() -> None:
    a, b = np.zeros((192, 256, 1), "f4"), np.zeros((192, 256, 1), "f4")
    b[5, 7] = 1
    found = largest_common_rectangle(a, b, tolerance=1e-7, least=192 * 256 // 2)
    # 192 x 248 beside the one; row 0 and column 0 of a can be the block's first.
    assert block(found) == (192, 248, 0, 0, 0, 8) and found is not None and found.exact


@pytest.mark.parametrize("letters", [2, 3])
def test_few_letters(letters: int) -> None:
    rng = np.random.default_rng(letters)
    a, b = (rng.integers(0, letters, (96, 96, 1)).astype("f4") for _ in range(2))
    b[10:70, 20:80] = a[30:90, 0:60]
    found = largest_common_rectangle(a, b, tolerance=0.0, least=3000)
    assert block(found) == (60, 60, 30, 0, 10, 20) and found is not None and found.exact


def test_rows_of_one_value_each() -> None:
    """Every column shift is equal; only the row shift tells."""
    a = np.repeat(normal(100, 1, 3), 200, axis=1)
    b = np.roll(a, 7, axis=0)
    found = largest_common_rectangle(a, b, tolerance=0.0, least=9000)
    assert block(found) == (93, 200, 0, 0, 7, 0) and found is not None and found.exact


@pytest.mark.parametrize("seed", range(20))
def test_reach_is_a_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one value, with the bounds asked for every pair: as every shift; and each bound against the definition."""
    rng = np.random.default_rng(seed)
    a, b = (
        np.repeat(np.repeat(rng.integers(0, 2, (4, 5, 1)), 3, 0), 2, 1)[: 12 - k, : 9 + k].astype("f4")
        for k in range(2)
    )
    a[rng.random(a.shape) < 0.1] = np.nan
    tolerance = float(rng.choice([0.0, 0.5, 1.0]))
    monkeypatch.setattr(search, "_MANY", 0)
    expected = by_every_shift(a, b, tolerance=tolerance)
    assert block(expected) == largest_block(a.tolist(), b.tolist(), tolerance)
    area = expected.rows * expected.columns if expected else 1
    assert by_anchors(a, b, tolerance=tolerance, cells=area) == (expected, True)
    every = [tuple(np.arange(n) for n in w.shape[:2]) for w in (a, b)]
    places = np.stack(np.meshgrid(*every[0], *every[1], indexing="ij")).reshape(4, -1)
    most = Reach(a, b, every[0], every[1], tolerance).most(*places)
    for (ra, ca, rb, cb), bound in zip(places.T.tolist(), most.tolist(), strict=True):
        same = abs(a[ra, ca, 0] - b[rb, cb, 0]) <= tolerance
        high = wide = 0
        if same:
            high = run(a[:, ca, 0], b[:, cb, 0], ra, rb, tolerance)
            wide = run(a[ra, :, 0], b[rb, :, 0], ca, cb, tolerance)
        assert bound >= high * wide
        assert (bound == 0) == (not same)


def run(x: np.ndarray, y: np.ndarray, i: int, j: int, tolerance: float) -> int:
    first = last = 0
    while i + last < x.size and j + last < y.size and abs(x[i + last] - y[j + last]) <= tolerance:
        last += 1
    while i - first >= 0 and j - first >= 0 and abs(x[i - first] - y[j - first]) <= tolerance:
        first += 1
    return first + last - 1


def test_a_tolerance_that_is_wide_beside_the_values() -> None:
    """Half of all values may lie in either of two buckets: patterns of 16 would have hundreds of hashes each."""
    a, b = normal(96, 96, 8), normal(96, 96, 9)
    apart = np.random.default_rng(10).uniform(-0.09, 0.09, (80, 80, 1)).astype("f4")
    b[10:90, 5:85] = a[3:83, 12:92] + apart
    found, certain = by_anchors(a, b, tolerance=0.1, cells=5000)
    assert block(found) == (80, 80, 3, 12, 10, 5) and certain


def test_a_search_that_gives_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal(96, 96, 4), normal(96, 96, 5)
    b[10:90, 10:90] = a[5:85, 5:85]
    b[50, 50] += 1
    a[:40, :40] = b[:40, :40]
    sure = largest_common_rectangle(a, b, tolerance=0.0, least=1000)
    assert sure is not None and sure.exact
    monkeypatch.setattr(growing, "WORK", 1)
    found = largest_common_rectangle(a, b, tolerance=0.0, least=1000)
    assert found is not None and not found.exact


def test_meetings_left_out_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal(96, 96, 6), normal(96, 96, 7)
    a[:50] = 0
    b[40:] = 0
    monkeypatch.setattr(search, "_MOST", 10)
    monkeypatch.setattr(search, "_MANY", 5)
    found, certain = by_anchors(a, b, tolerance=0.0, cells=1000)
    assert not certain
    assert found is None or not found.exact


@pytest.mark.slow
def test_pairs_that_were_not_searched_wholly_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal(96, 96, 6), normal(96, 96, 7)
    a[:50] = 0
    b[40:] = 0
    unsure: set[tuple[int, int]] = set()
    similar_pairs([matrix(a)], [matrix(b)], [(0, 0)], omega=0.1, tolerance=0.0, unsure=unsure)
    assert not unsure
    monkeypatch.setattr(search, "_MOST", 10)
    monkeypatch.setattr(search, "_MANY", 5)
    similar_pairs([matrix(a)], [matrix(b)], [(0, 0)], omega=0.1, tolerance=0.0, unsure=unsure)
    assert unsure == {(0, 0)}
