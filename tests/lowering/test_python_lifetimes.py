"""What Python keeps alive in eager torch: arguments of modules, keys and values of decoders, sums in place."""

from __future__ import annotations

import onnx
import onnx.helper
import onnx.parser
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Family, KernelGraph
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.lowering import lower
from gkestimator.lowering.scopes import held_arguments, module_path
from gkestimator.memory import memory_profile
from gkestimator.onnx_io import read_model
from gkestimator.operators.registry import LoweringOptions


def lowered(model: onnx.ModelProto, tmp_path: object, runtime: str = "torch", **options: str) -> KernelGraph:
    path = tmp_path / "model.onnx"  # type: ignore[operator]
    path.write_bytes(model.SerializeToString())
    return lower(
        read_model(path).bind(batch_size=2),
        LoweringOptions(
            runtime=runtime,
            dtype="fp32",
            matmul_precision=Precision.FP32,
            conv_precision=Precision.FP32,
            **options,  # type: ignore[arg-type]
        ),
    )


def test_a_name_says_the_modules_around_a_node() -> None:
    assert module_path("/features/features.1/features.1.0/Conv") == ("features", "features.1", "features.1.0")
    assert module_path("/Add") == ()
    assert module_path("node_conv2d_3") == ()


def test_an_argument_is_held_until_the_outermost_module_that_got_it_returns() -> None:
    # stem -> block (conv a, conv b: two nested modules) -> head; the block's input is s, conv b's input is t
    paths = [("stem",), ("block", "a"), ("block", "b"), ("block",), ("head",)]
    reads = [["x"], ["s"], ["t"], ["u"], ["v"]]
    writes = [["s"], ["t"], ["u"], ["v"], ["y"]]
    held = held_arguments(paths, reads, writes)
    assert held[0] == ["x"]  # the stem's argument
    assert held[3] == ["s"]  # the block's, though only its first module reads it
    assert held[2] == ["t"]
    assert held[4] == ["v"]
    assert held[1] == []


def test_a_module_called_twice_is_two_calls() -> None:
    paths = [("relu",), ("fc",), ("relu",)]
    held = held_arguments(paths, [["x"], ["a"], ["b"]], [["a"], ["b"], ["y"]])
    assert held == [["x"], ["a"], ["b"]]


def residual(names: tuple[str, ...]) -> onnx.ModelProto:
    """A block of three activations of 4 MiB a batch of 2; its input is read by the first alone."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 524288] x) => (float[N, 524288] y) {
          s = Sigmoid (x)
          t = Sigmoid (s)
          u = Sigmoid (t)
          y = Sigmoid (u)
        }"""
    )
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    return model


def test_a_blocks_input_lives_until_the_block_is_done(tmp_path: object) -> None:
    torch = load_runtime("torch")

    def peak(*names: str) -> int:
        graph = lowered(residual(names), tmp_path)
        profile = memory_profile(
            graph,
            allocator=torch.allocator,
            figures=torch.allocator_bytes,
            library_workspace_bytes=0,
        )
        return profile.activations_bytes >> 20

    assert peak("/stem/S", "/b/a/S", "/b/b/S", "/head/S") == 4 * 4  # x, s (the block's), t, u
    assert peak("s0", "s1", "s2", "s3") == 3 * 4  # x and two neighbours
    assert (
        lowered(residual(("/s/S", "/b/a/S", "/b/b/S", "/h/S")), tmp_path, "onnxruntime").steps[2].holds == ()
    )


ATTENTION = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 4, 64, 32] h, float[N, 4, 64, 32] g) => (float[N, 4, 64, 32] y)
      <float[1] scale = {0.125}, float[1] least = {-1e9}, int64[64] at = {%s},
       int64[2] down = {64, 1}> {
      k = Sigmoid (h)
      v = Tanh (h)
      q = Sigmoid (g)
      kt = Transpose <perm = [0, 1, 3, 2]> (k)
      scores = MatMul (q, kt)
      scaled = Mul (scores, scale)
      %s
      p = Softmax <axis = -1> (masked)
      o = MatMul (p, v)
      r = Sigmoid (o)
      y = Sigmoid (r)
    }"""
ORDER = ", ".join(map(str, range(64)))
CAUSAL = """
      rows = Reshape (at, down)
      seen = LessOrEqual (at, rows)
      masked = Where (seen, scaled, least)"""
PADDED = """
      twice = Add (g, g)
      row = ReduceMax <axes = [3], keepdims = 1> (twice)
      masked = Add (scaled, row)"""


DISTANCE = """
      rows = Reshape (at, down)
      near = LessOrEqual (at, rows)
      bucket = Cast <to = 7> (near)
      bias = Gather (table, bucket)
      biased = Add (scaled, bias)
      masked = Identity (biased)"""


def test_a_bias_looked_up_by_distance_is_no_causal_mask(tmp_path: object) -> None:
    text = (ATTENTION % (ORDER, DISTANCE)).replace(
        "float[1] least", "float[2] table = {0.5, 1.5}, float[1] least"
    )
    graph = lowered(onnx.parser.parse_model(text), tmp_path)
    assert graph.steps[-1].holds == ()


def test_fused_attention_skips_what_a_causal_mask_hides(tmp_path: object) -> None:
    def flops(mask: str) -> int:
        graph = lowered(onnx.parser.parse_model(ATTENTION % (ORDER, mask)), tmp_path)
        (kernel,) = (k for s in graph.steps for k in s.kernels if k.family is Family.ATTENTION)
        return kernel.flops

    heads, length, size = 2 * 4, 64, 32
    assert flops(PADDED) == heads * length * length * (4 * size + 7)
    assert flops(CAUSAL) == heads * length * (length + 1) // 2 * (4 * size + 7)


@pytest.mark.parametrize("attention", ["fused", "eager"])
def test_a_decoder_keeps_its_keys_and_values(tmp_path: object, attention: str) -> None:
    causal = lowered(onnx.parser.parse_model(ATTENTION % (ORDER, CAUSAL)), tmp_path, attention=attention)
    assert set(causal.steps[-1].holds) == {"k", "v"}
    assert "k" not in causal.steps[-1].reads
    padded = lowered(onnx.parser.parse_model(ATTENTION % (ORDER, PADDED)), tmp_path, attention=attention)
    assert padded.steps[-1].holds == ()


def test_onnxruntime_keeps_none(tmp_path: object) -> None:
    graph = lowered(onnx.parser.parse_model(ATTENTION % (ORDER, CAUSAL)), tmp_path, "onnxruntime")
    assert graph.steps[-1].holds == ()


SHORTCUT = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 8, 16, 16] x, float[8, 8, 1, 1] w) => (float[N, 8, 16, 16] y) {
      a = Conv (x, w)
      b = Add (a, x)
      c = %s (b)
      y = Sigmoid (c)
    }"""


def test_a_shortcut_is_added_in_place_before_its_activation(tmp_path: object) -> None:
    graph = lowered(onnx.parser.parse_model(SHORTCUT % "Relu"), tmp_path)
    assert [dict(s.writes).keys() for s in graph.steps[:3]] == [{"a"}, {"a"}, {"a"}]
    graph = lowered(onnx.parser.parse_model(SHORTCUT % "Tanh"), tmp_path)
    assert [dict(s.writes).keys() for s in graph.steps[:3]] == [{"a"}, {"b"}, {"c"}]
