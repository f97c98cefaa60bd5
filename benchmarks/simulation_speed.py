"""Count the requests simulated in a second on one core; show how a run's cost grows and what its parts take.

    python benchmarks/simulation_speed.py [--runs 5] [--requests 2000000] [--most 10000000]

The system is drawn by a seed: 20 models (a batch of one takes 3 to 12 ms, one of four 1.6 to 2.2 times that), each on as
many replicas as it takes to fill 24 GPUs with two replicas each at 50 % of the SMs, Poisson arrivals at 80 % of what the
replicas serve in full batches of four, time-out as long as a batch of one. Latencies of every request are counted, by model
and stage. Figures are medians of several runs, with the least and the most; seconds are of processor time, so that what
else runs on the machine does not count, and wall time stands beside. Parts of the time: drawing arrivals, taking
chunks in, the event loop with its counting. MiB: the most that the process has held so far.
Arrivals are drawn within the run. One thread: nothing in the engine uses more.

simpy, which is compared on a single server, is left out where it is not installed, the reference simulator where the
tests are not there.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gkestimator.simulation.arrivals.base import Arrivals, Chunk
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import Result
from gkestimator.simulation.system import SimGpu, SimModel, SimReplica, SimSource, SimStage, System

LOAD = 0.8
LARGEST = 4
PER_GPU = 2
TESTS = Path(__file__).parents[1] / "tests" / "simulation"


def drawn_system(gpus: int, models: int = 20, *, seed: int = 1, **fields: object) -> System:
    """``models`` models on ``gpus`` GPUs, loaded to LOAD; ``fields`` of all replicas are set as given."""
    rng = np.random.default_rng(seed)
    alone, whole = rng.uniform(3, 12, models), rng.uniform(1.6, 2.2, models)
    replicas, rates = [], np.zeros(models)
    for k in range(gpus * PER_GPU):
        m = k % models
        latencies = (alone[m], alone[m] * (1 + whole[m]) / 2, alone[m] * whole[m])
        values: dict[str, object] = {
            "id": f"r{k}",
            "model": m,
            "gpu": k // PER_GPU,
            "batch_size": LARGEST,
            "max_wait_ms": float(alone[m]),
            "weight": LARGEST / latencies[-1] * 1e3,
            "sm_share_pct": 100 / PER_GPU,
            "batches": (1, 2, LARGEST),
            "latencies_ms": latencies,
        }
        replicas.append(SimReplica(**(values | fields)))  # type: ignore[arg-type]
        rates[m] += LOAD * LARGEST / latencies[-1] * 1e3
    return System(
        sources=tuple(
            SimSource(
                name=f"m{m}",
                application=False,
                rate_rps=float(rates[m]),
                slo_ms=100.0,
                stages=(SimStage(model=m),),
            )
            for m in range(models)
        ),
        models=tuple(SimModel(name=f"m{m}", slo_ms=100.0) for m in range(models)),
        gpus=tuple(SimGpu(id=f"g{g}", type="any", price_per_hour=None) for g in range(gpus)),
        replicas=tuple(replicas),
    )


class Timed:
    """Chunks of ``arrivals``, with the processor time that they took."""

    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals, self.spent = arrivals, 0.0

    def chunks(self, until_ms: float) -> Iterator[Chunk]:
        chunks = self.arrivals.chunks(until_ms)
        while True:
            start = time.process_time()
            chunk = next(chunks, None)
            self.spent += time.process_time() - start
            if chunk is None:
                return
            yield chunk


def run(system: System, requests: int, seed: int, **options: object) -> tuple[Result, dict[str, float]]:
    """One run of about ``requests`` requests; seconds: processor, wall, of arrivals, of taking chunks in."""
    rates = [source.rate_rps for source in system.sources]
    duration = requests / sum(rates) * 1e3
    asked = Options(duration_ms=duration, seed=seed, **options)  # type: ignore[arg-type]
    arrivals = Timed(make_arrivals("poisson", rates, [s.name for s in system.sources], seed=seed))
    start, cpu = time.perf_counter(), time.process_time()
    simulator = Simulator(system, asked)
    taken = 0.0
    take = simulator._take

    def timed_take(chunk: Chunk) -> None:
        nonlocal taken
        before = time.process_time()
        take(chunk)
        taken += time.process_time() - before

    simulator._take = timed_take  # type: ignore[method-assign]
    for chunk in arrivals.chunks(duration):
        simulator.advance(chunk)
    result = simulator.finish()
    return result, {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - start,
        "arrivals": arrivals.spent,
        "taking": taken,
    }


def figures(name: str, make: Callable[[], System], requests: int, runs: int, **options: object) -> float:
    """Prints one line; requests per second of processor time (median)."""
    system = make()
    speeds, walls, shares, batch = [], [], [], 0.0
    for seed in range(runs):
        result, seconds = run(system, requests, seed, **options)
        done = float(result.done.sum())
        speeds.append(done / seconds["cpu"])
        walls.append(done / seconds["wall"])
        shares.append(
            [
                seconds["arrivals"] / seconds["cpu"],
                seconds["taking"] / seconds["cpu"],
                1 - (seconds["arrivals"] + seconds["taking"]) / seconds["cpu"],
            ]
        )
        batch = done / max(1, int(result.batches.sum()))
    drawn, taken, loop = np.median(np.array(shares), axis=0)
    median = statistics.median(speeds)
    print(
        f"{name:44s} {requests:>11,d} {median / 1e6:8.2f} {min(speeds) / 1e6:7.2f} {max(speeds) / 1e6:7.2f}"
        f" {statistics.median(walls) / 1e6:7.2f} {batch:6.2f}   {drawn:8.0%} {taken:6.0%} {loop:5.0%}"
        f" {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:6.0f}",
        flush=True,
    )
    return median


def table(title: str) -> None:
    print(f"\n{title}")
    print(
        f"{'':44s} {'requests':>11s} {'M req/s':>8s} {'least':>7s} {'most':>7s} {'wall':>7s} {'batch':>6s}"
        f"   {'arrivals':>8s} {'taking':>6s} {'loop':>5s} {'MiB':>6s}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=2_000_000)
    parser.add_argument("--most", type=int, default=10_000_000, help="requests of the largest run")
    parser.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plain:
        plain_run(given.plain)
        return
    compile_times()
    runs, requests = given.runs, given.requests
    table(
        "20 models on 24 GPUs, load 0.8 (M requests a second of processor time: median, least, most; of wall time)"
    )
    base = figures("round robin", lambda: drawn_system(24), requests, runs)
    figures("least load", lambda: drawn_system(24), requests, runs, routing="least-load")
    figures("service exponential", lambda: drawn_system(24), requests, runs, service="exponential")
    network = {"request_ms": (0.5, 0.6, 0.8), "response_ms": (0.2, 0.2, 0.2)}
    figures("network delay", lambda: drawn_system(24, **network), requests, runs)
    copies = {"copies_ms": (0.3, 0.5, 0.9)}
    figures("copies overlapped", lambda: drawn_system(24, **copies), requests, runs, copy="overlap")
    features = tuple((0.6, 0.5, 0.4, 0.6, 0.0, 1.0, 1.0, 0.0) for _ in range(3))
    figures(
        "interference (contention)",
        lambda: drawn_system(24, features=features),
        requests,
        runs,
        interference="contention",
    )
    figures("batches formed late", lambda: drawn_system(24), requests, runs, batching="late")
    figures("duty cycle of 20 ms", lambda: drawn_system(24, duty_cycle_ms=20.0), requests, runs)
    figures("every request kept", lambda: drawn_system(24), requests, runs, keep_requests=True)
    table("Growth with requests (24 GPUs)")
    count = 100_000
    while count <= given.most:
        figures(f"{count:,} requests", lambda: drawn_system(24), count, runs if count <= requests else 1)
        count *= 10
    table("Growth with GPUs (20 models, so replicas by model grow)")
    for gpus in (24, 240, 2400, 6000):
        figures(f"{gpus} GPUs", lambda n=gpus: drawn_system(n), requests, min(3, runs))  # type: ignore[misc]
    table("The same, least load")
    for gpus in (24, 240, 2400, 6000):
        figures(
            f"{gpus} GPUs",
            lambda n=gpus: drawn_system(n),  # type: ignore[misc]
            max(200_000, requests // 5),
            min(3, runs),
            routing="least-load",
        )
    table("Growth with GPUs, models and requests in proportion")
    for gpus in (24, 240, 2400):
        figures(
            f"{gpus} GPUs, {gpus * 20 // 24} models",
            lambda n=gpus: drawn_system(n, n * 20 // 24),  # type: ignore[misc]
            gpus * 2_000,
            1,
        )
    others(base)


def compile_times() -> None:
    """Seconds until the first small run of a process is done: code compiled, and code kept from before."""
    import tempfile

    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"NUMBA_CACHE_DIR": cache}
        for what in ("compiled", "kept"):
            start = time.perf_counter()
            printed = subprocess.run(
                [sys.executable, __file__, "--plain", "1000"],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            wall = time.perf_counter() - start
            print(
                f"a process with 1,000 requests, code {what}: {printed.split()[1]} s of processor, {wall:.1f} s wall"
            )


def plain_run(requests: int) -> None:
    """(In a process of its own.) Prints requests a second and processor seconds since the start of the process."""
    result, seconds = run(drawn_system(24), requests, 0)
    print(f"{float(result.done.sum()) / seconds['cpu']:.0f} {time.process_time():.1f}")


def others(base: float) -> None:
    """Plain Python, the reference simulator, simpy."""
    print("\nOther ways")
    done = subprocess.run(
        [sys.executable, __file__, "--plain", "20000"],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    plain = float(done.split()[0])
    print(
        f"the engine without numba: {plain:,.0f} requests a second; with numba {base / plain:.0f} times that"
    )
    if (TESTS / "reference.py").exists():
        sys.path.insert(0, str(TESTS))
        import reference

        system = drawn_system(24)
        rates = [source.rate_rps for source in system.sources]
        duration = 20_000 / sum(rates) * 1e3
        start = time.process_time()
        counted = reference.simulate(
            system,
            make_arrivals("poisson", rates, [s.name for s in system.sources], seed=0),
            Options(duration_ms=duration),
        )
        speed = float(counted.done.sum()) / (time.process_time() - start)
        print(f"the reference simulator of the tests: {speed:,.0f}; the engine {base / speed:.0f} times that")
    single_server()


def single_server(requests: int = 200_000) -> None:
    """One model on one GPU, batch 1, load 0.8 (M/D/1): simpy against the engine."""
    system = System(
        sources=(
            SimSource(name="m", application=False, rate_rps=80.0, slo_ms=1e3, stages=(SimStage(model=0),)),
        ),
        models=(SimModel(name="m", slo_ms=1e3),),
        gpus=(SimGpu(id="g", type="any", price_per_hour=None),),
        replicas=(
            SimReplica(
                id="r",
                model=0,
                gpu=0,
                batch_size=1,
                max_wait_ms=0.0,
                weight=1.0,
                batches=(1,),
                latencies_ms=(10.0,),
            ),
        ),
    )
    result, seconds = run(system, requests * 10, 0)
    mine = float(result.done.sum()) / seconds["cpu"]
    wait = float(result.wait_sums_ms.sum() / result.done.sum())
    print(f"M/D/1: {mine / 1e6:.2f} M requests a second, mean wait {wait:.2f} ms (20 by the formula)")
    try:
        import simpy
    except ImportError:
        print("simpy is not installed: not compared")
        return
    gaps = np.random.default_rng(0).exponential(12.5, requests).tolist()
    environment = simpy.Environment()
    server = simpy.Resource(environment)
    waits: list[float] = []

    def request() -> Iterator[object]:
        came = environment.now
        with server.request() as turn:
            yield turn
            waits.append(environment.now - came)
            yield environment.timeout(10.0)

    def clients() -> Iterator[object]:
        for gap in gaps:
            yield environment.timeout(gap)
            environment.process(request())

    start = time.process_time()
    environment.process(clients())
    environment.run()
    speed = requests / (time.process_time() - start)
    print(
        f"simpy {simpy.__version__}, the same: {speed:,.0f}, mean wait {statistics.fmean(waits):.2f} ms;"
        f" the engine {mine / speed:.0f} times that"
    )


if __name__ == "__main__":
    main()
