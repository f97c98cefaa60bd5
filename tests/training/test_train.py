"""Training end to end on measurements that follow a known law."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.errors import TableError
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.training import TrainReport, train
from gkestimator.training.calibrate import coverage, size_quantiles
from gkestimator.training.rows import kernel_table

for library in ("sklearn", "scipy", "xgboost", "lightgbm", "pyarrow"):
    pytest.importorskip(library)
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

GPUS = {"h100_sxm": "H100-SXM", "a100_sxm": "A100-SXM4-80GB"}


def law(m: np.ndarray, n: np.ndarray, k: np.ndarray, gpu: str) -> np.ndarray:
    spec = gpu_catalogue().resolve(gpu)[0]
    padded = np.ceil(m / 128) * 128 * np.ceil(n / 128) * 128 * k
    compute = 2 * padded / (0.7 * spec.peak_flops_per_s["bf16"])
    memory = 2 * (m * k + n * k + m * n) / (0.85 * spec.dram_bytes_per_s)
    return (np.maximum(compute, memory) + 2e-6) * 1e6


def table(m: np.ndarray, n: np.ndarray, k: np.ndarray) -> object:
    return kernel_table(
        family="linear", variant="linear", precision="bf16",
        columns={"flops": 2 * m * n * k, "read_bytes": 2 * (m * k + n * k), "write_bytes": 2 * m * n, "weight_bytes": 2 * n * k,
                 "rows": m * n, "element_bytes": 2.0, "inputs": 2.0, "gemm_batch": np.ones_like(m), "gemm_m": m, "gemm_n": n,
                 "gemm_k": k},
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainReport, Path]:
    folder = tmp_path_factory.mktemp("aic")
    rng = np.random.default_rng(0)
    count = 1500
    m, n, k = (np.exp(rng.uniform(np.log(16), np.log(8192), count)).round() for _ in range(3))
    gpu = rng.choice(list(GPUS), count)
    time = np.concatenate([law(m[i : i + 1], n[i : i + 1], k[i : i + 1], GPUS[g]) for i, g in enumerate(gpu)])
    noise = np.exp(rng.normal(0, 0.03, count))
    pq.write_table(
        pa.table({"gpu": gpu, "m": m, "n": n, "k": k, "latency_ms": time * noise / 1e3}),
        folder / "gemm_bf16.parquet",
    )
    out = folder / "bundle"
    return folder, train([folder], out, seed=1), out


@pytest.mark.slow
def test_the_bundle_predicts_the_law_on_new_shapes(trained: tuple[Path, TrainReport, Path]) -> None:
    _, report, out = trained
    assert [m.name for m in report.models] == ["gemm_half", "gemm_half_unseen"]
    assert report.models[0].error_pct["aiconfigurator"] < 12 < report.models[0].roofline_pct["aiconfigurator"]
    rng = np.random.default_rng(5)
    m, n, k = (np.exp(rng.uniform(np.log(32), np.log(4096), 300)).round() for _ in range(3))
    spec = gpu_catalogue().resolve("H100-SXM")[0]
    result = load_bundle(out).predict(table(m, n, k), spec)
    true = law(m, n, k, "H100-SXM")
    assert result.trained.all() and result.in_range.mean() > 0.9
    assert np.abs(result.duration_us / true - 1).mean() < 0.12
    assert ((result.low_us <= true) & (true <= result.high_us)).mean() > 0.8


@pytest.mark.slow
def test_the_report_reads_as_a_table(trained: tuple[Path, TrainReport, Path]) -> None:
    _, report, _ = trained
    heading, line, unseen = str(report).splitlines()
    model = report.models[0]
    assert heading.split()[0] == "regressor"
    assert line.split()[:2] == ["gemm_half", "shapes"]
    assert line.split()[-1] == f"{model.coverage_pct:.0f}"
    assert unseen.split()[:2] == ["gemm_half_unseen", "GPUs"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bundle(trained: tuple[Path, TrainReport, Path]) -> None:
    folder, report, out = trained
    again = train([folder], folder / "again", seed=1)
    assert again.models == report.models
    for name in ("gemm_half.npz", "ranges.json", "quantiles.json", "stack.json"):
        first, second = ((p / name).read_bytes() for p in (out, folder / "again"))
        if name.endswith(".npz"):
            a, b = np.load(out / name), np.load(folder / "again" / name)
            assert a.files == b.files and all(np.array_equal(a[f], b[f]) for f in a.files)
        else:
            assert first == second


def test_too_little_to_train_on_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no sources"):
        train([], tmp_path / "b")
    columns = {"gpu": ["h100_sxm"], "m": [8], "n": [8], "k": [8], "latency_ms": [0.1]}
    (tmp_path / "s").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "s" / "gemm_bf16.parquet")
    with pytest.raises(TableError, match="expected at least 150"):
        train([tmp_path / "s"], tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_intervals_cover_what_they_promise() -> None:
    rng = np.random.default_rng(0)
    predicted = np.exp(rng.uniform(0, 8, 4000))
    errors = np.abs(rng.normal(0, np.where(predicted < 20, 0.5, 0.1)))
    weight, shape = np.ones(4000), rng.uniform(size=4000)
    small, middle, _ = size_quantiles(predicted, errors, weight, (20.0, 200.0))
    assert small == pytest.approx(0.5 * 1.645, rel=0.1) and middle == pytest.approx(0.1 * 1.645, rel=0.15)
    assert coverage(predicted, errors, weight, shape, (20.0, 200.0)) == pytest.approx(90, abs=1.5)
