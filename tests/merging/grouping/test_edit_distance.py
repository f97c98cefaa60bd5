"""Bounds of the graph edit distance: against the exact one on small graphs, and what they say of known changes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from random_skeletons import drawn, exact, skeleton

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.merging.grouping import edit_distance, graph_edit_distance
from gkestimator.merging.grouping.edit_distance import distance
from gkestimator.merging.grouping.edit_paths import aligned, complete, path_cost
from gkestimator.merging.grouping.skeletons import Skeleton, skeletons


def brute_force(a: Skeleton, b: Skeleton) -> int:
    """The least cost over all ways to keep, replace and delete nodes: for graphs of three or four."""
    best = math.inf
    for kept in itertools.product(range(-1, b.nodes), repeat=a.nodes):
        used = [k for k in kept if k >= 0]
        if len(used) == len(set(used)):
            best = min(best, path_cost(np.array(kept, dtype=np.int64), a, b))
    return int(best)


@pytest.mark.slow
def test_bounds_hold_against_the_exact_distance() -> None:
    """300 random pairs of up to five nodes; printed: how often a bound is the distance itself."""
    rng = np.random.default_rng(20261122)
    lower_met = upper_met = 0
    for _ in range(300):
        a, b = drawn(rng, 5), drawn(rng, 5)
        found, truth = distance(a, b), exact(a, b)
        assert found.lower <= truth <= found.upper <= a.size + b.size
        lower_met += found.lower == truth
        upper_met += found.upper == truth
    print(f"lower bound exact in {lower_met} of 300 pairs, upper bound in {upper_met}")
    assert lower_met > 100  # both bounds say something: neither is trivial
    assert upper_met > 250


def test_path_cost_is_what_networkx_calls_the_distance() -> None:
    rng = np.random.default_rng(5)
    for _ in range(40):
        a, b = drawn(rng, 4), drawn(rng, 4)
        assert brute_force(a, b) == exact(a, b)


def test_distance_is_symmetric_and_zero_of_the_same() -> None:
    rng = np.random.default_rng(6)
    for _ in range(100):
        a, b = drawn(rng, 9), drawn(rng, 9)
        there, back = distance(a, b), distance(b, a)
        assert (there.lower, there.upper) == (back.lower, back.upper)
        assert distance(a, a) == edit_distance.EditDistance(lower=0, upper=0, sizes=(a.size, a.size))


@pytest.mark.parametrize("limit", ["MOST_PAIRS", "_SMALL_PAIRS", "_MOST_EDGES"])
def test_bounds_hold_beyond_each_limit(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways taken where graphs are too large, on graphs small enough to know the truth."""
    monkeypatch.setattr(edit_distance, limit, 0)
    rng = np.random.default_rng(7)
    for _ in range(100):
        a, b = drawn(rng, 4), drawn(rng, 4)
        found, truth = distance(a, b), exact(a, b)
        assert found.lower <= truth <= found.upper


def test_a_permuted_graph_is_found_again() -> None:
    """Two parallel branches in another order of execution: nothing is changed."""
    a = skeleton([0, 1, 2, 3, 4, 5], [(0, 1), (1, 2), (0, 3), (3, 4), (2, 5), (4, 5)])
    b = skeleton([0, 3, 4, 1, 2, 5], [(0, 1), (1, 2), (0, 3), (3, 4), (2, 5), (4, 5)])
    assert distance(a, b).upper == 0


@pytest.mark.parametrize(("blocks", "more"), [(3, 1), (8, 8), (20, 1)])
def test_more_blocks_cost_what_they_hold(blocks: int, more: int) -> None:
    """Residual blocks Conv, Relu, Conv, Add with a shortcut; ``more`` of them follow."""
    a, b = residual(blocks), residual(blocks + more)
    found = distance(a, b)
    assert found.lower == found.upper == b.size - a.size
    assert found.changed == 0
    assert 0 < found.normalised < 0.5


def test_blocks_before_a_head_move_its_edge() -> None:
    """The edge into the head is deleted and another added: the path is two dearer than the blocks."""
    a, b = residual(8, head=True), residual(16, head=True)
    found = distance(a, b)
    assert found.lower == b.size - a.size
    assert found.upper == b.size - a.size + 2


def residual(blocks: int, *, head: bool = False) -> Skeleton:
    labels, edges, last = [0], [], 0
    for _ in range(blocks):
        k = len(labels)
        labels += [1, 2, 1, 3]
        edges += [(last, k), (k, k + 1), (k + 1, k + 2), (k + 2, k + 3), (last, k + 3)]
        last = k + 3
    return skeleton([*labels, 4], [*edges, (last, len(labels))]) if head else skeleton(labels, edges)


