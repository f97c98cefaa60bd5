"""Where the catalogue's shapes come from: the tables of ``shapes.toml``, and low-discrepancy points between them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.extras import install_extra
from gkestimator.profiling.type_names import Fields, Ints

T = TypeVar("T")


@cache
def _tables() -> dict[str, Fields]:
    return tomllib.loads(files(__package__).joinpath("shapes.toml").read_text(encoding="utf-8"))


def table(group: str, name: str = "real") -> Any:
    """Return the rows of one table of ``shapes.toml``, which says what each number is: a list of them, or lists by the
    field that they come from (``vision``, ``detection``, ``language``)."""
    return _tables()[group][name]


class ShapeSampler:
    """Draw sizes that fill a range evenly in log space; every call of :meth:`sizes` goes on with points of its own."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def unit(self, count: int, dimensions: int) -> np.ndarray:
        """Return (count, dimensions) numbers in [0, 1): a scrambled Sobol sequence (Owen 1998, by scipy.stats.qmc)."""
        try:
            from scipy.stats import qmc
        except ImportError as e:
            raise UsageError(f"profile plan needs scipy: {install_extra('train')}") from e
        if count <= 0:
            return np.empty((0, dimensions))
        sobol = qmc.Sobol(d=dimensions, scramble=True, seed=int(self._rng.integers(2**31)))
        points: np.ndarray = sobol.random_base2(max(1, math.ceil(math.log2(count))))
        return points[:count]

    def sizes(self, count: int, ranges: Sequence[Sequence[int]]) -> list[Ints]:
        """Return ``count`` tuples of whole numbers, each in its (inclusive) range, even in their logarithms.

        Two thirds of the sizes from 16 on are rounded to a multiple of 8: most models' are, and kernels for aligned
        sizes differ from those for odd ones.
        """
        bounds = np.array(ranges)
        low = np.log(bounds[:, 0])
        high = np.log(bounds[:, 1] + 0.999)
        unit = self.unit(count, len(ranges))
        points = np.exp(low + unit * (high - low)).astype(np.int64)
        # Tensor cores and vector loads want multiples of 8.
        aligned = self._rng.random(points.shape) < 2 / 3
        rounded = np.minimum((points + 4) // 8 * 8, bounds[:, 1])
        points = np.where(aligned & (points >= 16), rounded, points)
        return [tuple(row) for row in points.tolist()]

    def pick(self, count: int, choices: Sequence[T]) -> list[T]:
        """Return ``count`` of ``choices``, evenly at random."""
        positions = self._rng.integers(len(choices), size=count).tolist()
        return [choices[position] for position in positions]
