"""Launch geometry as profilers tell it, for the arithmetic of :mod:`gkestimator.kernel_models.launch`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from gkestimator.kernel_models.launch import Launch as Geometry
from gkestimator.profiling.captures import CapturedLaunch

GeometryNumbers: TypeAlias = "tuple[float, float, float, float]"
"""Blocks of the grid, threads of a block, registers of a thread, bytes of shared memory of a block."""


def geometry_numbers(launch: CapturedLaunch) -> GeometryNumbers | None:
    """Return those of a launch; None where one of them was not told."""
    shared = launch.smem_bytes
    if shared is None and launch.static_smem_bytes is not None and launch.dynamic_smem_bytes is not None:
        shared = launch.static_smem_bytes + launch.dynamic_smem_bytes
    registers = launch.registers_per_thread
    if launch.grid is None or launch.block is None or registers is None or shared is None:
        return None
    return _product(launch.grid), _product(launch.block), float(registers), float(shared)


def geometry_of(numbers: Sequence[GeometryNumbers]) -> Geometry:
    """Return several launches (at least one) as columns."""
    grid, block, registers, shared = np.array(numbers).T
    return Geometry(
        grid_blocks=grid, block_threads=block, registers_per_thread=registers, shared_bytes=shared
    )


def _product(sizes: tuple[int, int, int]) -> float:
    return float(prod(max(1, size) for size in sizes))
