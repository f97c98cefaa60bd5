"""Count the memory sectors that a copying kernel fetches: what a transposition costs beyond its bytes.

torch copies a tensor that is not contiguous with a general elementwise kernel: a block writes consecutive results and
fetches their sources wherever they lie (aten/src/ATen/native/cuda/CUDALoops.cuh, ``launch_legacy_kernel``: 128 threads
of 4 elements). Memory arrives in sectors of 32 bytes. Where neighbouring results come from distant places, a whole
sector is fetched from L2 for each of them; the other elements in it serve other blocks, on other SMs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gkestimator.lowering.strides import Strides
from gkestimator.operators.registry import Shape

_SECTOR_BYTES = 32
_BLOCK_ELEMENTS = 512


@lru_cache(maxsize=65_536)
def fetched_per_byte(shape: Shape, strides: Strides, element_bytes: int, order: Shape) -> int:
    """Return how many bytes a block fetches for each byte of its source that it uses, at least 1.

    ``strides`` are the source's, in elements; ``order`` lists the dimensions as the result stores them, outermost
    first.
    """
    places = np.zeros(1, dtype=np.int64)
    for dim in reversed(order):
        if len(places) >= _BLOCK_ELEMENTS:
            break
        steps = min(shape[dim], -(-_BLOCK_ELEMENTS // len(places)))
        outer = np.arange(steps, dtype=np.int64) * strides[dim]
        places = (outer[:, None] + places).reshape(-1)[:_BLOCK_ELEMENTS]
    distinct = np.unique(places)
    sectors = np.unique(distinct * element_bytes // _SECTOR_BYTES)
    used = len(distinct) * element_bytes
    return max(1, round(len(sectors) * _SECTOR_BYTES / used))
