"""Nodes of a protobuf graph to Nodes: renamed, constants apart, values of tensors in attributes brought in."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from gkestimator.core.errors import LimitError
from gkestimator.merging.editing.form import EditNode, Weight
from gkestimator.merging.editing.protos import node_of
from gkestimator.merging.editing.renaming import Rename, rename_node, tensors_of
from gkestimator.merging.editing.tensors import TensorSource, make_weight, tensor_proto, weight_of
from gkestimator.onnx_io.reading.names import distinct_label, graphs_of

_MAX_OPAQUE_BYTES = 128 << 20  # values of tensors inside subgraphs and attributes, which stay in memory
_CONSTANTS = {"value_float": "<f4", "value_floats": "<f4", "value_int": "<i8", "value_ints": "<i8"}


class NodeReader:
    """Takes nodes one by one: ``nodes`` so far, and the ``domains`` of their operators.

    ``source`` is where values that were cut out of the protos are (None: nowhere); ``rename`` gives every name its new
    one.
    """

    def __init__(self, source: TensorSource | None, rename: Rename) -> None:
        self.source = source
        self.rename = rename
        self.nodes: list[EditNode] = []
        self.domains: set[str] = set()
        self.taken: set[str] = set()
        self.count = 0
        self.opaque_bytes = 0

    def add(self, proto: NodeProto, weights: dict[str, Weight]) -> None:
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
        """The weight that a Constant node stands for; None where it is none (text and sparse values stay nodes)."""
        if not proto.output or not proto.output[0]:
            return None
        name = self.rename(proto.output[0])
        for attribute in proto.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                return weight_of(attribute.t, name, self.source, what)
            if attribute.name in _CONSTANTS:
                kind = _CONSTANTS[attribute.name]
                value = {
                    "value_float": attribute.f,
                    "value_int": attribute.i,
                    "value_floats": list(attribute.floats),
                    "value_ints": list(attribute.ints),
                }[attribute.name]
                return make_weight(name, np.array(value, kind))
        return None

    def _fill(self, tensor: TensorProto, what: str) -> None:
        """Bring the values of a tensor inside an attribute into the proto."""
        cut = self.source is not None and any(e.key == self.source.token for e in tensor.external_data)
        if not cut and tensor.data_location != TensorProto.EXTERNAL:
            return
        found = weight_of(tensor, tensor.name, self.source, f"{what}: tensor {tensor.name!r}")
        self.opaque_bytes += found.nbytes
        if self.opaque_bytes > _MAX_OPAQUE_BYTES:
            raise LimitError(
                f"{what}: tensors inside subgraphs and attributes hold more than {_MAX_OPAQUE_BYTES} bytes"
            )
        tensor.CopyFrom(tensor_proto(found, values=True))
