"""Read a file as an EditableModel: functions inlined, every name under a prefix, weights where they lie."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import onnx
from onnx import AttributeProto, NodeProto

from gkestimator.core.errors import GkestimatorError, LimitError, ModelError
from gkestimator.merging.editing.combining import order_nodes
from gkestimator.merging.editing.form import EditableModel, Weights
from gkestimator.merging.editing.nodes import NodeReader, rename_value
from gkestimator.merging.editing.protos import FAILURES, MALFORMED, least_ir, value_of, with_output_types
from gkestimator.merging.editing.tensors import TensorSource, weight_of
from gkestimator.merging.editing.values import identity_of, opened_same
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.convert import convert_model
from gkestimator.onnx_io.reading.file import parse_model
from gkestimator.onnx_io.reading.schemas import complaint
from gkestimator.onnx_io.reading.wire import locate_values


def read_editable(path: Path, *, prefix: str, name: str) -> EditableModel:
    """Read the ONNX file ``path`` as the model ``name``, with ``prefix`` before every name (values, nodes,
    dims).

    Weights stay in the file or its external data (regular files below the model's folder) and are mapped when
    they are looked at. Constant nodes become weights, local functions are inlined, initializers that are
    inputs too become weights only, types of outputs that the file leaves open are inferred. Left out:
    documentation strings, metadata, training information, types declared between nodes. Raises ModelError or
    LimitError naming the file.
    """
    try:
        proto, source = read_located(path)
        # every check of a stranger's graph: undefined and doubled names, cycles, endless functions
        convert_model(proto)
        return with_output_types(_model(_inlined(proto), source, prefix, name))
    except GkestimatorError as e:
        raise type(e)(str(e) if str(e).startswith(f"{path.name}: ") else f"{path.name}: {e}") from e
    except RecursionError as e:
        raise LimitError(f"{path.name}: nested too deeply") from e
    except MALFORMED as e:
        raise ModelError(f"{path.name}: malformed ({complaint(e)})") from e


def _inlined(proto: onnx.ModelProto) -> onnx.ModelProto:
    if not proto.functions:
        return proto
    import onnx.checker
    import onnx.inliner
    import onnx.version_converter

    opsets = _versions(proto)
    try:
        for function in proto.functions:
            if _versions(function) != opsets:  # it is converted, and the converter believes attributes
                onnx.checker.check_function(function)
        inlined = onnx.inliner.inline_local_functions(proto, convert_version=True)
    except (*FAILURES, onnx.version_converter.ConvertError) as e:
        raise ModelError(f"its local functions cannot be inlined by onnx: {complaint(e)}") from e
    if inlined.functions:
        left = ", ".join(sorted({f"{function.domain}.{function.name}" for function in inlined.functions})[:4])
        raise ModelError(f"its local functions {left} cannot be inlined")
    return inlined


def _versions(proto: onnx.ModelProto | onnx.FunctionProto) -> set[int]:
    """Return the versions of the standard operators that ``proto`` imports."""
    return {opset.version for opset in proto.opset_import if opset.domain in ("", "ai.onnx")}


def _model(proto: onnx.ModelProto, source: TensorSource, prefix: str, name: str) -> EditableModel:
    def rename(text: str) -> str:
        return prefix + text

    graph = proto.graph
    weights: Weights = {}
    for tensor in graph.initializer:
        weight = weight_of(tensor, rename(tensor.name), source, f"initializer {tensor.name!r}")
        weights[weight.name] = weight
    reader = NodeReader(source, rename)
    for sparse in graph.sparse_initializer:
        # the same as a node: nothing here looks into sparse values
        reader.add(_sparse_constant(sparse), weights)
    for node in graph.node:
        reader.add(node, weights)
    for value in (*graph.input, *graph.output):
        rename_value(value, rename)
    inputs = [value_of(v, "input") for v in graph.input if v.name not in weights]
    outputs = [value_of(v, "output") for v in graph.output]
    # what stands before the first node
    known = [*weights, *(i.name for i in inputs)]
    domains = reader.domains | {""}
    opsets = {
        "" if opset.domain == "ai.onnx" else opset.domain: opset.version for opset in proto.opset_import
    } or {"": 1}
    return EditableModel(
        name=name,
        nodes=order_nodes(reader.nodes, known),
        weights=weights,
        inputs=inputs,
        outputs=outputs,
        opsets={d: v for d, v in sorted(opsets.items()) if d in domains},
        ir_version=max(proto.ir_version, least_ir(proto.opset_import)),
        prefixes=(prefix,),
        producer=" ".join(t for t in (proto.producer_name, proto.producer_version) if t),
    )


def _sparse_constant(sparse: onnx.SparseTensorProto) -> NodeProto:
    node = NodeProto(op_type="Constant", output=[sparse.values.name])
    node.attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR).sparse_tensor.CopyFrom(sparse)
    return node


def read_located(path: Path) -> tuple[onnx.ModelProto, TensorSource]:
    """Return the model in ``path`` and where its values are.

    A tensor whose values were cut has an ``external_data`` entry of the source's token:
    ``field,offset,length``. The token is drawn anew, so that no file can hold one. Raises ModelError or
    LimitError; messages of what is in the file do not name it yet.
    """
    path = Path(os.path.abspath(path))  # the working folder may change before the weights are read
    identity = identity_of(path)
    limits.check("file_bytes", identity[2], path.name)
    token = secrets.token_hex(16)
    with opened_same(path, identity) as content:
        model = parse_model(locate_values(content, token))
    return model, TensorSource(path=path, identity=identity, token=token)
