"""Many pairs at once: every weight is hashed once for all weights of one shape that it is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from gkestimator.core.errors import UsageError
from gkestimator.merging.operators import Rectangle, WeightMatrix, similarity
from gkestimator.merging.similarity.equality import checked_tolerance, equal_everywhere
from gkestimator.merging.similarity.pair_search import by_anchors_of_all
from gkestimator.merging.similarity.search import whole

_Pair: TypeAlias = tuple[int, int]
_Class: TypeAlias = tuple[int, int, int, int, int, str]


def similar_pairs(
    left: Sequence[WeightMatrix],
    right: Sequence[WeightMatrix],
    pairs: Iterable[_Pair],
    *,
    omega: float,
    tolerance: float,
    unsure: set[_Pair] | None = None,
) -> dict[_Pair, Rectangle]:
    """The pairs (index in ``left``, index in ``right``) of similarity at least ``omega``, with the largest block.

    In the order of ``pairs``. Weights of different types or taps have nothing in common. Equal weights are found by
    comparing them once; for all others see :mod:`~gkestimator.merging.similarity.lattice`. A pair whose search gave
    up without a find is not among them (see :func:`~gkestimator.merging.similarity.largest_common_rectangle`); all
    whose search gave up, with a find or without, are added to ``unsure``.

    Raises UsageError for a tolerance that is negative or an omega that is not in (0, 1], ModelError where a file does
    not hold the values.
    """
    tolerance = checked_tolerance(tolerance)
    if not 0 < omega <= 1:
        raise UsageError(f"omega is {omega}: expected a number above 0 to 1")
    found: dict[_Pair, Rectangle] = {}
    asked = list(dict.fromkeys(pairs))
    classes: dict[_Class, list[_Pair]] = {}
    for i, j in asked:
        a = left[i]
        b = right[j]
        if a.dtype is not b.dtype or a.taps != b.taps or least_cells(a, b, omega) is None:
            continue
        if (a.rows, a.columns) == (b.rows, b.columns) and equal_everywhere(a.array(), b.array(), tolerance):
            found[i, j] = whole(a.rows, a.columns)
            continue
        kind = (a.rows, a.columns, b.rows, b.columns, a.taps, str(a.dtype))
        classes.setdefault(kind, []).append((i, j))
    for some in classes.values():
        searched = _of_class(left, right, some, omega=omega, tolerance=tolerance)
        found.update({pair: block for pair, (block, _) in searched.items() if block is not None})
        if unsure is not None:
            unsure.update(pair for pair, (_, certain) in searched.items() if not certain)
    return {pair: found[pair] for pair in asked if pair in found}


def least_cells(a: WeightMatrix, b: WeightMatrix, omega: float) -> int | None:
    """Rows x columns from which on a common block makes a similarity of at least ``omega``; None: none can."""
    most = min(a.rows, b.rows) * min(a.columns, b.columns)
    if most == 0 or a.taps == 0:
        return None
    cells = max(1, int(omega * (a.elements + b.elements) / (2 * a.taps)) - 1)
    while _similarity_of(a, b, cells) < omega:  # twice or thrice: as similarity() rounds
        cells += 1
    return cells if cells <= most else None


def _similarity_of(a: WeightMatrix, b: WeightMatrix, cells: int) -> float:
    block = Rectangle(rows=cells, columns=1, row_a=0, column_a=0, row_b=0, column_b=0)
    return similarity(a, b, block)


def _of_class(
    left: Sequence[WeightMatrix],
    right: Sequence[WeightMatrix],
    pairs: Sequence[_Pair],
    *,
    omega: float,
    tolerance: float,
) -> dict[_Pair, tuple[Rectangle | None, bool]]:
    """Pairs of one shape on either side: what was found, and whether that is certain."""
    cells = least_cells(left[pairs[0][0]], right[pairs[0][1]], omega)
    assert cells is not None
    return by_anchors_of_all(
        {i: left[i].array() for i in sorted({i for i, _ in pairs})},
        {j: right[j].array() for j in sorted({j for _, j in pairs})},
        pairs,
        tolerance=tolerance,
        cells=cells,
    )
