"""Importers on small files in each public format, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gkestimator.onnx_io  # noqa: F401  (registers the shape rules)
from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.errors import TableError, UsageError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.operators.registry import LOWERINGS, LoweringOptions
from gkestimator.training.importers import load_source
from gkestimator.training.importers.deepbench_rnn import recurrent_rows
from gkestimator.training.rows import shape_hash
from gkestimator.training.train import training_gpus

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402


def write(path: Path, **columns: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def neusight(folder: Path, *, gap_us: float = 18.0, hold_us: float = 14.0, rate: float = 600e9) -> None:
    """Elementwise rows under the law of the importer's docstring."""
    rng = np.random.default_rng(0)
    b, h = rng.integers(16, 6000, 900), rng.integers(16, 3000, 900)
    time = b * h * 12 / rate * 1e6 + 1.5
    count = len(b)
    write(
        folder / "train_elem.parquet", OPName=["add"] * count, Latency=(gap_us + np.maximum(time, hold_us)) / 1e3,
        Device=["Tesla V100-PCIE-32GB"] * count, B=b, H=h, **{"Grid x": np.ceil(b * h / 512), "Grid y": np.ones(count), "Grid z": np.ones(count)},
    )  # fmt: skip


def test_neusight_launch_gap_is_found_and_taken_off(tmp_path: Path) -> None:
    neusight(tmp_path)
    kind, (rows,) = load_source(tmp_path)
    assert kind == "neusight"
    assert rows.gap_us[0] == pytest.approx(18, abs=0.5)
    assert rows.hold_us[0] == pytest.approx(14, abs=0.5)
    known = np.isfinite(rows.duration_us)
    true = (rows.table.columns["read_bytes"] + rows.table.columns["write_bytes"]) / 600e9 * 1e6 + 1.5
    np.testing.assert_allclose(rows.duration_us[known], true[known], atol=0.6)
    assert (true[~known] < 20).all() and not known.all()
    np.testing.assert_allclose(rows.as_measured_us(true), rows.measured_us, atol=0.6)


def test_neusight_leaves_out_the_throttled_card(tmp_path: Path) -> None:
    for prefix in ("train", "larger"):
        write(
            tmp_path / f"{prefix}_linear.parquet", OPName=["linear"] * 2, Latency=[1.0, 2.0], Device=["Tesla P4", "Tesla T4"],
            B=[4, 4], M=[16, 16], N=[32, 32], K=[64, 64], **{"Grid x": [1, 1], "Grid y": [1, 1], "Grid z": [1, 1]}, **{"Kernel Name": ["k", "k"]}, **{f"Block {a}": [1, 1] for a in "xyz"},
        )  # fmt: skip
    _, parts = load_source(tmp_path)
    assert [p.gpu.tolist() for p in parts] == [["T4"], ["P4", "T4"]]
    columns = parts[0].table.columns
    assert (columns["gemm_m"][0], columns["gemm_n"][0], columns["gemm_k"][0]) == (64, 64, 32)
    assert columns["flops"][0] == 2 * 64 * 64 * 32
    assert columns["weight_bytes"][0] == 4 * 32 * 64


def test_deepbench_convolution_sizes(tmp_path: Path) -> None:
    sizes = {
        "n": 8,
        "c": 64,
        "h": 56,
        "w": 56,
        "k": 128,
        "r": 3,
        "s": 3,
        "pad_h": 1,
        "pad_w": 1,
        "stride_h": 2,
        "stride_w": 2,
    }
    write(
        tmp_path / "conv_forward.parquet",
        gpu=["V100"],
        dtype=["fp16_mixed"],
        forward_ms=[0.1],
        **{k: [v] for k, v in sizes.items()},
    )
    _, (rows,) = load_source(tmp_path)
    columns = rows.table.columns
    assert (columns["conv_out_h"][0], columns["gemm_m"][0], columns["gemm_k"][0]) == (28, 8 * 28 * 28, 576)
    assert columns["write_bytes"][0] == 8 * 128 * 28 * 28 * 2
    assert rows.table.precision[0] == "fp16" and rows.measured_us[0] == pytest.approx(100)
    # In NCHW, and what bringing it into NHWC and back takes is part of the convolution.
    assert rows.table.variant[0] == "conv"
    assert rows.gap_us[0] == 0
    assert rows.duration_us[0] == pytest.approx(100)


