"""Time the library, warm: every ethz graph x 6 batch sizes x 4 GPUs in one call, milliseconds per row.

    GKEST_SHARED=... python benchmarks/api_speed.py [--profile]

Warm means that one such call went before in the process (imports done, bundle loaded). Two figures: the process
remembers what it lowered (`estimation/recall.py`), as a service that asks again has it; and with that memory emptied
before each call, so that every file is read, bound and lowered anew. Predictions are never remembered.
The paper's figure is 31.6 ms per model.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import sys
import time

from _shared import shared_dir

import gkestimator
from gkestimator.estimation.recall import RECALL

REPEATS = 5


def main() -> None:
    models = sorted((shared_dir() / "models" / "ethz").glob("*.onnx"))

    def call() -> int:
        table = gkestimator.estimate(
            models, gpus=["V100", "T4", "A100", "H100"], batch_sizes=[1, 4, 8, 16, 32, 64]
        )
        return len(table)

    start = time.perf_counter()
    rows = call()
    print(
        f"first call (imports, bundle): {(time.perf_counter() - start) * 1e3 / rows:.2f} ms per row, {rows} rows"
    )
    if "--profile" in sys.argv:
        RECALL.forget()
        with cProfile.Profile() as profile:
            call()
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
        return
    for label, anew in (("asked again", False), ("files read and lowered anew", True)):
        per_row = []
        for _ in range(REPEATS):
            if anew:
                RECALL.forget()
            start = time.perf_counter()
            call()
            per_row.append((time.perf_counter() - start) * 1e3 / rows)
        print(
            f"warm, {label}: median {statistics.median(per_row):.2f} ms per row (min {min(per_row):.2f}, "
            f"max {max(per_row):.2f}, {REPEATS} calls)"
        )


if __name__ == "__main__":
    main()
