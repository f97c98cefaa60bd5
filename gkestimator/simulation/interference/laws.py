"""The laws of interference as one function over numbers, which the engine compiles. Contract; the owner fills it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["NONE", "slowdown"]

NONE = 0


def slowdown(
    code: int,
    own: NDArray[np.float64],
    others: NDArray[np.float64],
    count: int,
    terms: NDArray[np.float64],
) -> float:
    """Factor (1 or more) on a batch with features ``own`` beside ``count`` others whose features sum to
    ``others``, on a GPU with ``terms``."""
    return 1.0
