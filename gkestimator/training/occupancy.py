"""Fit achieved occupancy on launches with hardware counters."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.achieved import OccupancyModel, occupancy_features
from gkestimator.kernel_models.launch import LONG_BLOCKS, Launch
from gkestimator.tables import KernelMeasurement
from gkestimator.training.calls import MeasuredCall
from gkestimator.training.dataset_rows import blocks_of
from gkestimator.training.small_stack import fit_small_stack

FEWEST_COUNTERS = 50
"""Launches with counters below which the rule of ``launch.occupancy`` stays."""


@frozen
class OccupancyReport:
    """Hold the mean absolute errors of the rule and of the regressor, in percent of an SM's warps.

    The regressor's are of operators that were left out with all others of equal inputs.
    """

    rows: int
    rule_points: float
    learned_points: float | None
    used: bool


def fit_occupancy(
    calls: Sequence[MeasuredCall], gpu: GpuSpec, *, seed: int
) -> tuple[OccupancyModel | None, OccupancyReport]:
    """Return the regressor of ``gpu``, or None where there are too few counters or the rule is no worse."""
    launches = [row for call in calls for row in call.rows if _usable(row)]
    if not launches:
        return None, OccupancyReport(rows=0, rule_points=float("nan"), learned_points=None, used=False)
    streaming = ~np.isin([row.family for row in launches], [f.value for f in LONG_BLOCKS])
    duration = np.array([row.duration_us for row in launches])
    x, theoretical = occupancy_features(_launch(launches), duration, streaming, gpu)
    measured = np.array([row.achieved_occupancy_pct for row in launches], dtype=float)
    rule = x[:, -1].astype(float)

    def error_points(share: np.ndarray) -> float:
        return float(np.mean(np.abs(share * theoretical - measured)))

    by_rule = error_points(rule)
    report = OccupancyReport(rows=len(launches), rule_points=by_rule, learned_points=None, used=False)
    if len(launches) < FEWEST_COUNTERS:
        return None, report
    target = np.clip(measured / theoretical, 0.0, 1.0) - rule
    # An operator launches the same blocks in several precisions and, fused or not, of the same inputs.
    shape = np.array([zlib.crc32(row.input_shapes.encode()) for row in launches])
    fit = fit_small_stack(x, target, np.ones(len(launches)), shape, seed=seed)
    learned = error_points(np.clip(rule + fit.out_of_fold, 0.01, 1.0))
    used = learned < by_rule
    report = replace(report, rule_points=round(by_rule, 3), learned_points=round(learned, 3), used=used)
    if used:
        return OccupancyModel(stack=fit.stack, low=fit.low, high=fit.high), report
    return None, report


def _launch(launches: Sequence[KernelMeasurement]) -> Launch:
    """Return the launches as columns; what was not recorded is what most kernels take."""
    shared = [(row.static_smem_bytes or 0) + (row.dynamic_smem_bytes or 0) for row in launches]
    return Launch(
        grid_blocks=np.array([blocks_of(row.grid) for row in launches]),
        block_threads=np.array([blocks_of(row.block) for row in launches]),
        registers_per_thread=np.array([float(row.registers_per_thread or 32) for row in launches]),
        shared_bytes=np.array(shared, dtype=float),
    )


def _usable(row: KernelMeasurement) -> bool:
    return (
        row.kind == "kernel"
        and row.achieved_occupancy_pct is not None
        and bool(row.duration_us)
        and blocks_of(row.grid) > 0
        and blocks_of(row.block) > 0
    )
