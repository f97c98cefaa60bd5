"""Programs schedule, export and simulate by what they have: paths, DataFrames, mappings, plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from small_nets import net

import gkestimator
from gkestimator.core.records import map_fields
from gkestimator.documents import read_plan
from gkestimator.documents.simulation import read_simulation
from gkestimator.errors import DocumentError, GkestimatorError, OutputError, TableError, UsageError
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.placement.scheduling import UnservableError

WORKLOAD = {"models": [{"name": "net", "rate_rps": 100, "slo_ms": 50}]}
CLUSTER = {"gpus": [{"type": "T4", "count": 2}]}


@pytest.fixture(scope="module")
def needs() -> gkestimator.Requirements:
    return gkestimator.estimate(net(), "T4", [1, 8], runtime="onnxruntime")


@pytest.fixture(scope="module")
def plan(needs: gkestimator.Requirements) -> gkestimator.PlacementPlan:
    return gkestimator.schedule(needs, WORKLOAD, CLUSTER)


def test_a_plan_is_the_same_from_memory_and_from_files(
    needs: gkestimator.Requirements, plan: gkestimator.PlacementPlan, tmp_path: Path
) -> None:
    needs.to_csv(tmp_path / "needs.csv", index=False)
    (tmp_path / "workload.yaml").write_text(yaml.safe_dump(WORKLOAD))
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(CLUSTER))
    by_files = gkestimator.schedule(
        str(tmp_path / "needs.csv"), tmp_path / "workload.yaml", str(tmp_path / "cluster.yaml")
    )
    halves = [needs[needs.batch_size == 1], pd.DataFrame(needs[needs.batch_size == 8])]
    assert plan == by_files == gkestimator.schedule(halves, WORKLOAD, tmp_path / "cluster.yaml")
    assert isinstance(plan, gkestimator.PlacementPlan) and plan.totals.goodput_rps == 100


def test_a_plan_is_a_table_and_a_file(plan: gkestimator.PlacementPlan, tmp_path: Path) -> None:
    table = plan.table
    assert table["gpu"].tolist() == [plan.gpus[0].id] and table["gpu_type"].tolist() == ["T4"]
    assert table["model"].tolist() == ["net"] and table["goodput_rps"].sum() == pytest.approx(100)
    assert read_plan(plan.save(tmp_path / "plan.json")) == plan
    with pytest.raises(OutputError):
        plan.save(tmp_path / "none" / "plan.json")


@pytest.mark.slow
def test_a_simulation_is_the_same_from_memory_and_from_files(
    needs: gkestimator.Requirements, plan: gkestimator.PlacementPlan, tmp_path: Path
) -> None:
    report = gkestimator.simulate(plan, needs, duration_s=2, seed=3)
    needs.to_csv(tmp_path / "needs.csv", index=False)
    again = gkestimator.simulate(
        plan.save(tmp_path / "plan.json"), [tmp_path / "needs.csv"], duration_s=2, seed=3
    )
    assert isinstance(report, gkestimator.SimulationReport) and report == again
    assert report.table["model"].tolist() == ["net"]
    assert report.table["arrived_rps"].tolist() == [report.totals.arrived_rps]
    assert read_simulation(report.save(tmp_path / "report.json")) == report
    steps: list[tuple[str, int, int]] = []
    gkestimator.simulate(plan, needs, duration_s=2, progress=lambda *told: steps.append(told))
    assert steps


def test_a_plan_and_a_table_are_exported(
    needs: gkestimator.Requirements, plan: gkestimator.PlacementPlan, tmp_path: Path
) -> None:
    shown = gkestimator.export(plan, "kai", image="registry/server:1")
    assert shown.target == "kai" and shown.paths == () and "gpu-memory" in shown.files[0].text
    assert shown.limits in " ".join(shown.files[0].text.replace("#", "").split())
    assert any("queue" in message for message in shown.messages)
    written = gkestimator.export(needs, "json", tmp_path, batch_size=8)
    assert all(path.parent == tmp_path / "json" and path.is_file() for path in written.paths)
    chosen = gkestimator.export(needs, "json", batch_size=8, only="net", gpu="T4")
    assert chosen == map_fields(written, lambda value: value if value != written.paths else ())
    needs.to_csv(tmp_path / "needs.csv", index=False)
    with pytest.raises(
        TableError, match="table: net has 2 rows, expected one per model: choose with batch_size"
    ):
        gkestimator.export(needs, "json")
    by_file = gkestimator.export(tmp_path / "needs.csv", "json", batch_size=8)
    assert by_file.files[0].text.replace("needs.csv", "table") == chosen.files[0].text


def test_inputs_for_triton_are_read_from_models(plan: gkestimator.PlacementPlan, models: Path) -> None:
    with_files = gkestimator.export(plan, "triton", models=models / "net.onnx")
    without = gkestimator.export(plan, "triton")
    config = next(file.text for file in with_files.files if file.path.name == "config.pbtxt")
    assert 'name: "x"' in config
    assert all('name: "x"' not in file.text for file in without.files)


WRONG: dict[str, tuple[Any, type[GkestimatorError], str]] = {
    "a column of one's own": (
        lambda needs, plan: gkestimator.schedule(needs.assign(mine=1), WORKLOAD, CLUSTER),
        TableError,
        "table: column 'mine' is not known to the requirement table",
    ),
    "a value out of bounds": (
        lambda needs, plan: gkestimator.schedule(needs.assign(latency_ms=-1.0), WORKLOAD, CLUSTER),
        TableError,
        "table: row 1, column latency_ms: found -1.0, expected at least 0",
    ),
    "a model that the table lacks": (
        lambda needs, plan: gkestimator.schedule(needs.assign(model="other"), WORKLOAD, CLUSTER),
        TableError,
        "table: no row for model net",
    ),
    "no table": (
        lambda needs, plan: gkestimator.schedule([], WORKLOAD, CLUSTER),
        UsageError,
        "no requirement table",
    ),
    "something else for a table": (
        lambda needs, plan: gkestimator.simulate(plan, 3),
        UsageError,
        "table: found int, expected a path or a pandas DataFrame",
    ),
    "something else for a plan": (
        lambda needs, plan: gkestimator.simulate(3, needs),
        UsageError,
        "plan: found int, expected a plan or the path of one",
    ),
    "something else for a workload": (
        lambda needs, plan: gkestimator.schedule(needs, 3, CLUSTER),
        DocumentError,
        "workload: found 3, expected a path or a mapping",
    ),
    "a misspelt field": (
        lambda needs, plan: gkestimator.schedule(needs, {"modles": [], **WORKLOAD}, CLUSTER),
        DocumentError,
        "workload: .*modles.*did you mean models",
    ),
    "an objective that nothing keeps": (
        lambda needs, plan: gkestimator.schedule(
            needs, {"models": [{"name": "net", "rate_rps": 1, "slo_ms": 1e-6}]}, CLUSTER
        ),
        UnservableError,
        "workload: net: ",
    ),
    "an option that there is not": (
        lambda needs, plan: gkestimator.simulate(plan, needs, seconds=3),
        UsageError,
        "simulate: found the option 'seconds', expected one of",
    ),
    "an unknown target": (
        lambda needs, plan: gkestimator.export(plan, "kay"),
        UsageError,
        "to 'kay': .*did you mean kai",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_line(
    needs: gkestimator.Requirements, plan: gkestimator.PlacementPlan, case: str
) -> None:
    call, kind, words = WRONG[case]
    with pytest.raises(kind, match=words):
        call(needs, plan)


def test_numbers_of_numpy_and_one_file_stand_for_python_s_and_a_list(needs: gkestimator.Requirements) -> None:
    model = needs["model"].iloc[0]
    workload = {"models": [{"name": model, "rate_rps": np.float32(4), "slo_ms": np.int64(200)}]}
    cluster = {"gpus": [{"type": needs["gpu"].iloc[0], "count": np.int64(1)}]}
    plan = gkestimator.schedule(needs, workload, cluster)
    assert plan.workload.models[0].slo_ms == 200
    for call in (
        lambda: gkestimator.schedule(needs, workload, cluster, gpu_specs="none.toml"),
        lambda: gkestimator.export(plan, "csv", gpu_specs="none.toml"),
        lambda: gkestimator.gpus(gpu_specs="none.toml"),
    ):
        with pytest.raises(gkestimator.errors.SpecError, match="none.toml"):
            call()


def test_gpus_and_runtimes_are_tables() -> None:
    known = gkestimator.gpus()
    assert {"V100-SXM2-16GB", "T4"} <= set(known["gpu"]) and known["can_be_estimated"].dtype == "boolean"
    t4 = gkestimator.gpus("t4").iloc[0]
    assert t4.gpu == "T4" and t4.sms == 40 and t4.dram_bytes_per_s == pytest.approx(3.2e11, rel=0.01)
    with pytest.raises(UsageError, match="T5000"):
        gkestimator.gpus("T5000")
    runtimes = gkestimator.runtimes().set_index("runtime")
    assert list(runtimes.index) == list(RUNTIMES)
    assert (
        "amp" in runtimes["dtypes"]["torch"].split()
        and "amp" not in runtimes["dtypes"]["onnxruntime"].split()
    )
    assert (runtimes["host_low_us"] <= runtimes["host_high_us"]).all()
