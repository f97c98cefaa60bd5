"""Draw the placement problems that policies are compared on from a seed; as a program, describe them.

    python benchmarks/placement_instances.py [--instances 500] [--seed 0] [--kind goodput|weighted|elastic]

An instance is drawn from (seed, kind, number) alone, so that the first N of 500 are those of a run with N. Families, in turn:

- ``a1``: table A.1 of the thesis on V100s (measured; the whole GPU; batch sizes 4 to 128);
- ``own``: our estimates of the golden networks, GPUs of one type, batch sizes 1 to 128 at 10 to 100 % of the SMs;
- ``mixed``: the same on two to four types of GPU.

2 to 12 models on 1 to 16 GPUs. A model's SLO is 1.3 to 40 times its latency at the smallest batch on the GPU type of the cluster
where that is the median (drawn log-uniformly: tight to loose, so that some cannot be met on the slower types). Rates: parts of
the cluster (a Dirichlet draw) times what the part could serve at the best batch within the SLO, times a load of 0.1 (light) to
2 (overload), log-uniform. Load 1 would fill a cluster that batches and packs without loss. ``elastic``: 1 to 4 types for rent at
their list prices, rates as for 0.3 to 12 GPUs. ``weighted``: as goodput, with weights of 0.5 to 4.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from _placement_tables import GPUS, V100, own_estimates, table_a1

from gkestimator.documents.cluster import Cluster, ElasticGpu, GpuCount
from gkestimator.documents.workload import ModelLoad, Workload
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.placement.building import build_problem
from gkestimator.placement.problem import Problem
from gkestimator.tables import Requirement

FAMILIES = ("a1", "own", "mixed")
KINDS = ("goodput", "weighted", "elastic")
_MAX_SLO_FACTOR = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One problem, undecided. ``problem`` builds it, packed by ``creq``."""

    name: str
    family: str
    load: float
    rows: tuple[Requirement, ...]
    workload: Workload
    cluster: Cluster
    seed: int

    def problem(self, creq: str = "sm-util-mean") -> Problem:
        """The problem; ``creq`` as ``build_problem``."""
        return build_problem(self.rows, self.workload, self.cluster, creq=creq, seed=self.seed)


def instances(count: int = 500, seed: int = 0, kind: str = "goodput") -> Iterator[Instance]:
    """The first ``count`` instances of ``kind``."""
    for number in range(count):
        yield instance(number, seed, kind)


def instance(number: int, seed: int = 0, kind: str = "goodput") -> Instance:
    """Instance ``number`` (from 0) of ``kind``."""
    rng = np.random.default_rng([seed, KINDS.index(kind), number])
    family = FAMILIES[number % len(FAMILIES)]
    rows = _by_model(family == "a1")
    types = _types(rng, family)
    names = sorted(rows)
    chosen = sorted(
        rng.choice(names, size=int(rng.integers(2, min(12, len(names)) + 1)), replace=False).tolist()
    )
    if kind == "elastic":
        sizes = dict.fromkeys(types, 1.0)
        load = float(np.exp(rng.uniform(np.log(0.3), np.log(12.0))) / len(types))
    else:
        split = rng.multinomial(int(rng.integers(1, 17)), np.full(len(types), 1 / len(types)))
        sizes = {t: float(n) for t, n in zip(types, split, strict=True) if n}
        load = float(np.exp(rng.uniform(np.log(0.1), np.log(2.0))))
    parts = rng.dirichlet(np.full(len(chosen), 1.5))
    loads = [
        _load(rng, name, part * load, rows[name], sizes, weighted=kind == "weighted")
        for name, part in zip(chosen, parts, strict=True)
    ]
    return Instance(
        name=f"{kind}-{family}-{number}",
        family=family,
        load=load,
        rows=tuple(r for name in chosen for r in rows[name] if r.gpu in sizes),
        workload=Workload(models=tuple(loads)),
        cluster=_cluster(sizes, elastic=kind == "elastic"),
        seed=number,
    )


def _types(rng: np.random.Generator, family: str) -> list[str]:
    if family == "a1":
        return [V100]
    count = 1 if family == "own" else int(rng.integers(2, 5))
    return [GPUS[i] for i in sorted(rng.choice(len(GPUS), size=count, replace=False))]


def _load(
    rng: np.random.Generator,
    name: str,
    part: float,
    rows: Sequence[Requirement],
    sizes: Mapping[str, float],
    *,
    weighted: bool,
) -> ModelLoad:
    whole = [r for r in rows if r.gpu in sizes and r.sm_share_pct == 100 and r.latency_ms]
    fastest = {gpu: min(r.latency_ms or 0.0 for r in whole if r.gpu == gpu) for gpu in sizes}
    slo = float(np.median(list(fastest.values())) * np.exp(rng.uniform(np.log(1.3), np.log(_MAX_SLO_FACTOR))))
    best = {
        gpu: max(
            (_throughput(r) for r in whole if r.gpu == gpu and (r.latency_ms or 0.0) <= slo), default=0.0
        )
        for gpu in sizes
    }
    # Where it fits nowhere within its SLO, the rate of its fastest batch: it cannot be served, which policies must survive.
    full = sum(best[g] * n for g, n in sizes.items()) or max(_throughput(r) for r in whole)
    weight = float(rng.choice([0.5, 1.0, 2.0, 4.0])) if weighted else 1.0
    return ModelLoad(
        name=name, rate_rps=float(f"{max(part * full, 1e-3):.6g}"), slo_ms=float(f"{slo:.6g}"), weight=weight
    )


def _throughput(row: Requirement) -> float:
    return row.throughput_rps or 1e3 * (row.batch_size or 1) / (row.latency_ms or 1.0)


def _cluster(sizes: Mapping[str, float], *, elastic: bool) -> Cluster:
    specs = {name: gpu_catalogue().spec(name) for name in sizes}
    if not elastic:
        return Cluster(gpus=tuple(GpuCount(spec=specs[g], count=int(n)) for g, n in sizes.items()))
    offers = []
    for spec in specs.values():
        if spec.price_per_hour_usd is None:
            raise SystemExit(f"{spec.name}: no list price")
        offers.append(ElasticGpu(spec=spec, price_per_hour=spec.price_per_hour_usd))
    return Cluster(elastic=tuple(offers))


@cache
def _by_model(published: bool) -> dict[str, tuple[Requirement, ...]]:
    found: dict[str, list[Requirement]] = {}
    for row in table_a1() if published else own_estimates():
        if row.latency_ms is not None:
            found.setdefault(row.model, []).append(row)
    return {name: tuple(rows) for name, rows in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, default="goodput")
    given = parser.parse_args()
    found = [i.problem() for i in instances(given.instances, given.seed, given.kind)]
    for title, values in (
        ("models", [len(p.models) for p in found]),
        ("GPUs", [len(p.gpus) for p in found]),
        ("GPU types", [len(p.types) for p in found]),
        ("candidates a model", [len(m.candidates) for p in found for m in p.models]),
        ("req/s a model", [m.rate_rps for p in found for m in p.models]),
        ("SLO, ms", [m.slo_ms for p in found for m in p.models]),
        (
            "feasible batch sizes of a model on a type",
            [len(m.feasible(t)) for p in found for m in p.models for t in p.types],
        ),
    ):
        low, middle, high = np.percentile(values, [0, 50, 100])
        print(f"{title:45s} least {low:<10.4g} median {middle:<10.4g} most {high:.4g}")


if __name__ == "__main__":
    main()
