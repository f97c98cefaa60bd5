"""Count the requests drawn per second on one core, and show what two ways of scaling do to a trace's bursts.

    python benchmarks/arrivals.py            (the second table needs GKEST_SHARED: the Azure LLM hours of 2023)

The first table is the median of five runs of 20 sources at 5,000 req/s each, times made and cut into chunks. The second
gives the excess of counts, (variance - mean) / mean^2 in windows of 1, 10 and 60 s: 0 for a Poisson process of one rate, and
for a Poisson process of varying rate the squared coefficient of variation of that rate, whatever its scale. ``recorded`` is
the trace (all requests together); the others are replays at 500 req/s as one source.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.arrivals.rates import Profile
from gkestimator.simulation.arrivals.replay import Replay, ReplayedArrivals
from gkestimator.simulation.traces.reading import Trace

SOURCES, RATE, SECONDS = 20, 5_000.0, 100
REPLAYED_RPS = 500.0


def main() -> None:
    print(f"{'':28} {'requests':>12} {'million per second':>19} {'per CPU second':>15}")
    names = [f"m{i}" for i in range(SOURCES)]
    ramps = {
        n: Profile(times_s=(0.0, SECONDS / 2, SECONDS), rates_rps=(0.0, 2 * RATE, 0.0), ramp=True)
        for n in names
    }
    for label, kind, profiles in (
        ("poisson", "poisson", None),
        ("mmpp", "mmpp", None),
        ("constant", "constant", None),
        ("poisson along a ramp", "poisson", ramps),
    ):
        walls, cpus, count = [], [], 0
        for seed in range(5):
            arrivals = make_arrivals(kind, [RATE] * SOURCES, names, seed=seed, profiles=profiles)
            wall, cpu = time.perf_counter(), time.process_time()
            count = sum(sum(map(len, c.times_ms)) for c in arrivals.chunks(SECONDS * 1e3))
            walls.append(count / (time.perf_counter() - wall) / 1e6)
            cpus.append(count / (time.process_time() - cpu) / 1e6)
        print(f"{label:28} {count:>12,} {statistics.median(walls):>19.1f} {statistics.median(cpus):>15.1f}")
    folder = Path(os.environ.get("GKEST_SHARED", ""), "data", "traces")
    if not folder.is_dir():
        print("no second table: set GKEST_SHARED to the folder that holds data/traces")
        return
    print(f"\n{'excess of counts':28} {'requests':>12} {'1 s':>9} {'10 s':>9} {'60 s':>9}  length")
    for name in ("conv", "code"):
        path = folder / f"AzureLLMInferenceTrace_2023_{name}.csv"
        recorded = np.concatenate([r.times_s for r in Trace(path).rows()])
        line(f"{name}, recorded", recorded, float(recorded[-1]))
        for scaling in ("copies", "time"):
            arrivals = make_arrivals(path, [REPLAYED_RPS], ["m"], replay=Replay(scaling=scaling))
            assert isinstance(arrivals, ReplayedArrivals)
            times = np.concatenate([c.times_ms[0] for c in arrivals.chunks(arrivals.length_ms)]) / 1e3
            line(f"{name}, {scaling}", times, arrivals.length_ms / 1e3)


def line(label: str, times_s: np.ndarray, length_s: float) -> None:
    cells = []
    for window in (1.0, 10.0, 60.0):
        whole = int(length_s // window)
        counts = np.bincount((times_s / window).astype(int), minlength=whole)[:whole]
        mean = counts.mean() if whole else np.nan
        cells.append(f"{(counts.var() - mean) / mean**2:9.3f}" if whole >= 5 else f"{'-':>9}")
    print(f"{label:28} {len(times_s):>12,} {' '.join(cells)}  {length_s:,.0f} s")


if __name__ == "__main__":
    main()
