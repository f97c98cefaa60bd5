"""Hashes: whatever is equal within the tolerance meets, also across buckets' edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gkestimator.merging.similarity.anchors import Buckets, anchors_of, buckets, meeting, samples_of
from gkestimator.merging.similarity.lattice import Lattice

SINGLE = Lattice(window=(1, 1), pattern=(1, 1, 1), tile=(1, 1))


def edges(bucket: Buckets, low: int, high: int) -> np.ndarray:
    """Doubles on, just below and just above the edges of buckets ``low`` to ``high``."""
    found = []
    for k in range(low, high + 1):
        x = (k + 0.381966) * bucket.width
        while bucket.number(np.array([x]))[0] < k:
            x = math.nextafter(x, math.inf)
        while bucket.number(np.array([math.nextafter(x, -math.inf)]))[0] >= k:
            x = math.nextafter(x, -math.inf)
        found += [math.nextafter(x, -math.inf), x, math.nextafter(x, math.inf)]
    return np.array(found)


@pytest.mark.parametrize("tolerance", [1e-7, 1e-3, 0.1, 1.0])
@pytest.mark.parametrize("scale", [0.02, 1.0, 1e6])
def test_equal_values_in_different_buckets_meet(tolerance: float, scale: float) -> None:
    rng = np.random.default_rng(3)
    bucket = buckets([rng.standard_normal((50, 50, 1)) * scale], tolerance=tolerance)
    x = edges(bucket, -20, 20)
    apart = 0
    for move in (-tolerance, tolerance, -tolerance * 0.75, tolerance * 0.75):
        y = x + move
        y = np.where(np.abs(x - y) <= tolerance, y, np.nextafter(y, x))
        same = np.abs(x - y) <= tolerance
        low, high = bucket.ends(x)
        number = bucket.number(y)
        assert ((low <= number) & (number <= high))[same].all()
        apart += int((bucket.number(x) != number)[same].sum())
    assert apart > 40, "the case is about values in different buckets"


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    x=st.floats(allow_nan=False, width=32),
    move=st.floats(-1, 1),
    tolerance=st.sampled_from([1e-30, 1e-7, 1e-3, 1.0]),
    width=st.sampled_from([4.0, 4.5, 64.0, 1e6]),
)
def test_buckets_of_equal_values_overlap(x: float, move: float, tolerance: float, width: float) -> None:
    bucket = Buckets(width=width * tolerance, tolerance=tolerance)
    y = x + move * tolerance
    if not (x == y or abs(x - y) <= tolerance):
        y = x
    low, high = bucket.ends(np.array([x]))
    assert low[0] <= bucket.number(np.array([y]))[0] <= high[0]
    assert high[0] - low[0] <= 1, "one neighbour at most is entered"


@pytest.mark.parametrize("tolerance", [0.0, 1e-7, 0.25])
def test_every_equal_pattern_meets(tolerance: float) -> None:
    """Patterns of six values of which each may be moved across an edge: all are found, by their place."""
    rng = np.random.default_rng(9)
    plan = Lattice(window=(2, 3), pattern=(2, 3, 1), tile=(1, 1))
    bucket = buckets([rng.standard_normal((9, 9, 1))], tolerance=tolerance)
    for _ in range(50):
        a = rng.choice(edges(bucket, -9, 9), (2, 3, 1))
        moved = a + rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], a.shape) * tolerance
        b = np.where(np.abs(a - moved) <= tolerance, moved, a)
        held = anchors_of(a, plan, bucket, (0.5, 0.5))
        assert held.crowded is False
        assert meeting(held, samples_of(b, plan, bucket))[1].tolist() == [1]


def test_nan_has_no_anchor_and_infinities_meet() -> None:
    a = np.array([[[math.nan], [math.inf], [-math.inf], [1.0]]])
    bucket = buckets([a], tolerance=1e-7)
    held, samples = anchors_of(a, SINGLE, bucket, (0.5, 0.5)), samples_of(a, SINGLE, bucket)
    assert sorted(held.columns.tolist()) == [1, 2, 3]
    assert meeting(held, samples)[1].tolist() == [1, 1, 1]


def test_too_many_values_near_edges_are_refused_not_forgotten() -> None:
    bucket = Buckets(width=4e-7, tolerance=1e-7)
    plan = Lattice(window=(4, 4), pattern=(4, 4, 1), tile=(1, 1))
    a = np.full((40, 40, 1), (3 + 0.381966) * 4e-7)
    assert anchors_of(a, plan, bucket, (0.5, 0.5)).crowded
