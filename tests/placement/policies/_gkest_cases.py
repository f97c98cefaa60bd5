"""Problems for the tests of the `gkest` policy: table A.1, random rows, clusters of several types."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import as_file, files

from gkestimator.documents.cluster import Cluster, ElasticGpu, GpuCount
from gkestimator.documents.workload import ModelLoad, Workload
from gkestimator.gpus import gpu_catalogue
from gkestimator.placement.building import build_problem
from gkestimator.placement.expected import expect
from gkestimator.placement.policy import Placed, compute_pct
from gkestimator.placement.problem import Problem
from gkestimator.tables import REQUIREMENTS, Requirement, read_table

V100, A100, T4 = "V100-SXM2-16GB", "A100-SXM4-80GB", "T4"


def table_a1() -> list[Requirement]:
    """The thesis' table."""
    with as_file(files("gkestimator.datasets") / "published" / "ethz_v100.csv") as path:
        return list(read_table(path, REQUIREMENTS))


def row(model: str, batch: int, latency: float, **kwargs: object) -> Requirement:
    """A measured row on a V100: 40 % of the SMs, 1 GiB."""
    values: dict[str, object] = {
        "gpu": V100, "runtime": "torch", "dtype": "fp32", "throughput_rps": 1e3 * batch / latency,
        "sm_util_mean_pct": 40.0, "mreq_bytes": 1 << 30, "source": "measured", "occupancy_source": "measured", "memory_source": "measured",
    }  # fmt: skip
    return Requirement(model=model, batch_size=batch, latency_ms=latency, **(values | kwargs))  # type: ignore[arg-type]


def problem(
    rows: Sequence[Requirement],
    loads: Mapping[str, tuple[float, ...]],
    gpus: Mapping[str, int] | None = None,
    rent: Mapping[str, tuple[float, int | None]] | None = None,
    **kwargs: object,
) -> Problem:
    """``loads``: (rate, SLO[, weight]) by model; ``gpus``: counts by type; ``rent``: (price, limit) by type."""
    spec = gpu_catalogue().spec
    cluster = Cluster(
        gpus=tuple(GpuCount(spec=spec(t), count=n) for t, n in (gpus or {}).items()),
        elastic=tuple(
            ElasticGpu(spec=spec(t), price_per_hour=p, limit=n) for t, (p, n) in (rent or {}).items()
        ),
    )
    models = tuple(
        ModelLoad(name=n, rate_rps=x[0], slo_ms=x[1], weight=x[2] if len(x) > 2 else 1.0)
        for n, x in loads.items()
    )
    return build_problem(rows, Workload(models=models), cluster, **kwargs)  # type: ignore[arg-type]


def random_problem(seed: int, *, gpus: int, models: int, types: Sequence[str] = (V100,)) -> Problem:
    """Models with affine latencies, rates around what the cluster can serve, tight and loose objectives."""
    draw = random.Random(seed)
    rows, loads = [], {}
    for i in range(models):
        fixed, each, full = draw.uniform(1, 20), draw.uniform(0.2, 4), draw.choice((4, 16, 64))
        for t in types:
            speed = draw.uniform(0.5, 2)
            for batch in (1, 4, 16):
                latency = (fixed + each * batch) / speed
                rows.append(
                    row(
                        f"m{i}", batch, latency, gpu=t,
                        sm_util_mean_pct=min(99.0, 20 + 80 * batch / full), mreq_bytes=draw.randint(1, 5) << 30,
                    )
                )  # fmt: skip
        part = draw.uniform(0.2, 1.6) * gpus / models
        loads[f"m{i}"] = (part * 16e3 / (fixed + 16 * each), (fixed + each) * draw.choice((3, 8, 30)))
    share = {t: gpus // len(types) for t in types}
    share[types[0]] += gpus - sum(share.values())
    return problem(rows, loads, share)


def placements(problem: Problem, most: int) -> Iterator[tuple[Placed, ...]]:
    """Every placement of up to ``most`` replicas side by side on each GPU, Creq and memory within 100 %."""
    by_gpu = []
    for gpu in problem.gpus:
        ways = [(m.name, c) for m in problem.models for c in m.feasible(gpu.type)]
        found: list[tuple[Placed, ...]] = []
        for size in range(most + 1):
            for chosen in itertools.combinations_with_replacement(ways, size):
                here = tuple(Placed(gpu=gpu, model=n, candidate=c) for n, c in chosen)
                creq = compute_pct(here)
                memory = sum(p.candidate.memory_pct or 0.0 for p in here)
                if memory <= 100 and (size <= 1 or (creq is not None and creq <= 100)):
                    found.append(here)
        by_gpu.append(found)
    for parts in itertools.product(*by_gpu):
        yield tuple(p for part in parts for p in part)


def best_side_by_side(problem: Problem, most: int) -> float:
    """The largest expected goodput of :func:`placements`."""
    return max(expect(problem, placed).goodput_rps or 0.0 for placed in placements(problem, most))
