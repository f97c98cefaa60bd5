"""Names inside nodes: all that a node and its subgraphs define or read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onnx import GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from gkestimator.onnx_io.reading.names import graphs_of

Rename = Callable[[str], str]


def tensors_of(node: NodeProto) -> Iterator[TensorProto]:
    """Every tensor in a node's attributes and subgraphs."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
        for tensor in (*sparse, *attribute.sparse_tensors):
            yield from (tensor.values, tensor.indices)
    for graph in graphs_of(node):
        yield from graph.initializer
        for tensor in graph.sparse_initializer:
            yield from (tensor.values, tensor.indices)
        for inner in graph.node:
            yield from tensors_of(inner)


def rename_node(node: NodeProto, rename: Rename) -> None:
    """Rename every value, node and dimension in ``node`` and its subgraphs, in place.

    All names go through ``rename``, whichever graph defines them: where it keeps different names different, what
    refers to what stays as it was.
    """
    for names in (node.input, node.output):
        names[:] = [rename(n) if n else n for n in names]
    if node.name:
        node.name = rename(node.name)
    if node.domain == "ai.onnx":
        node.domain = ""  # the same, and the one that opsets are kept under
    for graph in graphs_of(node):
        _rename_graph(graph, rename)


def _rename_graph(graph: GraphProto, rename: Rename) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        rename_value(value, rename)
    for tensor in graph.initializer:
        tensor.name = rename(tensor.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = rename(sparse.values.name)
    for inner in graph.node:
        rename_node(inner, rename)
    del graph.quantization_annotation[:]  # hints about values by name; nothing here reads them


def rename_value(value: ValueInfoProto, rename: Rename) -> None:
    """Rename ``value`` and its dimensions, in place."""
    value.name = rename(value.name)
    _rename_type(value.type, rename)


def _rename_type(type_: TypeProto, rename: Rename) -> None:
    which = type_.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        for dim in getattr(type_, which).shape.dim:
            if dim.dim_param:
                dim.dim_param = rename(dim.dim_param)
    elif which in ("sequence_type", "optional_type"):
        _rename_type(getattr(type_, which).elem_type, rename)
    elif which == "map_type":
        _rename_type(type_.map_type.value_type, rename)
