"""Placements of random workloads on random small clusters by every policy, and the tables that they are made from."""

from __future__ import annotations

import csv
import functools
import io
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _unchanged_calls import Answer, call, committed, digest, inside, spread, write_rows

__all__ = [
    "ENDED",
    "OWN",
    "PUBLISHED",
    "Drawn",
    "Tables",
    "draw",
    "placements",
    "policies",
    "problem_tables",
    "save",
    "schedule",
]

Row = dict[str, str]
#: The text of each requirement table by name.
Tables = Mapping[str, str]
PUBLISHED = "published"
OWN = "estimated"
OWN_GPUS = ("V100-SXM2-16GB", "T4", "A100-SXM4-40GB")
OWN_GRAPHS = (
    "attention.script.onnx",
    "conv_norm_relu.script.onnx",
    "gelu.script.onnx",
    "layer_norm.script.onnx",
    "linear.script.onnx",
)
PERTURBED = ("latency_ms", "reserved_bytes", "sm_util_mean_pct", "occupancy_max_pct", "occupancy_mean_pct")
PERCENT = 100.0
# A plan that says so was cut off by the clock: another run may find another one, so it proves nothing.
CLOCK = b"time limit"
ENDED = "ended by the clock"
OPTIONS: Mapping[str, Sequence[str]] = {
    "gkest": (
        "turns=false",
        "fairness=none",
        "fairness=weighted",
        "oversubscribe=true",
        "burst=1.5",
        "effort=0.5",
    ),
    "usher": ("no_heavy=true", "no_division=true", "no_sort=true"),
    "gpulet": ("interference=false", "temporal_sharing=false", "published=true"),
    "gpulet-ideal": ("interference=false",),
}
# Exhaustive or exact: they get the smaller problems.
SMALL: Mapping[str, tuple[int, int]] = {"gpulet-ideal": (3, 2), "milp": (4, 4)}
LARGEST = (5, 6)


@dataclass(frozen=True)
class Drawn:
    """Hold one random problem: its rows, workload and cluster as documents, and further options of the call."""

    rows: list[Row]
    workload: dict[str, Any]
    cluster: dict[str, Any]
    options: list[str]


def policies() -> list[str]:
    """Return the names of the policies that `gkest schedule --help` lists."""
    text = call(["schedule", "--help"]).output.decode().split("\nPolicies:\n")[1]
    return re.findall(r"^  (\S+)  +\S", text, flags=re.MULTILINE)


def problem_tables(folder: Path) -> Tables:
    """Return the tables of the random problems: one measured and published, one estimated here."""
    with inside(folder):
        graphs = [committed(f"pattern_exports/{name}") for name in OWN_GRAPHS]
        call(["demo", "--dir", ".", "--gpu", "V100", "--format", "csv"])
        names = [*spread(graphs, folder), "resnet50.onnx"]
        gpus = [word for gpu in OWN_GPUS for word in ("--gpu", gpu)]
        sizes = ["--batch-size", "1,2,4,8,16,32", "--sm-share", "20,40,50,60,80,100"]
        answer = call(["estimate", *names, *gpus, *sizes, "--format", "csv"])
    if answer.status:
        raise SystemExit(answer.errors)
    return {PUBLISHED: committed("published/ethz_v100.csv").read_text(), OWN: answer.output.decode()}


def placements(tables: Tables, folder: Path, count: int) -> Iterator[tuple[str, str]]:
    """Yield the name and hash of ``count`` placements by every policy; those that the clock ended have no hash."""
    with inside(folder):
        for policy in policies():
            for number in range(count):
                models, gpus = SMALL.get(policy, LARGEST)
                drawn = draw(tables, f"{policy} {number}", models=models, gpus=gpus, policy=policy)
                answer = schedule(drawn, policy)
                yield f"{policy} {number}", ENDED if CLOCK in answer.output else digest(answer)


def schedule(drawn: Drawn, policy: str) -> Answer:
    """Return the answer of `gkest schedule` to ``drawn`` in the current folder."""
    save(drawn)
    files = ["table.csv", "--workload", "workload.yaml", "--cluster", "cluster.yaml"]
    return call(
        ["schedule", *files, "--policy", policy, "--allow-unserved", "--format", "json", *drawn.options]
    )


def save(drawn: Drawn) -> None:
    """Write the table, workload and cluster of ``drawn`` into the current folder (JSON is YAML too)."""
    write_rows(Path("table.csv"), drawn.rows)
    Path("workload.yaml").write_text(json.dumps(drawn.workload))
    Path("cluster.yaml").write_text(json.dumps(drawn.cluster))


