"""Hold what an estimator says of each kernel on one GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.core.records import frozen, map_fields
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.launch import Launch
from gkestimator.kernel_models.power import KernelPower


@frozen
class MeasuredLaunch:
    """Hold one of the launches that a call was measured to make. ``kind``: ``kernel``, ``memcpy``, ``memset``
    or ``host``; ``share``: of the call's time, 0 to 1. Sizes, and the two percentages, are None where they do
    not apply or were not told; ``occupancy_measured``: it is a counter's, not calculated from the launch."""

    kind: str
    name: str
    share: float
    grid_blocks: float | None
    block_threads: float | None
    registers_per_thread: float | None
    shared_bytes: float | None
    occupancy_pct: float | None
    sm_util_pct: float | None
    occupancy_measured: bool = False


@frozen
class KernelDetail:
    """Hold what a measured GPU adds, one entry per kernel in the table's order.

    ``source`` and ``occupancy_source``: ``measured``, ``trained:<bundle>`` or ``analytical`` (str objects) ·
    ``launches``: how many launches the kernel of the rules really is (1 where that was not measured) ·
    ``sequence``: those launches, or None · ``occupancy_peak_pct`` and ``sm_util_peak_pct``: the largest of them, where
    ``occupancy_pct`` and ``sm_util_pct`` of the predictions are weighted by time · ``may_be_slower`` (bool): the upper
    end of the interval is that of operands which are no longer in L2, as they were when the call was repeated alone.
    """

    source: Array
    occupancy_source: Array
    launches: Array
    sequence: Array
    occupancy_peak_pct: Array
    sm_util_peak_pct: Array
    may_be_slower: Array

    def take(self, rows: Array) -> KernelDetail:
        """Return the entries that ``rows`` selects."""
        return map_fields(self, lambda column: column[rows])


@frozen
class KernelPredictions:
    """Hold one entry per kernel, in the table's order; float64 arrays unless said otherwise. Unknown is NaN.

    ``duration_us`` and its 90 % interval ``low_us`` .. ``high_us`` (GPU time of the kernel, no host overhead) ·
    ``trained``: bool, a regressor answered (else the analytical model) · ``in_range``: bool, inside the training
    range · ``grid_blocks, block_threads, registers_per_thread, shared_bytes``: launch geometry · ``occupancy_pct``:
    achieved occupancy in percent of maximum warps (active SMs only) · ``sm_util_pct``: SM utilisation ·
    ``dram_util_pct`` and ``l2_util_pct``: percent of the peak bandwidth · ``roofline_us``, ``compute_us``,
    ``memory_us``: the roofline and its two sides, which say what bounds the kernel ·
    ``least_us``: what no kernel is faster than (None: not calculated) · ``precision``: what the kernel calculates in,
    of those that it permits (str objects), and ``moved_bytes``, what it reads and writes then (None: as it was
    lowered) ·
    ``detail``: what a measured GPU adds, else None · ``power``: None where no kernel's power is known on the GPU.
    """

    duration_us: Array
    low_us: Array
    high_us: Array
    trained: Array
    in_range: Array
    grid_blocks: Array
    block_threads: Array
    registers_per_thread: Array
    shared_bytes: Array
    occupancy_pct: Array
    sm_util_pct: Array
    dram_util_pct: Array
    l2_util_pct: Array
    roofline_us: Array
    compute_us: Array
    memory_us: Array
    detail: KernelDetail | None = None
    power: KernelPower | None = None
    least_us: Array | None = None
    precision: Array | None = None
    moved_bytes: Array | None = None

    @property
    def launch(self) -> Launch:
        """Return the launch geometry."""
        return Launch(
            grid_blocks=self.grid_blocks,
            block_threads=self.block_threads,
            registers_per_thread=self.registers_per_thread,
            shared_bytes=self.shared_bytes,
        )

    def take(self, rows: Array) -> KernelPredictions:
        """Return the entries that ``rows`` selects."""

        def taken(column: Any) -> Any:
            if column is None:
                return None
            if isinstance(column, KernelDetail | KernelPower):
                return column.take(rows)
            return column[rows]

        return map_fields(self, taken)


class KernelEstimator(Protocol):
    """Predict kernels; a loaded bundle, or a stack of them, is one."""

    @property
    def name(self) -> str:
        """Return what ``source`` names: ``trained:<name>``."""
        ...

    def name_on(self, gpu: GpuSpec) -> str:
        """Return the same for one GPU: a bundle that measured it answers instead."""
        ...

    def under(self, runtime: str, version: str | None = None) -> KernelEstimator:
        """Return the same for one runtime, and one version of it."""
        ...

    def predict(self, table: KernelTable, gpu: GpuSpec, *, sm_share_pct: float = 100.0) -> KernelPredictions:
        """Predict every kernel of ``table`` on ``gpu`` confined to ``sm_share_pct`` percent of its SMs."""
        ...


def at_least(predictions: KernelPredictions, floor_us: Array) -> KernelPredictions:
    """Return ``predictions`` with no duration below ``floor_us``; what is raised keeps the width of its interval.

    Durations that were measured under the same runtime (``detail``) stay as they are.
    """
    duration = predictions.duration_us
    known = predictions.detail
    if known is not None:
        floor_us = np.where(known.source == "measured", 0.0, floor_us)
    ratio = np.divide(floor_us, duration, out=np.ones_like(duration), where=duration > 0)
    if not (ratio > 1).any():
        return predictions
    stretch = np.maximum(ratio, 1.0)
    return replace(
        predictions,
        duration_us=duration * stretch,
        low_us=predictions.low_us * stretch,
        high_us=predictions.high_us * stretch,
    )
