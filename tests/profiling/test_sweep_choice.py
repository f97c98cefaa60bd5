"""The chooser: every candidate once, prefixes nested, shares kept, near points last; for any input."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest
from gkestimator.profiling.sweep.choice import choose_order, spread, standardised
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def pools(
    draw: st.DrawFn,
) -> tuple[dict[str, list[int]], dict[str, np.ndarray], np.ndarray, dict[str, float]]:
    sizes = draw(st.lists(st.integers(1, 25), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    total = sum(sizes)
    place = rng.permutation(total).tolist()
    groups, points, start = {}, {}, 0
    for number, size in enumerate(sizes):
        groups[f"g{number}"] = place[start : start + size]
        # Whole numbers: some points coincide.
        points[f"g{number}"] = standardised(rng.integers(0, 5, size=(size, 3)).astype(float))
        start += size
    shares = {name: draw(st.floats(0.01, 10)) for name in groups}
    return groups, points, rng.random(total) + 0.5, shares


@given(pools(), st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_every_candidate_comes_once_and_a_prefix_of_the_order_is_the_order(pool: tuple, seed: int) -> None:  # type: ignore[type-arg]
    groups, points, weights, shares = pool
    taken = np.random.default_rng(seed).random(len(weights)) < 0.2
    full = list(choose_order(groups, points, weights, shares, taken))
    assert sorted(full) == np.flatnonzero(~taken).tolist()
    for count in (1, len(full) // 2):
        assert list(islice(choose_order(groups, points, weights, shares, taken), count)) == full[:count]


@given(st.integers(0, 2**16), st.integers(2, 60))
@settings(max_examples=40, deadline=None)
def test_the_first_k_cover_within_twice_the_spread_that_is_left(seed: int, count: int) -> None:
    """Gonzalez: the distance at which the next point lies bounds every point's distance to those chosen."""
    points = standardised(np.random.default_rng(seed).normal(size=(count, 4)))
    order = list(spread(points, np.ones(count), np.zeros(count, dtype=bool)))
    steps = []
    for k in range(1, count):
        away = np.linalg.norm(points[order[k]][None] - points[order[:k]], axis=1).min()
        steps.append(away)
        left = [np.linalg.norm(points[i][None] - points[order[:k]], axis=1).min() for i in order[k:]]
        assert max(left) <= away + 1e-5
    assert all(a >= b - 1e-5 for a, b in pairwise(steps))


def test_groups_are_served_in_proportion_to_their_shares() -> None:
    rng = np.random.default_rng(0)
    groups = {"a": list(range(300)), "b": list(range(300, 600))}
    points = {name: standardised(rng.normal(size=(300, 3))) for name in groups}
    order = choose_order(groups, points, np.ones(600), {"a": 3.0, "b": 1.0}, np.zeros(600, dtype=bool))
    first = list(islice(order, 100))
    assert sum(i < 300 for i in first) == pytest.approx(75, abs=1)


def test_what_is_taken_already_is_not_chosen_again_nor_its_neighbours_first() -> None:
    points = standardised(np.array([[0.0], [0.1], [5.0], [10.0]]))
    taken = np.array([True, False, False, False])
    assert list(spread(points, np.ones(4), taken)) == [3, 2, 1]


def test_heavier_points_come_earlier() -> None:
    points = standardised(np.linspace(0, 1, 11)[:, None])
    plain = list(spread(points, np.ones(11), np.zeros(11, dtype=bool)))
    weights = np.ones(11)
    weights[7] = 50.0
    heavy = list(spread(points, weights, np.zeros(11, dtype=bool)))
    assert heavy.index(7) < plain.index(7)


def test_constant_features_and_no_rows_are_no_failure() -> None:
    assert standardised(np.ones((4, 3))).shape == (4, 1)
    assert standardised(np.empty((0, 3))).shape == (0, 1)
    order = list(spread(standardised(np.ones((4, 3))), np.ones(4), np.zeros(4, dtype=bool)))
    assert order == [0, 1, 2, 3]
    assert np.abs(standardised(np.r_[np.zeros(200), 1e9][:, None])).max() == pytest.approx(3.0)
