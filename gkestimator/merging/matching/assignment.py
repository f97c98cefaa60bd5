"""The assignment of operators to each other with the largest sum of similarities (USHER, section 3.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gkestimator.merging.disjoint import DisjointSets
from gkestimator.merging.libraries import library
from gkestimator.merging.operators import Pair

# Sums of similarities (each at most 1) that differ by less are one sum: what rounding leaves.
_SAME = 1e-12


def best_assignment(
    weights: Mapping[Pair, float],
    places: tuple[Sequence[int], Sequence[int]] | None = None,
) -> list[Pair]:
    """The matching of left to right numbers whose weights have the largest sum, sorted.

    ``weights``: by pair (left, right) a positive weight; pairs that are not named are not matched. Nobody is in two
    pairs. Of several matchings with the largest sum (to 1e-12 a pair) it is one with the least sum of
    (places[0][left] - places[1][right])^2 (None: the numbers themselves), so that like goes to like in the models'
    own order. Raises ValueError: a weight is not positive and finite; UsageError: no SciPy.
    """
    if not all(0 < weight < float("inf") for weight in weights.values()):
        raise ValueError("weights of an assignment must be positive and finite")
    if places is None:
        far = {(i, j): float(i - j) ** 2 for i, j in weights}
    else:
        far = {(i, j): float(places[0][i] - places[1][j]) ** 2 for i, j in weights}
    found: list[Pair] = []
    for part in _components(weights):
        if len(part) == 1:
            found += part
        else:
            found += _matched({p: weights[p] for p in part}, far)
    return sorted(found)


def _components(pairs: Mapping[Pair, float]) -> list[list[Pair]]:
    """The pairs by connected component: a matching of the whole is a matching of each."""
    sides = DisjointSets[tuple[bool, int]]()
    for i, j in pairs:
        sides.join(((False, i), (True, j)))
    parts: dict[tuple[bool, int], list[Pair]] = {}
    for i, j in sorted(pairs):
        parts.setdefault(sides.find((False, i)), []).append((i, j))
    return list(parts.values())


def _matched(weights: Mapping[Pair, float], far: Mapping[Pair, float]) -> list[Pair]:
    rows = sorted({i for i, _ in weights})
    columns = sorted({j for _, j in weights})
    row_of = {n: k for k, n in enumerate(rows)}
    column_of = {n: k for k, n in enumerate(columns)}
    size = max(len(rows), len(columns))
    # Square: who is matched where no pair stands (weight 0) stays alone, so that every matching is a full one.
    gain = np.zeros((size, size))
    cost = np.zeros((size, size))
    for (i, j), weight in weights.items():
        gain[row_of[i], column_of[j]] = weight
        cost[row_of[i], column_of[j]] = far[i, j]
    solve = library("scipy.optimize").linear_sum_assignment
    _, best = solve(gain, maximize=True)
    # Complementary slackness: full matchings of the largest sum are those made of tight pairs alone.
    cost[_slack(gain, best) > _SAME * size] = np.inf
    _, best = solve(cost)
    return [(rows[r], columns[int(c)]) for r, c in enumerate(best) if r < len(rows) and gain[r, c] > 0]


def _slack(gain: NDArray[np.float64], best: NDArray[np.int64]) -> NDArray[np.float64]:
    """u[i] + v[j] - gain[i, j] >= 0 of duals u, v that prove ``best`` (column by row) the largest; 0 on ``best``.

    With u[i] = gain[i, best[i]] - v[best[i]] the other conditions read v[j] >= v[best[i]] + (gain[i, j] -
    gain[i, best[i]]): longest paths, which exist as a cycle of positive length would be a better matching.
    """
    kept = gain[np.arange(len(best)), best]
    step = gain - kept[:, None]
    v = np.zeros(len(best))
    for _ in range(len(best)):
        further = np.maximum(v, (v[best][:, None] + step).max(axis=0))
        if (further <= v + _SAME).all():
            break
        v = further
    slack: NDArray[np.float64] = (kept - v[best])[:, None] + v[None, :] - gain
    return slack