def test_deepbench_products_of_an_older_cublas_give_way_to_newer_ones(tmp_path: Path) -> None:
    names = ("n", "c", "h", "w", "k", "r", "s", "pad_h", "pad_w", "stride_h", "stride_w")
    sizes = {name: [1] for name in names}
    write(tmp_path / "conv_forward.parquet", gpu=["V100"], dtype=["fp32"], forward_ms=[0.1], **sizes)
    write(
        tmp_path / "gemm.parquet",
        gpu=["V100", "V100", "T4", "1080Ti"],
        dtype=["fp32", "fp16_mixed", "fp16_mixed", "fp32"],
        m=[64] * 4,
        n=[128] * 4,
        k=[256] * 4,
        time_ms=[0.1, 0.2, 0.3, 0.4],
    )
    _, (_, products) = load_source(tmp_path)
    assert list(zip(products.gpu, products.table.precision, products.measured_us, strict=True)) == [
        ("V100-SXM2-16GB", "fp16", pytest.approx(200)),
        ("T4", "fp16", pytest.approx(300)),
        ("GTX-1080-TI", "fp32", pytest.approx(400)),
    ]


def test_aiconfigurator_takes_the_median_over_frameworks(tmp_path: Path) -> None:
    write(
        tmp_path / "gemm_bf16.parquet", gpu=["h100_sxm"] * 3 + ["a100_sxm"], m=[8, 8, 8, 8], n=[16] * 4, k=[32] * 4,
        latency_ms=[0.003, 0.009, 0.005, 0.007],
    )  # fmt: skip
    _, (rows,) = load_source(tmp_path)
    assert dict(zip(rows.gpu, rows.measured_us, strict=True)) == {
        "H100-SXM": pytest.approx(5),
        "A100-SXM4-80GB": pytest.approx(7),
    }


def eighth(folder: Path, *, cuda_graph: bool = True) -> None:
    """A framework's FP8 layers of one shape: two that quantise their activations, one of fixed scales, one block."""
    write(
        folder / "gemm_fp8.parquet",
        framework=["VLLM", "TRTLLM", "SGLang", "VLLM"],
        gpu=["L40S"] * 4,
        gemm_dtype=["fp8", "fp8_static", "fp8_static", "fp8_block"],
        m=[64] * 4,
        n=[256] * 4,
        k=[512] * 4,
        latency_ms=[0.02, 0.03, 0.01, 0.3],
        cuda_graph=[cuda_graph] * 3 + [False],
    )
    write(folder / "gemm_bf16.parquet", gpu=["L40S"], m=[8], n=[16], k=[32], latency_ms=[0.005])


def test_fp8_rows_name_their_framework_and_leave_out_what_quantises(tmp_path: Path) -> None:
    eighth(tmp_path)
    _, (_, *parts) = load_source(tmp_path)
    by_variant = {part.table.variant[0]: part for part in parts}
    # TensorRT-LLM's fixed scales are read as dynamic ones; vLLM's blocks were timed without a CUDA graph.
    assert sorted(by_variant) == ["scaled.sglang.static", "scaled.tensorrt_llm", "scaled.vllm"]
    vllm = by_variant["scaled.vllm"]
    assert 1.5 < vllm.beside_us[0] < 3.0
    assert vllm.duration_us[0] == pytest.approx(20 - vllm.beside_us[0])
    np.testing.assert_allclose(vllm.as_measured_us(vllm.duration_us), 20)
    assert by_variant["scaled.sglang.static"].beside_us[0] == 0
    columns = vllm.table.columns
    assert columns["read_bytes"][0] == 64 * 512 + 256 * 512
    assert columns["write_bytes"][0] == 2 * 64 * 256
    hashes = {float(shape_hash(part.table)[0]) for part in parts}
    assert len(hashes) == 1, "a shape that is left out is left out of every framework"


def test_fp8_calls_without_a_cuda_graph_do_not_train(tmp_path: Path) -> None:
    eighth(tmp_path, cuda_graph=False)
    assert len(load_source(tmp_path)[1]) == 1


def test_int8_weights_calculate_in_half_precision_and_those_of_sglang_do_not(tmp_path: Path) -> None:
    write(
        tmp_path / "gemm_int8.parquet",
        framework=["TRTLLM", "TRTLLM", "SGLang"],
        gpu=["A100-SXM4-80GB", "A100-SXM4-80GB", "H100-SXM"],
        gemm_dtype=["int8_wo", "sq", "int8_wo"],
        m=[64] * 3,
        n=[256] * 3,
        k=[512] * 3,
        latency_ms=[0.02, 0.03, 0.04],
    )
    write(tmp_path / "gemm_bf16.parquet", gpu=["L40S"], m=[8], n=[16], k=[32], latency_ms=[0.005])
    _, (_, *parts) = load_source(tmp_path)
    kinds = {(part.table.precision[0], part.table.variant[0]): part for part in parts}
    assert set(kinds) == {
        ("w8a16", "weight_only"),
        ("int8", "scaled"),
        ("int8", "scaled.sglang"),
    }
    weights = kinds["w8a16", "weight_only"].table.columns
    assert weights["read_bytes"][0] == 2 * 64 * 512 + 256 * 512
    assert kinds["int8", "scaled.sglang"].beside_us[0] > 0


