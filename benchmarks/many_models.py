"""Place 20 to 1,000 models on 100 to 6,000 GPUs by several policies: requests served, seconds. One table.

    OMP_NUM_THREADS=1 python benchmarks/many_models.py [--policies gkest,nexus,gpulet] [--sizes 200x100,1000x6000]
    [--kinds own/zipf/tight,...] [--seeds 1] [--limit-s 120] [--report FILE]

*Served* is expected goodput over the requests asked for, percent (the evaluator that every plan is judged by), *plain*
the same by throughput alone. Seconds are the processor's, of ``policy.place`` on one thread. A policy that takes longer
than ``--limit-s`` (of processor time) has no answer. At the end: the worst difference of ``gkest`` against each other
policy, and its longest time, by size.

A kind is a table, how rates differ and how tight objectives are:

- ``a1``: table A.1 of the thesis on V100s (measured, the whole GPU); ``own``: our estimates of the golden networks on V100s at
  20 to 100 % of the SMs; ``mixed``: the same on T4, V100 and A100 in equal numbers;
- ``equal``: every model is asked for alike; ``zipf``: the k-th for 1/k of the first;
- ``tight``: objectives of 2 to 5 times the model's latency at the smallest batch (on the type of the cluster where that is the
  median); ``loose``: 8 to 40 times.

A model is one of the table's, with its speed times 0.5 to 2, memory times 0.5 to 1.5 and Creq times 0.7 to 1. Rates sum to a load of 0.3
to 1 of what the cluster could serve that batches without loss. All draws are log-uniform and come from (seed, models, GPUs, kind)
alone; no instance was left out or chosen after it was looked at.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FrameType

import numpy as np
from _placement_tables import V100, own_estimates, table_a1

from gkestimator.core.errors import UsageError
from gkestimator.documents import Cluster, GpuCount, ModelLoad, Workload
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.placement.building import build_problem
from gkestimator.placement.expected import expect, goodput_rps
from gkestimator.placement.policy import checked_problem, verify
from gkestimator.placement.problem import Problem
from gkestimator.placement.registry import make_policy, policy_class
from gkestimator.tables import Requirement

OURS = "gkest"
SIZES = ((20, 100), (20, 6000), (200, 100), (200, 1000), (200, 6000), (1000, 100), (1000, 1000), (1000, 6000))
TABLES = {"a1": (V100,), "own": (V100,), "mixed": ("T4", V100, "A100-SXM4-80GB")}
SPREADS = ("equal", "zipf")
OBJECTIVES = {"tight": (2.0, 5.0), "loose": (8.0, 40.0)}
KINDS = tuple("/".join(parts) for parts in itertools.product(TABLES, SPREADS, OBJECTIVES))
LOADS = (0.3, 1.0)
SM_SHARES = (20.0, 40.0, 50.0, 60.0, 80.0, 100.0)
HEADING = ("models", "GPUs", "kind", "load", "policy", "served %", "plain %", "gap %", "replicas", "seconds")


class OutOfTimeError(Exception):
    """Say that a policy took longer than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """Hold one problem, undecided: ``load`` is that of its rates."""

    models: int
    gpus: int
    kind: str
    load: float
    rows: tuple[Requirement, ...]
    workload: Workload
    cluster: Cluster

    def problem(self, creq: str) -> Problem:
        """Return the problem, packed by ``creq``."""
        return build_problem(self.rows, self.workload, self.cluster, creq=creq)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Hold what a policy reaches on one problem; ``served_pct`` None: no answer, and ``why``."""

    large: Large
    policy: str
    served_pct: float | None = None
    plain_pct: float = 0.0
    gap_pct: float | None = None
    replicas: int = 0
    seconds: float = 0.0
    why: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return its row of the table."""
        large = self.large
        gap = "" if self.gap_pct is None else f"{self.gap_pct:.2f}"
        served, plain = self.why, ""
        if self.served_pct is not None:
            served, plain = f"{self.served_pct:.2f}", f"{self.plain_pct:.2f}"
        return (
            f"{large.models:,}",
            f"{large.gpus:,}",
            large.kind,
            f"{large.load:.2f}",
            self.policy,
            served,
            plain,
            gap,
            f"{self.replicas:,}",
            f"{self.seconds:.2f}",
        )