def draw(tables: Tables, seed: str, *, models: int, gpus: int, policy: str) -> Drawn:
    """Return the random problem of ``seed``: at most so many ``models`` (2 at least) and ``gpus``."""
    rng = random.Random(seed)
    name = rng.choice(sorted(tables))
    grouped = _by_model(tables[name])
    chosen = rng.sample(sorted(grouped), min(rng.randint(2, models), len(grouped)))
    types = sorted({row["gpu"] for row in grouped[chosen[0]]})
    types = rng.sample(types, rng.randint(1, min(2, len(types))))
    count = rng.randint(1, gpus)
    rows: list[Row] = []
    loads = []
    for model in chosen:
        own = _perturbed([r for r in grouped[model] if r["gpu"] in types], rng)
        rows += own
        loads.append(_load(model, own, rng, share=count / len(chosen)))
    options = ["--seed", str(rng.randrange(1000))]
    if rng.random() < 0.4:
        options += ["--creq", rng.choice(("sm-util-mean", "occupancy-max", "occupancy-mean"))]
    if rng.random() < 0.5 and policy in OPTIONS:
        options += ["--option", rng.choice(OPTIONS[policy])]
    cluster = _cluster(types, count, rng, options)
    return Drawn(rows=rows, workload=_workload(loads, rng), cluster=cluster, options=options)


@functools.cache
def _by_model(text: str) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        grouped.setdefault(row["model"], []).append(row)
    return grouped


def _perturbed(rows: Sequence[Row], rng: random.Random) -> list[Row]:
    """Return ``rows`` with each measure times a factor, the same for all rows so that they stay in order."""
    factors = {column: rng.uniform(0.6, 1.6) for column in PERTURBED}
    # Throughput is the batch over the latency, and the interval goes with the latency.
    factors["throughput_rps"] = 1 / factors["latency_ms"]
    for bound in ("latency_low_ms", "latency_high_ms"):
        factors[bound] = factors["latency_ms"]
    return [row | _scaled(row, factors) for row in rows]


def _scaled(row: Row, factors: Mapping[str, float]) -> Row:
    new = {}
    for column, factor in factors.items():
        if not row.get(column):
            continue
        value = float(row[column]) * factor
        if column.endswith("_pct"):
            value = min(value, PERCENT)
        new[column] = str(int(value)) if column.endswith("_bytes") else repr(value)
    return new


def _load(model: str, rows: Sequence[Row], rng: random.Random, *, share: float) -> dict[str, Any]:
    """Return a load for ``model``: an objective of some of its batches, 10 to 150 % of its share of the GPUs."""
    row = rng.choice(rows)
    slo_ms = float(row["latency_ms"]) * rng.uniform(1.5, 6.0)
    best = max(float(r["throughput_rps"]) for r in rows if float(r["latency_ms"]) <= slo_ms)
    load: dict[str, Any] = {"name": model, "rate_rps": best * share * rng.uniform(0.1, 1.5), "slo_ms": slo_ms}
    if rng.random() < 0.2:
        load["weight"] = rng.choice((0.5, 2.0, 5.0))
    return load


def _workload(loads: list[dict[str, Any]], rng: random.Random) -> dict[str, Any]:
    """Return the workload of ``loads``; now and then two of them are the stages of one application."""
    if len(loads) < 3 or rng.random() < 0.8:
        return {"models": loads}
    first, second, *rest = loads
    stages = [
        {"model": first["name"]},
        {"model": second["name"], "after": [first["name"]], "fan_out": rng.choice((0.5, 1.0, 2.0))},
    ]
    application = {
        "name": "both",
        "rate_rps": min(first["rate_rps"], second["rate_rps"]) / 2,
        "slo_ms": 1.5 * (first["slo_ms"] + second["slo_ms"]),
        "models": stages,
    }
    return {"models": rest, "applications": [application]}


def _cluster(types: Sequence[str], count: int, rng: random.Random, options: list[str]) -> dict[str, Any]:
    """Return ``count`` GPUs of ``types``, owned or rented; owned ones may be asked for the least cost."""
    kind = rng.random()
    if kind < 0.3:
        entries = [
            {"type": t, "price_per_hour": round(rng.uniform(0.3, 4.0), 3), "limit": count} for t in types
        ]
        return {"elastic": entries}
    if kind < 0.5:
        options += ["--objective", "cost"]
    counts = [count // len(types)] * len(types)
    counts[0] += count - sum(counts)
    return {"gpus": [{"type": t, "count": n} for t, n in zip(types, counts, strict=True) if n]}
