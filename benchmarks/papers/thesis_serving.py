"""Simulate the serving experiments of the ETH thesis (P. Elvinger, 2024, section 6.3) on its table A.1.

Master thesis 505, ETH Zurich.

    python benchmarks/papers/thesis_serving.py [--seconds 120] [--seeds 5]

1. Batch formation: densenet121 at batch 64, 600 and 1,000 requests a second, time-out 100 ms.
2. Six V100, five vision models at 500 requests a second, SLO 200 ms: efficientnet_b7 as two replicas at batch 8 against two at
   batch 64. The thesis' other models and placements are not in the text that we have. Ours: the other four are each alone on
   a GPU or two of them run beside efficientnet_b7 (any two of the
   table's other seven vision models are tried). Time-outs
   beside the thesis' 100 ms show on what the finding rests. Table A.1 is measured: it has no intervals, so `--service interval`
   is the deterministic one here; exponential service is the far end.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "simulation"))
import _thesis as thesis


def formation(seconds: float, seeds: int) -> None:
    print("1. densenet121, batch 64, time-out 100 ms, one V100")
    print(
        f"{'req/s':>6} {'batches':>8} {'timed out':>10} {'full':>7} {'mean batch':>11} {'largest share':>14} {'p99 ms':>7}"
    )
    for rate in (600.0, 1000.0):
        plan = thesis.planned([(0, "densenet121", 64)], {"densenet121": rate}, gpus=1)
        batches = full = timed_out = requests = 0
        tails = []
        for seed in range(seeds):
            run = thesis.served(plan, seed=seed, seconds=seconds)
            r = run.result
            batches, full, timed_out = (
                batches + r.batches[0],
                full + r.batches_full[0],
                timed_out + r.batches_timed_out[0],
            )
            requests += r.done[0]
            tails.append(run.report.models[0].latency_p99_ms)
        share = "time-out" if timed_out > full else "full"
        print(
            f"{rate:6.0f} {batches:8d} {100 * timed_out / batches:8.1f} % {100 * full / batches:5.1f} % "
            f"{requests / batches:11.1f} {share:>14} {np.mean(tails):7.1f}"
        )


def outcome(
    batch: int,
    seconds: float,
    seeds: int,
    *,
    others: tuple[str, ...] = thesis.OTHERS[:4],
    shared: bool = False,
    interference: str = "none",
    service: str = "deterministic",
    timeout_ms: float = 100.0,
) -> tuple[float, float, float, float]:
    """Throughput, goodput, median and 99 % latency of efficientnet_b7 (means of the seeds)."""
    plan = thesis.six_gpus(batch, others, shared=shared)
    found = []
    for seed in range(seeds):
        report = thesis.served(
            plan,
            seed=seed,
            seconds=seconds,
            interference=interference,
            service=service,
            timeout_ms=timeout_ms,
        ).report
        m = next(m for m in report.models if m.model == thesis.STUDIED)
        found.append((m.throughput_rps, m.goodput_rps, m.latency_p50_ms, m.latency_p99_ms))
    a, b, c, d = np.mean(np.array(found, float), axis=0)
    return float(a), float(b), float(c), float(d)


def compared(seconds: float, seeds: int) -> None:
    print(
        "\n2. efficientnet_b7 at 500 req/s on two replicas, SLO 200 ms, six V100; req/s of throughput and goodput, ms of p50 and p99"
    )
    plan = thesis.six_gpus(8)
    print(
        "   others: "
        + ", ".join(
            f"{r.model} (batch {r.batch_size})"
            for g in plan.gpus
            for r in g.replicas
            if r.model != thesis.STUDIED
        )
    )
    print(f"{'':45s} {'batch 8':^33s} {'batch 64':^33s} {'throughput':>11} {'goodput':>9}")
    print(
        f"{'':45s} "
        + 2 * f"{'thr.':>7} {'goodput':>8} {'p50':>7} {'p99':>8} "
        + f" {'64 / 8':>10} {'64 / 8':>9}"
    )
    ways: list[tuple[str, dict[str, object]]] = [
        ("the others on GPUs of their own, 100 ms", {}),
        ("  exponential service", {"service": "exponential"}),
        ("  time-out 25 ms", {"timeout_ms": 25.0}),
        ("  time-out 50 ms", {"timeout_ms": 50.0}),
        ("  time-out 75 ms", {"timeout_ms": 75.0}),
        ("  time-out 150 ms", {"timeout_ms": 150.0}),
        ("two of them beside it, no interference", {"shared": True}),
        ("two of them beside it, contention", {"shared": True, "interference": "contention"}),
    ]
    for title, how in ways:
        small, large = (outcome(batch, seconds, seeds, **how) for batch in (8, 64))  # type: ignore[arg-type]
        print(
            f"{title:45s} " + "".join(f"{x[0]:7.1f} {x[1]:8.1f} {x[2]:7.1f} {x[3]:8.1f} " for x in (small, large))
            + f" {large[0] / small[0]:10.3f} {large[1] / small[1]:9.3f}"
        )  # fmt: skip
    print(
        "any two of the others beside it (one on each GPU), contention, 30 s: goodput at batch 8, at 64; throughput 64 / 8"
    )
    for pair in itertools.combinations(thesis.OTHERS, 2):
        rest = tuple(m for m in thesis.OTHERS if m not in pair)[:2]
        # Numbers 4 and 5 of six_gpus come back to GPUs 0 and 1.
        others = (*rest, *pair)
        small, large = (
            outcome(batch, 30.0, 1, others=others, shared=True, interference="contention")
            for batch in (8, 64)
        )
        print(f"  {' + '.join(pair):32s} {small[1]:6.1f} {large[1]:6.1f} {large[0] / small[0]:6.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    formation(given.seconds, given.seeds)
    compared(given.seconds, given.seeds)


if __name__ == "__main__":
    main()
