"""Compare the formulas of expected goodput with a simulation of the same replicas, and time them.

    python benchmarks/expected_goodput.py [--cases 400] [--requests 60000] [--seed 0] [--batching early|late]

Cases: curves of latency over batch size from our estimates (golden networks on the GPUs of _placement_tables), target batch 1 to
128, 1 to 8 replicas, SLO 1.05 to 6 times the latency of the full batch, load 0.05 to 1.3 of the capacity; a quarter of them
take turns, with a cycle of 1 to 3 latencies. The simulation (tests/placement/_serving.py) knows no formula: it is given the
chosen time-outs and the admitted rate. An error is the difference of the requests on time, in points of the rate asked for.
*Left on the table*: what the best of 5 admitted rates x 6 time-outs serves in the simulation beyond the chosen ones, on every
eighth case. With `--batching late` batches are formed when a replica is free (tests/placement/_late_serving.py), those that would
be late are refused, and a third of the cases have an interval of 20 % (the mean of runs with batches longer or shorter by a factor). Speed: `expect` on placements of one batch size each, with every model slightly overloaded (the slow case).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from _placement_tables import V100, own_estimates, table_a1

from gkestimator.documents.cluster import Cluster, GpuCount
from gkestimator.documents.workload import ModelLoad, Workload
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.placement.building import build_problem
from gkestimator.placement.expected import expect
from gkestimator.placement.late import late_on_time
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import Problem
from gkestimator.placement.queueing import OnTime, Server, interval_factors, on_time
from gkestimator.tables import Requirement

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "placement"))
from _late_serving import LateReplica, late_share
from _serving import Replica, on_time_share

REPEATS = 5
RUNS = 3  # near saturation one run is mostly its own luck


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question: ``server`` (several alike) asked ``rate_rps``, each within ``slo_ms``."""

    server: Server
    rate_rps: float
    slo_ms: float
    load: float


def cases(count: int, seed: int) -> list[Case]:
    """``count`` cases drawn from ``seed``."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for row in own_estimates():
        if row.sm_share_pct == 100 and row.latency_ms and row.batch_size:
            curves.setdefault((row.model, row.gpu), {})[row.batch_size] = row.latency_ms
    rng = np.random.default_rng(seed)
    names = sorted(curves)
    found = []
    for i in range(count):
        curve = curves[names[int(rng.integers(len(names)))]]
        batch = int(rng.choice(sorted(curve)))
        batches = tuple(b for b in sorted(curve) if b <= batch)
        latency = curve[batch]
        cycle = float(rng.choice([1.0, 1.5, 3.0])) * latency if i % 4 == 3 else None
        slo = float(rng.choice([1.05, 1.2, 1.5, 2.0, 3.0, 6.0])) * latency
        server = Server(
            batch_size=batch,
            batches=batches,
            latencies_ms=tuple(curve[b] for b in batches),
            duty_cycle_ms=cycle,
            count=int(rng.choice([1, 2, 4, 8])),
        )
        load = float(rng.choice([0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.3]))
        found.append(
            Case(
                server=server,
                rate_rps=load * server.capacity_rps * server.count,
                slo_ms=max(slo, latency + (cycle or 0.0)),
                load=load,
            )
        )
    return found


def simulated(case: Case, wait_ms: float, admitted_rps: float, requests: int, seed: int) -> float:
    """Requests a second on time in the simulation."""
    s = case.server
    replicas = [
        Replica(
            batch_size=s.batch_size,
            batches=s.batches,
            latencies_ms=s.latencies_ms,
            wait_ms=wait_ms,
            duty_cycle_ms=s.duty_cycle_ms,
        )
        for _ in range(s.count)
    ]
    shares = [
        on_time_share(replicas, admitted_rps, case.slo_ms, requests=requests // RUNS, seed=RUNS * seed + i)
        for i in range(RUNS)
    ]
    return admitted_rps * statistics.mean(shares)


def left(case: Case, found: OnTime, requests: int, seed: int) -> float:
    """What a better choice would serve beyond the chosen one, part of the rate asked for (negative: the grid has none as good)."""
    mine = simulated(case, found.max_wait_ms[0], found.admitted_rps, requests, seed)
    slack = max(0.0, case.slo_ms - case.server.latencies_ms[0])
    waits = [f * slack for f in (0.0, 0.05, 0.2, 0.4, 0.6, 0.9)]
    if case.server.duty_cycle_ms is not None:
        waits = waits[:1]  # turns have no time-out
    best = max(
        simulated(case, wait, part * case.rate_rps, requests, seed)
        for part in (0.6, 0.75, 0.85, 0.93, 1.0)
        for wait in waits
    )
    return (best - mine) / case.rate_rps


def accuracy(count: int, requests: int, seed: int) -> None:
    errors, loads, turns, missed = [], [], [], []
    for i, case in enumerate(cases(count, seed)):
        found = on_time([case.server], case.rate_rps, case.slo_ms)
        mine = simulated(case, found.max_wait_ms[0], found.admitted_rps, requests, seed + i)
        errors.append(100 * (found.rate_rps - mine) / case.rate_rps)
        loads.append(case.load)
        turns.append(case.server.duty_cycle_ms is not None)
        if i % 8 == 0:
            missed.append(100 * left(case, found, requests // 8, seed + i))
    for title, chosen in (
        ("all", np.ones(len(errors), bool)),
        ("batches on their own", ~np.array(turns)),
        ("turns", np.array(turns)),
        ("load up to 0.6", np.array(loads) <= 0.6),
        ("load 0.8 to 0.95", (np.array(loads) > 0.6) & (np.array(loads) < 1)),
        ("load 1.3", np.array(loads) > 1),
    ):
        print_errors(title, np.array(errors)[chosen])
    print(
        f"left on the table: mean {np.mean(missed):+.2f} points of the rate, 95 % within {np.percentile(missed, 95):+.2f}, "
        f"most {np.max(missed):+.2f} ({len(missed)} cases)"
    )


def late_accuracy(count: int, requests: int, seed: int) -> None:
    """Print the errors of the law of late batching."""
    errors, shares, counts, wide = [], [], [], []
    for i, case in enumerate(cases(count, seed)):
        server = replace(case.server, duty_cycle_ms=None)
        rate = case.load * server.capacity_rps * server.count
        sigma = 0.1 if i % 3 == 2 else 0.0
        factors = interval_factors(sigma, sigma) if sigma else np.ones(1)
        found = late_on_time([server], rate, case.slo_ms, sigma=sigma).rate_rps / rate
        repeats = max(RUNS, len(factors))
        runs = []
        for k in range(repeats):
            replicas = [
                LateReplica(
                    batch_size=server.batch_size,
                    batches=server.batches,
                    latencies_ms=server.latencies_ms,
                    factor=float(factors[k % len(factors)]),
                )
                for _ in range(server.count)
            ]
            served = late_share(
                replicas, rate, case.slo_ms, requests=requests // repeats, seed=1000 * (seed + i) + k
            )
            runs.append(served)
        share = statistics.mean(runs)
        errors.append(100 * (found - share))
        shares.append(share)
        counts.append(server.count)
        wide.append(sigma > 0)
    e = np.array(errors)
    share_of, count_of = np.array(shares), np.array(counts)
    groups = [("all", np.ones(len(e), bool)), ("with an interval", np.array(wide))]
    groups += [(f"{n} replicas", count_of == n) for n in sorted(set(counts))]
    groups += [
        ("95 % on time and more", share_of >= 0.95),
        ("80 to 95 %", (share_of >= 0.8) & (share_of < 0.95)),
    ]
    groups += [("below 80 %", share_of < 0.8)]
    for title, chosen in groups:
        if chosen.any():
            print_errors(title, e[chosen])


def print_errors(title: str, e: np.ndarray) -> None:
    """Print a line of one group's errors, in points."""
    print(
        f"{title:22s} {len(e):4d} cases: mean error {np.mean(e):+5.2f} points, mean absolute {np.mean(np.abs(e)):5.2f}, "
        f"95 % within {np.percentile(np.abs(e), 95):5.2f}, largest {np.max(np.abs(e)):5.2f}"
    )


