"""Time how long policies take to decide, from 20 models on 24 GPUs to 1,000 models on 1,000.

Between them: 20 models on 6,000 GPUs at 15 million requests a second.

    python benchmarks/decision_time.py [--policies usher,gkest,milp] [--settings 24,6000,1000] [--repeats 5]
    [--time-limit 60]

Decision time is ``policy.place(problem)``, the median of several; checking the answer (``verify``) and writing
the plan (expected goodput included) are reported apart, and the grouping of ``usher``. The models are those of
table A.1 of the ETH thesis (V100, in the package), each drawn anew: speed, demands and memory times seeded
factors. For 6,000 GPUs every speed is multiplied by one more factor (printed), chosen so that 15 million
requests a second are 95 % of what 6,000 replicas can serve. ``usher`` runs by all three measures of Creq: by
the largest occupancy hardly two replicas share a GPU, by the means they do. ``milp`` runs once with
``--time-limit``; a ratio stands only where it ended by itself.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from _placement_tables import V100, table_a1

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.documents import Cluster, GpuCount, ModelLoad, Workload
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.placement.building import build_problem
from gkestimator.placement.expected import goodput_rps
from gkestimator.placement.papers.usher.policy import groups_of
from gkestimator.placement.policy import Policy, checked_problem, verify
from gkestimator.placement.problem import Problem
from gkestimator.placement.registry import make_policy, policy_class
from gkestimator.placement.run import plan_of
from gkestimator.tables import Requirement
from gkestimator.tables.candidate import CREQ_COLUMNS

T = TypeVar("T")
SLO_MS = 300.0
# name: models, GPUs, total rate (None: as many replicas as GPUs could serve, times LOAD)
SETTINGS: dict[str, tuple[int, int, float | None]] = {
    "24": (20, 24, None),
    "6000": (20, 6000, 15e6),
    "1000": (1000, 1000, None),
}
LOAD = 0.95
GOALS_S = {"24": 0.5, "6000": 0.5, "1000": 10.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--policies", default="usher,gkest,milp")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for milp")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for setting in given.settings.split(","):
        measure_setting(setting, given.policies.split(","), given.repeats, given.time_limit, given.seed)


def measure_setting(setting: str, names: Sequence[str], repeats: int, time_limit: float, seed: int) -> None:
    models, gpus, rate = SETTINGS[setting]
    rows, workload, factor = drawn(models, gpus, rate, seed)
    total = sum(m.rate_rps for m in workload.models)
    print(
        f"\n{models:,} models on {gpus:,} GPUs, {total:,.0f} req/s within {SLO_MS / factor:.4g} ms "
        f"(speeds x {factor:.3g}); goal {GOALS_S[setting]:g} s"
    )
    others = [n for n in names if n != "milp"]
    ends: dict[tuple[str, str], float] = {}
    for name in (*others, *(n for n in names if n == "milp")):
        try:
            default = policy_class(name).creq
        except (ImportError, GkestimatorError) as e:
            print(f"{name:8s} not here: {e}")
            continue
        measures = list(CREQ_COLUMNS) if name == "usher" else [default]
        if name == "milp":  # by every measure that another policy packs by unless told otherwise
            measures = sorted(
                {policy_class(n).creq for n in others if any(n == e for e, _ in ends)} or {default}
            )
        for creq in measures:
            problem = problem_of(rows, workload, gpus, creq)
            options = {"time_limit_s": time_limit} if name == "milp" else {}
            policy = make_policy(name, **options)
            try:
                line, seconds, proven = decide(policy, problem, 1 if name == "milp" else repeats)
            except UsageError as e:
                print(f"{name:8s} {creq:15s} refused: {e}", flush=True)
                continue
            print(f"{name:8s} {creq:15s} {line}", flush=True)
            if name != "milp" or proven:
                ends[name, creq] = seconds
    for (name, creq), seconds in ends.items():
        if name != "milp" and creq == policy_class(name).creq and "milp" in names:
            proof = ends.get(("milp", creq))
            print(
                f"{name} to milp by {creq}: "
                + (
                    "no ratio, milp did not prove its answer"
                    if proof is None
                    else f"{seconds:.3g} s / {proof:.3g} s = {seconds / proof:.3g}"
                )
            )


def decide(policy: Policy, problem: Problem, repeats: int) -> tuple[str, float, bool]:
    """A line of figures, the median decision time, and whether the policy says that its answer is the best."""
    usable = checked_problem(policy, problem)
    before = time.process_time()
    answer, seconds = timed(lambda: policy.place(usable), repeats)
    processor = (time.process_time() - before) / repeats
    _, checking = timed(lambda: verify(policy, usable, answer), 1)
    plan, writing = timed(lambda: plan_of(policy.name, usable, answer), 1)
    served = sum(goodput_rps(usable, answer.placed).values())
    asked = sum(m.rate_rps for m in usable.models)
    line = (
        f"decided in {seconds:8.4f} s ({processor:.4f} s of processor time); checked in {checking:.3f} s, plan in {writing:.3f} s; "
        f"{100 * served / asked:5.1f} % served by {len(answer.placed):,} replicas on {plan.totals.gpus_used:,} GPUs"
    )
    if policy.name == "usher":
        _, grouping = timed(lambda: groups_of(usable.models), repeats)
        line += f"; grouped in {grouping:.4f} s"
    return line, seconds, answer.gap_pct == 0


def timed(call: Callable[[], T], repeats: int) -> tuple[T, float]:
    """The result and the median wall-clock seconds."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return result, statistics.median(seconds)


