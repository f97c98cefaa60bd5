"""The whole way from a file to rows, on small models whose answers can be worked out."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pandas as pd
import pytest

import gkestimator
from gkestimator.core.errors import UnboundDimensionError, UsageError
from gkestimator.estimation import estimate_rows

MLP = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 1024] x, float[1024, 4096] a, float[4096, 1024] b) => (float[N, 1024] y) {
      h = MatMul (x, a)
      r = Relu (h)
      y = MatMul (r, b)
    }"""


def weighted(text: str, *weights: str) -> onnx.ModelProto:
    """The model of ``text`` with the inputs ``weights`` turned into initializers without data."""
    model = onnx.parser.parse_model(text)
    kept = []
    for value in model.graph.input:
        if value.name not in weights:
            kept.append(value)
            continue
        kind = value.type.tensor_type
        tensor = model.graph.initializer.add(name=value.name, data_type=kind.elem_type)
        tensor.dims.extend(d.dim_value for d in kind.shape.dim)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="absent.bin")
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(weighted(MLP, "a", "b").SerializeToString())
    return path


def one(path: Path, **options: object):
    result = estimate_rows([path], **({"gpus": ["V100"], "batch_sizes": [8]} | options))
    assert not result.failures, result.failures
    assert len(result.rows) == 1
    return result.rows[0]


def test_work_and_memory_are_exact(mlp: Path) -> None:
    row = one(mlp)
    assert row.flops == 2 * (2 * 8 * 1024 * 4096) + 8 * 4096
    assert row.weights_bytes == 2 * 1024 * 4096 * 4
    assert row.input_bytes == row.output_bytes == 8 * 1024 * 4
    assert row.kernels == 3
    assert row.unknown_kernels == 0
    assert (
        row.reserved_bytes
        == row.weights_bytes + row.activations_bytes + row.workspace_bytes + row.allocator_bytes
    )
    assert row.mreq_bytes == row.reserved_bytes + row.context_bytes
    assert row.mreq_pct == pytest.approx(100 * row.mreq_bytes / (16_144 * 2**20))


def test_the_host_sets_the_time_of_small_work(mlp: Path) -> None:
    slow = one(mlp, host_overhead_us=500.0)
    assert slow.host_bound and slow.latency_ms > 1.5
    free = one(mlp, host_overhead_us=0.0)
    assert not free.host_bound
    kernels = estimate_rows(
        [mlp], gpus=["V100"], batch_sizes=[8], host_overhead_us=0.0, kernels=True
    ).kernel_rows
    assert free.latency_ms == pytest.approx(sum(k.duration_us for k in kernels) / 1e3)
    assert sum(k.share_pct for k in kernels) == pytest.approx(100)
    assert free.sm_util_mean_pct == pytest.approx(free.sm_util_busy_mean_pct)


def test_gpu_and_host_time_are_columns_and_the_larger_binds(mlp: Path) -> None:
    small, large = one(mlp), one(mlp, batch_sizes=[65536])
    for row in (small, large):
        assert row.host_bound is (row.host_ms > row.gpu_ms)
        assert max(row.gpu_ms, row.host_ms) <= row.latency_ms <= row.gpu_ms + row.host_ms
        assert max(row.gpu_low_ms, row.host_low_ms) <= row.latency_low_ms
        assert max(row.gpu_high_ms, row.host_high_ms) <= row.latency_high_ms
        assert (
            row.power_w is row.power_low_w is row.energy_j is row.energy_high_j is None
        )  # no V100 was measured
    assert small.host_bound and not large.host_bound
    assert small.host_ms == large.host_ms == pytest.approx(3 * small.host_overhead_us / 1e3)


