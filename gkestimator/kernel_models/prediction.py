"""What an estimator says of each kernel on one GPU."""

from __future__ import annotations

from dataclasses import fields
from typing import Protocol

import numpy as np

from gkestimator.core.kernels import KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec


@frozen
class MeasuredLaunch:
    """One of the launches that a call was measured to make. ``kind``: ``kernel``, ``memcpy``, ``memset`` or ``host``;
    ``share``: of the call's time, 0 to 1. Sizes, and the two percentages, are None where they do not apply or were not
    told; ``occupancy_measured``: it is a counter's, not calculated from the launch."""

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
    """What a measured GPU adds, one entry per kernel in the table's order.

    ``source`` and ``occupancy_source``: ``measured``, ``trained:<bundle>`` or ``analytical`` (str objects) ·
    ``launches``: how many launches the kernel of the rules really is (1 where that was not measured) ·
    ``sequence``: those launches, or None · ``occupancy_peak_pct`` and ``sm_util_peak_pct``: the largest of them, where
    ``occupancy_pct`` and ``sm_util_pct`` of the predictions are weighted by time · ``may_be_slower`` (bool): the upper
    end of the interval is that of operands which are no longer in L2, as they were when the call was repeated alone.
    """

    source: np.ndarray
    occupancy_source: np.ndarray
    launches: np.ndarray
    sequence: np.ndarray
    occupancy_peak_pct: np.ndarray
    sm_util_peak_pct: np.ndarray
    may_be_slower: np.ndarray

    def take(self, rows: np.ndarray) -> KernelDetail:
        """The entries that ``rows`` selects."""
        return KernelDetail(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@frozen
class KernelPredictions:
    """One entry per kernel, in the table's order; float64 arrays unless said otherwise. Unknown is NaN.

    ``duration_us`` and its 90 % interval ``low_us`` .. ``high_us`` (GPU time of the kernel, no host overhead) ·
    ``trained``: bool, a regressor answered (else the analytical model) · ``in_range``: bool, inside the training
    range · ``grid_blocks, block_threads, registers_per_thread, shared_bytes``: launch geometry · ``occupancy_pct``:
    achieved occupancy in percent of maximum warps (active SMs only) · ``sm_util_pct``: SM utilisation ·
    ``dram_util_pct`` and ``l2_util_pct``: percent of the peak bandwidth · ``roofline_us``, ``compute_us``,
    ``memory_us``: the roofline and its two sides, which say what bounds the kernel ·
    ``detail``: what a measured GPU adds, else None.
    """

    duration_us: np.ndarray
    low_us: np.ndarray
    high_us: np.ndarray
    trained: np.ndarray
    in_range: np.ndarray
    grid_blocks: np.ndarray
    block_threads: np.ndarray
    registers_per_thread: np.ndarray
    shared_bytes: np.ndarray
    occupancy_pct: np.ndarray
    sm_util_pct: np.ndarray
    dram_util_pct: np.ndarray
    l2_util_pct: np.ndarray
    roofline_us: np.ndarray
    compute_us: np.ndarray
    memory_us: np.ndarray
    detail: KernelDetail | None = None

    def take(self, rows: np.ndarray) -> KernelPredictions:
        """The entries that ``rows`` selects."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "detail"}
        detail = None if self.detail is None else self.detail.take(rows)
        return KernelPredictions(**{name: column[rows] for name, column in found.items()}, detail=detail)


class KernelEstimator(Protocol):
    """Predicts kernels; a loaded bundle, or a stack of them, is one."""

    @property
    def name(self) -> str:
        """What ``source`` names: ``trained:<name>``."""
        ...

    def name_on(self, gpu: GpuSpec) -> str:
        """The same, for one GPU: a bundle that measured it answers instead."""
        ...

    def predict(self, table: KernelTable, gpu: GpuSpec, *, sm_share_pct: float = 100.0) -> KernelPredictions:
        """Predict every kernel of ``table`` on ``gpu`` confined to ``sm_share_pct`` percent of its SMs."""
        ...
