"""Collect named feature columns, and the figures that several feature sets share: waves, alignment, tiles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.tiles import pieces

Features: TypeAlias = tuple[Array, tuple[str, ...]]
"""(rows, features) float32, and the features' names."""
LEAST_US = 1e-4
"""A side without work is far below every side with some."""


def lowest_bit(values: Array, most: int) -> Array:
    """Return the largest power of two, at most ``most``, that divides each whole number (float64)."""
    whole = values.astype(np.int64)
    lowest = np.where(whole > 0, whole & -whole, most)
    return np.minimum(lowest, most).astype(np.float64)


def fill(waves: Array) -> Array:
    """Return how full the last of ``waves`` is, on average over all: 1 for whole waves."""
    return np.asarray(waves / np.ceil(waves))


def joined(features: Features, more: Features) -> Features:
    """Return the columns of ``features``, then those of ``more``."""
    matrix, names = features
    others, other_names = more
    return np.hstack([matrix, others.astype(np.float32)]), names + other_names


class FeatureColumns(dict[str, "Array | float"]):
    """Hold columns by name, in the order in which they were added; a number stands for a column of it."""

    def add_logs(self, **values: Array | float) -> None:
        """Add the natural logarithm of each value as ``log_<name>``."""
        for name, value in values.items():
            self[f"log_{name}"] = np.log(value)

    def add_alignments(self, most: int = 64, **values: Array) -> None:
        """Add log2 of the largest power of two, at most ``most``, that divides each value, as ``align_<name>``."""
        for name, value in values.items():
            self[f"align_{name}"] = np.log2(lowest_bit(value, most))

    def add_waves(self, waves: Array, suffix: str = "") -> None:
        """Add the number of waves and how full they are."""
        self[f"log_waves{suffix}"] = np.log(waves)
        self[f"fill{suffix}"] = fill(waves)

    def add_tiles(self, table: KernelTable, gpu: GpuSpec, tiles: Iterable[tuple[int, int]]) -> None:
        """Add what cutting each matrix product into ``tiles`` (rows, columns) gives: waves, and the useful share."""
        batch, m, n, _ = table.gemm_sizes()
        for rows, cols in tiles:
            count = pieces(m, rows) * pieces(n, cols)
            self.add_waves(count * batch / gpu.sms, f"_{rows}x{cols}")
            self[f"useful_{rows}x{cols}"] = m * n / (count * rows * cols)

    def add_window(self, table: KernelTable) -> Array:
        """Add the filters of convolutions and what they run over.

        Return the mask of those of one group that are 3 x 3 or 5 x 5 and take steps of 1.
        """
        height = table.size("conv_kernel_h")
        width = table.size("conv_kernel_w")
        stride = table.size("conv_stride_h") * table.size("conv_stride_w")
        groups = table.size("conv_groups")
        channels = table.size("conv_in_channels") / groups
        self["kernel_area"] = height * width
        self["stride"] = stride
        self.add_logs(out_w=table.size("conv_out_w"), images=table.size("conv_batch"), in_channels=channels)
        small = (height == width) & np.isin(height, (3, 5))
        return np.asarray(small & (stride == 1) & (groups == 1))

    def matrix(self, count: int) -> Features:
        """Return the columns of ``count`` rows as one matrix."""
        matrix = np.empty((count, len(self)), dtype=np.float32)
        for place, column in enumerate(self.values()):
            matrix[:, place] = column
        return matrix, tuple(self)
