"""Small placement problems, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gkestimator.documents.cluster import Cluster, GpuCount
from gkestimator.documents.workload import ModelLoad, Workload
from gkestimator.gpus import gpu_catalogue
from gkestimator.placement.building import build_problem
from gkestimator.placement.problem import Problem
from gkestimator.tables import Requirement

V100 = "V100-SXM2-16GB"


def row(model: str, batch: int, latency: float, **kwargs: object) -> Requirement:
    """A measured row on a V100, 1 GiB."""
    values: dict[str, object] = {
        "gpu": V100, "runtime": "torch", "dtype": "fp32", "throughput_rps": 1e3 * batch / latency,
        "sm_util_mean_pct": 40.0, "mreq_bytes": 1 << 30, "source": "measured", "occupancy_source": "measured", "memory_source": "measured",
    }  # fmt: skip
    return Requirement(model=model, batch_size=batch, latency_ms=latency, **(values | kwargs))  # type: ignore[arg-type]


def problem(
    rows: Sequence[Requirement],
    loads: Mapping[str, tuple[float, float]],
    gpus: int = 1,
    creq: str = "sm-util-mean",
) -> Problem:
    """``loads``: (rate, SLO) by model; ``gpus`` V100."""
    workload = Workload(models=tuple(ModelLoad(name=n, rate_rps=r, slo_ms=s) for n, (r, s) in loads.items()))
    cluster = Cluster(gpus=(GpuCount(spec=gpu_catalogue().spec(V100), count=gpus),))
    return build_problem(rows, workload, cluster, creq=creq)
