"""Group models of one architecture: DBSCAN on the graph edit distance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from gkestimator.core.graph import OperatorGraph
from gkestimator.core.records import frozen
from gkestimator.merging.editing import Numbers
from gkestimator.merging.grouping.edit_distance import EditDistance, distances
from gkestimator.merging.grouping.skeletons import skeletons


@frozen
class Grouping:
    """Hold ``groups``: indices of the models, each in exactly one group, groups in the order of their first
    members.

    ``distances``: of every two models (i, j) with i < j; the upper bound of two that are certainly further
    apart than epsilon is a rough one.
    """

    groups: tuple[Numbers, ...]
    distances: Mapping[tuple[int, int], EditDistance]


def group_models(graphs: Sequence[OperatorGraph], *, epsilon: float) -> Grouping:
    """Group models by DBSCAN on :attr:`EditDistance.changed`, with at least one sample in a group.

    So two models are in one group where a chain of models leads from one to the other, each step at most
    ``epsilon``; a model without a neighbour is a group of its own. (Two models that share a GPU are worth
    merging, so one neighbour is enough: a larger least number of samples would only call pairs noise.) Raises
    UsageError without SciPy where two graphs differ.
    """
    between = distances(skeletons(graphs), within=epsilon)
    matrix = np.zeros((len(graphs), len(graphs)))
    for (i, j), apart in between.items():
        matrix[i, j] = apart.changed
        matrix[j, i] = apart.changed
    members: dict[int, list[int]] = defaultdict(list)
    for i, label in enumerate(dbscan(matrix, epsilon=epsilon, least=1).tolist()):
        members[label].append(i)
    return Grouping(groups=tuple(tuple(member) for member in members.values()), distances=between)


ALONE = -1


def dbscan(distances: np.ndarray, *, epsilon: float, least: int) -> np.ndarray:
    """Return [n], the cluster of each point, numbered from 0 in the order of their first core points;
    ``ALONE``: in none.

    ``distances``: [n, n], symmetric, 0 on the diagonal. Points within ``epsilon`` (inclusive) are neighbours;
    a point with at least ``least`` neighbours, itself among them, is a core point. A cluster is what can be
    reached from a core point by steps from core points to neighbours; a point that is no core point belongs
    to the first cluster that reaches it (Ester, Kriegel, Sander, Xu: "A density-based algorithm for
    discovering clusters", KDD 1996). O(n^2).
    """
    near = distances <= epsilon
    core = near.sum(axis=1) >= least
    cluster = np.full(len(distances), ALONE, dtype=np.int64)
    clusters = 0
    for first in np.flatnonzero(core).tolist():
        if cluster[first] != ALONE:
            continue
        cluster[first] = clusters
        waiting = [first]
        while waiting:
            point = waiting.pop()
            # a point at the rim belongs to the cluster and leads no further
            if core[point]:
                reached = np.flatnonzero(near[point] & (cluster == ALONE))
                cluster[reached] = clusters
                waiting += reached.tolist()
        clusters += 1
    return cluster
