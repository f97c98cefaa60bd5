"""Every command under every runtime of the registry: a new entry is run through all of them by itself."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import serving
import yaml

import gkestimator
from gkestimator.cli import run
from gkestimator.core.errors import UsageError
from gkestimator.documents import read_plan
from gkestimator.estimation.request import EstimateRequest
from gkestimator.evaluation.options import EvaluateRequest
from gkestimator.hardware.runtimes import PROVIDERS, RUNTIMES, runtime_with, served_as
from gkestimator.merging.options import MergeOptions
from gkestimator.serving.serving_plan import served_plan
from gkestimator.serving.workers import asked_providers
from gkestimator.tables import REQUIREMENTS, read_table

WORKLOAD = "models:\n- {name: one, rate_rps: 20, slo_ms: 200}\n- {name: two, rate_rps: 10, slo_ms: 200}\n"
CLUSTER = "gpus: [{type: T4, count: 2}]\n"
TARGETS = ("triton", "ray-serve", "kserve", "modelmesh", "hami", "mps", "csv", "json")
Run = Callable[..., tuple[str, str]]


def records(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two small networks."""
    folder = tmp_path_factory.mktemp("models")
    serving.network(folder / "one.onnx", seed=1)
    serving.network(folder / "two.onnx", seed=2)
    return folder


@pytest.fixture
def gkest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Return a function that runs a command in ``tmp_path``, which succeeds, and returns its two streams."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "home"))

    def call(*arguments: object, status: int = 0) -> tuple[str, str]:
        found = run([str(a) for a in arguments])
        out, err = capsysbinary.readouterr()
        assert found == status, err.decode()
        return out.decode(), err.decode()

    return call


