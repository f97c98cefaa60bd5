"""Name the arrays and lists that simulations pass on, say once what is checked of them and how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
Flags: TypeAlias = NDArray[np.bool_]
NumberOrNone: TypeAlias = float | None
"""A number, None where it is not known or there is none."""
Numbers: TypeAlias = tuple[float, ...]
Wholes: TypeAlias = tuple[int, ...]
Names: TypeAlias = tuple[str, ...]
Series: TypeAlias = Sequence[float]
Texts: TypeAlias = Sequence[str]
Files: TypeAlias = Sequence[Path | str]
ValuesByName: TypeAlias = dict[str, Any]
AnyByName: TypeAlias = Mapping[str, Any]


def generator_of(seed: int, *key: int) -> np.random.Generator:
    """Return the generator of one part of a run.

    ``key`` names the part among the seed's children: the simulator's own are 0 to 2, each other part has a
    number of its own, so that what one draws never depends on what another drew.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    return np.random.Generator(np.random.PCG64(sequence))


def count_below(values: Floats | Ints, limit: float) -> int:
    """Return how many of ``values``, which ascend, are below ``limit``."""
    return int(np.searchsorted(values, limit, side="left"))


def all_at_least(low: float, values: Floats) -> bool:
    """Say whether all ``values`` are finite and at least ``low``."""
    return bool((np.isfinite(values) & (values >= low)).all())


def ascend_from_zero(times: Floats) -> bool:
    """Say whether ``times`` are finite, at least 0, and none is before the one that precedes it."""
    return bool(np.isfinite(times).all() and (np.diff(times, prepend=0.0) >= 0).all())
