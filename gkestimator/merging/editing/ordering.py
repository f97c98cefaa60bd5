"""Nodes in an order in which every value is written before it is read."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from gkestimator.core.errors import ModelError
from gkestimator.merging.editing.form import EditNode

_SHOWN = 6


def operator_name(node: EditNode) -> str:
    """What the node is called in messages: its name and type."""
    return f"{node.name} ({node.domain + '.' if node.domain else ''}{node.op_type})"


def order_nodes(nodes: Sequence[EditNode], known: Iterable[str]) -> list[EditNode]:
    """``nodes`` so that each follows what it reads: of those that may come next always the first in ``nodes``.

    A list that is in order comes back as it is. ``known`` are the names that exist before (inputs and weights).
    Raises ModelError: a name written twice or by nobody, nodes in a cycle.
    """
    writer: dict[str, int] = {}
    names = set(known)
    for index, node in enumerate(nodes):
        for name in node.writes:
            if name in names or writer.setdefault(name, index) != index or node.writes.count(name) > 1:
                raise ModelError(
                    f"value {name!r} is defined twice, the second time by node {operator_name(node)}"
                )
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for name in set(node.reads):
            if name in writer:
                readers[writer[name]].append(index)
                waiting[index] += 1
            elif name not in names:
                raise ModelError(f"node {operator_name(node)} reads {name!r}, which nothing defines")
    ready = [i for i, count in enumerate(waiting) if not count]
    order: list[EditNode] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = [operator_name(nodes[i]) for i, count in enumerate(waiting) if count]
        raise ModelError(
            f"{len(stuck)} nodes read each other's results in a cycle or follow one: {', '.join(stuck[:_SHOWN])}"
        )
    return order
