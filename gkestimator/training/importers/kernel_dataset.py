"""Import the project's own kernel dataset (Parquet or CSV; DESIGN section 5): what ``gkest profile build``
writes.

One row per kernel launch, grouped to operator calls by :mod:`gkestimator.training.calls`. Here, without a
base bundle to share time out by, only calls train that are one kernel by the rules, or as many launches of
the same families. Of rows without a fragment (version 1), only single-kernel operators do (``kernels_in_op``
1 or null): of several kernels the shape does not say which did what. Durations are GPU time, so there is no
launch gap in them.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from gkestimator.core.kernels import Family, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.tiles import recorded_tile
from gkestimator.tables import KernelMeasurement
from gkestimator.training.calls import read_calls, sure_labels
from gkestimator.training.dataset_rows import blocks_of, specification_files
from gkestimator.training.rows import TrainingRows


def matches(path: Path) -> bool:
    """Return whether ``path`` is a Parquet or CSV file, or a folder that directly holds Parquet files."""
    if path.is_dir():
        return any(path.glob("*.parquet"))
    return path.suffix.lower() in (".parquet", ".csv")


def load(path: Path) -> list[TrainingRows]:
    """Return the rows of the file or files that have quality ``ok`` and a duration."""
    catalogue = gpu_catalogue(specification_files(path))
    labels = sure_labels(read_calls(path, catalogue).calls)
    if not labels:
        return []
    return [
        TrainingRows.make(
            KernelTable.from_kernels([label.kernel for label in labels]),
            gpu=np.array([label.call.gpu for label in labels], dtype=object),
            measured_us=np.array([label.duration_us for label in labels]),
            source="dataset",
            grid_blocks=np.array([blocks_of(label.main.grid) for label in labels]),
            kernel_class=np.array([_class(label.main) for label in labels], dtype=object),
        )
    ]


def _class(row: KernelMeasurement) -> str:
    threads = blocks_of(row.block)
    if not row.kernel_name or math.isnan(threads):
        return ""
    return recorded_tile(row.kernel_name, int(threads), convolution=row.family == Family.CONV)
