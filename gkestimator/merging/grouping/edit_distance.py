"""Bound the graph edit distance of two operator graphs, and group models by it.

The exact distance takes time exponential in the nodes. Below it lies the optimal assignment of nodes to
nodes, each at the least it can cost (Riesen and Bunke, "Approximate graph edit distance computation by means
of bipartite graph matching", 2009; BRANCH's costs make it a proven bound, see
:mod:`~gkestimator.merging.grouping.edit_paths`). Above it lies the exact cost of any edit path. Two are
tried, the one that keeps the order of execution and (in small graphs) the one that the assignment induces,
and both are improved by assigning the nodes again with the path's own edges in view.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from gkestimator.core.graph import OperatorGraph
from gkestimator.core.records import frozen
from gkestimator.merging.algorithms import DisjointSets, cheapest_assignment
from gkestimator.merging.editing import Numbers
from gkestimator.merging.grouping.edit_paths import Ints, absent, aligned, complete, path_cost, replaced
from gkestimator.merging.grouping.skeletons import Skeleton, skeletons

Distances: TypeAlias = "dict[Pair, EditDistance]"
Pair: TypeAlias = "tuple[int, int]"

MOST_PAIRS = 4_000_000
"""Entries of a cost matrix (32 MB); beyond it nodes are not assigned, only counted and aligned."""
_SMALL_PAIRS = 10_000
"""So many entries at most where the assignment's own path is tried too. Exported models are long sequences, where the
path that keeps their order is the better one; graphs of a few operators are hardly sequences."""
_MOST_EDGES = 40_000
"""Of both graphs, beyond which paths are not improved; exported models have one or two edges an operator."""
_ROUNDS = 8


@frozen
class EditDistance:
    """Hold ``lower`` <= distance <= ``upper``, in operators and edges added, deleted and operators replaced.

    ``sizes``: operators and edges of each graph. ``lower`` is at least their difference.
    """

    lower: int
    upper: int
    sizes: Pair

    @property
    def normalised(self) -> float:
        """Return ``upper`` over the size of both graphs, in [0, 1]: 1 where one is deleted and the other
        built anew.
        """
        return self.upper / max(1, sum(self.sizes))

    @property
    def changed(self) -> float:
        """Return the share of the smaller graph that is not found in the larger one, in [0, 1].

        (upper - difference of the sizes) / (2 x smaller size). What the larger graph has more must be added
        in any case: a network with twice the blocks is as near as one with the same blocks.
        """
        return _changed(self.upper, self.sizes)


def _changed(cost: int, sizes: Pair) -> float:
    small, large = sorted(sizes)
    if not small:
        if large:
            return 1.0
        return 0.0
    return (cost - (large - small)) / (2 * small)


def graph_edit_distance(a: OperatorGraph, b: OperatorGraph) -> EditDistance:
    """Bound the graph edit distance of ``a`` and ``b``; both 0 where they are the same node by node.

    Nodes are operators labelled (domain, op_type), edges go from the writer of a value to its reader; shapes
    and attributes do not count. Adding, deleting, replacing an operator and adding, deleting an edge cost 1
    each. Raises UsageError without SciPy.
    """
    left, right = skeletons((a, b))
    return distance(left, right)


def distance(a: Skeleton, b: Skeleton, *, within: float = 1.0) -> EditDistance:
    """Return :func:`graph_edit_distance` of two skeletons whose labels are numbered alike. Symmetric.

    Where the lower bound alone says that :attr:`EditDistance.changed` is above ``within``, the upper bound is
    that of the first path found.
    """
    sizes = (a.size, b.size)
    if a.same_as(b):
        return EditDistance(lower=0, upper=0, sizes=sizes)
    # the alignment needs the smaller graph first, and ties must not depend on who is named first
    if _order(a) > _order(b):
        a, b = b, a
    lower = _lower(a, b)
    upper = _upper(a, b, lower, refine=_changed(lower, sizes) <= within)
    return EditDistance(lower=lower, upper=upper, sizes=sizes)


def _order(s: Skeleton) -> tuple[int, list[list[int]], list[int]]:
    """Return a key that puts fewer nodes first; the rest makes the answer the same whichever graph is named
    first.
    """
    return s.nodes, s.edges.tolist(), s.labels.tolist()


def _lower(a: Skeleton, b: Skeleton) -> int:
    """Return a proven lower bound; a whole number, since the distance is one."""
    left, right = _uncommon(a.classes, b.classes)
    if len(left) * len(right) <= MOST_PAIRS:
        if len(left) > len(right):
            left, right = right, left
        cost = replaced(left, right) - absent(right)
        columns = cheapest_assignment(cost)
        least = cost[np.arange(len(left)), columns].sum() + absent(right).sum()
        return int(np.ceil(least))  # halves are exact in floating point
    _, of_a, of_b = _counts(a.labels, b.labels)
    same = int(np.minimum(of_a, of_b).sum())
    return max(a.nodes, b.nodes) - same + abs(len(a.edges) - len(b.edges))


def _counts(a: Ints, b: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the distinct rows of both, and how often each is in a and in b."""
    kinds, numbers = np.unique(np.concatenate([a, b]), axis=0, return_inverse=True)
    numbers = numbers.ravel()
    of_a = np.bincount(numbers[: len(a)], minlength=len(kinds))
    of_b = np.bincount(numbers[len(a) :], minlength=len(kinds))
    return kinds, of_a, of_b


