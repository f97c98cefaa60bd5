"""Plans by hand: models with a memory each, whose batches take 10 ms, and what the simulator is told of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gkestimator.documents import PlacedGpu, PlacementPlan, PlanTotals, Replica, Workload
from gkestimator.documents.workload import ModelLoad
from gkestimator.simulation.building import build_system
from gkestimator.simulation.system import System
from gkestimator.tables import Requirement

V100 = "V100-SXM2-16GB"
BATCHES = (1, 4, 8, 64)
# A replica in short: model, batch size, memory in percent (None: unknown).
Short = tuple[str, int, float | None]


def replica(model: str, batch: int = 1, memory: float | None = 10.0, **kwargs: object) -> Replica:
    values: dict[str, object] = {
        "id": f"{model}-{batch}", "runtime": "torch", "dtype": "fp32", "dims": "", "sm_share_pct": 100.0,
        "partition": None, "duty_cycle_ms": None, "latency_ms": 10.0, "goodput_rps": 1.0, "slo_ms": 200.0,
        "throughput_rps": 100.0 * batch, "max_wait_ms": 0.0 if batch == 1 else 20.0, "mreq_pct": memory,
    }  # fmt: skip
    return Replica(model=model, batch_size=batch, **(values | kwargs))  # type: ignore[arg-type]


def plan(
    gpus: Mapping[str, Sequence[Short | Replica]],
    rates: Mapping[str, float],
    types: Mapping[str, str] | None = None,
) -> PlacementPlan:
    placed = []
    for gpu, here in gpus.items():
        replicas = [r if isinstance(r, Replica) else replica(*r) for r in here]
        placed.append(
            PlacedGpu(
                id=gpu,
                type=(types or {}).get(gpu, V100),
                cuti_pct=None,
                muti_pct=None,
                replicas=tuple(replicas),
            )
        )
    return PlacementPlan(
        policy="by-hand",
        creq="sm-util-mean",
        objective="goodput",
        seed=0,
        workload=Workload(
            models=tuple(ModelLoad(name=m, rate_rps=r, slo_ms=200.0) for m, r in rates.items())
        ),
        gpus=tuple(placed),
        totals=PlanTotals(
            goodput_rps=sum(rates.values()),
            expected_goodput_rps=None,
            gpus_used=len(placed),
            cost_per_hour=None,
        ),
    )


def rows(
    models: Sequence[str], gpus: Sequence[str] = (V100,), shares: Sequence[float] = (100.0,)
) -> list[Requirement]:
    """Every batch takes 10 ms, whatever its size."""
    return [
        Requirement(
            model=m, gpu=g, runtime="torch", dtype="fp32", batch_size=b, sm_share_pct=s, latency_ms=10.0,
            throughput_rps=100.0 * b, source="measured", occupancy_source="measured", memory_source="measured",
        )
        for m in models for g in gpus for b in BATCHES for s in shares
    ]  # fmt: skip


def building(models: Sequence[str], **kwargs: object) -> Callable[[PlacementPlan], System]:
    found = rows(models, **kwargs)  # type: ignore[arg-type]
    return lambda p: build_system(p, found, interference=None, admission="none")
