"""What an estimator says of each kernel on one GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gkestimator.gpus import GpuSpec
from gkestimator.kernels import KernelTable

__all__ = ["KernelEstimator", "KernelPredictions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPredictions:
    """One entry per kernel, in the table's order; float64 arrays unless said otherwise. Unknown is NaN.

    ``duration_us`` and its 90 % interval ``low_us`` .. ``high_us`` (GPU time of the kernel, no host overhead) ·
    ``trained``: bool, a regressor answered (else the analytical model) · ``in_range``: bool, inside the training
    range · ``grid_blocks, block_threads, registers_per_thread, shared_bytes``: launch geometry · ``occupancy_pct``:
    achieved occupancy in percent of maximum warps (active SMs only) · ``sm_util_pct``: SM utilisation ·
    ``dram_util_pct`` and ``l2_util_pct``: percent of the peak bandwidth · ``roofline_us``, ``compute_us``,
    ``memory_us``: the roofline and its two sides, which say what bounds the kernel.
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


class KernelEstimator(Protocol):
    """Predicts kernels; a loaded bundle, or a stack of them, is one."""

    @property
    def name(self) -> str:
        """What ``source`` names: ``trained:<name>``."""
        ...

    def predict(self, table: KernelTable, gpu: GpuSpec, *, sm_share_pct: float = 100.0) -> KernelPredictions:
        """Predict every kernel of ``table`` on ``gpu`` confined to ``sm_share_pct`` percent of its SMs."""
        ...
