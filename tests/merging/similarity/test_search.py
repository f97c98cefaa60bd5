"""The largest common rectangle against brute force, and what large weights and wrong ones get."""

from __future__ import annotations

import math

import _largest
import numpy as np
import pytest
from _largest import by_anchors, largest_common_rectangle
from _rectangle_oracle import largest_block
from _weight_cases import bfloat16, block, case
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gkestimator.core.errors import UsageError


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_brute_force_on_1000_random_cases(part: int) -> None:
    """Every shift, and anchors forced on, with bounds from one cell to exactly the largest rectangle's."""
    shared = 0
    for seed in range(100 * part, 100 * part + 100):
        a, b, tolerance = case(seed)
        expected = largest_block(a.tolist(), b.tolist(), tolerance)
        assert block(largest_common_rectangle(a, b, tolerance=tolerance)) == expected, seed
        area = expected[0] * expected[1] if expected else 0
        for cells in {max(1, area // 2), max(1, area), area + 1}:
            found, certain = by_anchors(a, b, tolerance=tolerance, cells=cells)
            assert certain
            assert block(found) == (expected if area >= cells else None), (seed, cells)
        assert largest_common_rectangle(a, b, tolerance=tolerance, least=cells * a.shape[2]) == found
        shared += area > 1
    assert shared > 50


@pytest.mark.slow
def test_brute_force_on_bfloat16() -> None:
    """The oracle gets the numbers that the bits stand for, widened here by hand."""
    shared = 0
    for seed in range(2000, 2150):
        a, b, tolerance = case(seed, 6)
        a, b = bfloat16(a), bfloat16(b)
        numbers = [(w.astype(np.uint32) * 2**16).view(np.float32).tolist() for w in (a, b)]
        expected = largest_block(*numbers, tolerance)
        assert block(largest_common_rectangle(a, b, tolerance=tolerance)) == expected, seed
        assert block(by_anchors(a, b, tolerance=tolerance, cells=1)[0]) == expected, seed
        shared += expected is not None and expected[0] * expected[1] > 1
    assert shared > 50


@pytest.mark.parametrize("seed", range(0, 300, 2))
def test_the_bound_is_lowered_until_something_is_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for large weights, on small ones: also exactly at the least, and just above it."""
    monkeypatch.setattr(_largest, "_SMALL", 0)
    a, b, tolerance = case(seed)
    expected = largest_block(a.tolist(), b.tolist(), tolerance)
    assert block(largest_common_rectangle(a, b, tolerance=tolerance)) == expected
    if expected:
        least = expected[0] * expected[1] * a.shape[2]
        assert block(largest_common_rectangle(a, b, tolerance=tolerance, least=least)) == expected
        assert largest_common_rectangle(a, b, tolerance=tolerance, least=least + 1) is None


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data(), tolerance=st.sampled_from([0.0, 0.5, 1.0]), cells=st.integers(1, 6))
def test_properties(data: st.DataObject, tolerance: float, cells: int) -> None:
    letters = st.sampled_from([0.0, 0.5, 1.0, 1.5, -1.0, math.inf, math.nan])
    taps = data.draw(st.integers(1, 2))
    a, b = (
        data.draw(
            hnp.arrays(np.float32, st.tuples(*[st.integers(1, 6)] * 2, st.just(taps)), elements=letters)
        )
        for _ in range(2)
    )
    expected = largest_block(a.tolist(), b.tolist(), tolerance)
    assert block(largest_common_rectangle(a, b, tolerance=tolerance)) == expected
    found, certain = by_anchors(a, b, tolerance=tolerance, cells=cells)
    assert certain
    assert block(found) == (expected if expected and expected[0] * expected[1] >= cells else None)
    turned = largest_common_rectangle(b, a, tolerance=tolerance)
    assert (turned is None) == (expected is None)
    if turned is not None and expected is not None:
        assert turned.rows * turned.columns == expected[0] * expected[1]


def shifted(dtype: str, taps: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal((200, 300, taps)).astype("f4") * np.float32(0.02) for _ in range(2))
    b[60:190, 10:210] = a[20:150, 90:290]
    if dtype == "bf16":
        return bfloat16(a), bfloat16(b)
    return a.astype(dtype), b.astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "bf16"])
@pytest.mark.parametrize("taps", [1, 9])
def test_a_shifted_block_of_large_weights(dtype: str, taps: int) -> None:
    a, b = shifted(dtype, taps)
    for least in (1, 120 * 200 * taps, 130 * 200 * taps):
        found = largest_common_rectangle(a, b, tolerance=1e-7, least=least)
        assert found is not None and found.exact
        rows = (
            slice(found.row_a, found.row_a + found.rows),
            slice(found.column_a, found.column_a + found.columns),
        )
        assert np.array_equal(
            a[rows],
            b[found.row_b : found.row_b + found.rows, found.column_b : found.column_b + found.columns],
        )
        if dtype in ("f4", "f8") or taps > 1:  # in half precision neighbours are equal by chance
            assert block(found) == (130, 200, 20, 90, 60, 10)
        assert found.rows * found.columns >= 130 * 200


def test_views_of_other_memory_orders() -> None:
    a, b = shifted("f4")
    expected = largest_common_rectangle(a, b, tolerance=0.0, least=1000)
    assert largest_common_rectangle(np.asfortranarray(a), b, tolerance=0.0, least=1000) == expected
    turned = largest_common_rectangle(a.transpose(1, 0, 2), b.transpose(1, 0, 2), tolerance=0.0, least=1000)
    assert turned is not None and expected is not None
    assert (turned.rows, turned.columns) == (expected.columns, expected.rows)


def test_a_block_whose_values_all_moved_by_the_tolerance() -> None:
    """Every value of the block is the tolerance away: many lie in another bucket."""
    rng = np.random.default_rng(2)
    a = rng.integers(-(2**20), 2**20, (200, 300, 1)) * 2.0**-30
    b = rng.integers(-(2**20), 2**20, (200, 300, 1)) * 2.0**-30
    b[60:190, 10:210] = a[20:150, 90:290] + rng.choice([-(2.0**-24), 2.0**-24], (130, 200, 1))
    a, b = a.astype("f4"), b.astype("f4")
    assert np.abs(a[20:150, 90:290].astype("f8") - b[60:190, 10:210]).min() == 2.0**-24
    found = largest_common_rectangle(a, b, tolerance=2.0**-24, least=20_000)
    assert block(found) == (130, 200, 20, 90, 60, 10) and found is not None and found.exact
    assert largest_common_rectangle(a, b, tolerance=math.nextafter(2.0**-24, 0), least=20_000) is None


def test_equal_weights_are_whole_and_a_nan_is_cut_out() -> None:
    a, _ = shifted("f4")
    assert block(largest_common_rectangle(a, a.copy(), tolerance=0.0)) == (200, 300, 0, 0, 0, 0)
    a[50, 7] = math.nan
    assert block(largest_common_rectangle(a, a.copy(), tolerance=0.0)) == (200, 292, 0, 8, 0, 8)


def test_nothing_in_common() -> None:
    a, _ = shifted("f4")
    assert largest_common_rectangle(a, -a - 1, tolerance=1e-7) is None
    assert largest_common_rectangle(a[:0], a, tolerance=0.0) is None
    assert largest_common_rectangle(a, a, tolerance=0.0, least=a.size + 1) is None


def test_a_type_that_cannot_be_compared_is_named() -> None:
    with pytest.raises(UsageError, match="type int64 cannot be compared"):
        by_anchors(np.ones((2, 2, 1), "i8"), np.ones((2, 2, 1), "i8"), tolerance=0.0, cells=1)
