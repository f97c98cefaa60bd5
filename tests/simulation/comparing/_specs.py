"""A small comparison on disk: two models of known latency, policies that decide at once."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

from gkestimator.tables import REQUIREMENTS, Requirement, write_table

GPU = "V100-SXM2-16GB"
BASE: dict[str, Any] = {
    "tables": ["table.csv"],
    "policies": ["exclusive", "nexus"],
    "workloads": [
        {
            "label": "two",
            "models": [
                {"name": "a", "rate_rps": 60, "slo_ms": 100},
                {"name": "b", "rate_rps": 30, "slo_ms": 100},
            ],
        }
    ],
    "clusters": [{"label": "pair", "gpus": [{"type": "V100", "count": 2}]}],
    "rate_scale": [0.5, 1.0],
    "duration_s": 4,
}


def row(model: str, batch: int, latency_ms: float, **more: Any) -> Requirement:
    """A measured row with everything that these policies ask for; ``more`` overrides."""
    given: dict[str, Any] = {
        "model": model, "gpu": GPU, "runtime": "torch", "dtype": "fp32", "batch_size": batch, "latency_ms": latency_ms,
        "occupancy_max_pct": 40.0, "occupancy_mean_pct": 30.0, "sm_util_mean_pct": 60.0, "mreq_bytes": 2 * 2**30,
        "source": "measured", "occupancy_source": "measured", "memory_source": "measured",
    }  # fmt: skip
    return Requirement(**(given | more))


def rows(**more: Any) -> list[Requirement]:
    """Batches 1, 2 and 4 of ``a`` and ``b`` in 10, 15 and 25 ms."""
    return [row(m, n, t, **more) for m in ("a", "b") for n, t in ((1, 10.0), (2, 15.0), (4, 25.0))]


def write_spec(folder: Path, name: str = "spec.yaml", **changes: Any) -> Path:
    """The spec with ``changes`` (None: without that field) and its table in ``folder``."""
    if not (folder / "table.csv").exists():
        write_table(REQUIREMENTS, rows(), folder / "table.csv")
    spec = {key: value for key, value in (BASE | changes).items() if value is not None}
    (folder / name).write_text(json.dumps(spec))
    return folder / name


def results(folder: Path) -> list[dict[str, str]]:
    """results.csv without what the machine decides: the time of the decision."""
    with (folder / "results.csv").open(newline="") as stream:
        return [{k: v for k, v in line.items() if k != "decision_ms"} for line in csv.DictReader(stream)]


def cells(folder: Path) -> dict[str, dict[str, Any]]:
    """Every finished cell by key."""
    return {p.stem: json.loads(p.read_text()) for p in (folder / "cells").glob("*.json")}


def command(*arguments: object) -> list[str]:
    """``gkest compare`` as a process of its own."""
    code = "import sys; from gkestimator.cli import run; sys.exit(run(sys.argv[1:]))"
    return [sys.executable, "-P", "-c", code, "compare", *(str(a) for a in arguments)]


def environment() -> dict[str, str]:
    """Of such a process: one thread, and no terminal's progress."""
    return os.environ | {"OMP_NUM_THREADS": "1"}
