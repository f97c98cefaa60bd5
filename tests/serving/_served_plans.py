"""A plan of three models on two emulated T4, its table, and what services are told in tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gkestimator.documents import PlacementPlan
from gkestimator.placement.scheduling import schedule
from gkestimator.serving.planning import PlanningSettings
from gkestimator.serving.served import ServedPlan
from gkestimator.serving.serving_plan import served_plan
from gkestimator.tables import Requirement, records_dataframe

# Name, milliseconds of an empty batch and of each request in it.
MODELS = (("resnet", 4.0, 1.6), ("bert", 6.0, 2.6), ("mobile", 2.0, 0.5))
# Objectives that a machine keeps which is busy with other work: these tests are not of times.
WORKLOAD = """models:
- {name: resnet, rate_rps: 60, slo_ms: 2000}
- {name: bert, rate_rps: 40, slo_ms: 2400}
- {name: mobile, rate_rps: 100, slo_ms: 1500}
"""
CLUSTER = "gpus:\n- {type: T4, count: 4}\n"


def rows() -> list[Requirement]:
    """Batches of 1 to 32 of each model on a T4."""
    made = []
    for model, empty_ms, each_ms in MODELS:
        for batch in (1, 2, 4, 8, 16, 32):
            latency_ms = empty_ms + each_ms * batch
            row = Requirement(
                model=model,
                gpu="T4",
                runtime="onnxruntime",
                dtype="fp16",
                batch_size=batch,
                latency_ms=latency_ms,
                throughput_rps=1e3 * batch / latency_ms,
                sm_util_mean_pct=40.0 + batch,
                dram_util_mean_pct=30.0,
                l2_util_mean_pct=20.0,
                mreq_bytes=500_000_000 + batch * 20_000_000,
                mreq_pct=3.0 + batch / 8,
                source="measured",
                occupancy_source="measured",
                memory_source="measured",
            )
            made.append(row)
    return made


def write_inputs(folder: Path) -> Path:
    """Write ``table.csv``, ``workload.yaml``, ``cluster.yaml`` and ``plan.json``; return the folder."""
    records_dataframe(rows(), Requirement).to_csv(folder / "table.csv", index=False)
    (folder / "workload.yaml").write_text(WORKLOAD)
    (folder / "cluster.yaml").write_text(CLUSTER)
    plan(folder).save(folder / "plan.json")
    return folder


def plan(folder: Path) -> PlacementPlan:
    """Return the plan of our policy for the inputs in ``folder``, with every model on both of two GPUs."""
    made = schedule(folder / "table.csv", folder / "workload.yaml", folder / "cluster.yaml").plan
    planned = {r.model: r for gpu in made.gpus for r in gpu.replicas}
    gpus = []
    for number in range(2):
        replicas = [
            replace(r, id=f"{r.model}-{number}", partition=None, duty_cycle_ms=None) for r in planned.values()
        ]
        gpus.append(replace(made.gpus[0], id=f"T4-{number}", replicas=tuple(replicas)))
    return replace(made, gpus=tuple(gpus))


def served(made: PlacementPlan) -> ServedPlan:
    """Return ``made`` as it is served by :func:`rows`."""
    return served_plan(made, rows())


def planning(folder: Path, **more: Any) -> PlanningSettings:
    """Return settings of an emulated service; ``more`` overrides."""
    usual: dict[str, Any] = {
        "tables": (str(folder / "table.csv"),),
        "cluster": None,
        "gpu_specs": (),
        "policy": None,
        "policy_options": {},
        "replan": None,
        "emulate": True,
        "interference": "contention",
        "coefficients": None,
    }
    return PlanningSettings(**(usual | more))
