"""From a plan or a table to what is exported."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from gkestimator.core.errors import GkestimatorError, TableError, UsageError
from gkestimator.exporting.deployment import Deployment
from gkestimator.exporting.loading import TableFilter, load_deployment
from gkestimator.tables import REQUIREMENTS, Requirement, read_table, write_table

Make = Callable[..., Deployment]
A1 = Path(str(files("gkestimator.datasets"))) / "published" / "ethz_v100.csv"


def row(**given: object) -> Requirement:
    usual = {
        "model": "m", "gpu": "V100-SXM2-16GB", "runtime": "torch", "dtype": "fp32", "batch_size": 8, "latency_ms": 5.0,
        "sm_util_mean_pct": 30.2, "mreq_bytes": 2_000_000_000, "source": "analytical", "occupancy_source": "analytical",
        "memory_source": "analytical",
    }  # fmt: skip
    return Requirement(**(usual | given))  # type: ignore[arg-type]


def table(folder: Path, *rows: Requirement, suffix: str = ".csv") -> Path:
    path = folder / f"table{suffix}"
    write_table(REQUIREMENTS, rows, path)
    return path


def test_a_plan_keeps_order_gpus_and_figures(make: Make) -> None:
    found = make(
        gpus={
            "T4-0": ("T4", [{"model": "b"}, {"model": "a"}]),
            "V100-0": ("V100", [{"model": "a", "batch_size": 4}]),
        }
    )
    assert [(i.id, i.gpu_id, i.gpu_type, i.batch_size) for i in found.instances] == [
        ("b-0", "T4-0", "T4", 8), ("a-0", "T4-0", "T4", 8), ("a-1", "V100-0", "V100-SXM2-16GB", 4)
    ]  # fmt: skip
    assert (found.origin, found.creq) == ("plan", "sm-util-mean")
    assert set(found.specs) == {"T4", "V100-SXM2-16GB"}
    one = found.instances[2]
    assert one.mreq_pct == pytest.approx(100 * 2_000_000_000 / found.specs[one.gpu_type].memory_visible_bytes)


def test_memory_in_percent_alone_becomes_bytes_rounded_up(make: Make) -> None:
    found = make({"model": "a", "mreq_bytes": None, "mreq_pct": 6.4})
    visible = found.specs["V100-SXM2-16GB"].memory_visible_bytes
    assert visible * 0.064 <= (found.instances[0].mreq_bytes or 0) < visible * 0.064 + 1


def test_the_table_of_the_thesis_by_batch_size() -> None:
    found = load_deployment(A1, creq="occupancy-max", only=TableFilter(batch_size=8, gpu="v100 sxm2 16gb"))
    rows = {r.model: r for r in read_table(A1, REQUIREMENTS) if r.batch_size == 8}
    assert {i.model for i in found.instances} == set(rows)
    assert found.rows == tuple(rows.values())
    for i in found.instances:
        assert (i.gpu_id, i.creq_pct, i.mreq_bytes) == (
            None, rows[i.model].occupancy_max_pct, rows[i.model].reserved_bytes
        )  # fmt: skip
    assert "CUDA context is not counted" in found.notes[0]


def test_several_rows_for_one_model_name_the_options_that_choose(tmp_path: Path) -> None:
    with pytest.raises(TableError) as caught:
        load_deployment(A1)
    assert (
        "alexnet has 6 rows, expected one per model: choose with batch_size (4, 8, 16, 32, 64, 128)"
        in str(caught.value)
    )
    path = table(tmp_path, row(), row(gpu="T4", dtype="fp16"), row(sm_share_pct=20.0, dims="seq=8"))
    with pytest.raises(TableError) as caught:
        load_deployment(path)
    for words in (
        "gpu (V100-SXM2-16GB, T4)",
        "dtype (fp32, fp16)",
        "sm_share_pct (100.0, 20.0)",
        "dims (none, seq=8)",
    ):
        assert words in str(caught.value)
    assert "runtime (" not in str(caught.value)


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ({"gpu": "t4"}, 1.0), ({"runtime": "onnxruntime"}, 2.0), ({"dtype": "fp16"}, 3.0), ({"dims": "seq=8"}, 4.0),
        ({"sm_share_pct": 20.0}, 5.0), ({"batch_size": 4}, 6.0),
    ],
)  # fmt: skip
def test_each_filter_keeps_its_row(tmp_path: Path, only: dict[str, object], expected: float) -> None:
    path = table(
        tmp_path, row(gpu="T4", latency_ms=1.0), row(runtime="onnxruntime", latency_ms=2.0), row(dtype="fp16", latency_ms=3.0),
        row(dims="seq=8", latency_ms=4.0), row(sm_share_pct=20.0, latency_ms=5.0), row(batch_size=4, latency_ms=6.0),
    )  # fmt: skip
    found = load_deployment(path, only=TableFilter(**only))  # type: ignore[arg-type]
    assert [i.latency_ms for i in found.instances] == [expected]


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_tables_of_every_form_read_alike(tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = table(tmp_path, row(model="a"), row(model="b"), suffix=suffix)
    assert [i.model for i in load_deployment(path).instances] == ["a", "b"]
    assert [i.model for i in load_deployment(path, names=["b"]).instances] == ["b"]


def test_onnx_files_are_found_by_model_name(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m.onnx").write_bytes(b"")
    (tmp_path / "x" / "n.onnx").write_bytes(b"")
    found = load_deployment(table(tmp_path, row()), models=[str(tmp_path)])
    assert found.models == {
        "x/m": str(tmp_path / "x" / "m.onnx"), "y/m": str(tmp_path / "y" / "m.onnx"), "n": str(tmp_path / "x" / "n.onnx")
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["../x", "a\nb", "$(id)", "a b", "", "/etc/passwd", "a//b", "x" * 300, "modèle", "-rf", "a\x00b", "`id`"],
)
def test_a_hostile_model_name_in_a_table_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(TableError) as caught:
        load_deployment(table(tmp_path, row(model=name), suffix=".json"))
    assert "row 1, column model" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["runtime", "dtype", "dims"])
@pytest.mark.parametrize("text", ["a\nb", "\x1b[31m", "x" * 1001, "a\u2028b"])
def test_hostile_texts_in_a_table_are_refused(tmp_path: Path, column: str, text: str) -> None:
    with pytest.raises(TableError, match=f"column {column}"):
        load_deployment(table(tmp_path, row(**{column: text}), suffix=".json"))


@pytest.mark.parametrize("name", ["../x", "a\nb", "$(id)", "x" * 300, "modèle"])
@pytest.mark.parametrize("field", ["model", "id"])
def test_a_hostile_name_in_a_plan_is_refused(make: Make, name: str, field: str) -> None:
    with pytest.raises(GkestimatorError) as caught:
        make({"model": "m"} | {field: name})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"creq": "occupancy"},
            "creq 'occupancy': expected one of sm-util-mean, occupancy-max, occupancy-mean",
        ),
        ({"only": TableFilter(batch_size=9)}, "no row is left under batch_size 9"),
        ({"only": TableFilter(gpu="V9000")}, "unknown GPU 'V9000'"),
        ({"models": ["/nowhere/*.onnx"]}, "/nowhere/*.onnx: no file matches"),
        ({"names": ["mm"]}, "no row for model 'mm', which only asks for"),
    ],
)
def test_wrong_options_for_a_table(tmp_path: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(GkestimatorError, match=re.escape(words)):
        load_deployment(table(tmp_path, row()), **options)  # type: ignore[arg-type]


def test_wrong_options_for_a_plan(make: Make) -> None:
    with pytest.raises(UsageError, match="the plan was packed by sm-util-mean"):
        make({"model": "a"}, creq="occupancy-max")
    with pytest.raises(UsageError, match="found a plan; batch_size choose rows of a table"):
        make({"model": "a"}, only=TableFilter(batch_size=8))
    with pytest.raises(UsageError, match="found a plan; only choose"):
        make({"model": "a"}, names=["a"])
    with pytest.raises(UsageError, match="unknown GPU 'V9000'"):
        make({"model": "a"}, gpu="V9000")
    with pytest.raises(UsageError, match="places no replica"):
        make(gpus={"T4-0": ("T4", [])})


def test_unknown_gpu_of_a_table(tmp_path: Path) -> None:
    path = table(tmp_path, row(), row(gpu="V9000"))
    with pytest.raises(UsageError, match="unknown GPU 'V9000'"):
        load_deployment(path, only=TableFilter(gpu="V9000"))
    assert load_deployment(path, only=TableFilter(gpu="V100")).instances[0].gpu_type == "V100-SXM2-16GB"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"gpus": NaN}',
        '{"gpus": []}',
        '{"rows": 1}',
        "[" * 100_000,
        '{"gpus": [{"id": "a"}]}',
        "null",
    ],
)
def test_broken_json_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(GkestimatorError) as caught:
        load_deployment(path)
    assert str(path) in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    with pytest.raises(GkestimatorError, match="regular file"):
        load_deployment(path)


def test_a_plan_of_another_version_is_refused(make: Make, tmp_path: Path) -> None:
    make({"model": "a"})
    path = tmp_path / "made-plan.json"
    document = json.loads(path.read_text()) | {"schema_version": 2}
    path.write_text(json.dumps(document))
    with pytest.raises(GkestimatorError, match="schema_version: found 2, expected 1"):
        load_deployment(path)
