"""Small whole-model truths (estimates of real graphs with another host, perturbed), and kernel rows that follow a
known law, so that what an evaluation must say of them can be worked out."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import onnx
import pytest

from gkestimator.estimation import estimate_rows
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.onnx_io.demo import write_resnet50
from gkestimator.training.rows import TrainingRows, kernel_table

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NOISE = (0.99, 1.01, 1.003, 0.997, 1.0)
WriteTruth = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def benchmarks_package() -> None:
    """Make ``benchmarks.accuracy`` importable; the checkout itself on the path would hide what is installed."""
    init = Path(__file__).parents[2] / "benchmarks" / "__init__.py"
    spec = importlib.util.spec_from_file_location("benchmarks", init)
    assert spec is not None and spec.loader is not None
    sys.modules["benchmarks"] = importlib.util.module_from_spec(spec)


@pytest.fixture(autouse=True)
def no_user_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No host profile, bundle or GPU of the user who runs the tests."""
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "gkest-home"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four convolution networks of different depth."""
    found = [write_resnet50(tmp_path_factory.mktemp("models"))]
    for name in ("densenet121", "squeezenet", "inception_v1"):
        found.append(LIGHT / f"light_{name}.onnx")
    return found


@pytest.fixture
def write_truth(models: list[Path], tmp_path: Path) -> WriteTruth:
    """Writes measurements of ``models`` as a host with other figures would have given: estimates times NOISE, and
    every tenth row twice as slow, as a disturbed run is."""

    def write(
        *,
        overhead_us: float = 20.0,
        gpu: str = "A100",
        batches: Sequence[int] = (1, 2, 4, 16, 64),
        host: Path | None = None,
        include_copy: bool = False,
        noise: Sequence[float] = NOISE,
        outliers: bool = True,
    ) -> Path:
        rows = estimate_rows(
            models, gpus=[gpu], batch_sizes=list(batches), host_overhead_us=overhead_us, host=host,
            include_copy=include_copy,
        ).rows  # fmt: skip
        lines = ["model,batch_size,latency_ms,reserved_bytes,sm_util_mean_pct"]
        for at, (row, factor) in enumerate(zip(rows, cycle(noise), strict=False)):
            assert row.latency_ms is not None and row.reserved_bytes is not None
            slow = 2.0 if outliers and at % 10 == 9 else 1.0
            measured = row.latency_ms * factor * slow
            lines.append(
                f"{row.model},{row.batch_size},{measured!r},{row.reserved_bytes * 2},{row.sm_util_mean_pct!r}"
            )
        path = tmp_path / "measured.csv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


GPUS = ("V100-SXM2-16GB", "V100-PCIE-32GB", "T4", "A100-PCIE-40GB")


@pytest.fixture(scope="session")
def gpus() -> dict[str, GpuSpec]:
    """Specifications by name, two boards of one chip among them."""
    catalogue = gpu_catalogue()
    return {name: catalogue.resolve(name)[0] for name in GPUS}


def elementwise_rows(gpu: str, elements: np.ndarray, time_us: np.ndarray, source: str = "a") -> TrainingRows:
    """FP32 additions of ``elements`` on ``gpu`` that took ``time_us``."""
    table = kernel_table(
        family="elementwise",
        variant="add",
        precision="fp32",
        columns={
            "flops": elements,
            "read_bytes": 8 * elements,
            "write_bytes": 4 * elements,
            "rows": elements,
            "element_bytes": 4.0,
            "inputs": 2.0,
        },
    )
    names = np.array([gpu] * len(elements), dtype=object)
    return TrainingRows.make(table, gpu=names, measured_us=time_us, source=source)


@pytest.fixture(scope="session")
def rows(gpus: dict[str, GpuSpec]) -> TrainingRows:
    """The same 300 additions on every GPU: bytes / bandwidth times a constant of the GPU (1.25, 1.25, 2, 1.5)."""
    elements = np.unique(np.exp(np.random.default_rng(3).uniform(np.log(1e5), np.log(1e8), 300)).round())
    parts = []
    for name, factor in zip(GPUS, (1.25, 1.25, 2.0, 1.5), strict=True):
        time = factor * 12 * elements / gpus[name].dram_bytes_per_s * 1e6
        parts.append(elementwise_rows(name, elements, time, "b" if name == "T4" else "a"))
    return TrainingRows.concatenate(parts)
