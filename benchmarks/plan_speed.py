"""Time a plan of 10,000 entries, part by part, and judge its prefixes.

    python benchmarks/plan_speed.py [--entries 10000] [--runtime torch]

Spread is the mean distance of all candidates to the nearest entry of the plan's head, in the standardised features of
their family and precision, over that of an equally long random choice: under 1 the head covers better than chance.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from gkestimator.estimation.sources import load_bundles
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.profiling.plan import DTYPES
from gkestimator.profiling.sweep import PlanRequest, make_plan
from gkestimator.profiling.sweep.candidates import CandidateCollector, lowering_options
from gkestimator.profiling.sweep.catalogue import catalogue
from gkestimator.profiling.sweep.cost import GENERIC_GPU, GENERIC_KERNELS
from gkestimator.profiling.sweep.valuation import Valued, value

HEADS = (200, 500, 1000, 2000, 5000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--runtime", default="torch")
    given = parser.parse_args()
    start, cpu = time.perf_counter(), time.process_time()
    planned = make_plan(PlanRequest(entries=given.entries, runtime=given.runtime))
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    print(
        f"{len(planned.plan.entries):,} entries planned in {wall:.1f} s ({used:.1f} s of processor time), "
        f"estimated to take {(planned.plan.estimated_s or 0) / 60:.0f} minutes on an {GENERIC_GPU}"
    )
    print("\n".join(planned.messages))
    gpus = gpu_catalogue()
    collector = CandidateCollector(
        options=lowering_options(given.runtime, DTYPES, gpus.spec(GENERIC_KERNELS))
    )
    for item in catalogue(2500, 0):
        collector.add(item.fragment, item.source)
    valued = value(collector.candidates, load_bundles(()), gpus.spec(GENERIC_GPU), doubt=False)
    place = {c.id: i for i, c in enumerate(collector.candidates)}
    order = [place[e.id] for e in planned.plan.entries if e.id in place]
    rng = np.random.default_rng(0)
    for head in HEADS:
        chance = np.mean([distance(valued, rng.permutation(len(place))[:head]) for _ in range(3)])
        print(f"first {head:5d}: spread {distance(valued, np.array(order[:head])) / chance:.2f} of chance")


def distance(valued: Valued, chosen: np.ndarray) -> float:
    """Mean distance of all candidates to the nearest chosen of their group (of one without any: to its centre, which is
    the origin, and no better than that)."""
    picked = set(chosen.tolist())
    total, count = 0.0, 0
    for key, members in valued.groups.items():
        points = valued.points[key].astype(np.float64)
        mine = [i for i, p in enumerate(members) if p in picked]
        nearest = np.linalg.norm(points, axis=1) + (0.0 if mine else 1.0)
        for i in mine:
            np.minimum(nearest, np.linalg.norm(points - points[i], axis=1), out=nearest)
        total, count = total + float(nearest.sum()), count + len(members)
    return total / count


if __name__ == "__main__":
    main()