def many_models(models: int, gpus: int, batching: str) -> tuple[Problem, list[Placed]]:
    """``models`` models (the rows of table A.1 under other names), the GPUs dealt among them."""
    rows: list[Requirement] = []
    loads = []
    published: dict[str, list[Requirement]] = {}
    for row in table_a1():
        published.setdefault(row.model, []).append(row)
    names = sorted(published)
    each = gpus // models
    for i in range(models):
        own = published[names[i % len(names)]]
        name = f"m{i}"
        rows += [replace(row, model=name) for row in own]
        last = max((r for r in own if r.latency_ms), key=lambda r: r.batch_size or 0)
        rate = 1.1 * each * (last.throughput_rps or 1.0)
        loads.append(ModelLoad(name=name, rate_rps=rate, slo_ms=2.0 * (last.latency_ms or 1.0)))
    cluster = Cluster(gpus=(GpuCount(spec=gpu_catalogue().spec(V100), count=gpus),))
    problem = build_problem(rows, Workload(models=tuple(loads)), cluster, batching=batching)
    placed = [
        Placed(gpu=g, model=m.name, candidate=m.candidates[-1])
        for i, g in enumerate(problem.gpus)
        for m in [problem.models[i % models]]
    ]
    return problem, placed


def speed(batching: str) -> None:
    for models, gpus in ((20, 24), (1000, 1000), (20, 6000)):
        problem, placed = many_models(models, gpus, batching)
        times = []
        for _ in range(REPEATS):
            start = time.process_time()
            expect(problem, placed)
            times.append(time.process_time() - start)
        print(
            f"expect: {models:5d} models on {gpus:5d} GPUs: {1e3 * statistics.median(times):7.1f} ms of processor time"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--requests", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batching", choices=("early", "late"), default="early")
    given = parser.parse_args()
    if given.batching == "late":
        late_accuracy(given.cases, given.requests, given.seed)
    else:
        accuracy(given.cases, given.requests, given.seed)
    speed(given.batching)


if __name__ == "__main__":
    main()