def test_power_and_energy_of_a_measured_gpu(mlp: Path) -> None:
    given = {"gpus": ["H200"], "batch_sizes": [16384], "dtype": "fp16"}
    row = one(mlp, **given)
    assert 350 < row.power_w < 710 and row.power_low_w < row.power_w < row.power_high_w < 710
    assert row.energy_j == pytest.approx(row.power_w * row.latency_ms / 1e3)
    assert row.energy_low_j < row.energy_j < row.energy_high_j
    copied = one(mlp, **given, include_copy=True)
    assert copied.power_w < row.power_w, "the board idles while it waits for copies"
    assert copied.energy_j == pytest.approx(copied.power_w * copied.latency_ms / 1e3)
    waiting = one(mlp, **given, host_overhead_us=1e5)
    assert waiting.host_bound and waiting.power_high_w < row.power_low_w
    for changes in ({"dtype": "fp32"}, {"sm_shares": [50.0]}, {"streams": 2}, {"gpus": ["A100"]}):
        assert one(mlp, **given | changes).power_w is None, changes


def test_copying_is_apart_unless_asked_for(mlp: Path) -> None:
    plain, copied = one(mlp), one(mlp, include_copy=True)
    assert copied.latency_ms == pytest.approx(plain.latency_ms + plain.copy_ms)
    assert plain.copy_ms == pytest.approx((plain.input_bytes + plain.output_bytes) / 9.5e9 * 1e3)


def test_fewer_sms_take_longer_and_use_less_of_the_gpu(mlp: Path) -> None:
    rows = estimate_rows(
        [mlp], gpus=["V100"], batch_sizes=[512], sm_shares=[25, 50, 100], host_overhead_us=0.0
    ).rows
    latencies = [r.latency_ms for r in rows]
    assert latencies == sorted(latencies, reverse=True)
    assert rows[0].sm_util_max_pct <= 25
    assert rows[2].latency_ms == one(mlp, batch_sizes=[512], host_overhead_us=0.0).latency_ms


def test_a_gpu_alone_or_among_others_gives_the_same_row(mlp: Path) -> None:
    together = estimate_rows([mlp], gpus=["T4", "V100", "H100"], batch_sizes=[1, 8]).rows
    assert [(r.gpu, r.batch_size) for r in together] == [
        ("T4", 1), ("V100-SXM2-16GB", 1), ("H100-SXM", 1), ("T4", 8), ("V100-SXM2-16GB", 8), ("H100-SXM", 8)
    ]  # fmt: skip
    assert one(mlp, gpus=["H100"]) == together[5]


def test_dtype_decides_bytes_and_the_row_names_what_runs(mlp: Path) -> None:
    full, half = one(mlp, dtype="fp32"), one(mlp, dtype="fp16")
    assert (full.dtype, half.dtype) == ("fp32", "fp16")
    assert half.weights_bytes * 2 == full.weights_bytes
    assert one(mlp, gpus=["A100"], runtime="torch").dtype == "fp32"  # torch: only convolutions in TF32
    assert one(mlp, gpus=["A100"], runtime="onnxruntime").dtype == "tf32"


def test_a_symbolic_batch_left_open_is_one_and_the_row_says_so(mlp: Path) -> None:
    row = one(mlp, batch_sizes=None)
    assert row.batch_size == 1
    assert "batch" in row.warnings


