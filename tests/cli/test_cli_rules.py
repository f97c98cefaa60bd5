"""The command line, whole: a user's own rules, dtype int8, BatchNorms folded by an exporter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from gkestimator.cli import run
from gkestimator.operators.records import OPERATORS, restore_operators

MODEL = """
    <ir_version: 8, opset_import: ["" : 17, "acme.vision" : 1]>
    net (float[N, 8, 16] x) => (float[N, 8, 16] y) <float[N, 8, 16] a> {
      a = acme.vision.SoftGate <sharpness = 2.0> (x)
      y = Relu (a)
    }"""
RULE = '''
from gkestimator.lowering import Lowered, lowering_rule
from gkestimator.operators.builders import elementwise_kernel, output_at, tensor_inputs


@lowering_rule("SoftGate", domain="acme.vision")
def soft_gate(op, options):
    """x sigmoid(sharpness x)."""
    kernel = elementwise_kernel("soft_gate", tensor_inputs(op), (output_at(op),), flops_per_element=6)
    return Lowered(kernels=(kernel,), host_calls=1)
'''
SHAPE = """
from gkestimator.operators.registry import shape_rule


@shape_rule("SoftGate", domain="acme.vision")
def soft_gate_shape(ctx):
    return [ctx.types[0]]
"""

Outcome = tuple[int, str, str]


@pytest.fixture(autouse=True)
def own_rules_leave() -> Iterator[None]:
    """Rules that a test's plug-in brought are taken back: they are the process's."""
    for built_in in ("gkestimator.lowering", "gkestimator.operators"):
        import_module(built_in)
    before = dict(OPERATORS)
    yield
    restore_operators(before)


@pytest.fixture
def gkest(capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    def call(*arguments: str | Path) -> Outcome:
        status = run(["estimate", *map(str, arguments), "--gpu", "T4"])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def saved(path: Path, model: onnx.ModelProto) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def refusal(outcome: Outcome) -> str:
    status, out, err = outcome
    assert status == 2 and out == "" and "Traceback" not in err, (status, out, err)
    (line,) = [line for line in err.splitlines() if line.startswith("gkest: error: ")]
    return line


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_a_plug_in_estimates_an_operator_that_was_refused(
    runtime: str, gkest: Callable[..., Outcome], tmp_path: Path
) -> None:
    model = saved(tmp_path / "own.onnx", parser.parse_model(MODEL))
    ask = (model, "--batch-size", "4", "--runtime", runtime, "--format", "json")
    assert "acme.vision.SoftGate" in refusal(gkest(*ask))
    rules = written(tmp_path / "rules.py", RULE)
    status, out, err = gkest(*ask, "--plugin", rules)
    assert status == 0, err
    (row,) = json.loads(out)["rows"]
    assert row["flops"] == 4 * 8 * 16 * (6 + 1)
    assert (row["kernels"], row["unknown_kernels"]) == (2, 0)
    assert row["latency_high_ms"] is not None


def test_a_plug_in_may_bring_the_shape_that_the_file_does_not_declare(
    gkest: Callable[..., Outcome], tmp_path: Path
) -> None:
    model = saved(tmp_path / "own.onnx", parser.parse_model(MODEL.replace("<float[N, 8, 16] a>", "")))
    bare = written(tmp_path / "bare.py", RULE)
    assert "acme.vision.SoftGate" in refusal(gkest(model, "--plugin", bare))
    whole = written(tmp_path / "whole.py", SHAPE)
    status, _, err = gkest(model, "--plugin", bare, "--plugin", whole)
    assert status == 0, err


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("def soft_gate(:\n", "SyntaxError"),
        ("import no_such_module_here\n", "no_such_module_here"),
        ("x = 1\n", "registers no rule"),
        (RULE.replace('"SoftGate", domain="acme.vision"', '"Relu"'), "two lowering rules"),
        ("raise SystemExit(0)\n", "SystemExit"),
    ],
)
def test_a_plug_in_that_is_wrong_is_one_line(
    text: str, word: str, gkest: Callable[..., Outcome], tmp_path: Path
) -> None:
    model = saved(tmp_path / "own.onnx", parser.parse_model(MODEL))
    line = refusal(gkest(model, "--plugin", written(tmp_path / "wrong.py", text)))
    assert word in line and "wrong.py" in line


def test_a_rule_that_fails_names_the_node(gkest: Callable[..., Outcome], tmp_path: Path) -> None:
    model = saved(tmp_path / "own.onnx", parser.parse_model(MODEL))
    before = dict(OPERATORS)
    for number, fault in enumerate(("op.attributes['absent']", "1 / 0", "op.inputs[3]", "None.kernels")):
        text = RULE.replace("    kernel = ", f"    {fault}\n    kernel = ")
        line = refusal(gkest(model, "--plugin", written(tmp_path / f"faulty{number}.py", text)))
        assert "SoftGate" in line and "own" in line
        restore_operators(before)


def test_a_plug_in_that_is_not_there(gkest: Callable[..., Outcome], tmp_path: Path) -> None:
    model = saved(tmp_path / "own.onnx", parser.parse_model(MODEL))
    assert "absent.py" in refusal(gkest(model, "--plugin", tmp_path / "absent.py"))


FLOAT = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 64] x, float[64, 64] w) => (float[N, 64] y) { y = MatMul (x, w) }"""
QDQ = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 64] x, int8[64, 64] w, float[64, 64] v) => (float[N, 64] y)
    <float s = {0.1}, int8 z = {0}> {
      q = QuantizeLinear (x, s, z)
      d = DequantizeLinear (q, s, z)
      e = DequantizeLinear (w, s, z)
      m = MatMul (d, e)
      r = QuantizeLinear (m, s, z)
      f = DequantizeLinear (r, s, z)
      y = MatMul (f, v)
    }"""


def test_int8_needs_a_quantised_file_and_leaves_the_rest_in_floating_point(
    gkest: Callable[..., Outcome], tmp_path: Path
) -> None:
    plain = saved(tmp_path / "plain.onnx", parser.parse_model(FLOAT))
    line = refusal(gkest(plain, "--dtype", "int8", "--runtime", "onnxruntime"))
    assert "plain" in line and "int8 needs a quantised model" in line
    quantised = saved(tmp_path / "quantised.onnx", parser.parse_model(QDQ))
    ask = (quantised, "--runtime", "onnxruntime", "--batch-size", "32", "--format", "json", "--kernels")
    status, out, err = gkest(*ask, "--dtype", "int8")
    assert status == 0, err
    found = json.loads(out)
    assert [r["dtype"] for r in found["rows"]] == ["int8"]
    kernels = [k["kernel"] for k in found["kernels"]]
    assert kernels == ["quantize.quantize", "linear.qlinear", "quantize.dequantize", "linear"]


def folded_convolution() -> onnx.ModelProto:
    """What torch's TorchScript exporter writes of Conv and BatchNorm: folded, the weight renamed."""
    weight = numpy_helper.from_array(np.zeros((8, 3, 3, 3), np.float32), "onnx::Conv_17")
    bias = numpy_helper.from_array(np.zeros(8, np.float32), "onnx::Conv_18")
    node = helper.make_node("Conv", ["x", weight.name, bias.name], ["y"], kernel_shape=[3, 3])
    ends = [helper.make_tensor_value_info(n, 1, ["N", c, s, s]) for n, c, s in (("x", 3, 18), ("y", 8, 16))]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight, bias])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_whether_folded_batchnorms_run_apart_is_an_option(
    gkest: Callable[..., Outcome], tmp_path: Path
) -> None:
    model = saved(tmp_path / "folded.onnx", folded_convolution())

    def rows(*more: str) -> dict[str, Any]:
        status, out, err = gkest(model, "--batch-size", "2", "--format", "json", *more)
        assert status == 0, err
        (row,) = json.loads(out)["rows"]
        return dict(row)

    default, unfolded, folded = rows(), rows("--unfold-batchnorm"), rows("--no-unfold-batchnorm")
    assert default == unfolded
    assert "BatchNorm" in default["warnings"] and "BatchNorm" not in folded["warnings"]
    assert default["weights_bytes"] - folded["weights_bytes"] == 3 * 8 * 4
    native = rows("--runtime", "onnxruntime")
    assert native == rows("--runtime", "onnxruntime", "--no-unfold-batchnorm")
