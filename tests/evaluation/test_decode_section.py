"""The section of decoding: steps put together from two tables, each layer with the attention of its sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def test_vidur_layers_are_those_of_one_worker(tmp_path: Path) -> None:
    from benchmarks.accuracy import decode_steps

    row = {
        "gpu": "h100", "model": "m", "use_gated_mlp": True, "n_head": 32, "n_kv_head": 8, "n_embd": 4096,
        "n_expanded_embd": 14336, "num_tokens": 8, "num_tensor_parallel_workers": 2,
        **{f"time_stats.{name}.median": 0.03 for name in decode_steps._VIDUR_LAYERS},
    }  # fmt: skip
    short = {**row, "time_stats.mlp_up_proj.median": 0.005}
    elsewhere = {**row, "gpu": "a40"}
    pq.write_table(pa.Table.from_pylist([row, short, elsewhere]), tmp_path / "mlp.parquet")
    (layer,) = decode_steps.vidur_layers(tmp_path)
    assert (layer.gpu, layer.heads, layer.caches, layer.tokens) == ("H100-SXM", 16, 4, 8)
    assert layer.products == ((3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168))
    assert layer.measured_us == pytest.approx(120.0)


def test_nothing_measured_is_said_so(tmp_path: Path) -> None:
    from benchmarks.accuracy import decode
    from benchmarks.accuracy.workspace import Workspace

    space = Workspace(tmp_path, tmp_path / "cache")
    assert decode.page(space) is None
    assert [line.met for line in decode.lines(space)] == [None, None, None]
    assert {line.figure for line in decode.lines(space)} == {"not measured"}
