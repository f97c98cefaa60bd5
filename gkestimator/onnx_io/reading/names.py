"""Names in protobuf graphs: what a node's subgraphs read of the graph around them, and labels for nodes."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, NodeProto


def graphs_of(node: NodeProto) -> Iterator[GraphProto]:
    """The subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def free_names(node: NodeProto) -> set[str]:
    """The names that a node's subgraphs read of the graph around it."""
    return {name for graph in graphs_of(node) for name in _free(graph)}


def _free(graph: GraphProto) -> set[str]:
    own = {t.name for t in graph.initializer} | {i.name for i in graph.input}
    own.update(s.values.name for s in graph.sparse_initializer)
    own.update(name for node in graph.node for name in node.output)
    read = {o.name for o in graph.output}
    for node in graph.node:
        read.update(n for n in node.input if n)
        read |= free_names(node)
    return read - own


def distinct_label(name: str, taken: set[str]) -> str:
    """``name``, or with ``#`` and a number where ``taken`` has it; ``taken`` has the answer then."""
    label = name
    suffix = 2
    while label in taken:
        label = f"{name}#{suffix}"
        suffix = suffix + 1 if suffix < 16 else suffix + len(taken)  # stay fast when all names are equal
    taken.add(label)
    return label
