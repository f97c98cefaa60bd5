"""Problems for the tests of gpulet and nexus: rows by hand, and drawn ones at SM shares."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from gkestimator.documents.cluster import Cluster, ElasticGpu, GpuCount
from gkestimator.documents.workload import ModelLoad, Workload
from gkestimator.gpus import gpu_catalogue
from gkestimator.placement.building import build_problem
from gkestimator.placement.problem import Problem
from gkestimator.tables import Requirement

V100 = "V100-SXM2-16GB"


def row(model: str, batch: int, latency: float, **kwargs: object) -> Requirement:
    """A measured row on a V100, 1 % of its memory, without utilisations."""
    values: dict[str, object] = {
        "gpu": V100, "runtime": "torch", "dtype": "fp32", "throughput_rps": 1e3 * batch / latency,
        "mreq_bytes": 1 << 27, "mreq_pct": 1.0, "source": "measured", "occupancy_source": "measured",
        "memory_source": "measured",
    }  # fmt: skip
    return Requirement(model=model, batch_size=batch, latency_ms=latency, **(values | kwargs))  # type: ignore[arg-type]


def problem(
    rows: Sequence[Requirement],
    loads: Mapping[str, tuple[float, float]],
    *,
    gpus: int = 1,
    rented: Mapping[str, tuple[float, int | None]] | None = None,
    types: Sequence[str] = (V100,),
) -> Problem:
    """``loads``: (rate, SLO) by model; ``gpus`` of each of ``types``, or ``rented``: (price, limit) by type."""
    workload = Workload(models=tuple(ModelLoad(name=n, rate_rps=r, slo_ms=s) for n, (r, s) in loads.items()))
    known = gpu_catalogue()
    if rented is None:
        cluster = Cluster(gpus=tuple(GpuCount(spec=known.spec(t), count=gpus) for t in types))
    else:
        cluster = Cluster(
            elastic=tuple(
                ElasticGpu(spec=known.spec(t), price_per_hour=p, limit=n) for t, (p, n) in rented.items()
            )
        )
    return build_problem(rows, workload, cluster)


def case(
    seed: int,
    *,
    gpus: int = 2,
    models: int = 4,
    shares: Sequence[float] = (20.0, 40.0, 60.0, 80.0, 100.0),
    batches: Sequence[int] = (1, 4, 16),
    busy: bool = True,
) -> Problem:
    """A drawn problem: latencies with a fixed part and a part per sample, which smaller shares slow down; some need much
    memory, some objectives are hopeless."""
    rng = random.Random(seed)
    rows, loads = [], {}
    for i in range(rng.randint(1, models)):
        name, fixed, each = f"m{i}", rng.uniform(1, 5), rng.uniform(0.2, 2)
        memory, l2, dram = rng.choice([3.0, 8.0, 25.0]), rng.uniform(5, 80), rng.uniform(5, 90)
        for share in shares:
            for batch in batches:
                latency = fixed + each * batch * max(0.6, 100 / share) ** rng.choice([0.7, 1.0])
                known = {"l2_util_mean_pct": l2, "dram_util_mean_pct": dram} if busy else {}
                rows.append(
                    row(name, batch, latency, sm_share_pct=share, mreq_pct=memory + 0.4 * batch, **known)
                )
        best = max(r.throughput_rps or 0.0 for r in rows if r.model == name)
        loads[name] = (best * rng.uniform(0.05, 1.2), rng.choice([0.2, 3, 6, 20]) * (fixed + 4 * each))
    return problem(rows, loads, gpus=gpus)