def drawn(models: int, gpus: int, rate: float | None, seed: int) -> tuple[list[Requirement], Workload, float]:
    """Rows of ``models`` models, their loads, and the factor on every speed that makes the total ``rate``.

    Each model is one of table A.1 that has a batch within the SLO, with its speed times 0.5 to 2, its Creq
    columns times 0.7 to 1 and its memory times 0.5 to 1.5. It is asked for what a drawn share of LOAD x
    ``gpus`` replicas serves at its largest batch within the SLO.
    """
    rng = random.Random(seed)
    of: dict[str, list[Requirement]] = {}
    for row in table_a1():
        of.setdefault(row.model, []).append(row)
    # Half of the SLO, so that the slowest draw is still feasible.
    kinds = [n for n, rows in of.items() if any((r.latency_ms or SLO_MS) <= SLO_MS / 2 for r in rows)]
    shares = [rng.uniform(0.5, 1.5) for _ in range(models)]
    chosen = []
    for i, share in enumerate(shares):
        speed, creq, memory = rng.uniform(0.5, 2.0), rng.uniform(0.7, 1.0), rng.uniform(0.5, 1.5)
        rows = [_scaled(r, f"{r.model}-{i}", speed, creq, memory) for r in of[kinds[i % len(kinds)]]]
        best = max((r for r in rows if (r.latency_ms or SLO_MS) <= SLO_MS), key=lambda r: r.batch_size or 1)
        chosen.append((rows, LOAD * gpus * share / sum(shares) * (best.throughput_rps or 0.0)))
    factor = 1.0 if rate is None else rate / sum(r for _, r in chosen)
    if rate is not None:
        chosen = [
            ([_scaled(r, r.model, factor, 1.0, 1.0) for r in rows], asked * factor) for rows, asked in chosen
        ]
    loads = tuple(
        ModelLoad(name=rows[0].model, rate_rps=asked, slo_ms=SLO_MS / factor) for rows, asked in chosen
    )
    return [r for rows, _ in chosen for r in rows], Workload(models=loads), factor


def _scaled(row: Requirement, name: str, speed: float, creq: float, memory: float) -> Requirement:
    def times(value: float | None, factor: float) -> float | None:
        return None if value is None else value * factor

    return replace(
        row,
        model=name,
        latency_ms=times(row.latency_ms, 1 / speed),
        throughput_rps=times(row.throughput_rps, speed),
        occupancy_max_pct=times(row.occupancy_max_pct, creq),
        occupancy_mean_pct=times(row.occupancy_mean_pct, creq),
        sm_util_mean_pct=times(row.sm_util_mean_pct, creq),
        reserved_bytes=None if row.reserved_bytes is None else int(row.reserved_bytes * memory),
    )


def problem_of(rows: Sequence[Requirement], workload: Workload, gpus: int, creq: str) -> Problem:
    cluster = Cluster(gpus=(GpuCount(spec=gpu_catalogue().spec(V100), count=gpus),))
    return build_problem(rows, workload, cluster, creq=creq)


if __name__ == "__main__":
    main()
