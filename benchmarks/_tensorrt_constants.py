"""Fit the constants of convolutions on GPUs without asynchronous copies to half of the small layers of a V100."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.accuracy.workspace import Workspace
from gkestimator.kernel_models.attainable import attainable_us
from gkestimator.kernel_models.features.tensor_convolutions import (
    CONVOLUTION_CONSTANTS,
    tensor_convolution_us,
)
from gkestimator.training.rows import layer_hash

V100 = "V100-SXM2-16GB"


def print_constants(space: Workspace) -> None:
    """Print how launch, step and depth of GPUs without asynchronous copies fit half of the V100's small layers."""
    rows = space.rows.take(np.flatnonzero((space.rows.gpu == V100) & (space.rows.table.family == "conv")))
    columns = rows.table.columns
    small = (
        (columns["conv_batch"] == 1) & (columns["conv_in_h"] <= 14) & (columns["conv_out_channels"] <= 256)
    )
    small &= (columns["conv_stride_h"] == 1) & (columns["conv_kernel_h"] <= 3) & (columns["inputs"] == 2)
    rows = rows.take(np.flatnonzero(small & (layer_hash(rows.table) < 0.5)))
    gpu = space.gpus[V100]
    half = rows.take(np.flatnonzero(rows.table.precision == "fp16"))
    print(f"{len(half)} layers in fp16: median |log(time / anchor)| by launch (us) and step (cycles)")
    for launch in (0.9, 1.5, 2.0, 2.5):
        errors = []
        for step in (185, 350, 400, 450, 500):
            constants = replace(
                CONVOLUTION_CONSTANTS, launch_us=launch, step_cycles=float(step), split_cycles=1e6
            )
            anchor = tensor_convolution_us(half.table, gpu, constants)
            errors.append(f"{step}: {np.nanmedian(np.abs(np.log(half.duration_us / anchor))):.3f}")
        print(f"  {launch}  {'  '.join(errors)}")
    for precision in ("fp32", "int8"):
        part = rows.take(np.flatnonzero(rows.table.precision == precision))
        attainable = attainable_us(part.table, gpu)
        print(f"{len(part)} layers in {precision}: the same by start (us) and depth (cycles)")
        for start in (2.5, 4.0, 5.0, 6.0):
            errors = []
            for depth in (20, 24, 28, 32):
                walk = start + part.table.columns["gemm_k"] * depth / gpu.boost_clock_mhz
                anchor = np.maximum(attainable, walk)
                errors.append(f"{depth}: {np.nanmedian(np.abs(np.log(part.duration_us / anchor))):.3f}")
            print(f"  {start}  {'  '.join(errors)}")
