"""Predict achieved occupancy learned from hardware counters: what share of the theoretical occupancy a launch
keeps up."""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.launch import ArrayPair, Launch, blocks_per_sm, occupancy
from gkestimator.kernel_models.regressors import Stack

OCCUPANCY_FEATURES = (
    "theoretical",
    "log_waves",
    "fill",
    "log_duration",
    "log_block_threads",
    "log_registers",
    "log_shared",
    "blocks_per_sm",
    "streaming",
    "analytical",
)
_LEAST = 0.01


def occupancy_features(launch: Launch, duration_us: Array, streaming: Array, gpu: GpuSpec) -> ArrayPair:
    """Return (launches, features) float32, and the theoretical occupancy in percent.

    Waves are blocks over those that fit on the GPU at once, ``fill`` how full the last one is; ``streaming``: bool,
    blocks that are short and replace one another (``launch.is_streaming``); ``analytical``: the share of the
    theoretical occupancy that the rule of :func:`gkestimator.kernel_models.launch.occupancy` gives.
    """
    theoretical, rule = occupancy(launch, gpu, streaming=streaming)
    fit = blocks_per_sm(launch, gpu)
    waves = np.maximum(launch.grid_blocks, 1.0) / (fit * gpu.sms)
    columns = (
        theoretical / 100,
        np.log(waves),
        waves / np.ceil(waves),
        np.log(np.maximum(duration_us, 1e-2)),
        np.log(np.maximum(launch.block_threads, 1.0)),
        np.log(np.maximum(launch.registers_per_thread, 1.0)),
        np.log(launch.shared_bytes + 1024.0),
        fit,
        streaming.astype(np.float64),
        rule / np.maximum(theoretical, 1e-9),
    )
    return np.stack(columns, axis=1).astype(np.float32), theoretical


@frozen
class OccupancyModel:
    """Predict achieved over theoretical occupancy; ``low`` and ``high``: (features,) the range it was trained on, to
    which features are held."""

    stack: Stack
    low: Array
    high: Array

    def predict_pct(self, launch: Launch, duration_us: Array, streaming: Array, gpu: GpuSpec) -> Array:
        """Return (launches,) achieved occupancy, percent of an SM's warps, at most the theoretical one. NaN
        where the launch has no geometry (host kernels)."""
        x, theoretical = occupancy_features(launch, duration_us, streaming, gpu)
        known = np.isfinite(x).all(axis=1) & (launch.grid_blocks > 0)
        result = np.full(len(x), np.nan)
        held = np.clip(x[known], self.low, self.high).astype(np.float32)
        share = self.stack.predict(held) + x[known, -1]  # a correction of the rule's share
        result[known] = theoretical[known] * np.clip(share, _LEAST, 1.0)
        return result
