"""Estimate models on a part of the SMs: time of ten shares, whether more SMs ever cost time, where curves bend.

    python benchmarks/sm_shares.py [--models DIR] [--gpu V100]

Models: the golden set, or the ONNX files below --models. Shares 10 to 100 %, batch sizes 1 to 32. The knee is the smallest share
with 95 % of the throughput of the whole GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from _placement_tables import SM_SHARES, golden_set

from gkestimator.core.naming import find_models
from gkestimator.estimation import estimate_rows

BATCHES = (1, 2, 4, 8, 16, 32)
KNEE = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path)
    parser.add_argument("--gpu", default="V100")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = find_models([str(given.models)])[0] if given.models else golden_set(Path(folder))
        taken = {}
        for shares in ((100.0,), SM_SHARES):
            start = time.process_time()
            found = estimate_rows(paths, gpus=[given.gpu], batch_sizes=BATCHES, sm_shares=shares)
            taken[shares] = time.process_time() - start
    for path, error in found.failures:
        print(f"{path}: left out: {error}")
    if not found.rows:
        sys.exit("nothing to compare")
    curves: dict[tuple[str, int], dict[float, float]] = {}
    for row in found.rows:
        if row.latency_ms is not None:
            curves.setdefault((row.model, row.batch_size or 1), {})[row.sm_share_pct] = row.latency_ms
    print(
        f"{len(paths)} models x {len(BATCHES)} batch sizes on {given.gpu}: {taken[(100.0,)]:.1f} s of processor time for whole GPUs, then "
        f"{taken[SM_SHARES]:.1f} s for {len(SM_SHARES)} shares ({1e3 * taken[SM_SHARES] / len(found.rows):.1f} ms a row)"
    )
    rises = [curve[b] / curve[a] - 1 for curve in curves.values() for a, b in pairwise(SM_SHARES)]
    print(
        f"largest rise of latency from one share to the next: {100 * max(rises):+.3g} % ({len(rises)} steps)"
    )
    for batch in BATCHES:
        here = [c for (_, b), c in curves.items() if b == batch]
        knees = [min(s for s in SM_SHARES if c[100.0] / c[s] >= KNEE) for c in here]
        slow = [c[10.0] / c[100.0] for c in here]
        print(
            f"batch {batch:3d}: knee at {np.median(knees):3.0f} % of the SMs (median; {min(knees):.0f} to {max(knees):.0f}); "
            f"a tenth of the SMs takes {np.median(slow):.1f} times as long ({min(slow):.1f} to {max(slow):.1f})"
        )


if __name__ == "__main__":
    main()
