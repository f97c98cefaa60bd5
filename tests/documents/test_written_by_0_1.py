"""Every kind of file that gkestimator 0.1 wrote is read by the command that reads it (``tests/data/written_by_0_1``)."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gkestimator import __version__
from gkestimator.cli import run
from gkestimator.documents.simulation import read_simulation
from gkestimator.profiling.plan import read_plan as read_sweep
from gkestimator.profiling.running.machine import Machine
from gkestimator.tables import COLOCATION, KERNEL_DATASET, KERNEL_ROWS, REQUIREMENTS, read_table

FILES = Path(__file__).parents[1] / "data" / "written_by_0_1"
SCHEDULE = (
    "schedule requirements.csv --workload workload.yaml --cluster cluster.yaml --runtime torch -o new.json"
)
SIMULATE = "simulate plan.json --table requirements.csv --duration-s 1 --format json"
ESTIMATE = "estimate models/small.onnx --batch-size 4 -o new.csv"


@dataclass(frozen=True)
class Case:
    """A command on old files, what it says, and the packages that it needs."""

    command: str
    said: str = ""
    needs: tuple[str, ...] = ()
    status: int = field(default=0, kw_only=True)


CASES = {
    "table csv": Case(SCHEDULE, "places 2 of 2 models"),
    "table json": Case(SCHEDULE.replace(".csv", ".json"), "places 2 of 2 models"),
    "table parquet": Case(SCHEDULE.replace(".csv", ".parquet"), "places 2 of 2 models", ("pyarrow",)),
    "table exported": Case(
        "export requirements.csv --to json --gpu T4 --batch-size 4 -o new", "new/json/requirements.json"
    ),
    "table as json exported it": Case(
        "export exported/json/requirements.json --to csv -o new", "new/csv/requirements.csv"
    ),
    "table as truth": Case(
        "evaluate --truth measured_requirements.csv --models models --gpu T4 --format json", '"rows"'
    ),
    "host file": Case(f"{ESTIMATE} --gpu T4 --host host.toml", "wrote new.csv"),
    "GPU file of a user's own": Case(f"{ESTIMATE} --gpu MY-GPU --gpu-spec my-gpu.toml", "fits on MY-GPU"),
    "GPU file that profiling wrote": Case(
        "evaluate --truth measured_cpu.csv --models models --gpu-spec measured_cpu.CPU-2-cores-AMD-EPYC.toml",
        "latency",
    ),
    "bundle": Case(f"{ESTIMATE} --gpu H100-SXM --bundle measured_bundle/base", "wrote new.csv", ("xgboost",)),
    "measured bundle": Case(f"{ESTIMATE} --gpu L4 --bundle measured_bundle", "wrote new.csv"),
    "interference of a bundle": Case(f"{SIMULATE} --coefficients measured_bundle", '"totals"', ("numba",)),
    "interference": Case(f"{SIMULATE} --coefficients interference.yaml", '"totals"', ("numba",)),
    "plan and network": Case(f"{SIMULATE} --network network.toml", '"totals"', ("numba",)),
    "plan exported": Case("export plan.json --to mps -o new", "new/mps"),
    "plan and merged index": Case(
        "merge --plan plan.json models/small.onnx models/large.onnx --always -o merged", "merged", ("scipy",)
    ),
    "iGniter's coefficients": Case(
        f"{SCHEDULE} --policy igniter --coefficients igniter-coefficients.toml", "places"
    ),
    "comparison": Case("compare comparison.yaml -o comparison --processes 1", "2 cells, ", ("numba",)),
    "kernel dataset": Case(
        "profile merge kernel_dataset.parquet -o new.parquet", "wrote new.parquet", ("pyarrow",)
    ),
    "kernel dataset trained on": Case(
        "train kernel_dataset.parquet --base measured_bundle/base -o new",
        "wrote new",
        ("pyarrow", "sklearn", "xgboost", "lightgbm"),
    ),
    "co-location table": Case(
        "train --interference colocation.csv -o new.yaml", "wrote new.yaml", ("scipy",)
    ),
    "raw folder of launches": Case("profile build raw_launches -o new.csv", "3 operators in 5 launches"),
    "raw folder of models": Case("profile table raw -o new.csv", "4 rows of 2 models"),
    "raw folder cut off": Case("profile table raw_cut_off -o new.csv", "rows of"),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old files that is the current folder."""
    folder = tmp_path / "old"
    shutil.copytree(FILES, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "home"))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_the_command_reads_the_file(files: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    for package in case.needs:
        pytest.importorskip(package)
    status = run(case.command.split())
    out, err = capfd.readouterr()
    assert status == case.status, err
    assert case.said in out + err


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_rows_are_of_the_version_now(form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    rows = read_table(FILES / f"requirements.{form}", REQUIREMENTS)
    assert len(rows) == 12
    assert {row.schema_version for row in rows} == {REQUIREMENTS.version}
    assert rows == read_table(FILES / "requirements.csv", REQUIREMENTS)


def test_tables_that_no_command_reads_back() -> None:
    assert len(read_table(FILES / "published.csv", REQUIREMENTS)) == 6
    assert len(read_table(FILES / "kernels.csv", KERNEL_ROWS)) > 3
    assert len(read_table(FILES / "pairs.csv", COLOCATION)) == 4
    first, second = (read_table(FILES / f"colocation{n}.csv", COLOCATION) for n in ("_1", ""))
    assert all(row.sharing is None for row in first)
    assert first == tuple(replace(row, sharing=None) for row in second[: len(first)])
    assert read_simulation(FILES / "simulation.json").totals.goodput_rps > 100


def test_old_kernel_datasets_are_of_the_version_now() -> None:
    pytest.importorskip("pyarrow")
    rows = read_table(FILES / "kernel_dataset.parquet", KERNEL_DATASET)
    assert len(rows) == 5 and {row.schema_version for row in rows} == {KERNEL_DATASET.version}


@pytest.mark.slow
@pytest.mark.skipif(__version__ != "0.1.0", reason="cells belong to one version of the program")
def test_cells_of_a_comparison_are_not_computed_again(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "comparison.yaml", "-o", "comparison", "--processes", "1"]) == 0
    assert "2 cells, 0 computed now, 2 kept" in capsys.readouterr().err


def of_this_machine(files: Path) -> None:
    """Say in raw folders and journal that this machine measured them: a run goes on with its own device and libraries."""
    onnxruntime = pytest.importorskip("onnxruntime")
    facts = Machine().facts("cpu")
    for raw in files.glob("raw*"):
        document = json.loads((raw / "run.json").read_text())
        document["versions"]["onnxruntime"] = onnxruntime.__version__
        document["devices"][0]["name"] = facts.name
        (raw / "run.json").write_text(json.dumps(document))
    journal = files / "pairs.csv.journal.jsonl"
    first, *others = journal.read_text().splitlines()
    header = json.loads(first) | {"device": facts.name, "versions": {"onnxruntime": onnxruntime.__version__}}
    journal.write_text("\n".join([json.dumps(header), *others, ""]))


RUN = "profile run sweep.json --executor onnxruntime --collector none --device cpu --chunk-seconds 0.5 -o"


@pytest.mark.slow
@pytest.mark.parametrize(("raw", "left"), [("raw", False), ("raw_cut_off", True)])
def test_a_run_goes_on(files: Path, raw: str, left: bool, capfd: pytest.CaptureFixture[str]) -> None:
    of_this_machine(files)
    before = {p: p.read_bytes() for p in (files / raw / "chunks").glob("0*/records.jsonl")}
    assert run([*RUN.split(), raw]) == 0
    assert f"{raw}: 4 ok" in "".join(capfd.readouterr())
    after = set((files / raw / "chunks").glob("0*/records.jsonl"))
    assert all(path.read_bytes() == data for path, data in before.items())
    assert (after > before.keys()) == left and (after == before.keys()) != left
    assert len(read_sweep(files / raw / "plan.json").entries) == 4


@pytest.mark.slow
def test_pairs_go_on(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    of_this_machine(files)
    before = (files / "pairs.csv.journal.jsonl").read_text()
    asked = (
        "profile pairs sweep.json --executor onnxruntime --device cpu --seconds 0.2 --pairs 2 -o pairs.csv"
    )
    assert run(asked.split()) == 0
    assert "pairs.csv: 2 pairs measured, 0 failed, 0 left of 2" in capfd.readouterr().out
    assert (files / "pairs.csv.journal.jsonl").read_text().count('"pair"') == before.count('"pair"')
