"""Forms of one BERT under onnxruntime: what its optimiser makes of each, recorded and asked again, and what we lower."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Family, Kernel
from gkestimator.lowering import lower
from gkestimator.onnx_io import read_model
from gkestimator.operators.registry import LoweringOptions

GRAPHS = Path(__file__).parents[1] / "data/ort_graphs"
# Two layers, written by ``benchmarks/export_ort_models.py --tiny``; what onnxruntime 1.32.0 leaves of them on its CPU
# provider (``optimized_model_filepath``), without what launches nothing on a GPU.
_EXPORTED = {
    "Add": 33,
    "ReduceMean": 10,
    "Sub": 6,
    "Sqrt": 5,
    "Div": 9,
    "MatMul": 17,
    "Transpose": 8,
    "Softmax": 2,
}
_EXPORTED |= {"Erf": 2, "Split": 1}
_FUSED = {"FusedMatMul": 2, "MatMul": 15, "Transpose": 8, "Softmax": 2, "BiasGelu": 2, "Split": 1}
_OPTIMISED = {"EmbedLayerNormalization": 1, "Attention": 2, "MatMul": 7, "SkipLayerNormalization": 4}
_OPTIMISED |= {"BiasGelu": 2, "Add": 1, "Split": 1}
RECORDED: dict[tuple[str, str], dict[str, int]] = {
    ("exported", "basic"): {**_EXPORTED, "Pow": 5, "Mul": 10},
    ("exported", "extended"): {**_FUSED, "Add": 19, "LayerNormalization": 5, "Sub": 1, "Mul": 1},
    ("nvidia", "basic"): {**_EXPORTED, "Mul": 15},
    ("nvidia", "extended"): {**_FUSED, "Add": 29, "ReduceMean": 10, "Sub": 6, "Mul": 11, "Sqrt": 5, "Div": 5},
    ("dynamo", "basic"): {
        "Add": 23, "LayerNormalization": 5, "Sub": 1, "Mul": 5, "MatMul": 17, "Transpose": 8, "Div": 4,
        "Softmax": 2, "Erf": 2, "Split": 1,
    },
    ("dynamo", "extended"): {**_FUSED, "Add": 10, "SkipLayerNormalization": 5, "Sub": 1, "Mul": 1},
    ("optimised", "basic"): _OPTIMISED,
    ("optimised", "extended"): _OPTIMISED,
}  # fmt: skip
_NO_KERNEL = frozenset(
    {"Shape", "Unsqueeze", "Slice", "Concat", "Reshape", "Constant", "Identity", "Gather", "Cast"}
)


def options(graph_level: str = "extended", attention: str = "fused") -> LoweringOptions:
    return LoweringOptions(
        runtime="onnxruntime",
        dtype="fp32",
        matmul_precision=Precision.FP32,
        conv_precision=Precision.FP32,
        graph_level=graph_level,
        attention=attention,
    )


def graph_file(form: str) -> Path:
    return GRAPHS / f"bert_tiny.{form}.fp32.onnx"


def lowered(form: str, chosen: LoweringOptions) -> Any:
    return lower(read_model(graph_file(form)).bind(batch_size=2, dims={"S": 16}), chosen)


@pytest.mark.parametrize(("form", "level"), sorted(RECORDED))
def test_steps_are_what_onnxruntime_leaves_of_each_form(form: str, level: str) -> None:
    steps = Counter(step.op_type for step in lowered(form, options(level)).steps)
    # The CUDA provider alone adds the mask inside the softmax.
    joined = steps.pop("BiasSoftmax", 0)
    steps["Softmax"] += joined
    steps["Add"] += joined
    found = {op_type: count for op_type, count in steps.items() if count and op_type not in _NO_KERNEL}
    assert found == RECORDED[form, level]
    assert joined == (0 if level == "basic" or form == "optimised" else 2)


@pytest.mark.parametrize(("form", "level"), sorted(RECORDED))
def test_the_record_is_what_onnxruntime_does_today(form: str, level: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    import onnx

    session = onnxruntime.SessionOptions()
    session.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level.upper()}"
    )
    session.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    session.log_severity_level = 3
    session.intra_op_num_threads = 1
    onnxruntime.InferenceSession(str(graph_file(form)), session, providers=["CPUExecutionProvider"])
    nodes = onnx.load(session.optimized_model_filepath).graph.node
    found = Counter(node.op_type for node in nodes if node.op_type not in _NO_KERNEL)
    assert found == RECORDED[form, level]


def kernels_of(form: str, op_type: str, chosen: LoweringOptions) -> list[Kernel]:
    step = next(step for step in lowered(form, chosen).steps if step.op_type == op_type)
    return list(step.kernels)


def test_attention_in_float32_with_a_mask_is_composed_as_onnxruntime_does() -> None:
    kernels = kernels_of("optimised", "Attention", options())
    families = [kernel.family for kernel in kernels]
    assert families == [Family.LINEAR, Family.COPY, Family.BMM, Family.SOFTMAX, Family.BMM, Family.COPY]
    scores = 2 * 2 * 16 * 16 * 4  # batch, heads, queries, keys, bytes
    assert kernels[2].write_bytes == kernels[3].write_bytes == scores
    assert kernels[1].read_bytes == 2 * 16 * 3 * 16 * 4


def test_each_launch_of_an_attention_operator_is_a_call_of_the_host() -> None:
    step = next(s for s in lowered("optimised", options()).steps if s.op_type == "Attention")
    assert step.host_calls == len(step.kernels) == 6


def test_broadcasting_kernels_say_by_how_many_dimensions_they_divide() -> None:
    variants = Counter(
        kernel.variant
        for step in lowered("nvidia", options("basic")).steps
        for kernel in step.kernels
        if kernel.family is Family.ELEMENTWISE and step.op_type in ("Sub", "Div", "Add")
    )
    # A bias on the left, as the exporter writes it, and the positions: all three dimensions. LayerNorm's shift on the
    # right: two. The mask on the scores: four. Divisions by the root of the head size: none.
    assert variants["add.indexed3"] == 6 * 2 + 1 + 1
    assert variants["add.indexed2"] == 5
    assert variants["add.indexed4"] == 2
    assert variants["sub.indexed3"] == 5
    assert variants["div"] == 4
