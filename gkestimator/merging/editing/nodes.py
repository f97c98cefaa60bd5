"""Read nodes and rename names inside them: all that a node and its subgraphs define or read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from gkestimator.core.errors import LimitError
from gkestimator.merging.editing.form import EditNode, Weight, Weights
from gkestimator.merging.editing.protos import node_of
from gkestimator.merging.editing.tensors import TensorSource, make_weight, tensor_proto, weight_of
from gkestimator.onnx_io.reading.names import distinct_label, graphs_of

Rename = Callable[[str], str]


def tensors_of(node: NodeProto) -> Iterator[TensorProto]:
    """Yield every tensor in a node's attributes and subgraphs."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        sparse = list(attribute.sparse_tensors)
        if attribute.HasField("sparse_tensor"):
            sparse.append(attribute.sparse_tensor)
        for tensor in sparse:
            yield from (tensor.values, tensor.indices)
    for graph in graphs_of(node):
        yield from graph.initializer
        for tensor in graph.sparse_initializer:
            yield from (tensor.values, tensor.indices)
        for inner in graph.node:
            yield from tensors_of(inner)


def rename_node(node: NodeProto, rename: Rename) -> None:
    """Rename every value, node and dimension in ``node`` and its subgraphs, in place.

    All names go through ``rename``, whichever graph defines them: where it keeps different names different,
    what refers to what stays as it was.
    """
    for names in (node.input, node.output):
        names[:] = [rename(name) if name else name for name in names]
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


_MAX_OPAQUE_BYTES = 128 << 20  # values of tensors inside subgraphs and attributes, which stay in memory
_CONSTANTS = {"value_float": "<f4", "value_floats": "<f4", "value_int": "<i8", "value_ints": "<i8"}


class NodeReader:
    """Take nodes one by one: ``nodes`` so far, and the ``domains`` of their operators.

    ``source`` is where values that were cut out of the protos are (None: nowhere); ``rename`` gives every
    name its new one.
    """

    def __init__(self, source: TensorSource | None, rename: Rename) -> None:
        self.source = source
        self.rename = rename
        self.nodes: list[EditNode] = []
        self.domains: set[str] = set()
        self.taken: set[str] = set()
        self.count = 0
        self.opaque_bytes = 0

    def add(self, proto: NodeProto, weights: Weights) -> None:
        """Add ``proto`` (which is changed) to the nodes, or, if it is a constant, to ``weights``.

        Raises ModelError or LimitError naming the node.
        """
        index = self.count
        self.count += 1
        label = proto.name or f"{proto.op_type}#{index}"
        if proto.op_type == "Constant" and proto.domain in ("", "ai.onnx"):
            weight = self._constant(proto, f"node {label} (Constant)")
            if weight is not None:
                weights[weight.name] = weight
                return
        for tensor in tensors_of(proto):
            self._fill(tensor, f"node {label}")
        self._domains(proto)
        rename_node(proto, self.rename)
        self.nodes.append(node_of(proto, distinct_label(self.rename(label), self.taken)))

    def _domains(self, proto: NodeProto) -> None:
        self.domains.add("" if proto.domain == "ai.onnx" else proto.domain)
        for graph in graphs_of(proto):
            for node in graph.node:
                self._domains(node)

    def _constant(self, proto: NodeProto, what: str) -> Weight | None:
        """Return the weight that a Constant node stands for; None where it is none (text and sparse values
        stay nodes).
        """
        if not proto.output or not proto.output[0]:
            return None
        name = self.rename(proto.output[0])
        for attribute in proto.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                return weight_of(attribute.t, name, self.source, what)
            if attribute.name in _CONSTANTS:
                value = helper.get_attribute_value(attribute)
                return make_weight(name, np.array(value, _CONSTANTS[attribute.name]))
        return None

    def _fill(self, tensor: TensorProto, what: str) -> None:
        """Bring the values of a tensor inside an attribute into the proto."""
        cut = self.source is not None and any(
            entry.key == self.source.token for entry in tensor.external_data
        )
        if not cut and tensor.data_location != TensorProto.EXTERNAL:
            return
        weight = weight_of(tensor, tensor.name, self.source, f"{what}: tensor {tensor.name!r}")
        self.opaque_bytes += weight.nbytes
        if self.opaque_bytes > _MAX_OPAQUE_BYTES:
            raise LimitError(
                f"{what}: tensors inside subgraphs and attributes hold more than {_MAX_OPAQUE_BYTES} bytes"
            )
        tensor.CopyFrom(tensor_proto(weight, values=True))
