"""Plans, rows and a run of the simulator, for tests of what stands around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gkestimator.documents import (
    Application,
    ModelLoad,
    PlacedGpu,
    PlacementPlan,
    PlanTotals,
    Replica,
    Stage,
    Workload,
)
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.options import Options
from gkestimator.simulation.running import Simulated, simulate_plan
from gkestimator.tables import Requirement

GPU = "V100-SXM2-16GB"
Change = dict[str, Any]


def row(model: str = "a", batch: int = 1, latency_ms: float | None = 10.0, **more: Any) -> Requirement:
    """A measured row; ``more`` overrides."""
    given: Change = {
        "model": model, "gpu": GPU, "runtime": "torch", "dtype": "fp32", "batch_size": batch, "latency_ms": latency_ms,
        "sm_util_mean_pct": 60.0, "copy_ms": 0.5 * batch, "input_bytes": 1000 * batch, "output_bytes": 100 * batch,
        "source": "measured", "occupancy_source": "measured", "memory_source": "measured",
    }  # fmt: skip
    return Requirement(**(given | more))


def replica(model: str = "a", number: int = 0, batch: int = 4, **more: Any) -> Replica:
    """A replica that runs by :func:`row`; ``more`` overrides."""
    given: Change = {
        "id": f"{model}-{number}", "model": model, "runtime": "torch", "dtype": "fp32", "dims": "", "batch_size": batch,
        "sm_share_pct": 100.0, "partition": None, "duty_cycle_ms": None, "latency_ms": 25.0, "goodput_rps": 100.0,
        "slo_ms": 100.0, "max_wait_ms": 20.0, "creq_pct": 50.0, "mreq_pct": 10.0,
    }  # fmt: skip
    return Replica(**(given | more))


def plan(
    *gpus: Sequence[Replica],
    models: Sequence[tuple[str, float, float]] = (("a", 100.0, 100.0),),
    applications: Sequence[Application] = (),
    expected_rps: float | None = None,
) -> PlacementPlan:
    """``gpus``: the replicas of each; ``models``: (name, rate, SLO)."""
    placed = tuple(
        PlacedGpu(id=f"{GPU}-{i}", type=GPU, cuti_pct=None, muti_pct=20.0, replicas=tuple(here))
        for i, here in enumerate(gpus)
    )
    served = sum(r.goodput_rps for here in gpus for r in here)
    return PlacementPlan(
        policy="by-hand",
        creq="sm-util-mean",
        objective="goodput",
        seed=0,
        workload=Workload(
            models=tuple(ModelLoad(name=n, rate_rps=r, slo_ms=s) for n, r, s in models),
            applications=tuple(applications),
        ),
        gpus=placed,
        totals=PlanTotals(
            goodput_rps=served, expected_goodput_rps=expected_rps, gpus_used=len(placed), cost_per_hour=3.06
        ),
    )


def chain(rate_rps: float = 50.0, slo_ms: float = 300.0) -> Application:
    """``a``, then ``b`` twice."""
    stages = (Stage(model="a"), Stage(model="b", after=("a",), fan_out=2.0))
    return Application(name="chain", rate_rps=rate_rps, slo_ms=slo_ms, stages=stages)


def rows(*names: str) -> list[Requirement]:
    """Batches 1, 2 and 4 of each model in 10, 15 and 25 ms."""
    return [
        row(name, batch, latency)
        for name in names or ("a", "b")
        for batch, latency in ((1, 10.0), (2, 15.0), (4, 25.0))
    ]


def simulated(
    placed: PlacementPlan,
    *,
    arrivals: str = "poisson",
    seconds: float = 5.0,
    options: Change | None = None,
    table: Sequence[Requirement] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    **more: Any,
) -> Simulated:
    """``placed`` simulated."""
    loads = (*placed.workload.models, *placed.workload.applications)
    came = make_arrivals(arrivals, [m.rate_rps for m in loads], [m.name for m in loads], seed=3)
    how = Options(**({"duration_ms": seconds * 1e3, "seed": 3} | (options or {})))
    return simulate_plan(placed, table or rows(), came, how, progress=progress, **more)
