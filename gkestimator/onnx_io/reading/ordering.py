"""Bring nodes into an order in which every tensor is written before it is read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import onnx

from gkestimator.core.errors import ModelError
from gkestimator.onnx_io.reading.names import free_names


def _title(proto: onnx.NodeProto) -> str:
    if proto.name:
        return repr(proto.name)
    return f"{proto.op_type} -> {', '.join(proto.output)}"


def _reads(proto: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, those of its subgraphs from outside included."""
    return free_names(proto).union(name for name in proto.input if name)


def _producers(nodes: Sequence[onnx.NodeProto]) -> dict[str, int]:
    """Return the place of the node that writes each tensor. Raises ModelError for a tensor that two write."""
    producers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and producers.setdefault(name, index) != index:
                raise ModelError(f"tensor {name!r} is defined twice, the second time by node {_title(node)}")
    return producers


def executable_order(nodes: Sequence[onnx.NodeProto], known: Callable[[str], bool]) -> list[onnx.NodeProto]:
    """Return ``nodes`` sorted so that each follows what it reads, otherwise in their order (Kahn's algorithm).

    ``known`` says whether a name is defined already. Raises ModelError naming a node that reads an undeclared
    tensor, or the nodes of a cycle.
    """
    producers = _producers(nodes)
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for name in _reads(node):
            if name in producers:
                readers[producers[name]].append(index)
                waiting[index] += 1
            elif not known(name):
                raise ModelError(f"node {_title(node)} reads tensor {name!r}, which nothing defines")
    ready = deque(i for i, count in enumerate(waiting) if not count)
    order = []
    while ready:
        index = ready.popleft()
        order.append(nodes[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if len(order) < len(nodes):
        stuck = [_title(nodes[i]) for i, count in enumerate(waiting) if count]
        raise ModelError(f"nodes read each other's outputs in a cycle: {', '.join(stuck[:6])}")
    return order