@pytest.fixture
def planned(runtime: str, models: Path, gkest: Run) -> Path:
    """Return the folder with the table and the plan of a runtime."""
    folder = Path.cwd()
    (folder / "workload.yaml").write_text(WORKLOAD)
    (folder / "cluster.yaml").write_text(CLUSTER)
    _, said = gkest(
        *("estimate", models, "--gpu", "T4", "--runtime", runtime, "--dtype", "fp16", "--batch-size", "1,8"),
        *("-o", "table.csv"),
    )
    assert RUNTIMES[runtime].build in said
    asked = ("--workload", "workload.yaml", "--cluster", "cluster.yaml", "-o", "plan.json")
    gkest("schedule", "table.csv", *asked)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_table_becomes_a_plan_that_is_simulated_compared_and_exported(
    runtime: str, planned: Path, models: Path, gkest: Run
) -> None:
    rows = records("table.csv")
    assert {row["runtime"] for row in rows} == {runtime}
    plan = json.loads((planned / "plan.json").read_text())
    replicas = [replica for gpu in plan["gpus"] for replica in gpu["replicas"]]
    assert {replica["runtime"] for replica in replicas} == {runtime}
    gkest("simulate", "plan.json", "--table", "table.csv", "--duration-s", "2", "-o", "simulation.json")
    assert json.loads((planned / "simulation.json").read_text())["totals"]["goodput_rps"] > 0
    spec = {
        "tables": ["table.csv"],
        "policies": ["exclusive"],
        "workloads": ["workload.yaml"],
        "clusters": ["cluster.yaml"],
        "runtime": runtime,
        "duration_s": 1,
    }
    (planned / "spec.yaml").write_text(yaml.safe_dump(spec))
    gkest("compare", planned / "spec.yaml", "-o", "compared", "--processes", "1")
    for target in TARGETS:
        _, said = gkest("export", "plan.json", "--to", target, "--models", models, "-o", f"out-{target}")
        if target in ("triton", "ray-serve", "kserve"):
            assert RUNTIMES[runtime].build in said
    form = served_as(runtime).server
    (config, *_) = (planned / "out-triton").rglob("config.pbtxt")
    assert f'platform: "{form.triton_platform}"' in config.read_text()
    assert ("execution_accelerators" in config.read_text()) == bool(form.accelerator)
    assert bool(list((planned / "out-triton").rglob("build-engines.sh"))) == bool(form.engine_file)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_replica_is_served_by_the_providers_of_its_runtime(
    runtime: str, planned: Path, models: Path
) -> None:
    rows = read_table(planned / "table.csv", REQUIREMENTS)
    replica = served_plan(read_plan(planned / "plan.json"), rows).replicas[0]
    names = []
    for provider in asked_providers(replica, models / f"{replica.model}.onnx"):
        names.append(provider if isinstance(provider, str) else provider[0])
    assert names == list(served_as(runtime).serving_providers)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_measurements_of_a_runtime_are_matched(runtime: str, planned: Path, models: Path, gkest: Run) -> None:
    rows = records("table.csv")
    lines = [f"{r['model']},T4,{runtime},fp16,{r['batch_size']},{r['latency_ms']}" for r in rows]
    head = "model,gpu,runtime,dtype,batch_size,latency_ms"
    Path("truth.csv").write_text("\n".join([head, *lines]) + "\n")
    out, _ = gkest("evaluate", "--truth", "truth.csv", "--models", models, "--format", "csv")
    compared = list(csv.DictReader(io.StringIO(out)))
    assert [row["runtime"] for row in compared] == [runtime] * len(rows)
    assert [abs(float(row["error_pct"])) < 1e-6 for row in compared] == [True] * len(rows)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_models_are_merged_by_the_times_of_a_runtime(runtime: str, models: Path, gkest: Run) -> None:
    pytest.importorskip("scipy")
    both = (models / "one.onnx", models / "two.onnx")
    asked = ("merge", *both, "--gpu", "T4", "--runtime", runtime, "--batch-size", "1")
    report, _ = gkest(*asked, "-o", "merged.onnx", "--format", "table")
    assert f"T4 · {runtime}" in report
    assert Path("merged.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_is_profiled_or_says_what_to_do_instead(runtime: str, gkest: Run) -> None:
    traits = RUNTIMES[runtime]
    asked = ("profile", "plan", "--cpu", "--runtime", runtime, "--entries", "1", "-o", "plan.json")
    if traits.executor is None:
        assert traits.measured_by in gkest(*asked, status=2)[1]
    else:
        gkest(*asked)
        assert json.loads(Path("plan.json").read_text())["runtime"] == runtime


def test_doctor_looks_for_what_the_registry_names(gkest: Run) -> None:
    said, _ = gkest("doctor")
    for traits in RUNTIMES.values():
        for name in (*traits.distributions, *traits.serving_providers, traits.server.engine_program):
            assert name in said


# --- a runtime and its execution provider ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, traits in RUNTIMES.items() if traits.provider_of])
def test_a_provider_names_its_runtime_everywhere(name: str, models: Path, gkest: Run) -> None:
    made = RUNTIMES[name].provider_of
    assert made is not None
    base, provider = made
    assert runtime_with(base, provider) == runtime_with(name, provider) == name
    asked = {"runtime": base, "provider": provider}
    assert EstimateRequest(("m.onnx",), ("T4",), **asked).runtime == name
    assert EvaluateRequest("t.csv", **asked).runtime == name
    assert MergeOptions(**asked).runtime == name
    table = gkestimator.estimate(models / "one.onnx", "T4", [1], **asked)
    assert list(table["runtime"]) == [name]
    gkest(
        *("estimate", models / "one.onnx", "--gpu", "T4", "--runtime", base, "--provider", provider),
        *("-o", "table.csv"),
    )
    assert [row["runtime"] for row in records("table.csv")] == [name]


def test_a_provider_that_a_runtime_lacks_is_one_line(models: Path, gkest: Run) -> None:
    assert set(PROVIDERS) == {"cuda", "tensorrt"}
    for runtime, provider, expected in (
        ("torch", "tensorrt", "none under runtime torch"),
        ("tensorrt", "cuda", "none under runtime tensorrt"),
        ("onnxruntime_tensorrt", "cuda", "tensorrt under runtime onnxruntime_tensorrt"),
    ):
        line = f"provider: found {provider}, expected {expected}"
        for record in (lambda **o: EstimateRequest(("m.onnx",), ("T4",), **o), MergeOptions):
            with pytest.raises(UsageError, match=f"^{line}$"):
                record(runtime=runtime, provider=provider)
        asked = ("estimate", models, "--gpu", "T4", "--runtime", runtime, "--provider", provider)
        assert gkest(*asked, status=2) == ("", f"gkest: error: --{line}\n")
    with pytest.raises(UsageError, match="provider: found 'rocm', expected one of cuda, tensorrt"):
        EstimateRequest(("m.onnx",), ("T4",), provider="rocm")
