"""Schemas say of every document what its reader says: real files hold, misspelt and wrong ones do not."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gkestimator.cli import run
from gkestimator.core.errors import DocumentError
from gkestimator.documents import read_cluster, read_plan, read_workload
from gkestimator.documents.simulation import read_simulation
from gkestimator.hardware.gpus import load_gpu_file
from gkestimator.hardware.host_profile import load_host_file
from gkestimator.library.schemas.registry import KINDS, published_folder, schema_of, schema_text
from gkestimator.simulation.comparing.spec import read_spec
from gkestimator.tables import KERNEL_DATASET, REQUIREMENTS, TableSchema, read_table

ROOT = Path(__file__).parents[2]
OLD = ROOT / "tests" / "data" / "written_by_0_1"
EXAMPLES = ROOT / "examples"
FILES = {
    "workload": [
        OLD / "workload.yaml",
        EXAMPLES / "scheduling" / "workload.yaml",
        *(
            EXAMPLES / "applications" / f"{n}.yaml"
            for n in ("traffic", "video-surveillance", "game", "social-media")
        ),
    ],
    "cluster": [
        OLD / "cluster.yaml",
        *(EXAMPLES / "scheduling" / f"{n}.yaml" for n in ("cluster", "four-v100", "rented")),
        *(EXAMPLES / "applications" / f"{n}.yaml" for n in ("four-v100", "rented-v100")),
    ],
    "plan": [OLD / "plan.json"],
    "simulation": [OLD / "simulation.json"],
    "comparison": [OLD / "comparison.yaml", EXAMPLES / "comparing" / "policies.yaml"],
    "gpu": [
        OLD / "my-gpu.toml",
        OLD / "measured_cpu.CPU-2-cores-AMD-EPYC.toml",
        *sorted((ROOT / "datasets" / "gpus").glob("*.toml")),
    ],
    "host": [OLD / "host.toml"],
    "network": [OLD / "network.toml", EXAMPLES / "network.toml"],
    "interference": [OLD / "interference.yaml"],
    "igniter": [OLD / "igniter-coefficients.toml", EXAMPLES / "igniter-coefficients.toml"],
}
READERS: dict[str, Callable[[Path], object]] = {
    "workload": read_workload,
    "cluster": read_cluster,
    "plan": read_plan,
    "simulation": read_simulation,
    "comparison": read_spec,
    "gpu": load_gpu_file,
    "host": load_host_file,
}


def document(path: Path) -> Any:
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text())
    return yaml.safe_load(path.read_text())


def validator(kind: str) -> jsonschema.Draft202012Validator:
    schema = schema_of(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("kind", FILES)
def test_real_files_hold(kind: str) -> None:
    check = validator(kind)
    for path in FILES[kind]:
        assert [f"{path.name}: {e.json_path}: {e.message}" for e in check.iter_errors(document(path))] == []


@pytest.mark.parametrize("kind", FILES)
def test_a_misspelt_field_is_refused(kind: str) -> None:
    check = validator(kind)
    for path in FILES[kind][:1]:
        whole = document(path)
        for name in list(whole):
            misspelt = {(f"{n}x" if n == name else n): v for n, v in whole.items()}
            assert not check.is_valid(misspelt), name


WRONG: dict[str, tuple[str, Callable[[Any], object]]] = {
    "rate of nothing": ("workload", lambda d: d["models"][0].update(rate_rps=0)),
    "no objective": ("workload", lambda d: d["models"][0].pop("slo_ms")),
    "field of a model": ("workload", lambda d: d["models"][0].update(rate=3)),
    "count of a half": ("cluster", lambda d: d["gpus"][0].update(count=0.5)),
    "text for a number": ("plan", lambda d: d["gpus"][0]["replicas"][0].update(latency_ms="fast")),
    "field of a replica": ("plan", lambda d: d["gpus"][0]["replicas"][0].update(speed=3)),
    "no total": ("simulation", lambda d: d["totals"].pop("goodput_rps")),
    "negative number": ("simulation", lambda d: d["models"][0].update(arrived_rps=-1)),
    "unknown word": ("comparison", lambda d: d.update(drop="sometimes")),
    "label of a workload": ("comparison", lambda d: d["workloads"][0].update(lable="a")),
    "unit": ("gpu", lambda d: d["boost_clock_mhz"].update(unit="THz")),
    "no source": ("host", lambda d: d["host_overhead_us"]["torch"].pop("source")),
}


@pytest.mark.parametrize("name", WRONG)
def test_schema_and_reader_refuse_the_same(name: str, tmp_path: Path) -> None:
    kind, change = WRONG[name]
    wrong = document(FILES[kind][0])
    change(wrong)
    assert not validator(kind).is_valid(wrong)
    if FILES[kind][0].suffix == ".toml":
        return
    (tmp_path / "requirements.csv").touch()
    (tmp_path / "wrong.yaml").write_text(json.dumps(wrong))
    with pytest.raises(DocumentError):
        READERS[kind](tmp_path / "wrong.yaml")


@pytest.mark.parametrize(("kind", "table"), [("requirement", REQUIREMENTS), ("kernel", KERNEL_DATASET)])
def test_rows_hold(kind: str, table: TableSchema[Any]) -> None:
    path = OLD / "requirements.csv"
    if kind == "kernel":
        pytest.importorskip("pyarrow")
        path = OLD / "kernel_dataset.parquet"
    check = validator(kind)
    for row in read_table(path, table):
        record = table.record(row)
        check.validate(record)
        assert not check.is_valid({**record, "latency_mss": 1})
        assert not check.is_valid({**record, "gpu": None})


def test_rows_of_a_json_table_hold() -> None:
    check = validator("requirement")
    rows = json.loads((OLD / "requirements.json").read_text())["rows"]
    assert rows and all(check.is_valid(row) for row in rows)
    with (OLD / "requirements.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == len(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_published_files_are_what_is_derived(kind: str) -> None:
    published = (published_folder() / f"{kind}.schema.json").read_text()
    assert published == schema_text(kind), "run python -m gkestimator.library.schemas.registry"


def unexplained(schema: dict[str, Any], way: str = "") -> list[str]:
    missing = []
    for name, own in schema.get("properties", {}).items():
        if "description" not in own:
            missing.append(f"{way}{name}")
        missing += unexplained(own, f"{way}{name}.") + unexplained(own.get("items", {}), f"{way}{name}.")
    return missing


@pytest.mark.parametrize("kind", ["workload", "cluster", "comparison", "requirement", "kernel"])
def test_every_field_is_explained(kind: str) -> None:
    assert unexplained(schema_of(kind)) == []


def test_every_field_of_a_board_is_explained() -> None:
    board = schema_of("gpu")["oneOf"][0]
    assert unexplained(board) == []


def test_the_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "workload"]) == 0
    assert json.loads(capsys.readouterr().out) == schema_of("workload")
    assert run(["schema"]) == 0
    assert "placement plan" in capsys.readouterr().out
    assert run(["schema", "worklod"]) == 2
    assert "did you mean workload?" in capsys.readouterr().err
