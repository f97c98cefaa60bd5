"""A table measured on a CPU (its memory, occupancy and utilisation columns are null) is scheduled and simulated.

``tests/data/cpu_table`` was recorded by ``gkest profile plan --whole --cpu``, ``run --executor onnxruntime --device cpu``
and ``table``: ResNet-50 and MobileNetV2 at batch sizes 1, 2 and 4.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _plans import plan, replica

from gkestimator.cli import run
from gkestimator.documents import plan_json

DATA = Path(__file__).parents[1] / "data" / "cpu_table"
TABLE = DATA / "cpu.csv"
CPU = "CPU-2-cores-AMD-EPYC"
SPEC = DATA / f"cpu.{CPU}.toml"
UNCHECKED = (
    "mreq_bytes (or reserved_bytes) is null in every row of resnet50, mobilenet_v2: whether they fit into a GPU's "
    "memory is not checked"
)
UNANSWERED = "interference none: sm_util_mean_pct, which contention needs, is null in every row"
WORKLOAD = """\
models:
  - {name: resnet50, rate_rps: 4, slo_ms: 900}
  - {name: mobilenet_v2, rate_rps: 20, slo_ms: 900}
"""
Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gkest(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Called:
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    (tmp_path / "c.yaml").write_text(f"gpus: [{{type: {CPU}, count: 3}}]\n")
    (tmp_path / "one.yaml").write_text(f"gpus: [{{type: {CPU}, count: 1}}]\n")

    def call(*arguments: object) -> tuple[int, str, str]:
        status = run([*map(str, arguments), "--gpu-spec", str(SPEC)])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


def scheduled(gkest: Called, folder: Path, policy: str, cluster: str = "c.yaml") -> tuple[int, Any, str]:
    target = folder / "plan.json"
    status, _, err = gkest(
        "schedule", TABLE, "--workload", folder / "w.yaml", "--cluster", folder / cluster, "--policy", policy, "-o", target
    )  # fmt: skip
    return status, json.loads(target.read_text()) if status == 0 else None, err


def test_the_table_knows_time_alone() -> None:
    with TABLE.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 6
    unknown = (
        "mreq_bytes",
        "mreq_pct",
        "reserved_bytes",
        "occupancy_max_pct",
        "sm_util_mean_pct",
        "dram_util_mean_pct",
    )
    for row in rows:
        assert row["latency_ms"] and not any(row[name] for name in unknown)


@pytest.mark.parametrize("policy", ["gkest", "exclusive", "nexus"])
def test_a_policy_that_can_do_without_schedules_and_the_plan_is_simulated(
    gkest: Called, tmp_path: Path, policy: str
) -> None:
    status, made, err = scheduled(gkest, tmp_path, policy)
    assert status == 0 and f"gkest: note: {UNCHECKED}\n" in err
    assert made["totals"]["goodput_rps"] == pytest.approx(24.0)
    assert UNCHECKED in made["notes"]
    for gpu in made["gpus"]:
        assert (gpu["cuti_pct"], gpu["muti_pct"]) == (None, None)
        for own in gpu["replicas"]:
            assert (own["creq_pct"], own["mreq_bytes"], own["mreq_pct"]) == (None, None, None)
    target = tmp_path / "run.json"
    status, _, err = gkest(
        "simulate", tmp_path / "plan.json", "--table", TABLE, "--duration-s", 20, "-o", target
    )
    assert status == 0, err
    report = json.loads(target.read_text())
    assert report["settings"]["interference"] == "none" and UNANSWERED in report["notes"]
    for model in report["models"]:
        assert model["on_time_pct"] > 90, model


def test_two_models_on_one_cpu_take_turns(gkest: Called, tmp_path: Path) -> None:
    """What a neighbour would cost is not known: they never run at once."""
    light = WORKLOAD.replace("rate_rps: 20", "rate_rps: 3").replace("rate_rps: 4", "rate_rps: 2")
    (tmp_path / "w.yaml").write_text(light)
    status, made, _ = scheduled(gkest, tmp_path, "gkest", "one.yaml")
    assert status == 0
    (cpu,) = made["gpus"]
    assert {r["model"] for r in cpu["replicas"]} == {"resnet50", "mobilenet_v2"}
    (partition,) = {r["partition"] for r in cpu["replicas"]}
    assert partition is not None
    assert made["totals"]["expected_goodput_rps"] > 4.9
    status, out, _ = gkest("simulate", tmp_path / "plan.json", "--table", TABLE, "--duration-s", 20)
    assert status == 0 and f"note: {UNANSWERED}" in out


@pytest.mark.parametrize(
    ("policy", "column"),
    [
        ("usher", "occupancy_max_pct"),
        ("milp", "occupancy_max_pct"),
        ("gpulet", "mreq_bytes (or reserved_bytes)"),
        ("igniter", "mreq_bytes (or reserved_bytes)"),
        ("selftuning", "mreq_bytes (or reserved_bytes)"),
    ],
)
def test_a_policy_that_needs_a_column_says_which(
    gkest: Called, tmp_path: Path, policy: str, column: str
) -> None:
    status, _, err = scheduled(gkest, tmp_path, policy)
    assert status == 2
    assert err == f"gkest: error: policy {policy} needs {column}, which is null in every row of resnet50\n"


def test_neighbours_of_which_nothing_is_known_do_not_slow_and_the_report_says_so(
    gkest: Called, tmp_path: Path
) -> None:
    alike: dict[str, Any] = {"batch": 1, "runtime": "onnxruntime", "max_wait_ms": 0.0, "slo_ms": 900.0}
    here = [
        replica("resnet50", latency_ms=106.9863615, **alike),
        replica("mobilenet_v2", latency_ms=8.8434585, **alike),
    ]
    beside = plan(here, models=[("resnet50", 4.0, 900.0), ("mobilenet_v2", 20.0, 900.0)])
    beside = replace(beside, gpus=(replace(beside.gpus[0], type=CPU),))
    (tmp_path / "plan.json").write_text(plan_json(beside))
    asked = ("simulate", tmp_path / "plan.json", "--table", TABLE, "--duration-s", 5)
    status, out, _ = gkest(*asked)
    assert status == 0 and "interference none" in out and f"note: {UNANSWERED}" in out
    status, _, err = gkest(*asked, "--interference", "gpulet")
    assert status == 2 and "interference gpulet needs l2_util_mean_pct, which is null for resnet50" in err
