"""A ``compute`` whose process ends."""

from __future__ import annotations

import os
from pathlib import Path

from gkestimator.simulation.comparing.cells import CellJob
from gkestimator.simulation.comparing.compute import Cells, compute


def dying(job: CellJob) -> Cells:
    """``compute``, in a process that ends at one load; at another only the first time."""
    here = Path(os.environ["GKEST_TEST_DIES"])
    if job.labels["rate_scale"] == 1.0:
        os._exit(9)
    if job.labels["rate_scale"] == 0.5 and not (here / "died").exists():
        (here / "died").touch()
        os._exit(9)
    return compute(job)
