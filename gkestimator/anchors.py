"""Anchors: the physical time that a regressor's target is relative to, log(time / anchor)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from gkestimator.analytical import analytical_duration_us
from gkestimator.gpus import GpuSpec
from gkestimator.kernels import KernelTable
from gkestimator.roofline import roofline

__all__ = ["ANCHORS", "Anchor"]

Anchor = Callable[[KernelTable, GpuSpec], np.ndarray]
"""(kernels, GPU) -> (rows,) positive microseconds, float64."""


def _roofline_us(table: KernelTable, gpu: GpuSpec) -> np.ndarray:
    return roofline(table, gpu).roofline_us


ANCHORS: Mapping[str, Anchor] = MappingProxyType(
    {"roofline": _roofline_us, "analytical": analytical_duration_us}
)
"""By the name that a bundle's model states. A new anchor is a function and a line here."""
