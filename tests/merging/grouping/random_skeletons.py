"""Random skeletons of operator graphs, and the exact distance of two (networkx: for graphs of a few operators)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import networkx as nx
import numpy as np

from gkestimator.merging.grouping.skeletons import Skeleton


def skeleton(labels: Sequence[int], edges: Sequence[tuple[int, int]] = ()) -> Skeleton:
    return Skeleton(
        labels=np.array(labels, dtype=np.int64), edges=np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)
    )


def drawn(rng: np.random.Generator, most: int, *, least: int = 0) -> Skeleton:
    n = int(rng.integers(least, most + 1))
    dense = rng.uniform(0.1, 0.9)
    edges = [(i, j) for i, j in itertools.combinations(range(n), 2) if rng.random() < dense]
    return skeleton(rng.integers(0, 3, n).tolist(), edges)


def exact(a: Skeleton, b: Skeleton) -> int:
    graphs = []
    for s in (a, b):
        graph = nx.DiGraph()
        graph.add_nodes_from((i, {"label": int(label)}) for i, label in enumerate(s.labels))
        graph.add_edges_from(s.edges.tolist())
        graphs.append(graph)
    found = nx.graph_edit_distance(*graphs, node_match=lambda x, y: x["label"] == y["label"])
    assert found == int(found)
    return int(found)
