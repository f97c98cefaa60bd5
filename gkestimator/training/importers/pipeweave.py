"""Import PipeWeave's FP8 matrix products (zksainx/pipeweave; folder with ``gemm_fp8`` and no other products).

Microseconds of a product alone: its activations are quantised already. The ``H800`` is the SXM board: it takes as long
as the H100-SXM on every shape that both have (median ratio 0.998), reads 2.4 TB/s where the PCIe board's memory has
2.0, and its authors list 3.35 TB/s and 132 SMs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from gkestimator.training.importers.files import read_columns, translated
from gkestimator.training.rows import TrainingRows, product_table

_GPUS = {"H100-SXM": "H100-SXM", "H20": "H20", "H800": "H800-SXM"}
_FILE = "gemm_fp8.parquet"
# aiconfigurator has a file of the same name among others.
_OTHERS = "gemm_bf16.parquet"
SOURCE = "pipeweave"
TEST_SOURCE = "pipeweave/test"
VARIANT = "scaled"
"""Variant of products of operands in 8 bits that somebody else has quantised."""


def matches(folder: Path) -> bool:
    """Return whether the folder holds PipeWeave's file."""
    return (folder / _FILE).is_file() and not (folder / _OTHERS).is_file()


def load(folder: Path) -> list[TrainingRows]:
    """Return the rows of the file, those of its authors' test split under a source of their own."""
    path = folder / _FILE
    data = read_columns(path, ("gpu", "m", "n", "k", "latency_us", "split"))
    gpu = translated(path, "gpu", data["gpu"], _GPUS)
    m, n, k = (data[name].astype(np.float64) for name in ("m", "n", "k"))
    table = product_table("linear", "fp8", m=m, n=n, k=k, size=1.0, result_size=2.0, variant=VARIANT)
    measured_us = data["latency_us"].astype(np.float64)
    source = np.where(data["split"] == "test", TEST_SOURCE, SOURCE)
    rows = TrainingRows.make(table, gpu=gpu, measured_us=measured_us, source=SOURCE)
    return [replace(rows, source=source.astype(object))]
