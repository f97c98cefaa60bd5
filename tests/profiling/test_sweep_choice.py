"""The chooser: every candidate once, prefixes nested, shares kept, near points last; for any input."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gkestimator.profiling.sweep.choice import FARTHEST_EVERY, choose_order, spread, standardised


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


@pytest.mark.slow
@given(pools(), st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_every_candidate_comes_once_and_a_prefix_of_the_order_is_the_order(pool: tuple, seed: int) -> None:  # type: ignore[type-arg]
    groups, points, weights, shares = pool
    taken = np.random.default_rng(seed).random(len(weights)) < 0.2
    full = list(choose_order(groups, points, weights, weights, shares, taken))
    assert sorted(full) == np.flatnonzero(~taken).tolist()
    for count in (1, len(full) // 2):
        assert (
            list(islice(choose_order(groups, points, weights, weights, shares, taken), count)) == full[:count]
        )


def order_of(
    points: np.ndarray, demand: np.ndarray | None = None, ease: np.ndarray | None = None
) -> list[int]:
    ones = np.ones(len(points))
    free = np.zeros(len(points), dtype=bool)
    return list(spread(points, ones if demand is None else demand, ones if ease is None else ease, free))


def left_over(points: np.ndarray, chosen: list[int]) -> float:
    """Mean distance of all points to the nearest chosen."""
    away = np.linalg.norm(points[:, None] - points[None, chosen], axis=2)
    return float(away.min(axis=1).mean())


@pytest.mark.slow
@given(st.integers(0, 2**16), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_every_head_covers_better_than_chance(seed: int, clusters: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(240, 4))
    points[: 60 * clusters] *= 0.05  # most shapes look alike, as models' do
    points = standardised(points)
    order = order_of(points)
    for count in (6, 24, 60):
        chance = [left_over(points, rng.permutation(240)[:count].tolist()) for _ in range(20)]
        assert left_over(points, order[:count]) < 0.97 * float(np.mean(chance))


def test_a_far_corner_is_among_the_first() -> None:
    points = np.random.default_rng(0).normal(size=(200, 3))
    points[17] = 40.0
    assert 17 in order_of(standardised(points))[:FARTHEST_EVERY]


def test_groups_are_served_in_proportion_to_their_shares() -> None:
    rng = np.random.default_rng(0)
    groups = {"a": list(range(300)), "b": list(range(300, 600))}
    points = {name: standardised(rng.normal(size=(300, 3))) for name in groups}
    order = choose_order(
        groups, points, np.ones(600), np.ones(600), {"a": 3.0, "b": 1.0}, np.zeros(600, dtype=bool)
    )
    first = list(islice(order, 100))
    assert sum(i < 300 for i in first) == pytest.approx(75, abs=1)


def test_what_is_taken_already_is_not_chosen_again_nor_its_neighbours_first() -> None:
    points = standardised(np.array([[0.0], [0.1], [5.0], [10.0]]))
    taken = np.array([True, False, False, False])
    order = list(spread(points, np.ones(4), np.ones(4), taken))
    assert sorted(order) == [1, 2, 3] and order[-1] == 1


def test_demand_and_ease_bring_points_forward() -> None:
    points = standardised(np.linspace(0, 1, 11)[:, None])
    assert order_of(points)[0] == 5
    wanted, cheap = np.ones(11), np.ones(11)
    wanted[8] = 50.0
    assert order_of(points, demand=wanted)[0] == 8
    cheap[6] = 2.0
    assert order_of(points, ease=cheap)[0] == 6


def test_constant_features_and_no_rows_are_no_failure() -> None:
    assert standardised(np.ones((4, 3))).shape == (4, 1)
    assert standardised(np.empty((0, 3))).shape == (0, 1)
    assert order_of(standardised(np.ones((4, 3)))) == [0, 1, 2, 3]
    assert np.abs(standardised(np.r_[np.zeros(200), 1e9][:, None])).max() == pytest.approx(3.0)
