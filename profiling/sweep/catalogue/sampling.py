"""Low-discrepancy points in log space: sizes that fill a family's range evenly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gkestimator.core.errors import UsageError


class ShapeSampler:
    """Seeded; every call of :meth:`sizes` continues with points of its own."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def unit(self, count: int, dimensions: int) -> np.ndarray:
        """(count, dimensions) numbers in [0, 1): a scrambled Sobol sequence (Owen 1998, as in scipy.stats.qmc)."""
        try:
            from scipy.stats import qmc
        except ImportError as e:
            raise UsageError(
                "profile plan needs scipy: pip install scipy (the extras 'train' and 'profile' bring it)"
            ) from e
        if count <= 0:
            return np.empty((0, dimensions))
        sobol = qmc.Sobol(d=dimensions, scramble=True, seed=int(self._rng.integers(2**31)))
        points: np.ndarray = sobol.random_base2(max(1, math.ceil(math.log2(count))))
        return points[:count]

    def sizes(self, count: int, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        """``count`` tuples of whole numbers, each in its (inclusive) range, even in their logarithms.

        Two thirds of the sizes from 16 on are rounded to a multiple of 8: most models' are, and kernels for aligned
        sizes differ from those for odd ones.
        """
        low = np.log([r[0] for r in ranges])
        high = np.log([r[1] + 0.999 for r in ranges])
        points = np.exp(low + self.unit(count, len(ranges)) * (high - low)).astype(np.int64)
        aligned = self._rng.random(points.shape) < 2 / 3
        top = np.array([r[1] for r in ranges])
        rounded = np.minimum((points + 4) // 8 * 8, top)
        points = np.where(aligned & (points >= 16), rounded, points)
        return [tuple(int(v) for v in row) for row in points]

    def pick(self, count: int, choices: Sequence[object]) -> list[int]:
        """``count`` positions in ``choices``, evenly at random."""
        return [int(v) for v in self._rng.integers(len(choices), size=count)]
