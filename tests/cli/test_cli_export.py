"""``gkest export``: statuses, streams, one line for what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from gkestimator.cli import run
from gkestimator.exporting.registry import EXPORTERS, exporter_class
from gkestimator.tables import REQUIREMENTS, read_table

A1 = str(Path(str(files("gkestimator.datasets"))) / "published" / "ethz_v100.csv")
Outcome = tuple[int, str, str]
SMALL = ("--batch-size", "4", "--only", "resnet50,gpt2")  # rows of table A.1 that know their memory


@pytest.fixture
def gkest(capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    def call(*arguments: str) -> Outcome:
        status = run(["export", *arguments])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


Gkest = Callable[..., Outcome]


def errors(err: str) -> list[str]:
    assert "Traceback" not in err
    return [line for line in err.splitlines() if line.startswith("gkest: error: ")]


def plan(folder: Path, **changed: Any) -> str:
    replica = {
        "id": "a-0", "model": "a", "runtime": "torch", "dtype": "fp32", "batch_size": 8, "latency_ms": 20.0, "goodput_rps": 50.0,
        "creq_pct": 30.0, "mreq_bytes": 10**9,
    } | changed  # fmt: skip
    document = {
        "schema_version": 1, "policy": "x", "workload": {"models": [{"name": "a", "rate_rps": 50, "slo_ms": 90}]},
        "gpus": [{"id": "V100-0", "type": "V100-SXM2-16GB", "replicas": [replica]}],
        "totals": {"goodput_rps": 50.0, "gpus_used": 1},
    }  # fmt: skip
    path = folder / "plan.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_help_and_list_name_every_target_and_option(gkest: Gkest) -> None:
    status, out, err = gkest("--help")
    assert (status, err) == (0, "")
    listed = out.partition("Targets:")[2].partition(".")[0]
    joined = re.sub(r"(?<=-)\s+", "", listed)  # lines break behind hyphens
    assert [n.strip() for n in joined.split(",")] == list(EXPORTERS)
    for name in EXPORTERS:
        assert all(f"--{option.replace('_', '-')} " in out for option in exporter_class(name).options)
    status, out, err = gkest("--targets")
    assert (status, err) == (0, "")
    assert [line.partition(":")[0] for line in out.splitlines()] == list(EXPORTERS)


def test_each_target_gets_a_folder_and_says_its_limits(gkest: Gkest, tmp_path: Path) -> None:
    out_folder = tmp_path / "out"
    status, out, err = gkest(A1, *SMALL, "--to", "hami,kai", "--to", "csv", "-o", str(out_folder))
    assert (status, out) == (0, "")
    assert sorted(str(p.relative_to(out_folder)) for p in out_folder.rglob("*") if p.is_file()) == [
        "csv/README.txt", "csv/requirements.csv", "hami/deployments.yaml", "kai/deployments.yaml"
    ]  # fmt: skip
    for words in (
        "hami: HAMi enforces gpumem",
        "kai: KAI enforces nothing",
        "hami: the image is replace-with-your-image",
        "--queue",
    ):
        assert words in err
    assert "the CUDA context is not counted" in err
    rows = read_table(out_folder / "csv" / "requirements.csv", REQUIREMENTS)
    assert rows == tuple(
        r for r in read_table(Path(A1), REQUIREMENTS) if r.batch_size == 4 and r.model in ("resnet50", "gpt2")
    )


def test_one_file_goes_to_stdout_without_a_folder(gkest: Gkest, tmp_path: Path) -> None:
    status, out, err = gkest(plan(tmp_path), "--to", "hami", "--image", "mine:1")
    assert status == 0
    (found,) = yaml.safe_load_all(out)
    assert (
        found["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] == 30
    )
    assert "wrote" not in err and "image" not in err
    status, out, err = gkest(plan(tmp_path), "--to", "mps")
    assert (status, out) == (2, "")
    assert errors(err) == ["gkest: error: mps: several files are to be written: expected -o FOLDER"]
    status, out, err = gkest(plan(tmp_path), "--to", "hami,kai")
    assert (status, out) == (2, "")


def test_a_target_that_refuses_does_not_stop_the_others(gkest: Gkest, tmp_path: Path) -> None:
    made = plan(tmp_path, creq_pct=130.0)
    status, _, err = gkest(made, "--to", "csv,hami,json", "-o", str(tmp_path / "out"))
    assert status == 1
    (line,) = errors(err)
    assert line.startswith(
        "gkest: error: hami: a-0: found a Creq of 130 % of a V100-SXM2-16GB, expected at most 100"
    )
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["csv", "json"]
    status, _, err = gkest(made, "--to", "hami,mig", "-o", str(tmp_path / "none"))
    assert status == 2 and len(errors(err)) == 2
    assert not (tmp_path / "none").exists()


def test_writing_again_replaces_and_leaves_the_rest(gkest: Gkest, tmp_path: Path) -> None:
    arguments = (plan(tmp_path), "--to", "json", "-o", str(tmp_path / "out"))
    assert gkest(*arguments)[0] == 0
    first = (tmp_path / "out" / "json" / "replicas.json").read_bytes()
    (tmp_path / "out" / "json" / "mine.txt").write_text("mine")
    assert gkest(*arguments)[0] == 0
    assert (tmp_path / "out" / "json" / "replicas.json").read_bytes() == first
    assert sorted(p.name for p in (tmp_path / "out" / "json").iterdir()) == ["mine.txt", "replicas.json"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((A1, "--to", "hami"), "alexnet has 6 rows, expected one per model: choose with --batch-size"),
        ((A1, *SMALL, "--to", "hammi"), "did you mean hami?"),
        ((A1, *SMALL), "Missing option '--to'"),
        (
            (A1, *SMALL, "--to", "hami", "--creq", "occupancy"),
            "--creq 'occupancy': expected one of sm-util-mean",
        ),
        ((A1, *SMALL, "--to", "hami", "--gpu", "V9000"), "unknown GPU 'V9000'"),
        ((A1, *SMALL, "--to", "hami", "--gpu", "T4"), "no row is left under --gpu T4, --batch-size 4"),
        ((A1, *SMALL, "--to", "hami", "--queue", "q"), "--queue: not an option of hami"),
        (
            (A1, *SMALL, "--to", "hami", "--image", "a b"),
            "--image 'a b': expected the name of a container image",
        ),
        ((A1, *SMALL, "--to", "mig"), "mig: V100-SXM2-16GB: no MIG profiles are known of it"),
        (("missing.csv", "--to", "hami"), "missing.csv: cannot be read"),
        (("missing.json", "--to", "hami"), "missing.json: cannot be read"),
        (
            ("missing.txt", "--to", "hami"),
            "missing.txt: found the suffix '.txt', expected a plan (.json) or a table (.csv",
        ),
        ((A1, "--batch-size", "0", "--to", "hami"), "0 is not in the range"),
        ((A1, *SMALL, "--to", ""), "expected names, separated by commas"),
        ((A1, *SMALL, "--to", "hami", "--models", "/nowhere/*.onnx"), "/nowhere/*.onnx: no file matches"),
    ],
)
def test_what_is_wrong_is_one_line(gkest: Gkest, arguments: tuple[str, ...], words: str) -> None:
    status, out, err = gkest(*arguments)
    assert (status, out) == (2, "")
    (line,) = errors(err)
    assert words in line


@pytest.mark.parametrize(
    "name", ["../x", "a\nb", "$(touch owned)", "`id`", "mod\u00e8le", "x" * 300, "-rf", "a b"]
)
@pytest.mark.parametrize("form", ["plan", "table"])
def test_hostile_names_are_refused_before_anything_is_written(
    gkest: Gkest, tmp_path: Path, name: str, form: str
) -> None:
    if form == "plan":
        source = plan(tmp_path, model=name)
    else:
        row = {
            "model": name, "gpu": "V100-SXM2-16GB", "runtime": "torch", "dtype": "fp32", "batch_size": 1, "source": "measured",
            "occupancy_source": None, "memory_source": None,
        }  # fmt: skip
        source = str(tmp_path / "table.json")
        Path(source).write_text(json.dumps({"schema_version": 1, "rows": [row]}))
    status, out, err = gkest(source, "--to", "hami,mps,csv,json,kserve", "-o", str(tmp_path / "out"))
    assert (status, out) == (2, "")
    assert len(errors(err)) == 1
    assert not (tmp_path / "out").exists() and not Path("owned").exists()


def test_the_plan_that_is_read_is_never_written_over(gkest: Gkest, tmp_path: Path) -> None:
    folder = tmp_path / "json"
    folder.mkdir()
    made = Path(plan(tmp_path)).rename(folder / "replicas.json")
    before = made.read_bytes()
    status, _, err = gkest(str(made), "--to", "json", "-o", str(tmp_path))
    assert status == 2 and "is also read" in err
    assert made.read_bytes() == before


def test_a_folder_that_cannot_be_made(gkest: Gkest, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, _, err = gkest(plan(tmp_path), "--to", "hami", "-o", str(tmp_path / "file"))
    assert status == 2
    (line,) = errors(err)
    assert "cannot be written" in line


def test_a_model_file_that_is_not_there_is_refused(gkest: Gkest, tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, _, err = gkest(
        plan(tmp_path), "--to", "triton", "--models", str(tmp_path / "none.onnx"), "-o", str(out)
    )
    assert status == 2
    (line,) = errors(err)
    assert "none.onnx" in line and "no such file" in line
    assert not out.exists()
