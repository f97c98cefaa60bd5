"""Small placement problems, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from typing import Any

from gkestimator.documents.cluster import Cluster, ElasticGpu, GpuCount
from gkestimator.documents.workload import ModelLoad, Workload
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.placement.building import build_problem
from gkestimator.placement.problem import Problem
from gkestimator.tables import REQUIREMENTS, Requirement, read_table

V100, A100, T4 = "V100-SXM2-16GB", "A100-SXM4-80GB", "T4"


def table_a1() -> tuple[Requirement, ...]:
    """The thesis' table."""
    with as_file(files("gkestimator.datasets") / "published" / "ethz_v100.csv") as path:
        return read_table(path, REQUIREMENTS)


def row(model: str, batch: int, latency: float, **kwargs: Any) -> Requirement:
    """A measured row on a V100: 40 % of the SMs, 1 GiB."""
    values: dict[str, Any] = {
        "gpu": V100, "runtime": "torch", "dtype": "fp32", "throughput_rps": 1e3 * batch / latency,
        "sm_util_mean_pct": 40.0, "mreq_bytes": 1 << 30, "source": "measured", "occupancy_source": "measured", "memory_source": "measured",
    }  # fmt: skip
    return Requirement(model=model, batch_size=batch, latency_ms=latency, **(values | kwargs))


def problem(
    rows: Sequence[Requirement],
    loads: Mapping[str, tuple[float, ...]],
    gpus: Mapping[str, int] | int = 1,
    rent: Mapping[str, tuple[float, int | None]] | None = None,
    **kwargs: Any,
) -> Problem:
    """``loads``: (rate, SLO[, weight]) by model; ``gpus``: how many by type (a number: of V100); or ``rent``: (price,
    limit) by type."""
    spec = gpu_catalogue().spec
    if rent is not None:
        cluster = Cluster(
            elastic=tuple(ElasticGpu(spec=spec(t), price_per_hour=p, limit=n) for t, (p, n) in rent.items())
        )
    else:
        counts = {V100: gpus} if isinstance(gpus, int) else gpus
        cluster = Cluster(gpus=tuple(GpuCount(spec=spec(t), count=n) for t, n in counts.items()))
    models = tuple(
        ModelLoad(name=n, rate_rps=x[0], slo_ms=x[1], weight=x[2] if len(x) > 2 else 1.0)
        for n, x in loads.items()
    )
    return build_problem(rows, Workload(models=models), cluster, **kwargs)
