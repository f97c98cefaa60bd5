"""Import of decode attention: words of the variant, bytes of the cache, the median over frameworks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gkestimator.core.errors import TableError
from gkestimator.training.importers import load_source
from gkestimator.training.rows import TrainingRows, shape_hash

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROW = {
    "gpu": "L40S", "kernel_source": "torch_flow", "kv_cache_dtype": "bfloat16", "batch_size": 4, "kv_len": 256,
    "num_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "v_head_dim": 128, "window_size": 0.0, "latency_ms": 0.1,
}  # fmt: skip


def load(folder: Path, *changes: dict[str, object]) -> list[TrainingRows]:
    rows = [{**ROW, **change} for change in changes]
    pq.write_table(pa.Table.from_pylist(rows), folder / "attention_generation_bf16.parquet")
    return load_source(folder)[1]


def test_rows_say_whose_kernel_and_what_cache(tmp_path: Path) -> None:
    other = {"kernel_source": "vllm_flash_attn_fa2", "latency_ms": 0.4, "window_size": 128.0}
    narrow = {"kv_cache_dtype": "fp8", "v_head_dim": 64}
    own, typical = load(tmp_path, {}, other, narrow)
    variants = sorted(own.table.variant.tolist())
    assert variants == [
        "decode.byte_cache.warm_cache.trtllm",
        "decode.warm_cache.trtllm",
        "decode.window.warm_cache.vllm.fa2",
    ]
    by_variant = dict(zip(own.table.variant.tolist(), range(len(own)), strict=True))
    read = own.table.columns["read_bytes"]
    query = 4 * 8 * 128 * 2
    assert read[by_variant["decode.warm_cache.trtllm"]] == query + 4 * 2 * 256 * 256 * 2
    assert read[by_variant["decode.window.warm_cache.vllm.fa2"]] == query + 4 * 2 * 128 * 256 * 2
    assert read[by_variant["decode.byte_cache.warm_cache.trtllm"]] == query + 4 * 2 * 256 * (128 + 64)
    assert set(own.table.family) == {"decode"}
    assert len(typical) == 0  # no shape has two frameworks


def test_the_typical_kernel_is_the_median_of_two_or_more(tmp_path: Path) -> None:
    frameworks = ("torch_flow", "vllm_flash_attn_fa2", "flashinfer")
    times = zip(frameworks, (0.1, 0.4, 0.2), strict=True)
    alone = {"batch_size": 16}
    own, typical = load(tmp_path, *({"kernel_source": f, "latency_ms": t} for f, t in times), alone)
    assert len(own) == 4
    assert typical.table.variant.tolist() == ["decode.warm_cache"]
    np.testing.assert_allclose(typical.measured_us, [200.0])
    # No split parts one shape's frameworks, nor the median from them.
    assert len(set(shape_hash(own.table)[own.measured_us != 100.0]) | set(shape_hash(typical.table))) == 1


def test_an_unknown_kernel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="kernel_source is 'mystery'"):
        load(tmp_path, {"kernel_source": "mystery"})


def test_uncut_kernels_of_prompts_are_rows_of_their_own(tmp_path: Path) -> None:
    row = {
        "gpu": "H100-SXM", "phase": "decode", "batch_size": 4, "kv_len": 256, "heads": 8, "kv_heads": 2,
        "head_dim": 128, "median_ms": 0.05,
    }  # fmt: skip
    rows = [row, {**row, "phase": "prefill"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "attention_flash2_fp16.parquet")
    name, (loaded,) = load_source(tmp_path)
    assert name == "llmservingsim"
    assert loaded.table.variant.tolist() == ["decode.uncut.warm_cache"]
    assert loaded.table.precision.tolist() == ["fp16"]
    np.testing.assert_allclose(loaded.measured_us, [50.0])