def test_pipeweave_keeps_its_authors_split(tmp_path: Path) -> None:
    write(
        tmp_path / "gemm_fp8.parquet",
        gpu=["H800", "H20"],
        m=[4, 8],
        n=[16, 16],
        k=[32, 32],
        latency_us=[5.0, 7.0],
        split=["train", "test"],
    )
    kind, (rows,) = load_source(tmp_path)
    assert kind == "pipeweave"
    assert list(zip(rows.gpu, rows.source, rows.measured_us, strict=True)) == [
        ("H800-SXM", "pipeweave", 5.0),
        ("H20", "pipeweave/test", 7.0),
    ]


def dataset(path: Path, **change: object) -> None:
    row: dict[str, object] = {
        "schema_version": 1, "entry_id": "e", "gpu": "T4", "runtime": "torch", "collector": "kineto", "op_type": "MatMul", "attributes": "{}", "dtype": "fp32",
        "input_shapes": json.dumps([[10, 20], [20, 30]]), "weight_bytes": 2400, "input_bytes": 800, "output_bytes": 1200,
        "flops": 12000, "kernels_in_op": 1, "family": "linear", "grid": "1,2,1", "duration_us": 7.5, "quality": "ok",
    }  # fmt: skip
    row.update(change)
    write(path, **{k: [v] for k, v in row.items()})


def test_kernel_dataset_rows(tmp_path: Path) -> None:
    dataset(tmp_path / "d.parquet")
    kind, (rows,) = load_source(tmp_path / "d.parquet")
    assert kind == "kernel dataset"
    columns = rows.table.columns
    assert [columns[f"gemm_{c}"][0] for c in ("batch", "m", "n", "k")] == [1, 10, 30, 20]
    assert rows.duration_us[0] == 7.5 and rows.grid_blocks[0] == 2


def test_kernel_dataset_columns_that_the_table_calls_optional_may_be_absent(tmp_path: Path) -> None:
    write(
        tmp_path / "d.parquet", entry_id=["e"], gpu=["T4"], runtime=["torch"], collector=["nsys"],
        op_type=["MatMul"], dtype=["fp32"], input_shapes=["[[10, 20], [20, 30]]"], input_bytes=[3200],
        weight_bytes=[0], output_bytes=[1200], flops=[12000], family=["linear"], duration_us=[7.5], quality=["ok"],
    )  # fmt: skip
    _, (rows,) = load_source(tmp_path / "d.parquet")
    assert rows.duration_us[0] == 7.5 and np.isnan(rows.grid_blocks[0])


@pytest.mark.parametrize(
    "change",
    [
        {"quality": "noisy"},
        {"kernels_in_op": 3},
        {"duration_us": float("nan")},
        {"family": "fft"},
        {"flops": None},
        {"input_bytes": None},
        {"weight_bytes": None},
        {"output_bytes": None},
    ],
)
def test_kernel_dataset_rows_that_cannot_train_are_skipped(tmp_path: Path, change: dict[str, object]) -> None:
    dataset(tmp_path / "d.parquet", **change)
    assert load_source(tmp_path / "d.parquet")[1] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [({"input_shapes": "[[1"}, "row 1"), ({"family": "warp drive"}, "row 1"), ({"input_shapes": "[[2,3]]"}, "do not fit"),
     ({"dtype": "fp31"}, "row 1"), ({"attributes": "[]"}, "row 1"), ({"duration_us": -1.0}, "row 1"),
     ({"quality": "great"}, "row 1"), ({"schema_version": 9}, "row 1"), ({"weight_gb": 1}, "weight_gb"),
     ({"input_shapes": "[[99999999999999999999, 5], [5, 5]]"}, "row 1")],
)  # fmt: skip
def test_kernel_dataset_errors_name_the_row(tmp_path: Path, change: dict[str, object], message: str) -> None:
    dataset(tmp_path / "d.parquet", **change)
    with pytest.raises(TableError, match=message) as caught:
        load_source(tmp_path / "d.parquet")
    assert "d.parquet" in str(caught.value)


def test_unknown_sources(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no such file"):
        load_source(tmp_path / "none")
    with pytest.raises(TableError, match="unknown format"):
        load_source(tmp_path)
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TableError, match="cannot be read as Parquet"):
        load_source(tmp_path / "x.parquet")
    write(tmp_path / "x.parquet", a=[1])
    with pytest.raises(TableError, match="column 'a' is not known"):
        load_source(tmp_path / "x.parquet")


