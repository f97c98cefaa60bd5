"""Hold what the graph edit distance sees of an operator graph: labelled nodes and directed edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gkestimator.core.graph import OperatorGraph
from gkestimator.operators.records import OperatorKey


@dataclass(frozen=True, kw_only=True, eq=False)
class Skeleton:
    """Hold a graph of n labelled nodes in execution order.

    ``labels``: [n], a number per node; equal numbers are equal labels. ``edges``: [e, 2], (from, to), each
    pair of nodes once, sorted.
    """

    labels: np.ndarray
    edges: np.ndarray

    @property
    def nodes(self) -> int:
        """Return how many nodes there are."""
        return len(self.labels)

    @property
    def size(self) -> int:
        """Return nodes and edges together: what it costs to build the graph from nothing."""
        return len(self.labels) + len(self.edges)

    @cached_property
    def entering(self) -> np.ndarray:
        """Return [n], edges that end at a node."""
        return np.bincount(self.edges[:, 1], minlength=self.nodes)

    @cached_property
    def leaving(self) -> np.ndarray:
        """Return [n], edges that start at a node."""
        return np.bincount(self.edges[:, 0], minlength=self.nodes)

    @cached_property
    def classes(self) -> np.ndarray:
        """Return [n, 3], label, edges in, edges out: nodes with equal rows cost the same to replace, add and
        delete.
        """
        return np.stack([self.labels, self.entering, self.leaving], axis=1)

    @cached_property
    def depth(self) -> np.ndarray:
        """Return [n], longest path from a node without entering edges, in edges.

        Execution order makes one pass enough.
        """
        depth = np.zeros(self.nodes, dtype=np.int64)
        order = np.argsort(self.edges[:, 1], kind="stable")
        for start, end in self.edges[order].tolist():
            depth[end] = max(depth[end], depth[start] + 1)
        return depth

    @property
    def relative_depth(self) -> np.ndarray:
        """Return [n], :attr:`depth` over the deepest node's."""
        return np.asarray(self.depth / max(1, int(self.depth.max(initial=0))))

    def same_as(self, other: Skeleton) -> bool:
        """Return True where both are the same graph, node by node."""
        return np.array_equal(self.labels, other.labels) and np.array_equal(self.edges, other.edges)


def skeletons(graphs: Sequence[OperatorGraph]) -> list[Skeleton]:
    """Return the skeletons of ``graphs``, their labels numbered alike (in the order of their names).

    Node: an operator, labelled (domain, op_type). Edge: from the operator that writes a value to one that
    reads it, once however many values they share.
    """
    keys: set[OperatorKey] = set()
    for graph in graphs:
        keys.update(op.key for op in graph.operators)
    numbers = {key: number for number, key in enumerate(sorted(keys))}
    return [_skeleton(graph, numbers) for graph in graphs]


def _skeleton(graph: OperatorGraph, numbers: Mapping[OperatorKey, int]) -> Skeleton:
    labels = [numbers[op.key] for op in graph.operators]
    # operators come in execution order: a value's writer is known before its readers
    writer: dict[str, int] = {}
    edges: set[tuple[int, int]] = set()
    for k, op in enumerate(graph.operators):
        for value in op.inputs:
            if value is not None and value.name in writer:
                edges.add((writer[value.name], k))
        for value in op.outputs:
            if value is not None:
                writer[value.name] = k
    return Skeleton(
        labels=np.array(labels, dtype=np.int64),
        edges=np.array(sorted(edges), dtype=np.int64).reshape(-1, 2),
    )
