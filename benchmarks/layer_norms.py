"""Print how many clocks of an SM a row of layer normalisation takes, by its width: NeuSight's rows.

    GKEST_SHARED=... python benchmarks/layer_norms.py

Where that hardly moves with the width and memory would take much less, the row waits for instructions: the constants of
``gkestimator/kernel_models/row_issue.py`` are read off these.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np

from gkestimator.kernel_models.roofline import roofline
from gkestimator.training.rows import TrainingRows
from gkestimator.training.train import measured_rows

_FEWEST_ROWS = 5_000
_EDGES = (256, 384, 512, 640, 768, 1024, 1536, 2048)


def main() -> None:
    """Print a line per GPU and range of widths."""
    _, parts, gpus = measured_rows([Path(os.environ["GKEST_SHARED"], "data/neusight")])
    rows = TrainingRows.concatenate(parts)
    rows = rows.take(np.flatnonzero(rows.table.family == "layernorm"))
    print(f"{'GPU':16}{'columns':>12}{'n':>5}{'clocks':>8}{'by memory':>10}")
    for name in np.unique(rows.gpu):
        mine = rows.take(np.flatnonzero(rows.gpu == name))
        gpu = gpus[name]
        columns = mine.table.columns
        clocks_per_us = gpu.sms * gpu.boost_clock_mhz / columns["rows"]
        clocks = mine.duration_us * clocks_per_us
        by_memory = roofline(mine.table, gpu).memory_us * clocks_per_us
        usable = np.isfinite(clocks) & (columns["rows"] >= _FEWEST_ROWS)
        for low, high in pairwise(_EDGES):
            chosen = usable & (columns["cols"] >= low) & (columns["cols"] < high)
            if chosen.any():
                figures = f"{np.median(clocks[chosen]):8.0f}{np.median(by_memory[chosen]):10.0f}"
                print(f"{name:16}{low:>6}..{high:<4}{chosen.sum():>5}{figures}")


if __name__ == "__main__":
    main()
