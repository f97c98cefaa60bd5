"""Groups of USHER: every matching of small cases, and an independent solver for larger ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from gkestimator.placement.papers.usher.grouping import TIE, ModelGroup, group, match

Matching = list[tuple[int, int | None]]


def every_matching(open_: list[int]) -> Iterator[Matching]:
    if len(open_) % 2:
        for left in open_:
            for rest in every_matching([i for i in open_ if i != left]):
                yield [(left, None), *rest]
    elif not open_:
        yield []
    else:
        for j in open_[1:]:
            for rest in every_matching([i for i in open_[1:] if i != j]):
                yield [(open_[0], j), *rest]


def named(matching: Matching, names: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return sorted(tuple(sorted(names[i] + (() if j is None else names[j]))) for i, j in matching)


def by_definition(a: list[float], names: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    found = []
    for matching in every_matching(list(range(len(a)))):
        weights = [abs(a[i] + a[j]) for i, j in matching if j is not None]
        pairs = [(i, j) for i, j in matching if j is not None]
        found.append((sum(weights), max(weights, default=0.0), named(pairs, names)))
    rounding = 1e-12 * sum(map(abs, a))
    least = min(total for total, _, _ in found) * (1 + TIE) + rounding
    tied = [f for f in found if f[0] <= least]
    largest = min(w for _, w, _ in tied) * (1 + TIE) + rounding
    return min(n for _, w, n in tied if w <= largest)


DRAWS = {
    "whole": lambda r: float(r.randint(-5, 5)),
    "C-heavy": lambda r: r.uniform(0, 90),
    "mixed": lambda r: r.uniform(-90, 90),
    "few values": lambda r: r.choice((10.0, 20.0, 20.1)),
    "M-heavy": lambda r: -r.choice((0.1, 0.2, 0.3)) * r.randint(1, 3),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_the_best_of_every_matching_ties_included(kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(120):
        n = rng.randint(1, 7)
        a = [DRAWS[kind](rng) for _ in range(n)]
        letters = rng.sample("abcdefghijklmnop", 2 * n)
        names = [tuple(sorted(letters[2 * i : 2 * i + rng.randint(1, 2)])) for i in range(n)]
        found = match(a, names)
        assert sum(j is None for _, j in found) == n % 2
        pairs = [(i, j) for i, j in found if j is not None]
        assert named(pairs, names) == by_definition(a, names), (a, names)


@pytest.mark.parametrize("size", [40, 41, 60])
def test_totals_of_an_independent_solver(size: int) -> None:
    networkx = pytest.importorskip("networkx")
    rng = random.Random(size)
    a = [rng.randint(-900, 900) for _ in range(size)]  # whole: the solver is exact on these
    graph = networkx.Graph()
    for i, j in itertools.combinations(range(size), 2):
        graph.add_edge(i, j, weight=10_000 - abs(a[i] + a[j]))
    best = sum(abs(a[i] + a[j]) for i, j in networkx.max_weight_matching(graph, maxcardinality=True))
    found = match([float(x) for x in a], [(f"m{i:02}",) for i in range(size)])
    assert sum(abs(a[i] + a[j]) for i, j in found if j is not None) == best
    assert sorted(i for pair in found for i in pair if i is not None) == list(range(size))


def test_equal_totals_go_to_the_smaller_largest_weight_then_to_names() -> None:
    # All C-heavy: every matching has the total 10.
    assert named(
        match([1.0, 2.0, 3.0, 4.0], [("d",), ("c",), ("b",), ("a",)]), [("d",), ("c",), ("b",), ("a",)]
    ) == [
        ("a", "d"),
        ("b", "c"),
    ]
    same = [("z",), ("y",), ("x",), ("w",)]
    assert named(match([2.0] * 4, same), same) == [("w", "x"), ("y", "z")]
    # Rounding does not break a tie: 0.1 + 0.2 is not 0.3 in binary.
    tenths = [0.1, 0.2, 0.3, 0.4]
    assert named(match(tenths, same), same) == [("w", "z"), ("x", "y")]


def test_one_of_an_odd_number_is_left_out_and_joins_later() -> None:
    singles = [
        ModelGroup(names=(n,), creq_pct=c, mreq_pct=0.0)
        for n, c in zip("abcde", (50, 10, 20, 30, 40), strict=True)
    ]
    # Round 1 leaves out the heaviest, a; pairs of 50 each: b with e, c with d. Round 2: totals 100 for any two of three,
    # so that names decide.
    assert [g.names for g in group(singles, rounds=1)] == [("a",), ("b", "e"), ("c", "d")]
    assert [g.names for g in group(singles)] == [("a", "b", "e"), ("c", "d")]
    assert [g.creq_pct for g in group(singles)] == [100, 50]


def test_groups_are_in_descending_order_of_demand_and_hold_at_most_four() -> None:
    rng = random.Random(3)
    for size in range(12):
        singles = [
            ModelGroup(names=(f"m{i}",), creq_pct=rng.uniform(1, 99), mreq_pct=rng.uniform(1, 99))
            for i in range(size)
        ]
        found = group(singles)
        assert sorted(n for g in found for n in g.names) == sorted(s.names[0] for s in singles)
        assert all(len(g.names) <= 4 for g in found) and len(found) == -(-size // 4)
        demands = [g.creq_pct + g.mreq_pct for g in found]
        assert demands == sorted(demands, reverse=True)
