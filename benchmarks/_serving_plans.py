"""Make what the benchmark of serving serves: tables, workloads, and plans that are placed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _serving_runs import gkest

from gkestimator.documents import (
    ModelLoad,
    PlacedGpu,
    PlacementPlan,
    PlanTotals,
    Replica,
    Workload,
    plan_json,
)
from gkestimator.tables import REQUIREMENTS, Requirement, read_table, write_table

BATCHES = "1,2,4,8,16"
SEQUENCE = 128
# Emulated: model, requests a second at load 1 and ms to the answer of T4s at a sixteenth of their speed, largest batch.
# At load 1.6 the GPUs are just below the rate from which batches only grow: there a percent of time is a point on time.
ASKED = {"resnet50": (16.0, 500.0, 8), "mobilenet_v2": (28.0, 300.0, 16), "minilm": (34.0, 300.0, 16)}
AT_SLOWER = 16.0
# Columns of the table that are times, or rates of work.
_TIMES = ("latency_ms", "latency_low_ms", "latency_high_ms", "gpu_ms")


@dataclass(frozen=True)
class Asked:
    """What the command was told."""

    seconds: float
    slower: float
    seeds: tuple[int, ...]
    folder: Path


def demo_models(folder: Path) -> Path:
    """Return the folder of the demo's three models, written anew."""
    gkest("demo", "--all", folder / "demo")
    return folder / "demo" / "models"


def emulated_table(asked: Asked, models: Path) -> Path:
    """Write the estimates of the three models on a T4, ``slower`` times as slow; inputs have no bytes: none are sent."""
    plain = asked.folder / "t4.csv"
    files = [models / f"{name}.onnx" for name in ASKED]
    options = [
        "--gpu",
        "T4",
        "--runtime",
        "onnxruntime",
        "--batch-size",
        BATCHES,
        "--dim",
        f"sequence={SEQUENCE}",
    ]
    gkest("estimate", *files, *options, "-o", plain)
    rows = []
    for row in read_table(plain, REQUIREMENTS):
        changes: dict[str, Any] = {"input_bytes": None, "output_bytes": None}
        for name in _TIMES:
            if getattr(row, name) is not None:
                changes[name] = getattr(row, name) * asked.slower
        if row.throughput_rps is not None:
            changes["throughput_rps"] = row.throughput_rps / asked.slower
        rows.append(replace(row, **changes))
    path = asked.folder / "table.csv"
    write_table(REQUIREMENTS, rows, path)
    return path


def placed_replica(
    rows: Sequence[Requirement],
    model: str,
    number: int,
    batch: int,
    rate: float,
    slo: float,
    lane: str | None,
) -> Replica:
    """Return a replica of ``model`` that runs by the row of ``batch``."""
    row = next(r for r in rows if r.model == model and r.batch_size == batch)
    assert row.latency_ms is not None
    return Replica(
        id=f"{model}-{number}",
        model=model,
        runtime=row.runtime,
        dtype=row.dtype,
        dims=row.dims,
        batch_size=batch,
        sm_share_pct=row.sm_share_pct,
        partition=lane,
        duty_cycle_ms=None,
        latency_ms=row.latency_ms,
        goodput_rps=rate,
        slo_ms=slo,
        throughput_rps=1e3 * batch / row.latency_ms,
        max_wait_ms=0.0,
        creq_pct=row.sm_util_mean_pct,
    )


def placed_plan(
    gpu_type: str, gpus: Sequence[Sequence[Replica]], loads: Sequence[ModelLoad], path: Path
) -> Path:
    """Write the plan of ``gpus``, by hand: what the policies choose is not what is tested here."""
    placed = []
    for number, replicas in enumerate(gpus):
        placed.append(
            PlacedGpu(
                id=f"{gpu_type}-{number}",
                type=gpu_type,
                cuti_pct=None,
                muti_pct=0.0,
                replicas=tuple(replicas),
            )
        )
    goodput = sum(load.rate_rps for load in loads)
    totals = PlanTotals(
        goodput_rps=goodput, expected_goodput_rps=None, gpus_used=len(placed), cost_per_hour=None
    )
    plan = PlacementPlan(
        policy="by-hand",
        creq="sm-util-mean",
        objective="goodput",
        seed=0,
        workload=Workload(models=tuple(loads)),
        gpus=tuple(placed),
        totals=totals,
        batching="late",
    )
    path.write_text(plan_json(plan), encoding="utf-8")
    return path


def emulated_loads(asked: Asked) -> list[ModelLoad]:
    """Return what is asked of the emulated T4s at load 1."""
    scale = asked.slower / AT_SLOWER
    return [
        ModelLoad(name=name, rate_rps=rate / scale, slo_ms=slo * scale)
        for name, (rate, slo, _) in ASKED.items()
    ]


def emulated_plan(asked: Asked, table: Path) -> Path:
    """Write the plan: a T4 of its own, one whose two models take turns, and one that two models share at once."""
    rows = read_table(table, REQUIREMENTS)
    loads = emulated_loads(asked)
    by_name = {load.name: load for load in loads}

    def on(model: str, number: int, part: float, lane: str | None) -> Replica:
        load = by_name[model]
        return placed_replica(rows, model, number, ASKED[model][2], load.rate_rps * part, load.slo_ms, lane)

    gpus = [
        [on("resnet50", 0, 0.6, None)],
        [on("mobilenet_v2", 0, 1.0, "turns-0"), on("minilm", 0, 0.5, "turns-0")],
        [on("resnet50", 1, 0.4, None), on("minilm", 1, 0.5, None)],
    ]
    return placed_plan("T4", gpus, loads, asked.folder / "plan.json")


def cpu_table(asked: Asked, models: Path) -> tuple[Path, Path, str]:
    """Measure the three models on this CPU; return the table, the file of the CPU, and its name."""
    folder = asked.folder
    files: list[str | Path] = []
    for name in ASKED:
        files += ["--models", models / f"{name}.onnx"]
    how = ["--batch-size", "1,2,4,8", "--dtype", "fp32", "--dim", f"sequence={SEQUENCE}"]
    gkest(
        "profile",
        "plan",
        "--whole",
        "--cpu",
        "--runtime",
        "onnxruntime",
        *files,
        *how,
        "-o",
        folder / "sweep.json",
    )
    run = ["--executor", "onnxruntime", "--device", "cpu", "--collector", "none"]
    gkest("profile", "run", folder / "sweep.json", *run, "-o", folder / "raw")
    table = folder / "cpu.csv"
    gkest("profile", "table", folder / "raw", "-o", table)
    (spec,) = folder.glob("cpu.*.toml")
    return table, spec, read_table(table, REQUIREMENTS)[0].gpu
