"""Dtype words that are permissions, on whole models: what a row says, what it refuses, and that asking for more helps."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from gkestimator.core.errors import UsageError
from gkestimator.estimation import estimate_rows

NET = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 3, 32, 32] x, float[64, 3, 3, 3] k, float[64, 64, 3, 3] l, float[64, 4096] w) => (float[N, 4096] y) {
      a = Conv <pads = [1, 1, 1, 1]> (x, k)
      b = Relu (a)
      c = Conv <pads = [1, 1, 1, 1]> (b, l)
      d = GlobalAveragePool (c)
      e = Flatten (d)
      y = MatMul (e, w)
    }"""
GPUS = ["T4", "V100", "GTX-1080", "H100", "L40S"]


@pytest.fixture
def net(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(NET)
    weights = [value for value in model.graph.input if value.name != "x"]
    for value in weights:
        kind = value.type.tensor_type
        tensor = model.graph.initializer.add(name=value.name, data_type=kind.elem_type)
        tensor.dims.extend(d.dim_value for d in kind.shape.dim)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="absent.bin")
        model.graph.input.remove(value)
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def latencies(path: Path, dtype: str, batch: int) -> dict[str, float]:
    result = estimate_rows([path], gpus=GPUS, batch_sizes=[batch], runtime="tensorrt", dtype=dtype)
    assert not result.failures
    assert {row.dtype for row in result.rows} == {dtype}
    return {row.gpu: row.gpu_ms for row in result.rows}


@pytest.mark.parametrize("batch", [1, 64])
def test_allowing_more_is_never_slower(net: Path, batch: int) -> None:
    fp32, fp16, int8 = (latencies(net, dtype, batch) for dtype in ("fp32", "fp16", "int8"))
    for gpu in fp32:
        assert fp16[gpu] <= fp32[gpu] * (1 + 1e-9), gpu
        assert int8[gpu] <= fp16[gpu] * (1 + 1e-9), gpu
    if batch == 64:
        assert int8["L40S"] < fp16["L40S"] < fp32["L40S"]


def test_a_permission_without_use_answers_as_the_wider_word(net: Path) -> None:
    # No half precision at a rate of its own: nothing of fp16 is left but its name.
    both = [
        estimate_rows([net], gpus=["GTX-1080"], batch_sizes=[8], runtime="tensorrt", dtype=dtype).rows[0]
        for dtype in ("fp16", "fp32")
    ]
    assert both[0].gpu_ms == both[1].gpu_ms
    assert both[0].mreq_bytes == both[1].mreq_bytes
    assert [row.dtype for row in both] == ["fp16", "fp32"]


def test_int8_of_a_float_model_is_marked_where_it_is_calibrated_and_refused_elsewhere(net: Path) -> None:
    options = {"gpus": ["L40S"], "batch_sizes": [64]}
    for runtime in ("tensorrt", "onnxruntime_tensorrt"):
        (row,) = estimate_rows([net], runtime=runtime, dtype="int8", **options).rows
        assert row.runtime == runtime
        assert "int8 of a float model: as in an engine that a calibrator" in row.warnings
    (row,) = estimate_rows([net], runtime="tensorrt", dtype="fp16", **options).rows
    assert "of a float model" not in (row.warnings or "")
    failed = estimate_rows([net], runtime="onnxruntime", dtype="int8", **options).failures
    assert "or runtime tensorrt, which calibrates" in str(failed)


def test_a_gpu_without_what_is_named_is_refused(net: Path) -> None:
    with pytest.raises(UsageError, match=r"dtype fp8 needs fp8 .* A100"):
        estimate_rows([net], gpus=["A100"], runtime="tensorrt", dtype="fp8")
    assert (
        estimate_rows([net], gpus=["L40S"], batch_sizes=[8], runtime="tensorrt", dtype="fp8").rows[0].dtype
        == "fp8"
    )


def test_the_listing_says_what_each_kernel_calculates_in(net: Path) -> None:
    rows = estimate_rows(
        [net], kernels=True, gpus=["L40S"], batch_sizes=[64], runtime="tensorrt", dtype="int8"
    ).kernel_rows
    assert [row.kernel for row in rows][:2] == ["copy.reformat", "conv"]
    by_kernel = {row.kernel: row.precision for row in rows}
    assert by_kernel["conv"] == "int8"
    assert {row.precision for row in rows} <= {"int8", "fp16", "tf32", "fp32"}


def test_a_kernel_that_takes_a_wider_precision_is_listed_with_its_bytes(net: Path) -> None:
    options = {"gpus": ["V100"], "batch_sizes": [64], "runtime": "tensorrt", "kernels": True}
    result = estimate_rows([net], dtype="int8", **options)
    wide = [row for row in result.kernel_rows if row.kernel == "conv" and row.precision == "fp16"]
    assert wide  # its tensor cores know no int8
    plain = estimate_rows([net], dtype="fp16", **options).kernel_rows
    bytes_of = {row.operator: row.dram_bytes for row in plain if row.kernel == "conv"}
    for row in wide:
        assert row.dram_bytes == pytest.approx(bytes_of[row.operator], rel=0.01)


def test_gpus_that_permit_different_precisions_do_not_disturb_each_other(net: Path) -> None:
    options = {"batch_sizes": [8], "runtime": "tensorrt", "dtype": "int8"}
    together = estimate_rows([net], gpus=GPUS, **options).rows
    for row in together:
        assert row == estimate_rows([net], gpus=[row.gpu], **options).rows[0], row.gpu
