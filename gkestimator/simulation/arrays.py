"""Name the arrays that simulations pass on, and say once what is checked of them and how they are drawn."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
Flags: TypeAlias = NDArray[np.bool_]


def generator_of(seed: int, *key: int) -> np.random.Generator:
    """Return the generator of one part of a run.

    ``key`` names the part among the seed's children: the simulator's own are 0 to 2, each other part has a
    number of its own, so that what one draws never depends on what another drew.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    return np.random.Generator(np.random.PCG64(sequence))


def all_at_least(low: float, values: Floats) -> bool:
    """Say whether all ``values`` are finite and at least ``low``."""
    return bool((np.isfinite(values) & (values >= low)).all())


def ascend_from_zero(times: Floats) -> bool:
    """Say whether ``times`` are finite, at least 0, and none is before the one that precedes it."""
    return bool(np.isfinite(times).all() and (np.diff(times, prepend=0.0) >= 0).all())
