"""Assign operators to each other with the largest sum of similarities (USHER, section 3.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gkestimator.merging.algorithms import DisjointSets, cheapest_assignment
from gkestimator.merging.operators import Pair

PairList: TypeAlias = "list[Pair]"
PairWeights: TypeAlias = "Mapping[Pair, float]"

# Sums of similarities (each at most 1) that differ by less are one sum: what rounding leaves.
_SAME = 1e-12


def best_assignment(
    weights: PairWeights, places: tuple[Sequence[int], Sequence[int]] | None = None
) -> PairList:
    """Return the matching of left to right numbers whose weights have the largest sum, sorted.

    ``weights``: by pair (left, right) a positive weight; pairs that are not named are not matched. Nobody is
    in two pairs. Of several matchings with the largest sum (to 1e-12 a pair) it is one with the least sum of
    (places[0][left] - places[1][right])^2 (None: the numbers themselves), so that like goes to like in the
    models' own order. Raises ValueError: a weight is not positive and finite; UsageError: no SciPy.
    """
    if not all(0 < weight < float("inf") for weight in weights.values()):
        raise ValueError("weights of an assignment must be positive and finite")
    apart: dict[Pair, float] = {}
    for i, j in weights:
        distance = i - j
        if places is not None:
            distance = places[0][i] - places[1][j]
        apart[i, j] = float(distance) ** 2
    # by component: matrices of a few rows instead of one of all operators
    assignment: PairList = []
    for part in _components(weights):
        if len(part) == 1:
            assignment += part
        else:
            assignment += _matched(part, weights, apart)
    return sorted(assignment)


def _components(pairs: PairWeights) -> list[PairList]:
    """Return the pairs by connected component: a matching of the whole is a matching of each."""
    sides = DisjointSets[tuple[bool, int]]()
    for i, j in pairs:
        sides.join(((False, i), (True, j)))
    parts: dict[tuple[bool, int], PairList] = defaultdict(list)
    for i, j in sorted(pairs):
        parts[sides.find((False, i))].append((i, j))
    return list(parts.values())


def _matched(pairs: Sequence[Pair], weights: PairWeights, apart: PairWeights) -> PairList:
    rows = sorted({i for i, _ in pairs})
    columns = sorted({j for _, j in pairs})
    row_of = {i: row for row, i in enumerate(rows)}
    column_of = {j: column for column, j in enumerate(columns)}
    size = max(len(rows), len(columns))
    # Square: who is matched where no pair stands (weight 0) stays alone, so that every matching is a full one.
    gain = np.zeros((size, size))
    cost = np.zeros((size, size))
    for i, j in pairs:
        cell = (row_of[i], column_of[j])
        gain[cell] = weights[i, j]
        cost[cell] = apart[i, j]
    best = cheapest_assignment(gain, maximize=True)
    # Complementary slackness: full matchings of the largest sum are those made of tight pairs alone.
    cost[_slack(gain, best) > _SAME * size] = np.inf
    best = cheapest_assignment(cost)
    matched = []
    for row, column in enumerate(best.tolist()):
        if gain[row, column] > 0:
            matched.append((rows[row], columns[column]))
    return matched


def _slack(gain: NDArray[np.float64], best: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return u[i] + v[j] - gain[i, j] >= 0 of duals u, v that prove ``best`` (column by row) the largest.

    It is 0 on ``best``. With u[i] = gain[i, best[i]] - v[best[i]] the other conditions read v[j] >=
    v[best[i]] + (gain[i, j] - gain[i, best[i]]): longest paths, which exist as a cycle of positive length
    would be a better matching.
    """
    chosen = gain[np.arange(len(best)), best]
    step = gain - chosen[:, None]
    v = np.zeros(len(best))
    for _ in range(len(best)):
        reached = v[best][:, None] + step
        further = np.maximum(v, reached.max(axis=0))
        if (further <= v + _SAME).all():
            break
        v = further
    u = chosen - v[best]
    slack: NDArray[np.float64] = u[:, None] + v[None, :] - gain
    return slack
