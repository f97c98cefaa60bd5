"""Random small weights that have something in common, with values at the tolerance's edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.merging.editing import Held
from gkestimator.merging.operators import Rectangle, WeightMatrix

TOLERANCES = (0.0, 1e-7, 0.1, 0.5, 1.0)
STEPS = (1.0, 0.25, 0.1, 0.05, 1e-7)
TYPES = {"float32": DType.FLOAT, "float16": DType.FLOAT16, "float64": DType.DOUBLE, "uint16": DType.BFLOAT16}


def case(seed: int, largest: int = 8) -> tuple[np.ndarray, np.ndarray, float]:
    """Two weights and a tolerance: an alphabet of 2 to 100 values, often a block of one at another place of the other,
    moved by exactly the tolerance or a float beyond it, often NaN and infinities."""
    rng = np.random.default_rng(seed)
    ra, ca, rb, cb = (int(n) for n in rng.integers(1, largest + 1, 4))
    taps, letters = int(rng.choice([1, 1, 2, 3])), int(rng.choice([2, 3, 10, 100]))
    tolerance, step = float(rng.choice(TOLERANCES)), float(rng.choice(STEPS))
    dtype = rng.choice(["f4", "f4", "f2", "f8"])
    a = (rng.integers(0, letters, (ra, ca, taps)) * step).astype(dtype)
    b = (rng.integers(0, letters, (rb, cb, taps)) * step).astype(dtype)
    if rng.random() < 0.6:
        tall, wide = int(rng.integers(1, min(ra, rb) + 1)), int(rng.integers(1, min(ca, cb) + 1))
        x, y = int(rng.integers(0, ra - tall + 1)), int(rng.integers(0, ca - wide + 1))
        u, v = int(rng.integers(0, rb - tall + 1)), int(rng.integers(0, cb - wide + 1))
        b[u : u + tall, v : v + wide] = a[x : x + tall, y : y + wide]
        if rng.random() < 0.5:
            moved = rng.choice([-1, 0, 1], (tall, wide, taps)) * tolerance
            b[u : u + tall, v : v + wide] += moved.astype(dtype)
        if rng.random() < 0.3:
            b[u, v] = np.nextafter(b[u, v], b.dtype.type(rng.choice([-9, 9])))
    if rng.random() < 0.3:
        for w in (a, b):
            at = int(rng.integers(0, w.shape[0])), int(rng.integers(0, w.shape[1]))
            w[at] = rng.choice([math.nan, math.inf, -math.inf])
    return a, b, tolerance


def block(found: Rectangle | None) -> tuple[int, ...] | None:
    """The rectangle as the oracle writes it."""
    if found is None:
        return None
    return found.rows, found.columns, found.row_a, found.column_a, found.row_b, found.column_b


def matrix(values: Any) -> WeightMatrix:
    """A weight held in memory; [rows, columns] have one tap; uint16 is bfloat16."""
    held = np.asarray(values)
    held = held[:, :, None] if held.ndim == 2 else held
    rows, columns, taps = held.shape
    return WeightMatrix(
        rows=rows, columns=columns, taps=taps, dtype=TYPES[held.dtype.name], values=Held(held=held)
    )


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper halves of float32 values, as ONNX keeps bfloat16."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