def test_an_unknown_gpu_is_named(tmp_path: Path) -> None:
    dataset(tmp_path / "d.parquet", gpu="Abacus")
    with pytest.raises(UsageError, match=r"d\.parquet: .*Abacus"):
        load_source(tmp_path / "d.parquet")


def test_shapes_hash_alike_on_every_gpu_and_spread_evenly(tmp_path: Path) -> None:
    neusight(tmp_path)
    _, (rows,) = load_source(tmp_path)
    value = shape_hash(rows.table)
    np.testing.assert_array_equal(value, shape_hash(rows.take(np.arange(len(rows))).table))
    assert abs((value < 0.15).mean() - 0.15) < 0.05


def recurrent_layers(path: Path, **change: list[object]) -> None:
    columns: dict[str, list[object]] = {
        "gpu": ["V100-SXM2-16GB", "M40"],
        "cell": ["lstm", "gru"],
        "precision": ["fp16", "fp32"],
        "hidden": [512, 1536],
        "batch": [16, 32],
        "steps": [25, 1500],
        "latency_ms": [0.44, 300.0],
    }
    write(path, **{**columns, **change})


def test_deepbench_recurrent_layers_are_their_steps_alone(tmp_path: Path) -> None:
    recurrent_layers(tmp_path / "rnn_forward.parquet")
    rows = recurrent_rows(tmp_path / "rnn_forward.parquet")
    assert rows.gpu.tolist() == ["V100-SXM2-16GB", "M40"]
    assert rows.measured_us == pytest.approx([440, 300_000])
    columns = rows.table.columns
    shapes = [columns[f"gemm_{name}"].tolist() for name in ("batch", "m", "n", "k")]
    assert shapes == [[25, 1500], [16, 32], [4 * 512, 3 * 1536], [512, 1536]]
    # Products of the states, two biases a gate and the cell; the inputs' products were skipped.
    assert columns["flops"][0] == 25 * 16 * (2 * 4 * 512 * 512 + 2 * 4 * 512 + 22 * 512)
    assert columns["weight_bytes"][0] == 2 * (4 * 512 * 512 + 8 * 512)
    # The same layer from a model is the same kernel, so that training and estimates mean one thing.
    x = Tensor(name="x", dtype=DType.FLOAT, shape=(1500, 32, 64), storage="x")
    weights = [
        replace(x, name=name, shape=shape, storage=name, is_weight=True)
        for name, shape in (("w", (1, 4608, 64)), ("r", (1, 4608, 1536)), ("b", (1, 9216)))
    ]
    h0 = replace(x, name="h", shape=(1, 32, 1536), storage="h")
    outputs = (replace(x, name="y", shape=(1500, 1, 32, 1536)), replace(h0, name="last"))
    op = Operator(
        name="n", domain="", op_type="GRU", version=14, attributes={"linear_before_reset": 1},
        inputs=(x, *weights, None, h0), outputs=outputs,
    )  # fmt: skip
    options = LoweringOptions(
        runtime="torch", dtype="fp32", matmul_precision=Precision.FP32, conv_precision=Precision.FP32
    )
    lowered = KernelTable.from_kernels(LOWERINGS[op.key](op, options).kernels[1:])
    for name in ("flops", "read_bytes", "write_bytes", "weight_bytes", "rows", "cols", "element_bytes"):
        assert columns[name][1] == lowered.columns[name][0], name
    assert (rows.table.family[1], rows.table.variant[1]) == (lowered.family[0], lowered.variant[0])


@pytest.mark.parametrize(("column", "word"), [("gpu", "K80"), ("cell", "rnn"), ("precision", "int8")])
def test_a_word_that_recurrent_layers_do_not_know_is_one_line(tmp_path: Path, column: str, word: str) -> None:
    recurrent_layers(tmp_path / "rnn_forward.parquet", **{column: [word, word]})
    with pytest.raises(TableError, match=f"{column} is '{word}'; expected one of"):
        recurrent_rows(tmp_path / "rnn_forward.parquet")


def test_gpus_for_training_alone_are_not_offered() -> None:
    names = {path.stem for path in training_gpus()}
    assert names == {"M40", "TITAN-X-MAXWELL"}
    catalogue = gpu_catalogue(training_gpus())
    for name in names:
        assert catalogue.spec(name).compute_capability == (5, 2)
        with pytest.raises(UsageError, match="unknown GPU"):
            gpu_catalogue().spec(name)