def _uncommon(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Return the classes of both without those that pair off with an equal one.

    In an assignment whose costs are a metric, pairing equal points first is optimal.
    """
    kinds, of_a, of_b = _counts(a, b)
    same = np.minimum(of_a, of_b)
    return np.repeat(kinds, of_a - same, axis=0), np.repeat(kinds, of_b - same, axis=0)


def _upper(a: Skeleton, b: Skeleton, lower: int, *, refine: bool) -> int:
    """Return the cost of the cheapest edit path that was tried; a has no more nodes than b."""
    # Deleting all and building anew is a path too, the only one between two graphs of which one is empty.
    chosen = complete(aligned(a, b), a, b)
    best = min(path_cost(chosen, a, b), a.size + b.size)
    large = a.nodes * b.nodes > MOST_PAIRS or len(a.edges) + len(b.edges) > _MOST_EDGES
    if not refine or best == lower or large or not a.nodes:
        return best
    best = min(best, _refined(chosen, a, b, lower))
    if best > lower and a.nodes * b.nodes <= _SMALL_PAIRS:
        best = min(best, _refined(_induced(a, b), a, b, lower))
    return best


def _induced(a: Skeleton, b: Skeleton) -> Ints:
    """Return the optimal assignment; of equally good ones the one whose nodes lie at about equal depths.

    Depth counts for less than half a unit in all, so that no worse assignment is chosen for it.
    """
    apart = np.abs(np.subtract.outer(a.relative_depth, b.relative_depth))
    near = apart * (0.4 / max(1, a.nodes))
    return cheapest_assignment(replaced(a.classes, b.classes) - absent(b.classes) + near)


def _refined(start: Ints, a: Skeleton, b: Skeleton, lower: int) -> int:
    """Return the cost of ``start`` after re-assigning all nodes, as long as it falls.

    Each round takes the node costs and, for each pair (i, j), the edges that would be common if all other
    nodes stayed where they are, and assigns again (the projected first-order step for the quadratic form of
    the distance: Bougleux et al., "Graph edit distance as a quadratic assignment problem", 2017).
    """
    best = path_cost(start, a, b)
    chosen = start
    for _ in range(_ROUNDS):
        if best == lower:
            break
        # nearness decides between equally good assignments alone: in all it is below half a unit
        gain = _common_edges(chosen, a, b)
        edges = len(a.edges) + len(b.edges)
        near = replaced(a.classes, b.classes) * (0.4 / max(1, a.nodes * (edges + 2)))
        cost = np.not_equal.outer(a.labels, b.labels) - gain + near
        chosen = cheapest_assignment(cost)
        now = path_cost(chosen, a, b)
        if now >= best:
            break
        best = now
    return best


def _common_edges(chosen: Ints, a: Skeleton, b: Skeleton) -> np.ndarray:
    """Return [n, m]: edges of node i that j has too, were all neighbours of i what ``chosen`` says."""
    gain = np.zeros((a.nodes, b.nodes))
    for here, there in ((0, 1), (1, 0)):
        order = np.argsort(b.edges[:, there], kind="stable")
        neighbours = b.edges[order, here]
        starts = np.searchsorted(b.edges[order, there], np.arange(b.nodes + 1))
        ends = chosen[a.edges[:, there]]
        for i, end in zip(a.edges[:, here].tolist(), ends.tolist(), strict=True):
            if end >= 0:
                gain[i, neighbours[starts[end] : starts[end + 1]]] += 1
    return gain


def distances(graphs: Sequence[Skeleton], *, within: float) -> Distances:
    """Return :func:`distance` of every two, by (i, j) with i < j. Graphs that are the same are compared once."""
    alike: list[int] = []  # of each graph the first that is the same
    for i, graph in enumerate(graphs):
        earlier = (k for k in sorted(set(alike)) if graphs[k].same_as(graph))
        alike.append(next(earlier, i))
    between: Distances = {}
    known: Distances = {}
    for j in range(len(graphs)):
        for i in range(j):
            a, b = alike[i], alike[j]
            if (a, b) not in known:
                known[a, b] = distance(graphs[a], graphs[b], within=within)
            between[i, j] = known[a, b]
    return between


@frozen
class Grouping:
    """Hold ``groups``: indices of the models, each in exactly one group, in the order of their first members.

    ``distances``: of every two models (i, j) with i < j; the upper bound of two that are certainly further
    apart than epsilon is a rough one.
    """

    groups: tuple[Numbers, ...]
    distances: Mapping[Pair, EditDistance]


def group_models(graphs: Sequence[OperatorGraph], *, epsilon: float) -> Grouping:
    """Group models by DBSCAN on :attr:`EditDistance.changed`, with at least one sample in a group.

    So two models are in one group where a chain of models leads from one to the other, each step at most
    ``epsilon``; a model without a neighbour is a group of its own. (Two models that share a GPU are worth
    merging, so one neighbour is enough: a larger least number of samples would only call pairs noise. With it
    every point is a core point, and the clusters are the connected components.) Raises UsageError without
    SciPy where two graphs differ.
    """
    between = distances(skeletons(graphs), within=epsilon)
    return Grouping(groups=linked(between, len(graphs), epsilon), distances=between)


def linked(between: Mapping[Pair, EditDistance], models: int, epsilon: float) -> tuple[Numbers, ...]:
    """Return the groups of ``models`` models that steps of at most ``epsilon`` link."""
    near = DisjointSets[int]()
    for pair, apart in between.items():
        if apart.changed <= epsilon:
            near.join(pair)
    groups: dict[int, list[int]] = defaultdict(list)
    for model in range(models):
        groups[near.find(model)].append(model)
    return tuple(map(tuple, groups.values()))
