"""The best assignment against every matching there is; who is matched where several are best."""

from __future__ import annotations

import itertools
import random
import re
import sys
from fractions import Fraction

import numpy as np
import pytest

from gkestimator.core.errors import UsageError
from gkestimator.core.extras import install_extra
from gkestimator.merging.matching import best_assignment

Pair = tuple[int, int]
Score = tuple[Fraction, int]


def _score(pairs: list[Pair], weights: dict[Pair, Fraction]) -> Score:
    """Sum of the weights, then how far the pairs are from the order of both sides (less is better)."""
    far = sum((i - j) ** 2 for i, j in pairs)
    return sum((weights[p] for p in pairs), Fraction(0)), -far


def _best(weights: dict[Pair, Fraction]) -> Score:
    """The best score of all matchings, tried one by one."""
    pairs = sorted(weights)
    best = (Fraction(-1), 0)
    stack: list[tuple[int, list[Pair]]] = [(0, [])]
    while stack:
        k, chosen = stack.pop()
        if k == len(pairs):
            best = max(best, _score(chosen, weights))
            continue
        stack.append((k + 1, chosen))
        i, j = pairs[k]
        if all(i != a and j != b for a, b in chosen):
            stack.append((k + 1, [*chosen, pairs[k]]))
    return best


@pytest.mark.parametrize("seed", range(4))
def test_as_good_as_the_best_of_all_matchings(seed: int) -> None:
    draw = random.Random(seed)
    several = 0
    for _ in range(250):
        rows, columns = draw.randint(1, 5), draw.randint(1, 4)
        apart = draw.choice([1, 7])
        share = draw.choice([0.4, 0.7, 1.0]) if rows * columns < 13 else 0.5
        # Few different values: ties are the rule, and sums of thirds and fifths are not exact in binary.
        weights = {
            (i * apart, j): Fraction(draw.randint(1, 4), draw.choice([3, 5, 8]))
            for i in range(rows)
            for j in range(columns)
            if draw.random() < share
        }
        found = best_assignment({p: float(w) for p, w in weights.items()})
        assert len({i for i, _ in found}) == len({j for _, j in found}) == len(found)
        assert _score(found, weights) == _best(weights), weights
        several += len(found) > 1
    assert several > 100


def test_the_order_in_which_pairs_are_named_does_not_matter() -> None:
    draw = random.Random(5)
    for _ in range(50):
        pairs = [(i, j) for i in range(6) for j in range(6) if draw.random() < 0.6]
        weights = {p: draw.choice([0.5, 1.0]) for p in pairs}
        mixed = dict(draw.sample(sorted(weights.items()), len(weights)))
        assert best_assignment(mixed) == best_assignment(weights)


def test_equal_weights_everywhere_are_matched_in_order() -> None:
    everywhere = {(i, 10 + 3 * j): 1.0 for i in range(30) for j in range(30)}
    assert best_assignment(everywhere) == [(k, 10 + 3 * k) for k in range(30)]


def test_the_places_say_who_is_like_whom() -> None:
    everywhere = {(i, j): 1.0 for i in range(3) for j in range(2)}
    assert best_assignment(everywhere, ([0, 7, 3], [7, 1])) == [(0, 1), (1, 0)]
    assert best_assignment(everywhere, ([5, 8, 3], [3, 6])) == [(0, 1), (2, 0)]


def test_the_sum_counts_and_not_the_largest_pair() -> None:
    assert best_assignment({(0, 0): 1.0, (0, 1): 0.9, (1, 0): 0.9}) == [(0, 1), (1, 0)]
    assert best_assignment({(0, 0): 1.0, (0, 1): 0.4, (1, 0): 0.4}) == [(0, 0)]


def test_nothing_to_match() -> None:
    assert best_assignment({}) == []


@pytest.mark.parametrize("bad", [0.0, -0.5, float("nan"), float("inf")])
def test_weights_that_are_none(bad: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        best_assignment({(0, 0): 1.0, (1, 1): bad})


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(UsageError, match=re.escape(f"needs scipy: {install_extra('merge')}")):
        best_assignment({(0, 0): 1.0, (0, 1): 1.0})


def test_larger_ones_are_worth_as_much_as_scipys() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    draw = np.random.default_rng(0)
    for rows, columns, levels in ((40, 40, 5), (25, 60, 1000), (70, 30, 2)):
        gain = draw.integers(0, levels, (rows, columns)) / levels
        weights = {(int(i), int(j)): float(gain[i, j]) for i, j in np.argwhere(gain > 0)}
        found = best_assignment(weights)
        most = gain[optimize.linear_sum_assignment(gain, maximize=True)].sum()
        assert sum(weights[p] for p in found) == pytest.approx(most, abs=1e-9)
        # Two pairs that could be crossed without a loss are the nearer way round.
        for (i, j), (k, n) in itertools.combinations(found, 2):
            if (
                abs(gain[i, n] + gain[k, j] - gain[i, j] - gain[k, n]) < 1e-12
                and min(gain[i, n], gain[k, j]) > 0
            ):
                assert (i - j) ** 2 + (k - n) ** 2 <= (i - n) ** 2 + (k - j) ** 2
