"""The public powers of repeated kernels: what is read, what is left out, medians, and fitting them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gkestimator.core.errors import TableError
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.power import POWER_FEATURES
from gkestimator.training.power import FILES, fit_power, read_power, without_framework

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
SHARED = os.environ.get("GKEST_SHARED")
GPUS = {name: gpu_catalogue().resolve(name)[0] for name in ("H200", "B200")}
Rows = list[dict[str, object]]


def written(path: Path, rows: Rows) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def gemm(m: int = 4096, gpu: str = "B200", power_w: float = 500.0, **changes: object) -> dict[str, object]:
    row = {
        "framework": "VLLM", "gpu": gpu, "gemm_dtype": "bfloat16", "m": m, "n": 8192, "k": 4096,
        "kernel_source": "vllm_default", "power_w": power_w, "power_limit_w": {"B200": 1000.0, "H200": 700.0}[gpu],
    }  # fmt: skip
    return row | changes


def call(batch: int = 4, gpu: str = "B200", power_w: float = 500.0, **changes: object) -> dict[str, object]:
    row = {
        "op": "context_attention", "framework": "VLLM", "gpu": gpu, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16",
        "batch_size": batch, "isl": 2048, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "window_size": 0.0,
        "step": 0, "kernel_source": "vllm_flashinfer", "power_w": power_w,
        "power_limit_w": {"B200": 1000.0, "H200": 700.0}[gpu],
    }  # fmt: skip
    return row | changes


def folder_of(tmp_path: Path, products: Rows, calls: Rows) -> Path:
    for name, rows in zip(FILES, (products, calls), strict=True):
        written(tmp_path / name, rows)
    return tmp_path


def decode(**changes: object) -> dict[str, object]:
    return call(**({"op": "generation_attention", "isl": 1, "step": 4095} | changes))


def test_frameworks_have_rows_of_their_own_and_a_median(tmp_path: Path) -> None:
    products = [gemm(power_w=600.0), gemm(framework="TRTLLM", power_w=800.0), gemm(m=64, power_w=300.0)]
    rows = read_power(folder_of(tmp_path, products, [call(), decode()]))
    linear = rows["linear"]
    said = sorted(
        zip(
            linear.table.variant.tolist(),
            linear.framework.tolist(),
            linear.share.round(3).tolist(),
            strict=True,
        )
    )
    assert said == [
        ("linear", "", 0.3), ("linear", "", 0.7), ("linear.tensorrt_llm", "tensorrt_llm", 0.8),
        ("linear.vllm", "vllm", 0.3), ("linear.vllm", "vllm", 0.6),
    ]  # fmt: skip
    assert len(set(linear.shape.tolist())) == 2, "frameworks share the hash of a shape"
    assert without_framework("decode.byte_cache.tensorrt_llm") == "decode.byte_cache"


def test_rows_that_say_nothing_of_our_kernels_are_left_out(tmp_path: Path) -> None:
    products = [gemm(), gemm(gemm_dtype="fp8_block"), gemm(gemm_dtype="nvfp4"), gemm(gemm_dtype="fp8")]
    calls = [
        call(),
        call(kernel_source="vllm_triton_attn"),
        decode(),
        decode(kernel_source="vllm_triton_attn"),
    ]
    rows = read_power(folder_of(tmp_path, products, calls))
    assert sorted(rows["linear"].table.precision.tolist()) == ["bf16", "bf16", "fp8", "fp8"]
    assert len(rows["attention"]) == len(rows["decode"]) == 2


def test_attention_is_causal_windowed_and_read_from_a_cache(tmp_path: Path) -> None:
    calls = [
        call(), call(batch=2, window_size=128.0), call(batch=1, kv_cache_dtype="fp8"), decode(), decode(batch=8, window_size=100.0)
    ]  # fmt: skip
    rows = read_power(folder_of(tmp_path, [gemm()], calls))
    named = rows["attention"].framework != ""
    table = rows["attention"].table.take(np.flatnonzero(named))
    whole, windowed, narrow = (table.take(np.array([i])) for i in range(3))
    per_score = 4 * 128 + 6
    assert whole.columns["flops"][0] == 4 * 32 * (2048 * 2049 / 2) * per_score
    assert windowed.columns["flops"][0] == 2 * 32 * (128 * 2048 - 128 * 127 / 2) * per_score
    assert whole.columns["sequences"][0] == 4
    query, cache = 32 * 2048 * 128 * 2, 2 * 8 * 2048 * 128
    assert narrow.columns["read_bytes"][0] == query + cache
    assert "byte_cache" in narrow.variant[0]
    one = rows["decode"].table.take(np.flatnonzero(rows["decode"].framework != ""))
    assert one.columns["gemm_m"].tolist() == [1, 1]
    assert one.columns["gemm_n"].tolist() == [4096, 100]


def test_a_folder_without_the_files_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"power_gemm.parquet is missing; expected"):
        read_power(tmp_path)


@pytest.mark.slow
def test_a_fit_finds_a_law_of_the_shape(tmp_path: Path) -> None:
    """Power that grows with the rows is found on both GPUs, within its interval, and nothing above the most measured."""
    pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    rng = np.random.default_rng(0)
    products = []
    for gpu, limit in (("B200", 1000.0), ("H200", 700.0)):
        for m in rng.integers(256, 8192, 300).tolist():
            products.append(gemm(m=m, gpu=gpu, power_w=limit * (0.4 + 0.5 * m / 8192), framework="VLLM"))
    rows = read_power(folder_of(tmp_path, products, [call(), decode()]))["linear"]
    model = fit_power({"linear": rows}, GPUS)
    mine = rows.take((rows.gpu == "H200") & (rows.framework == ""))
    answer = model.predict(mine.table, GPUS["H200"])
    assert answer is not None
    truth = mine.share * 700
    assert np.mean(np.abs(answer.watts / truth - 1)) < 0.02
    assert np.mean((truth >= answer.low_w) & (truth <= answer.high_w)) > 0.8
    assert (answer.high_w <= answer.most_w).all() and answer.most_w == pytest.approx(
        700 * mine.share.max(), rel=1e-3
    )


@pytest.mark.slow
@pytest.mark.skipif(not SHARED, reason="set GKEST_SHARED to the public measurements")
def test_features_of_the_public_rows_are_finite() -> None:
    rows = read_power(Path(SHARED or "") / "data" / "aiconfigurator")
    assert {name: len(mine) > 5_000 for name, mine in rows.items()} == {
        "linear": True,
        "attention": True,
        "decode": True,
    }
    for family, mine in rows.items():
        part = mine.take(np.flatnonzero(mine.gpu == "H200")[::200])
        matrix, names = POWER_FEATURES[family](part.table, GPUS["H200"])
        assert np.isfinite(matrix).all() and matrix.shape == (len(part), len(names))
        assert ((part.share > 0.1) & (part.share < 1.05)).all()