def drawn(models: int, gpus: int, kind: str, seed: int) -> Large:
    """Return the problem of ``models`` models on ``gpus`` GPUs of ``kind`` that ``seed`` draws."""
    table, spread, objective = kind.split("/")
    rng = np.random.default_rng([seed, models, gpus, KINDS.index(kind)])
    types = TABLES[table]
    count = {t: gpus // len(types) for t in types}
    count[types[-1]] += gpus - sum(count.values())
    rows_of = _rows_of(table)
    names = sorted(rows_of)
    load = _log_uniform(rng, *LOADS)
    rows: list[Requirement] = []
    objectives: list[float] = []
    most: list[float] = []
    for i in range(models):
        base = names[int(rng.integers(len(names)))]
        own = _changed(rng, rows_of[base], f"{base}-{i}")
        slo, best = _objective(own, count, _log_uniform(rng, *OBJECTIVES[objective]))
        rows += own
        objectives.append(slo)
        most.append(best)
    parts = np.ones(models)
    if spread == "zipf":
        parts = 1.0 / (1.0 + rng.permutation(models))
    scale = load / float(np.sum(parts / np.array(most)))
    model_names = list(dict.fromkeys(r.model for r in rows))
    loads = []
    for name, slo, part in zip(model_names, objectives, parts, strict=True):
        rate = float(f"{scale * part:.6g}")
        loads.append(ModelLoad(name=name, rate_rps=rate, slo_ms=slo))
    catalogue = gpu_catalogue()
    cluster = Cluster(gpus=tuple(GpuCount(spec=catalogue.spec(t), count=n) for t, n in count.items()))
    return Large(
        models=models,
        gpus=gpus,
        kind=kind,
        load=load,
        rows=tuple(rows),
        workload=Workload(models=tuple(loads)),
        cluster=cluster,
    )


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


@cache
def _rows_of(table: str) -> dict[str, list[Requirement]]:
    """Return the rows of ``table`` by model, on its GPU types and at the shares that are tried."""
    rows_of: dict[str, list[Requirement]] = defaultdict(list)
    for row in table_a1() if table == "a1" else own_estimates():
        if row.latency_ms and row.gpu in TABLES[table] and row.sm_share_pct in SM_SHARES:
            rows_of[row.model].append(row)
    return dict(rows_of)


def _changed(rng: np.random.Generator, rows: Iterable[Requirement], name: str) -> list[Requirement]:
    """Return ``rows`` as those of model ``name``: another speed, memory and Creq."""
    speed = _log_uniform(rng, 0.5, 2.0)
    memory = _log_uniform(rng, 0.5, 1.5)
    creq = _log_uniform(rng, 0.7, 1.0)
    factors = {
        "latency_ms": 1 / speed,
        "latency_low_ms": 1 / speed,
        "latency_high_ms": 1 / speed,
        "throughput_rps": speed,
        "occupancy_max_pct": creq,
        "occupancy_mean_pct": creq,
        "sm_util_mean_pct": creq,
        "mreq_bytes": memory,
        "reserved_bytes": memory,
    }
    changed = []
    for row in rows:
        values: dict[str, float | int | None] = {}
        for column, factor in factors.items():
            value = getattr(row, column)
            if value is not None:
                values[column] = int(value * factor) if column.endswith("_bytes") else value * factor
        # what follows from the bytes is worked out again
        changed.append(replace(row, model=name, mreq_pct=None, **values))
    return changed


def _objective(rows: Sequence[Requirement], count: dict[str, int], factor: float) -> tuple[float, float]:
    """Return the objective (ms), ``factor`` times the fastest latency on the median type, and the requests a second that
    the whole cluster would serve within it."""
    whole = [r for r in rows if r.sm_share_pct == 100]
    fastest = [min(r.latency_ms or 0.0 for r in whole if r.gpu == t) for t in count]
    slo = float(f"{factor * float(np.median(fastest)):.6g}")
    most = 0.0
    for t, n in count.items():
        in_time = [r for r in whole if r.gpu == t and (r.latency_ms or 0.0) <= slo]
        most += n * max((1e3 * (r.batch_size or 1) / (r.latency_ms or 1.0) for r in in_time), default=0.0)
    return slo, most


def decide(name: str, large: Large, limit_s: float) -> Outcome:
    """Return what policy ``name`` reaches on ``large`` within ``limit_s`` of processor time."""
    problem = large.problem(policy_class(name).creq)
    policy = make_policy(name)
    try:
        usable = checked_problem(policy, problem)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        before = time.process_time()
        answer = policy.place(usable)
        seconds = time.process_time() - before
    except OutOfTimeError:
        return Outcome(large=large, policy=name, why=f"none in {limit_s:g} s", seconds=limit_s)
    except UsageError as e:
        return Outcome(large=large, policy=name, why=f"refused: {e}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    verify(policy, usable, answer)
    asked = sum(m.rate_rps for m in usable.models)
    served = expect(usable, answer.placed).goodput_rps
    plain = sum(goodput_rps(usable, answer.placed).values())
    return Outcome(
        large=large,
        policy=name,
        served_pct=None if served is None else 100 * served / asked,
        plain_pct=100 * plain / asked,
        gap_pct=answer.gap_pct,
        replicas=len(answer.placed),
        seconds=seconds,
        why="unknown",
    )


def _alarm(number: int, frame: FrameType | None) -> None:
    raise OutOfTimeError


def summary(outcomes: Sequence[Outcome], policies: Sequence[str]) -> list[tuple[str, ...]]:
    """Return by size what ``gkest`` serves less the others, at worst (percentage points), and its longest time; the first
    row is the heading."""
    others = [p for p in policies if p != OURS]
    rows = [
        (
            "models",
            "GPUs",
            "problems",
            *(f"least above {p}" for p in others),
            *(f"longest {p}, s" for p in policies),
        )
    ]
    by_size: dict[tuple[int, int], dict[tuple[str, float], dict[str, Outcome]]] = {}
    for x in outcomes:
        here = by_size.setdefault((x.large.models, x.large.gpus), {})
        here.setdefault((x.large.kind, x.large.load), {})[x.policy] = x
    for (models, gpus), problems in by_size.items():
        cells = [f"{models:,}", f"{gpus:,}", str(len(problems))]
        for other in others:
            above = []
            for here in problems.values():
                ours, theirs = here.get(OURS), here.get(other)
                if ours and theirs and ours.served_pct is not None and theirs.served_pct is not None:
                    above.append(ours.served_pct - theirs.served_pct)
            cells.append(f"{min(above):+.2f} ({len(above)})" if above else "")
        for policy in policies:
            cells.append(f"{max(p[policy].seconds for p in problems.values()):.2f}")
        rows.append(tuple(cells))
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first row is the heading."""
    lines = ["| " + " | ".join(r) + " |" for r in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policies", default="gkest,nexus,gpulet")
    parser.add_argument("--sizes", default=",".join(f"{m}x{g}" for m, g in SIZES))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=120.0)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGPROF, _alarm)
    policies = given.policies.split(",")
    outcomes = []
    print("| " + " | ".join(HEADING) + " |\n|" + "---|" * len(HEADING), flush=True)
    sizes = [tuple(int(x) for x in size.split("x")) for size in given.sizes.split(",")]
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    for (models, gpus), kind, seed in itertools.product(sizes, given.kinds.split(","), seeds):
        large = drawn(models, gpus, kind, seed)
        for name in policies:
            outcome = decide(name, large, given.limit_s)
            outcomes.append(outcome)
            print("| " + " | ".join(outcome.cells()) + " |", flush=True)
    short = markdown(summary(outcomes, policies))
    print(f"\n{short}")
    if given.report:
        whole = markdown([HEADING, *(x.cells() for x in outcomes)])
        given.report.write_text(f"`{' '.join(['python', *sys.argv])}`\n\n{short}\n\n{whole}\n")


if __name__ == "__main__":
    main()
