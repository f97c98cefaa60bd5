"""Small operator graphs from ONNX's textual syntax, independent of the project's own reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.operators.registry import LoweringOptions


def build_model(text: str, constants: Mapping[str, Any], *, opset: int = 17) -> Any:
    """``g (...) => (...) {...}`` as a checked, shape-inferred ModelProto; numpy constants become
    initializers.

    A tuple stands for random float weights of that shape, a float for a scalar.
    """
    import onnx

    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]> g {text}'
    )
    rng = np.random.default_rng(0)
    for name, given in constants.items():
        if isinstance(given, tuple):
            array = rng.standard_normal(given).astype(np.float32)
        elif isinstance(given, np.ndarray):
            array = given
        else:
            array = np.array(given, dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def bind_model(model: Any) -> OperatorGraph:
    """The operator graph of a model whose shapes are all numbers (Constant nodes are not supported)."""
    import onnx

    tensors: dict[str, Tensor] = {}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        kind = value.type.tensor_type
        name = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
        shape = tuple(d.dim_value for d in kind.shape.dim)
        tensors[value.name] = Tensor(name=value.name, dtype=DType(name), shape=shape, storage=value.name)
    for proto in model.graph.initializer:
        array = onnx.numpy_helper.to_array(proto)
        tensors[proto.name] = Tensor(
            name=proto.name,
            dtype=DType(onnx.TensorProto.DataType.Name(proto.data_type).lower()),
            shape=array.shape,
            storage=proto.name,
            is_weight=True,
            value=array if array.size <= 16 else None,
        )
    versions = {o.domain: o.version for o in model.opset_import}
    operators = []
    for index, node in enumerate(model.graph.node):
        attributes = {}
        for attribute in node.attribute:
            found = onnx.helper.get_attribute_value(attribute)
            attributes[attribute.name] = tuple(found) if isinstance(found, list) else found
        operators.append(
            Operator(
                name=f"{node.op_type}#{index}",
                domain=node.domain,
                op_type=node.op_type,
                version=versions[node.domain],
                attributes=attributes,
                inputs=tuple(tensors[n] if n else None for n in node.input),
                outputs=tuple(tensors[n] if n else None for n in node.output),
            )
        )
    return OperatorGraph(
        name="g",
        operators=tuple(operators),
        inputs=tuple(tensors[v.name] for v in model.graph.input),
        outputs=tuple(tensors[v.name] for v in model.graph.output),
        weights={t.storage: t.nbytes for t in tensors.values() if t.is_weight},
        batch_size=1,
    )


@pytest.fixture
def onnx_model() -> Callable[..., Any]:
    """``onnx_model(text, constants)``: a shape-inferred ModelProto."""
    return build_model


@pytest.fixture
def graph_of() -> Callable[..., OperatorGraph]:
    """``graph_of(text, constants)``: the operator graph of a model in ONNX's textual syntax."""

    def make(text: str, constants: Mapping[str, Any], *, opset: int = 17) -> OperatorGraph:
        return bind_model(build_model(text, constants, opset=opset))

    return make


@pytest.fixture
def lowering_options() -> Callable[..., LoweringOptions]:
    """``lowering_options(runtime, dtype=..., attention=...)``: strict fp32 unless said otherwise."""

    def make(runtime: str, *, dtype: str = "fp32", attention: str = "auto", **more: Any) -> LoweringOptions:
        return LoweringOptions(
            runtime=runtime,
            dtype=dtype,
            matmul_precision=Precision.FP32,
            conv_precision=Precision.FP32,
            attention=attention,
            **more,
        )

    return make


_ORT_NAMES = {"SimplifiedLayerNormalization": "RMSNormalization"}


@pytest.fixture
def optimised_operators(tmp_path: Any) -> Callable[[Any], list[str]]:
    """``optimised_operators(model)``: operator types, sorted, after onnxruntime's own optimiser (CPU
    provider).

    Level "extended", not "all": the one above only changes the data layout for CPUs. The CPU provider's
    FusedConv is counted as Conv and Relu, which is what the CUDA provider runs.
    """
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

    def optimise(model: Any) -> list[str]:
        import onnx

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found: list[str] = []
        for node in onnx.load(options.optimized_model_filepath).graph.node:
            if node.op_type in ("FusedConv", "FusedGemm"):
                found += [node.op_type.removeprefix("Fused"), "Relu"]
            elif node.op_type != "Constant":
                found.append(_ORT_NAMES.get(node.op_type, node.op_type))
        return sorted(found)

    return optimise


@pytest.fixture
def lowered_operators(
    lowering_options: Callable[..., LoweringOptions],
) -> Callable[[OperatorGraph], list[str]]:
    """``lowered_operators(graph)``: operator types, sorted, after our onnxruntime patterns."""

    def apply(graph: OperatorGraph) -> list[str]:
        from gkestimator.lowering.patterns import find_matches

        matches = find_matches(graph, lowering_options("onnxruntime"))
        covered = {index for match in matches for index in match.covered}
        rest = [op.op_type for index, op in enumerate(graph.operators) if index not in covered]
        return sorted([*rest, *(match.op_type for match in matches)])

    return apply
