"""Keep histograms of times with bins that grow: constant memory, percentiles to half a percent."""

from __future__ import annotations

import math

import numpy as np

from gkestimator.simulation.arrays import Floats, Ints, count_below

# Bin 0: below LOWEST_MS (0 included); bin BINS - 1: from HIGHEST_MS. Between, each is RATIO times the one before.
LOWEST_MS = 1e-3
HIGHEST_MS = 1e7
RATIO = 1.005
BINS = 2 + math.ceil(math.log(HIGHEST_MS / LOWEST_MS) / math.log(RATIO))


def bin_edges_ms() -> Floats:
    """Return the BINS + 1 edges: 0, LOWEST_MS, ..., HIGHEST_MS or just above, infinity."""
    inner = LOWEST_MS * RATIO ** np.arange(BINS - 1)
    return np.concatenate(([0.0], inner, [math.inf]))


def quantile_ms(counts: Ints, q: float) -> float | None:
    """Return the ``q`` quantile (0 to 1) of the times counted in ``counts`` (BINS of them); None of no times.

    Within a bin geometrically between its edges; in the last bin HIGHEST_MS.
    """
    total = int(counts.sum())
    if total == 0:
        return None
    rank = q * total
    below = np.cumsum(counts)
    at = count_below(below, rank)
    at = min(at, BINS - 1)
    while counts[at] == 0:  # a rank of 0 stands before the first time
        at += 1
    if at == 0:
        return 0.0
    if at == BINS - 1:
        return HIGHEST_MS
    low = LOWEST_MS * RATIO ** (at - 1)
    part = (rank - (below[at] - counts[at])) / counts[at]
    return float(low * RATIO ** min(max(part, 0.0), 1.0))
