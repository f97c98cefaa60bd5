"""Plans as they are read from a file: what the tests of exports start from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gkestimator.exporting.deployment import Deployment
from gkestimator.exporting.loading import load_deployment

Make = Callable[..., Deployment]


def plan_document(gpus: dict[str, tuple[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """A plan document; ``gpus``: id -> (type, replicas as far as they differ from the usual)."""
    numbers: dict[str, int] = {}
    found = []
    for gpu, (kind, replicas) in gpus.items():
        here = []
        for given in replicas:
            model = given["model"]
            numbers[model] = numbers.get(model, -1) + 1
            usual = {
                "id": f"{model}-{numbers[model]}", "runtime": "torch", "dtype": "fp32", "dims": "", "batch_size": 8,
                "sm_share_pct": 100.0, "partition": None, "duty_cycle_ms": None, "latency_ms": 20.0, "goodput_rps": 100.0,
                "slo_ms": 100.0, "throughput_rps": 400.0, "max_wait_ms": 12.3456, "creq_pct": 30.2,
                "mreq_bytes": 2_000_000_000, "mreq_pct": None,
            }  # fmt: skip
            here.append(usual | given)
        found.append({"id": gpu, "type": kind, "cuti_pct": None, "muti_pct": None, "replicas": here})
    return {
        "schema_version": 1,
        "policy": "usher",
        "creq": "sm-util-mean",
        "objective": "goodput",
        "seed": 0,
        "workload": {
            "models": [
                {"name": name, "rate_rps": 100, "slo_ms": 100} for name in (numbers or ["none-placed"])
            ]
        },
        "gpus": found,
        "totals": {
            "goodput_rps": 100.0,
            "expected_goodput_rps": None,
            "gpus_used": len(found),
            "cost_per_hour": None,
        },
        "unserved": [],
    }


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """``make(replica, ..., gpu=TYPE)``: a plan with these replicas on one GPU; ``make(gpus={id: (type, [...])})`` on several."""

    def call(
        *replicas: dict[str, Any], gpu: str = "V100-SXM2-16GB", gpus: Any = None, **options: Any
    ) -> Deployment:
        path = tmp_path / "made-plan.json"
        path.write_text(json.dumps(plan_document(gpus or {f"{gpu}-0": (gpu, list(replicas))})))
        return load_deployment(path, **options)

    return call
