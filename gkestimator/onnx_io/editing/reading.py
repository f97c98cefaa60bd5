"""A file to an EditableModel: functions inlined, every name under a prefix, weights where they lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from gkestimator.errors import GkestimatorError, LimitError, ModelError
from gkestimator.onnx_io.convert import convert_model
from gkestimator.onnx_io.editing.form import EditableModel, Node, Weight
from gkestimator.onnx_io.editing.locating import read_located
from gkestimator.onnx_io.editing.ordering import order_nodes
from gkestimator.onnx_io.editing.protos import MALFORMED, node_of, value_of
from gkestimator.onnx_io.editing.renaming import free_names, graphs_of, prefix_node, prefix_value, tensors_of
from gkestimator.onnx_io.editing.tensors import Source, make_weight, tensor_proto, weight_of

__all__ = ["read_editable"]

_MAX_OPAQUE_BYTES = 128 << 20  # values of tensors inside subgraphs and attributes, which stay in memory
_CONSTANTS = {"value_float": "<f4", "value_floats": "<f4", "value_int": "<i8", "value_ints": "<i8"}


def read_editable(path: Path, *, prefix: str, name: str) -> EditableModel:
    """Read the ONNX file ``path`` as the model ``name``, with ``prefix`` before every name (values, nodes, dims).

    Weights stay in the file or its external data (regular files below the model's folder) and are mapped when they
    are looked at. Constant nodes become weights, local functions are inlined, initializers that are inputs too
    become weights only. Left out: documentation strings, metadata, training information, types declared between
    nodes. Raises ModelError or LimitError naming the file.
    """
    try:
        proto, source = read_located(path)
        # every check of a stranger's graph: undefined and doubled names, cycles, endless functions
        convert_model(proto)
        return _model(_inlined(proto), source, prefix, name)
    except GkestimatorError as e:
        raise type(e)(str(e) if str(e).startswith(f"{path.name}: ") else f"{path.name}: {e}") from e
    except RecursionError as e:
        raise LimitError(f"{path.name}: nested too deeply") from e
    except MALFORMED as e:
        raise ModelError(f"{path.name}: malformed ({e})") from e


def _inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    if not proto.functions:
        return proto
    import onnx.inliner

    try:
        found = onnx.inliner.inline_local_functions(proto, convert_version=True)
    except (RuntimeError, ValueError) as e:
        raise ModelError(f"its local functions cannot be inlined: {e}") from e
    if found.functions:
        left = ", ".join(sorted({f"{f.domain}.{f.name}" for f in found.functions})[:4])
        raise ModelError(f"its local functions {left} cannot be inlined")
    return found


def _model(proto: onnx.ModelProto, source: Source, prefix: str, name: str) -> EditableModel:
    graph = proto.graph
    weights: dict[str, Weight] = {}
    for tensor in graph.initializer:
        weights[prefix + tensor.name] = weight_of(
            tensor, prefix + tensor.name, source, f"initializer {tensor.name!r}"
        )
    reader = _Nodes(source, prefix)
    for sparse in graph.sparse_initializer:
        # the same as a node: nothing here looks into sparse values
        reader.add(_sparse_constant(sparse), weights)
    for node in graph.node:
        reader.add(node, weights)
    for value in (*graph.input, *graph.output):
        prefix_value(value, prefix)
    inputs = [value_of(v, "input") for v in graph.input if v.name not in weights]
    outputs = [value_of(v, "output") for v in graph.output]
    known = [*weights, *(i.name for i in inputs)]
    domains = reader.domains | {""}
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import} or {"": 1}
    return EditableModel(
        name=name,
        nodes=order_nodes(reader.nodes, known),
        weights=weights,
        inputs=inputs,
        outputs=outputs,
        opsets={d: v for d, v in sorted(opsets.items()) if d in domains},
        ir_version=proto.ir_version,
        prefixes=(prefix,),
        producer=" ".join(t for t in (proto.producer_name, proto.producer_version) if t),
    )


def _sparse_constant(sparse: onnx.SparseTensorProto) -> NodeProto:
    node = NodeProto(op_type="Constant", output=[sparse.values.name])
    node.attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR).sparse_tensor.CopyFrom(sparse)
    return node


class _Nodes:
    """The nodes read so far, the names that they have taken and the bytes that their attributes hold."""

    def __init__(self, source: Source, prefix: str) -> None:
        self.source = source
        self.prefix = prefix
        self.nodes: list[Node] = []
        self.domains: set[str] = set()
        self.taken: set[str] = set()
        self.count = 0
        self.opaque_bytes = 0

    def add(self, proto: NodeProto, weights: dict[str, Weight]) -> None:
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
        prefix_node(proto, self.prefix)
        self.nodes.append(node_of(proto, self._unique(self.prefix + label), free_names))

    def _unique(self, name: str) -> str:
        label, suffix = name, 2
        while label in self.taken:
            label = f"{name}#{suffix}"
            suffix = suffix + 1 if suffix < 16 else suffix + len(self.taken)  # fast when all are equal
        self.taken.add(label)
        return label

    def _domains(self, proto: NodeProto) -> None:
        self.domains.add("" if proto.domain == "ai.onnx" else proto.domain)
        for graph in graphs_of(proto):
            for node in graph.node:
                self._domains(node)

    def _constant(self, proto: NodeProto, what: str) -> Weight | None:
        """The weight that a Constant node stands for; None where it is none (text and sparse values stay nodes)."""
        if not proto.output or not proto.output[0]:
            return None
        name = self.prefix + proto.output[0]
        for attribute in proto.attribute:
            if attribute.name == "value" and attribute.HasField("t"):
                return weight_of(attribute.t, name, self.source, what)
            if attribute.name in _CONSTANTS:
                kind = _CONSTANTS[attribute.name]
                value = {
                    "value_float": attribute.f, "value_int": attribute.i,
                    "value_floats": list(attribute.floats), "value_ints": list(attribute.ints),
                }[attribute.name]  # fmt: skip
                return make_weight(name, np.array(value, kind))
        return None

    def _fill(self, tensor: TensorProto, what: str) -> None:
        """Bring the values of a tensor inside an attribute into the proto."""
        cut = any(e.key == self.source.token for e in tensor.external_data)
        if not cut and tensor.data_location != TensorProto.EXTERNAL:
            return
        found = weight_of(tensor, tensor.name, self.source, f"{what}: tensor {tensor.name!r}")
        self.opaque_bytes += found.nbytes
        if self.opaque_bytes > _MAX_OPAQUE_BYTES:
            raise LimitError(
                f"{what}: tensors inside subgraphs and attributes hold more than {_MAX_OPAQUE_BYTES} bytes"
            )
        tensor.CopyFrom(tensor_proto(found, values=True))
