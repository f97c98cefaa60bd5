"""``gkest profile table`` as a user runs it, and the commands that read what it writes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tabling_samples import mlp, whole_run, write_onnx

from gkestimator.cli import run

Outcome = tuple[int, str, str]
Gkest = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def no_user_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "gkest-home"))


@pytest.fixture
def gkest(capsysbinary: pytest.CaptureFixture[bytes]) -> Gkest:
    def call(*arguments: object) -> Outcome:
        status = run([str(a) for a in arguments])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


@pytest.fixture
def measured(tmp_path: Path, gkest: Gkest) -> Path:
    whole_run(tmp_path / "raw")
    assert gkest("profile", "table", tmp_path / "raw", "-o", tmp_path / "measured.csv")[0] == 0
    return tmp_path / "measured.csv"


def test_words_files_and_status(tmp_path: Path, gkest: Gkest) -> None:
    whole_run(tmp_path / "raw")
    output = tmp_path / "measured.parquet"
    status, out, err = gkest("profile", "table", tmp_path / "raw", "-o", output)
    assert status == 0
    assert out == (
        "1 rows of 1 models on H100-SXM (1): 1 with launches, 1 with SM utilisation, 1 with reserved memory, "
        "1 with all memory; 0 with a warning\n"
    )
    lines = err.splitlines()
    assert f"gkest: wrote {output}, {tmp_path / 'measured.provenance.json'}" in lines
    assert lines[-1].startswith(f"Beside estimates: gkest evaluate --truth {output} --models DIR --no-unfold")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nowhere", "-o", "{}/measured.csv"], 2, "no raw folder of gkest profile run"),
        (["{}/raw", "-o", "{}/measured.txt"], 2, "expected .csv or .json or .parquet"),
        (["{}/raw", "-o", "{}/measured.csv", "--gpu-spec", "{}/none.toml"], 2, "none.toml"),
        (["{}/raw", "{}/nowhere", "-o", "{}/measured.csv"], 1, "nowhere: no raw folder"),
        (["{}/raw"], 2, "--output"),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path: Path, gkest: Gkest, arguments: list[str], status: int, words: str
) -> None:
    whole_run(tmp_path / "raw")
    found, _, err = gkest("profile", "table", *(a.format(tmp_path) for a in arguments))
    errors = [line for line in err.splitlines() if line.startswith("gkest: error:")]
    assert found == status and len(errors) == 1 and words in errors[0]


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_evaluate_sets_the_table_beside_estimates(tmp_path: Path, gkest: Gkest, suffix: str) -> None:
    whole_run(tmp_path / "raw")
    table = tmp_path / f"measured.{suffix}"
    assert gkest("profile", "table", tmp_path / "raw", "-o", table)[0] == 0
    write_onnx(tmp_path / "onnx", mlp(), "mlp")
    status, out, err = gkest(
        "evaluate",
        "--truth",
        table,
        "--models",
        tmp_path / "onnx",
        "--no-unfold-batchnorm",
        "--format",
        "csv",
    )
    (row,) = csv.DictReader(io.StringIO(out))
    assert status == 0
    assert (row["model"], row["gpu"], row["runtime"], row["dtype"]) == ("mlp", "H100-SXM", "torch", "fp32")
    assert row["measured_ms"] == "0.1" and float(row["estimated_ms"]) > 0
    for name in ("reserved_bytes", "mreq_bytes", "sm_util_mean_pct", "occupancy_max_pct"):
        assert float(row[f"measured_{name}"]) > 0 and float(row[name]) > 0
    assert row["measured_dram_util_mean_pct"] == row["dram_util_mean_pct"] == ""  # not measured is not 0
    assert (
        "occupancy of 1 rows was calculated from launches (occupancy_source analytical), not counted" in err
    )
    assert "columns not used" not in err


def test_evaluate_compares_no_utilisation_that_was_not_measured(tmp_path: Path, gkest: Gkest) -> None:
    raw = tmp_path / "raw"
    whole_run(raw, memory=None)
    (raw / "chunks" / "000001-cuda0-timeline" / "chunk.json").unlink()
    assert gkest("profile", "table", raw, "-o", tmp_path / "measured.csv")[0] == 0
    write_onnx(tmp_path / "onnx", mlp(), "mlp")
    status, out, err = gkest(
        "evaluate", "--truth", tmp_path / "measured.csv", "--models", tmp_path / "onnx", "--format", "json"
    )
    document = json.loads(out)
    assert status == 0 and {s["measure"] for s in document["summary"]} == {"latency_ms"}
    assert document["rows"][0]["sm_util_mean_pct"] is None and "occupancy" not in err


def test_schedule_places_the_measured_model(tmp_path: Path, gkest: Gkest, measured: Path) -> None:
    (tmp_path / "w.yaml").write_text("models:\n- {name: mlp, rate_rps: 100000, slo_ms: 20}\n")
    (tmp_path / "c.yaml").write_text("gpus: [{type: H100, count: 1}]\n")
    status, out, err = gkest(
        "schedule", measured, "--workload", tmp_path / "w.yaml", "--cluster", tmp_path / "c.yaml",
        "--policy", "usher", "--format", "json",
    )  # fmt: skip
    assert status == 0, err
    replicas = [r for gpu in json.loads(out)["gpus"] for r in gpu["replicas"]]
    assert {(r["model"], r["batch_size"], r["latency_ms"]) for r in replicas} == {("mlp", 256, 0.1)}


@pytest.mark.slow
def test_a_model_from_plan_to_evaluation_on_the_cpu(tmp_path: Path, gkest: Gkest) -> None:
    """The whole chain with the real ONNX Runtime; the CPU stands in for a GPU."""
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    write_onnx(tmp_path / "onnx", mlp(64, 256, 128), "mlp")
    plan, raw, table = (tmp_path / name for name in ("models.json", "raw", "measured.csv"))
    status, _, err = gkest(
        "profile",
        "plan",
        "--whole",
        "--cpu",
        "--runtime",
        "onnxruntime",
        "--models",
        tmp_path / "onnx",
        "-o",
        plan,
    )
    assert status == 0, err
    status, _, err = gkest(
        "profile",
        "run",
        plan,
        "--executor",
        "onnxruntime",
        "--device",
        "cpu",
        "--collector",
        "none",
        "-o",
        raw,
    )
    assert status == 0, err
    status, out, err = gkest("profile", "table", raw, "-o", table)
    assert status == 0 and out.startswith("1 rows of 1 models on CPU-"), out + err
    (row,) = csv.DictReader(io.StringIO(table.read_text()))
    assert row["source"] == "measured" and 0 < float(row["latency_ms"]) < 1000
    assert row["kernels"] == row["sm_util_mean_pct"] == row["reserved_bytes"] == row["host_bound"] == ""
    spec = tmp_path / f"measured.{row['gpu']}.toml"
    status, out, err = gkest(
        "evaluate", "--truth", table, "--models", tmp_path / "onnx", "--gpu-spec", spec, "--format", "json"
    )
    assert status == 0, err
    (compared,) = json.loads(out)["rows"]
    assert compared["measured_ms"] == float(row["latency_ms"]) and compared["error_pct"] is not None
    assert compared["sm_util_mean_pct"] is compared["mreq_bytes"] is compared["occupancy_max_pct"] is None
