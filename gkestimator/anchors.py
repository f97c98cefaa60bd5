"""Anchors: the physical time that a regressor's target is relative to, log(time / anchor)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from gkestimator.analytical import analytical_duration_us
from gkestimator.attainable import attainable_us
from gkestimator.gpus import GpuSpec
from gkestimator.kernels import KernelTable
from gkestimator.roofline import roofline
from gkestimator.tensor_attention import fused_attention_us
from gkestimator.tensor_cores import tensor_core_us

__all__ = ["ANCHORS", "Anchor"]

Anchor = Callable[[KernelTable, GpuSpec], np.ndarray]
"""(kernels, GPU) -> (rows,) positive microseconds, float64."""


def _roofline_us(table: KernelTable, gpu: GpuSpec) -> np.ndarray:
    return roofline(table, gpu).roofline_us


ANCHORS: Mapping[str, Anchor] = MappingProxyType(
    {
        "roofline": _roofline_us,
        "analytical": analytical_duration_us,
        "attainable": attainable_us,
        "tensor": tensor_core_us,
        "fused_attention": fused_attention_us,
    }
)
"""By the name that a bundle's model states. A new anchor is a function and a line here."""