def test_bad_models_do_not_stop_good_ones(mlp: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    seen: list[tuple[str, int, int]] = []
    result = estimate_rows([bad, mlp], gpus=["V100"], progress=lambda *at: seen.append(at))
    assert [r.model for r in result.rows] == ["mlp"]
    assert [p for p, _ in result.failures] == [bad]
    assert seen[0] == ("bad", 0, 2) and seen[-1][1:] == (2, 2)


def test_the_largest_batch_within_an_objective_is_maximal(mlp: Path) -> None:
    best = one(mlp, slo_ms=2.0, max_batch=True, batch_sizes=None)
    assert best.latency_ms <= 2.0
    assert one(mlp, batch_sizes=[best.batch_size + 1]).latency_ms > 2.0
    failed = estimate_rows([mlp], gpus=["V100"], slo_ms=1e-6, max_batch=True)
    assert not failed.rows and "no batch meets" in str(failed.failures[0][1])


def test_the_closing_words_name_the_cheapest_by_price_and_throughput(mlp: Path) -> None:
    result = estimate_rows([mlp], gpus=["T4", "V100"], batch_sizes=[256])
    t4, v100 = result.rows
    costs = {"T4": 0.526 / t4.throughput_rps, "V100-SXM2-16GB": 3.06 / v100.throughput_rps}
    assert f"Cheapest: {min(costs, key=lambda name: costs[name])}" in " ".join(result.messages)
    assert "Smallest: T4" in " ".join(result.messages)


def test_the_library_returns_a_table_and_raises_its_own_errors(mlp: Path, tmp_path: Path) -> None:
    table = gkestimator.estimate(str(mlp), gpus=["V100", "T4"], batch_sizes=[1, 8])
    assert isinstance(table, pd.DataFrame) and len(table) == 4
    assert table["power_w"].isna().all()
    assert (table["latency_low_ms"] <= table["latency_ms"]).all()
    assert (table["latency_ms"] <= table["latency_high_ms"]).all()
    with pytest.raises(UsageError, match="V100"):
        gkestimator.estimate(mlp, gpus=["V10O"])
    with pytest.raises(UsageError, match="twice"):
        gkestimator.estimate(mlp, gpus=["V100", "v100-sxm2-16gb"])
    open_dim = tmp_path / "open.onnx"
    text = MLP.replace("[N, 1024]", "[N, S, 1024]")
    open_dim.write_bytes(weighted(text, "a", "b").SerializeToString())
    with pytest.raises(UnboundDimensionError, match="S"):
        gkestimator.estimate(open_dim, gpus="V100")
    bound = gkestimator.estimate(open_dim, gpus="V100", batch_sizes=2, dims={"S": 7})
    assert bound["dims"].tolist() == ["S=7"]
    assert bound["flops"].tolist() == [2 * (2 * 14 * 1024 * 4096) + 14 * 4096]


def test_a_loop_multiplies_time_work_and_launches(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 64] x, int64 trips, bool go) => (float[N, 64] y) {
          y = Loop (trips, go, x) <body = step (int64 i, bool c, float[N, 64] h) => (bool k, float[N, 64] g) {
            k = Identity (c)
            g = Tanh (h)
          }>
        }"""
    path = tmp_path / "loop.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    once, five = one(path), one(path, trip_count=5)
    assert "trip" in once.warnings
    assert five.flops == 5 * once.flops
    assert five.latency_ms > once.latency_ms


def test_only_unknown_is_null(mlp: Path) -> None:
    row = one(mlp)
    nulls = {name for name in row.__dataclass_fields__ if getattr(row, name) is None}
    # Nobody measured the power of a V100.
    assert nulls == {
        "power_w", "power_low_w", "power_high_w", "energy_j", "energy_low_j", "energy_high_j",
    }  # fmt: skip
    for name in row.__dataclass_fields__:
        value = getattr(row, name)
        assert not isinstance(value, float) or math.isfinite(value), name


def test_a_size_that_depends_on_data_is_said_once_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "open.onnx"
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 64] x) => (int64[2, n] i, int64[2, n] k) { i = NonZero (x) k = Neg (i) }"""
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    row = one(path)
    assert "sizes that depend on data are taken at their largest: NonZero" in row.warnings.split("; ")
    assert row.output_bytes == 2 * (2 * 8 * 64 * 8)


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_operators_without_a_gpu_kernel_in_the_runtime_are_named(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "quantised.onnx"
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        net (uint8[N, 3, 8, 8] x, uint8[4, 3, 3, 3] w, float s, uint8 z) => (uint8[N, 4, 6, 6] y)
        { y = QLinearConv (x, s, z, w, s, z, s, z) }"""
    path.write_bytes(weighted(text, "w", "s", "z").SerializeToString())
    assert f"{runtime} has no GPU kernel for QLinearConv" in one(path, runtime=runtime).warnings


def test_batches_that_were_searched_are_not_called_asked_for(mlp: Path) -> None:
    asked = estimate_rows([mlp], gpus=["V100"], batch_sizes=[1, 8], slo_ms=5.0).messages
    found = estimate_rows([mlp], gpus=["V100"], slo_ms=5.0, max_batch=True).messages
    assert any("of those asked" in line for line in asked)
    assert not any("of those asked" in line for line in found)


def test_the_library_takes_single_values_and_numpy_numbers(mlp: Path) -> None:
    plain = gkestimator.estimate([mlp], ["V100"], [8], sm_shares=[50.0])
    for batch in (np.int64(8), [np.int32(8)], np.array([8])):
        table = gkestimator.estimate(str(mlp), "V100", batch, sm_shares=50)
        pd.testing.assert_frame_equal(table, plain)
    assert len(gkestimator.estimate([mlp, mlp], "V100")) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"models": None}, {"models": 3}, {"models": [3]}, {"gpus": None}, {"gpus": [3]}, {"gpus": [None]},
        {"batch_sizes": [8.5]}, {"batch_sizes": True}, {"batch_sizes": 8j}, {"sm_shares": None},
        {"sm_shares": "50"}, {"bundles": 3}, {"gpu_specs": [None]}, {"plugins": 7},
    ],
    ids=str,
)  # fmt: skip
def test_the_library_refuses_what_makes_no_sense_in_one_line(mlp: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        gkestimator.estimate(**({"models": mlp, "gpus": "V100"} | options))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_every_kernel_has_its_place_in_time_and_its_launch(mlp: Path) -> None:
    result = estimate_rows([mlp], gpus=["V100"], batch_sizes=[512], kernels=True, host_overhead_us=0.0)
    kernels = result.kernel_rows
    assert [k.index for k in kernels] == [0, 1, 2]
    assert [k.stream for k in kernels] == [0, 0, 0]
    for before, after in itertools.pairwise(kernels):
        assert after.start_us >= before.start_us + before.duration_us - 1e-6
    end = kernels[-1].start_us + kernels[-1].duration_us
    assert result.rows[0].latency_ms == pytest.approx(end / 1e3)
    relu = kernels[1]
    assert (relu.grid_blocks, relu.block_threads) == (512 * 4096 // (128 * 4), 128)
    assert relu.bound_by == "memory"


@pytest.mark.slow
def test_a_gpu_that_misses_the_objective_does_not_hide_one_that_meets_it(mlp: Path) -> None:
    at_one = {r.gpu: r.latency_ms for r in estimate_rows([mlp], gpus=["K80", "H100"], batch_sizes=[1]).rows}
    between = (at_one["K80"] + at_one["H100-SXM"]) / 2
    result = estimate_rows([mlp], gpus=["K80", "H100"], slo_ms=between, max_batch=True)
    assert [r.gpu for r in result.rows] == ["H100-SXM"]
    assert "K80" in str(result.failures[0][1])


def test_lower_bounds_are_never_said_to_fit_or_to_answer_in_time(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        net (float[N, 64] x) => (float[N, 64] y) <float[N, 64] h> {
          h = own.Unheard (x)
          y = Relu (h)
        }"""
    path = tmp_path / "unknown.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    options = {"gpus": ["V100"], "allow_unknown": True}
    result = estimate_rows([path], batch_sizes=[1], slo_ms=1e6, **options)
    row = result.rows[0]
    assert row.host_bound is row.gpu_high_ms is row.host_high_ms is None and row.gpu_ms is not None
    assert "of no combination here is it known" in result.messages[1]
    searched = estimate_rows([path], slo_ms=1e6, max_batch=True, **options)
    assert not searched.rows and "at least" in str(searched.failures[0][1])
