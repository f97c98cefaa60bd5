"""Rows that follow a known law, so that what an evaluation must say of them can be worked out."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.gpus import GpuSpec, gpu_catalogue
from gkestimator.training.rows import TrainingRows, kernel_table

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