def test_one_replaced_operator_costs_one() -> None:
    a = residual(10)
    labels = a.labels.copy()
    labels[6] = 9
    found = distance(a, Skeleton(labels=labels, edges=a.edges))
    assert (found.lower, found.upper) == (1, 1)


def test_nothing_in_common_is_far() -> None:
    a, b = skeleton([0] * 10), skeleton([1, 2] * 15, [(i, i + 1) for i in range(29)])
    found = distance(a, b)
    assert found.lower == found.upper == 30 + 29
    assert found.changed == (59 - (59 - 10)) / 20


def test_empty_graphs() -> None:
    empty, other = skeleton([]), skeleton([0, 1], [(0, 1)])
    assert distance(empty, empty).changed == 0
    assert (distance(empty, other).lower, distance(empty, other).upper) == (3, 3)
    assert distance(empty, other).changed == distance(empty, other).normalised == 1


def test_shares_lie_between_0_and_1() -> None:
    rng = np.random.default_rng(8)
    for _ in range(200):
        found = distance(drawn(rng, 12), drawn(rng, 12))
        assert abs(found.sizes[0] - found.sizes[1]) <= found.lower <= found.upper
        assert 0 <= found.changed <= 1
        assert 0 <= found.normalised <= 1


def test_alignment_is_the_cheapest_that_keeps_the_order() -> None:
    """Against every increasing map, by the same costs of nodes."""
    rng = np.random.default_rng(9)
    for _ in range(60):
        a, b = sorted((drawn(rng, 5), drawn(rng, 5)), key=lambda s: s.nodes)
        best = min(
            local_cost(dict(zip(rows, columns, strict=True)), a, b)
            for k in range(a.nodes + 1)
            for rows in itertools.combinations(range(a.nodes), k)
            for columns in itertools.combinations(range(b.nodes), k)
        )
        chosen = aligned(a, b)
        kept = chosen[chosen >= 0]
        assert (np.diff(kept) > 0).all()
        assert local_cost({i: int(j) for i, j in enumerate(chosen) if j >= 0}, a, b) == best


def local_cost(kept: dict[int, int], a: Skeleton, b: Skeleton) -> float:
    cost = 0.0
    for i in range(a.nodes):
        label, into, out = a.classes[i].tolist()
        if i in kept:
            other = b.classes[kept[i]].tolist()
            cost += (label != other[0]) + abs(into - other[1]) / 2 + abs(out - other[2]) / 2
        else:
            cost += 1 + (into + out) / 2
    return cost + sum(
        1 + (b.classes[j][1] + b.classes[j][2]) / 2 for j in range(b.nodes) if j not in set(kept.values())
    )


@pytest.mark.parametrize("cells", [0, 100, 400, 10**6])
def test_a_narrow_band_still_gives_a_path(cells: int) -> None:
    rng = np.random.default_rng(10)
    for _ in range(30):
        a, b = sorted((drawn(rng, 30), drawn(rng, 60)), key=lambda s: s.nodes)
        chosen = aligned(a, b, most_cells=cells)
        kept = chosen[chosen >= 0]
        assert (np.diff(kept) > 0).all() and (kept < b.nodes).all()
        full = complete(chosen, a, b)
        assert len(set(full.tolist())) == a.nodes and full.min(initial=0) >= 0


def test_skeleton_of_an_operator_graph() -> None:
    def tensor(name: str) -> Tensor:
        return Tensor(name=name, dtype=DType.FLOAT, shape=(1,), storage=name)

    def operator(op_type: str, reads: Sequence[str | None], writes: str, domain: str = "") -> Operator:
        return Operator(
            name=writes,
            domain=domain,
            op_type=op_type,
            version=13,
            attributes={},
            inputs=tuple(None if r is None else tensor(r) for r in reads),
            outputs=(tensor(writes), None),
        )

    def graph(*operators: Operator) -> OperatorGraph:
        return OperatorGraph(
            name="g", operators=operators, inputs=(tensor("x"),), outputs=(), weights={}, batch_size=1
        )

    a = graph(
        operator("Relu", ["x"], "y"), operator("Mul", ["y", "y", None], "z"), operator("Add", ["z", "x"], "w")
    )
    b = graph(operator("Relu", ["x"], "y"), operator("Mul", ["y", "y"], "z", "my.domain"))
    left, right = skeletons((a, b))
    assert left.edges.tolist() == [[0, 1], [1, 2]]  # y is read twice by one operator: one edge
    assert left.labels[0] == right.labels[0] and left.labels[1] != right.labels[1]
    assert left.depth.tolist() == [0, 1, 2]
    found = graph_edit_distance(a, b)
    assert (found.lower, found.upper) == (3, 3)  # Mul replaced, Add and its edge deleted
    assert graph_edit_distance(b, a).sizes == found.sizes[::-1]
    assert graph_edit_distance(a, a).upper == 0
