"""Many pairs at once: those that are similar enough, as each pair alone says."""

from __future__ import annotations

import numpy as np
import pytest
from _rectangle_oracle import largest_block
from _weight_cases import bfloat16, block, case, matrix

from gkestimator.core.errors import UsageError
from gkestimator.merging.operators import similarity
from gkestimator.merging.similarity import similar_pairs
from gkestimator.merging.similarity.search import least_cells


@pytest.mark.parametrize("omega", [0.05, 0.2, 0.4, 2 / 3, 1.0])
def test_similarity_of_random_pairs_by_brute_force(omega: float) -> None:
    """Twenty weights of several shapes and types on either side, all pairs in one call, tolerance 0.1: every other
    one of the right side is the left one's copy, wholly or with one value changed."""
    some = [case(seed, 6)[:2] for seed in range(5000, 5020)]
    for k in range(0, 20, 2):
        copy = some[k][0].copy()
        copy[-1, -1] += k % 4
        some[k] = some[k][0], copy
    left, right = [matrix(a) for a, _ in some], [matrix(b) for _, b in some]
    pairs = [(i, j) for i in range(20) for j in range(20)]
    found = similar_pairs(left, right, pairs, omega=omega, tolerance=0.1)
    expected = {}
    for i, j in pairs:
        a, b = left[i], right[j]
        if a.dtype is b.dtype and a.taps == b.taps:
            best = largest_block(a.array().tolist(), b.array().tolist(), 0.1)
            if best and 2 * best[0] * best[1] * a.taps / (a.elements + b.elements) >= omega:
                expected[i, j] = best
    assert {pair: block(r) for pair, r in found.items()} == expected
    assert list(found) == [p for p in pairs if p in expected]
    assert all(similarity(left[i], right[j], r) >= omega for (i, j), r in found.items())
    assert len(found) >= 4


def test_shifted_blocks_among_many_large_weights() -> None:
    rng = np.random.default_rng(11)
    left = [rng.standard_normal((96, 128)).astype("f4") for _ in range(6)]
    right = [rng.standard_normal((96, 128)).astype("f4") for _ in range(6)]
    right[4][10:90, 8:120] = left[1][5:85, 16:128]
    right[2] = left[5] + rng.choice([-5e-8, 5e-8], left[5].shape).astype("f4")
    pairs = [(i, j) for i in range(6) for j in range(6)]
    found = similar_pairs(
        [matrix(w) for w in left], [matrix(w) for w in right], pairs, omega=0.4, tolerance=3e-7
    )
    assert {k: block(r) for k, r in found.items()} == {
        (1, 4): (80, 112, 5, 16, 10, 8),
        (5, 2): (96, 128, 0, 0, 0, 0),
    }
    only = similar_pairs(
        [matrix(w) for w in left], [matrix(w) for w in right], [(1, 4)], omega=0.4, tolerance=3e-7
    )
    assert only == {(1, 4): found[1, 4]}
    assert (
        similar_pairs(
            [matrix(w) for w in left], [matrix(w) for w in right], [(1, 4)], omega=0.8, tolerance=3e-7
        )
        == {}
    )


def test_a_small_weight_within_a_large_one() -> None:
    rng = np.random.default_rng(12)
    a, b = rng.standard_normal((64, 48)).astype("f4"), rng.standard_normal((90, 70)).astype("f4")
    b[20:84, 15:63] = a
    found = similar_pairs([matrix(a)], [matrix(b)], [(0, 0)], omega=0.4, tolerance=0.0)
    assert block(found[0, 0]) == (64, 48, 0, 0, 20, 15)
    assert similarity(matrix(a), matrix(b), found[0, 0]) == 2 * 64 * 48 / (64 * 48 + 90 * 70)


def test_depthwise_groups_are_rows() -> None:
    rng = np.random.default_rng(13)
    a, b = rng.standard_normal((512, 1, 9)).astype("f4"), rng.standard_normal((512, 1, 9)).astype("f4")
    b[100:500] = a[12:412]
    found = similar_pairs([matrix(a)], [matrix(b)], [(0, 0)], omega=0.4, tolerance=1e-7)
    assert block(found[0, 0]) == (400, 1, 12, 0, 100, 0)


def test_types_are_not_mixed() -> None:
    a = np.ones((8, 8), "f4")
    half = [
        matrix(a.astype("f2")),
        matrix(bfloat16(a)),
        matrix(a.astype("f8")),
        matrix(a[:, :, None].repeat(2, 2)),
    ]
    assert similar_pairs([matrix(a)], half, [(0, j) for j in range(4)], omega=0.1, tolerance=0.1) == {}
    assert len(similar_pairs(half, half, [(j, j) for j in range(4)], omega=1.0, tolerance=0.0)) == 4


@pytest.mark.parametrize("omega", [1e-9, 0.1, 0.3, 0.4, 0.7, 1.0])
def test_least_cells_is_the_first_that_is_similar_enough(omega: float) -> None:
    for seed in range(40):
        a, b, _ = case(seed)
        x, y = matrix(a), matrix(b)
        y = matrix(np.ones((*b.shape[:2], x.taps), a.dtype))
        most = min(x.rows, y.rows) * min(x.columns, y.columns)
        enough = [n for n in range(1, most + 1) if 2 * n * x.taps / (x.elements + y.elements) >= omega]
        assert least_cells(x, y, omega) == (enough[0] if enough else None)


@pytest.mark.parametrize("omega", [0.0, -0.1, 1.1, float("nan")])
def test_a_wrong_omega_is_named(omega: float) -> None:
    with pytest.raises(UsageError, match="omega is"):
        similar_pairs([], [], [], omega=omega, tolerance=0.0)
