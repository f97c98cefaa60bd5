"""Operators that torch's eager mode makes of several kernels. The counts were seen in torch.profiler (torch 2.13)."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Kernel
from gkestimator.lowering import lower
from gkestimator.onnx_io import read_model
from gkestimator.operators.registry import LoweringOptions

SHAPE = "2, 8, 6, 6"


def kernels(body: str, tmp_path: Path, runtime: str = "torch", result: str = SHAPE) -> list[Kernel]:
    path = tmp_path / "model.onnx"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        net (float[{SHAPE}] x) => (float[{result}] y) {body}"""
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    options = LoweringOptions(
        runtime=runtime, dtype="fp32", matmul_precision=Precision.FP32, conv_precision=Precision.FP32
    )
    return [k for step in lower(read_model(path).bind(), options).steps for k in step.kernels]


def pad(sides: str, mode: str = "constant") -> str:
    return f'<int64[8] p = {{{sides}}}> {{ y = Pad <mode = "{mode}"> (x, p) }}'


@pytest.mark.parametrize(
    "body, names",
    [
        ("{ y = Softsign (x) }", ["abs", "add", "div"]),
        ("{ y = HardSigmoid (x) }", ["mul", "add", "clip"]),
        ("{ y = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) }", ["hard_sigmoid"]),
        ("{ y = HardSigmoid <alpha = 0.16666667, beta = 0.4> (x) }", ["mul", "add", "clip"]),
    ],
)
def test_activations_that_torch_composes(body: str, names: list[str], tmp_path: Path) -> None:
    assert [k.variant for k in kernels(body, tmp_path)] == names
    (alone,) = kernels(body, tmp_path, "onnxruntime")
    assert alone.variant in ("softsign", "hard_sigmoid")
    assert sum(k.flops for k in kernels(body, tmp_path)) == alone.flops


def test_a_constant_frame_is_filled_and_then_copied_into(tmp_path: Path) -> None:
    fill, copy = kernels(pad("0, 0, 1, 1, 0, 0, 1, 1"), tmp_path, result="2, 8, 8, 8")
    assert (fill.variant, fill.read_bytes, fill.write_bytes) == ("fill", 0, 4 * 2 * 8 * 8 * 8)
    assert (copy.variant, copy.read_bytes, copy.write_bytes) == ("pad", 4 * 2 * 8 * 6 * 6, 4 * 2 * 8 * 6 * 6)


def test_only_what_a_negative_side_leaves_is_copied(tmp_path: Path) -> None:
    fill, copy = kernels(pad("0, 0, 1, -2, 0, 0, 1, 0"), tmp_path, result="2, 8, 8, 4")
    assert fill.write_bytes == 4 * 2 * 8 * 8 * 4
    assert copy.read_bytes == copy.write_bytes == 4 * 2 * 8 * 6 * 4


@pytest.mark.parametrize(
    "body, result, runtime",
    [
        (pad("0, 0, -1, 0, 0, 0, 0, 0"), "2, 8, 5, 6", "torch"),  # torch: a narrow, cloned
        (pad("0, 0, 1, 1, 0, 0, 1, 1", "reflect"), "2, 8, 8, 8", "torch"),
        (pad("0, 0, 1, 1, 0, 0, 1, 1", "edge"), "2, 8, 8, 8", "torch"),
        (pad("0, 0, 1, 1, 0, 0, 1, 1"), "2, 8, 8, 8", "onnxruntime"),
    ],
)
def test_other_frames_are_one_kernel(body: str, result: str, runtime: str, tmp_path: Path) -> None:
    assert [k.variant for k in kernels(body, tmp_path, runtime, result)] == ["pad"]


def test_the_counts_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import torch.nn.functional as F  # noqa: N812
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(2, 8, 6, 6)

    def calls(run: object, *names: str) -> list[str]:
        with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as seen:
            run(x)  # type: ignore[operator]
        found = [e.name.removeprefix("aten::") for e in seen.events()]
        found = [n for n in found if n in names]  # a call that dispatches to itself is listed twice
        return [n for i, n in enumerate(found) if i == 0 or found[i - 1] != n]

    arithmetic = ("abs", "add", "div", "mul", "clamp", "hardsigmoid")
    assert calls(F.softsign, *arithmetic) == ["abs", "add", "div"]
    assert calls(F.hardsigmoid, *arithmetic) == ["hardsigmoid"]
    frame = ("fill_", "copy_", "reflection_pad2d", "replication_pad2d")
    assert calls(lambda t: F.pad(t, (1, 1, 1, 1)), *frame) == ["fill_", "copy_"]
    assert calls(lambda t: F.pad(t, (0, 0, -1, 0)), *frame) == ["copy_"]
    assert calls(lambda t: F.pad(t, (1, 1, 1, 1), mode="reflect"), *frame) == ["reflection_pad2d"]
    assert calls(lambda t: F.pad(t, (1, 1, 1, 1), mode="replicate"), *frame) == ["replication_pad2d"]
