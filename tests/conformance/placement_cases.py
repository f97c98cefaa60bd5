"""Small placement problems for the suite of the policies, and a check of plans that shares no code with the package's own."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gkestimator.documents import PlacementPlan, plan_json
from gkestimator.documents.checking import Fields
from gkestimator.documents.cluster import cluster_from
from gkestimator.documents.workload import workload_from
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.placement.building import build_problem
from gkestimator.placement.problem import Problem
from gkestimator.tables import Requirement

GPUS = ("T4", "V100-SXM2-16GB", "A100-SXM4-40GB")
SHARES = (20.0, 40.0, 50.0, 60.0, 80.0, 100.0)
BATCHES = (1, 2, 4, 8, 16, 32)
_SPEED = {"T4": 1.0, "V100-SXM2-16GB": 0.55, "A100-SXM4-40GB": 0.3}


@dataclass(frozen=True, kw_only=True)
class Case:
    rows: tuple[Requirement, ...]
    workload: dict[str, Any]
    cluster: dict[str, Any]

    def problem(self, creq: str, objective: str | None = None, seed: int = 0) -> Problem:
        return build_problem(
            self.rows,
            workload_from(Fields(self.workload, where="workload", what="a workload")),
            cluster_from(Fields(self.cluster, where="cluster", what="a cluster"), gpu_catalogue()),
            creq=creq, objective=objective, seed=seed,
        )  # fmt: skip


def rows_of(
    rng: random.Random,
    model: str,
    gpus: Sequence[str],
    *,
    shares: Sequence[float] = SHARES,
    batches: Sequence[int] = BATCHES,
) -> list[Requirement]:
    """A model whose latency is fixed + per sample, slower on a part of the SMs than on all by less than the part."""
    fixed, each = rng.uniform(1.0, 6.0), rng.uniform(0.1, 2.5)
    weights, activations = rng.uniform(0.2e9, 2.5e9), rng.uniform(5e6, 90e6)
    busy, dram = rng.uniform(8, 60), rng.uniform(5, 60)
    memory = {"T4": 15e9, "V100-SXM2-16GB": 16.9e9, "A100-SXM4-40GB": 42e9}
    found = []
    for gpu in gpus:
        for share in shares:
            for batch in batches:
                latency = _SPEED[gpu] * (fixed + each * batch * max(1.0, 60.0 / share))
                size = int(weights + activations * batch)
                use = min(share, busy * (0.5 + batch / 16))
                found.append(
                    Requirement(
                        model=model, gpu=gpu, runtime="torch", dtype="fp32", batch_size=batch, sm_share_pct=share,
                        latency_ms=latency, throughput_rps=1e3 * batch / latency, occupancy_max_pct=min(100.0, 1.3 * use),
                        occupancy_mean_pct=0.6 * use, sm_util_max_pct=share, sm_util_mean_pct=use, dram_util_mean_pct=dram,
                        l2_util_mean_pct=0.8 * dram, power_w=40.0 + use, mreq_bytes=size, mreq_pct=100 * size / memory[gpu],
                        input_bytes=600_000 * batch, output_bytes=4_000 * batch, dram_bytes=int(1e7 * batch), flops=10**9 * batch,
                        kernels=120, source="measured", occupancy_source="measured", memory_source="measured",
                    )
                )  # fmt: skip
    return found


def case(seed: int, kind: str, *, tiny: bool = False) -> Case:
    """A small problem of one ``kind`` (``tiny``: for exhaustive searches): one-gpu, homogeneous, heterogeneous, spare (more GPUs than models), elastic, scarce (rented,
    too few)."""
    rng = random.Random(f"{kind} {seed}")
    gpus = (rng.choice(GPUS),) if kind in ("one-gpu", "homogeneous", "spare") else tuple(rng.sample(GPUS, 2))
    models = [f"m{i}" for i in range(rng.randint(1, 2 if tiny or kind == "spare" else 4))]
    fewer: dict[str, Any] = {"shares": (50.0, 100.0), "batches": (1, 8, 32)} if tiny else {}
    rows = [row for name in models for row in rows_of(rng, name, gpus, **fewer)]
    load = rng.choice([0.1, 0.5, 1.0, 2.5])
    asked = []
    for name in models:
        here = [r for r in rows if r.model == name and r.sm_share_pct == 100]
        slowest = max(r.latency_ms or 0.0 for r in here)
        best = max(r.throughput_rps or 0.0 for r in here)
        slo = rng.uniform(0.5, 3.0) * slowest if kind != "elastic" else 4.0 * slowest
        asked.append(
            {"name": name, "rate_rps": round(load * best * rng.uniform(0.2, 1.0), 3), "slo_ms": round(slo, 3)}
        )
    if kind in ("elastic", "scarce"):
        limit = {"limit": 1} if kind == "scarce" else {}
        cluster = {
            "elastic": [{"type": g, "price_per_hour": round(rng.uniform(0.5, 4.0), 2), **limit} for g in gpus]
        }
    else:
        count = {"one-gpu": 1, "spare": 4}.get(kind) or rng.randint(1, 2 if tiny else 3)
        cluster = {"gpus": [{"type": g, "count": count} for g in gpus]}
    return Case(rows=tuple(rows), workload={"models": asked}, cluster=cluster)


KINDS = ("one-gpu", "homogeneous", "heterogeneous", "spare", "elastic", "scarce")


def check_plan(
    plan: PlacementPlan, instance: Case, *, packs_by_creq: bool, creq_column: str
) -> dict[str, float]:
    """Goodput by model, recomputed from the plan's JSON and the table's rows alone; every limit asserted on the way."""
    document = json.loads(plan_json(plan))
    rows = {(r.model, r.gpu, r.batch_size, r.sm_share_pct): r for r in instance.rows}
    asked = {m["name"]: m for m in instance.workload["models"]}
    there = {g["type"]: g["count"] for g in instance.cluster.get("gpus", [])}
    there |= {g["type"]: g.get("limit", 10**6) for g in instance.cluster.get("elastic", [])}
    used: dict[str, int] = defaultdict(int)
    capacity = dict.fromkeys(asked, 0.0)
    ids = [g["id"] for g in document["gpus"]] + [r["id"] for g in document["gpus"] for r in g["replicas"]]
    assert len(ids) == len(set(ids))
    for gpu in document["gpus"]:
        used[gpu["type"]] += 1
        memory = creq = 0.0
        turns: dict[str, list[dict[str, Any]]] = defaultdict(list)
        confined = 0.0
        for r in gpu["replicas"]:
            row = rows[r["model"], gpu["type"], r["batch_size"], r["sm_share_pct"]]
            assert r["latency_ms"] == row.latency_ms
            cycle = r["duty_cycle_ms"]
            slo = asked[r["model"]]["slo_ms"]
            assert row.latency_ms + (cycle or 0.0) <= slo * (1 + 1e-9), f"{r['id']} cannot keep its objective"
            memory += row.mreq_pct
            creq += getattr(row, creq_column) * (1.0 if cycle is None else row.latency_ms / cycle)
            capacity[r["model"]] += row.throughput_rps if cycle is None else 1e3 * r["batch_size"] / cycle
            if r["partition"] is None:
                assert cycle is None
                confined += r["sm_share_pct"] if r["sm_share_pct"] < 100 else 0.0
            else:
                turns[r["partition"]].append(r)
        for sharers in turns.values():
            (share,) = {r["sm_share_pct"] for r in sharers}
            (cycle,) = {r["duty_cycle_ms"] for r in sharers}
            confined += share if share < 100 else 0.0
            assert len(sharers) == 1 or cycle is not None
            if cycle is not None:
                assert sum(r["latency_ms"] for r in sharers) <= cycle * (1 + 1e-9)
        assert gpu["replicas"], f"{gpu['id']} is used for nothing"
        assert memory <= 100 + 1e-6 and confined <= 100 + 1e-6
        assert not packs_by_creq or creq <= 100 + 1e-6 or len(gpu["replicas"]) == 1
    assert all(n <= there[gpu_type] for gpu_type, n in used.items())
    goodput = {name: min(asked[name]["rate_rps"], capacity[name]) for name in asked}
    totals = document["totals"]
    assert abs(totals["goodput_rps"] - sum(goodput.values())) <= 1e-6 * (1 + totals["goodput_rps"])
    assert totals["gpus_used"] == len(document["gpus"])
    missing = {u["model"]: u["rate_rps"] for u in document["unserved"]}
    assert all(u["reason"].strip() for u in document["unserved"])
    for name in asked:
        assert (
            abs(asked[name]["rate_rps"] - goodput[name] - missing.get(name, 0.0))
            <= 1e-6 * asked[name]["rate_rps"]
        )
    if totals["expected_goodput_rps"] is not None:
        assert totals["expected_goodput_rps"] <= sum(m["rate_rps"] for m in asked.values()) * (1 + 1e-9)
    return goodput
