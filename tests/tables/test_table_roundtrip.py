"""Writers and strict readers: what is written comes back, what is wrong is refused with file, row and
column."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gkestimator.core.errors import GkestimatorError, OutputError, TableError, UsageError
from gkestimator.tables import (
    KERNEL_DATASET,
    REQUIREMENTS,
    KernelMeasurement,
    Requirement,
    read_table,
    render,
    to_dataframe,
    write_table,
)

ROW = Requirement(
    model="resnet50", gpu="V100-SXM2-16GB", runtime="torch", dtype="fp32", batch_size=8, dims="seq=128",
    latency_ms=12.3456789012345, latency_low_ms=10.0, latency_high_ms=15.5, host_bound=False, mreq_bytes=2**40 + 1,
    source="trained:default", occupancy_source="analytical", memory_source=None, warnings="a; b",
)  # fmt: skip
MINIMAL = "model,gpu,runtime,dtype,batch_size,source\n"


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_rows_come_back_as_written(tmp_path: Path, suffix: str) -> None:
    rows = (ROW, replace(ROW, batch_size=16, latency_ms=None, host_bound=None, dims="", warnings=""))
    path = tmp_path / f"t.{suffix}"
    write_table(REQUIREMENTS, rows, path)
    assert read_table(path, REQUIREMENTS) == rows
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "a temporary file was left behind"


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=20)
_FLOAT = st.none() | st.floats(0, 1e300)


@settings(max_examples=60, deadline=None)
@given(
    model=_TEXT,
    latency=_FLOAT,
    memory=st.none() | st.integers(0, 2**62),
    bound=st.none() | st.booleans(),
    form=st.sampled_from(["csv", "json"]),
)
def test_any_row_survives(
    tmp_path_factory: pytest.TempPathFactory,
    model: str,
    latency: float | None,
    memory: int | None,
    bound: bool | None,
    form: str,
) -> None:
    path = tmp_path_factory.mktemp("t") / f"t.{form}"
    row = replace(ROW, model=model, latency_ms=latency, mreq_bytes=memory, host_bound=bound)
    write_table(REQUIREMENTS, [row], path)
    assert read_table(path, REQUIREMENTS) == (row,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty file"),
        ("model,gpu,runtime,dtype,batch_size\n", "column source missing"),
        ("model,gpu,runtime,dtype,batch_size,source,latency_us\n", "did you mean latency_ms"),
        ("model,gpu,runtime,dtype,batch_size,source,model\n", "stands twice"),
        (MINIMAL + "m,g,torch,fp32,1.5,measured\n", "row 1, column batch_size: found '1.5', expected a whole number"),
        (MINIMAL + "m,g,torch,fp32,0,measured\n", "row 1, column batch_size: found 0, expected at least 1"),
        (MINIMAL + "m,g,torch,fp32,1,measured\nm,g,torch,fp32,1_0,measured\n", "row 2, column batch_size"),
        (MINIMAL + "m,g,torch,fp32,1\n", "row 1: found 5 cells, expected 6"),
        (MINIMAL + "m,g,torch,fp32,1,measured\nm,g,torch,fp32,1,measured\n", "rows 1 and 2 both answer model=m"),
        (MINIMAL.replace("source", "source,latency_ms") + "m,g,torch,fp32,1,measured,nan\n", "expected a finite"),
        (MINIMAL.replace("source", "source,latency_ms") + "m,g,torch,fp32,1,measured,-1\n", "expected at least 0"),
        (MINIMAL.replace("source", "source,schema_version") + "m,g,torch,fp32,1,measured,2\n", "expected 1"),
        (MINIMAL.replace("source", "source,host_bound") + "m,g,torch,fp32,1,measured,maybe\n", "true or false"),
        (MINIMAL.replace("source", "source,flops") + "m,g,torch,fp32,1,measured," + "9" * 30 + "\n", "64 bits"),
        ("\x00\x01\xff", "column"),
    ],
)  # fmt: skip
def test_bad_csv_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TableError) as caught:
        read_table(path, REQUIREMENTS)
    assert "bad.csv" in str(caught.value)
    if expected != "column":
        assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "expected {"),
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ('{"schema_version": 2, "rows": []}', "schema_version: found 2"),
        ('{"schema_version": 1, "rows": [3]}', "row 1: found int"),
        ('{"schema_version": 1, "rows": [{"model": "m", "latency_ms": NaN}]}', "found NaN"),
        ('{"schema_version": 1, "rows": [{"model": "m"}]}', "missing"),
    ],
)
def test_bad_json_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(TableError, match="bad.json") as caught:
        read_table(path, REQUIREMENTS)
    assert expected in str(caught.value)


def test_bad_parquet_and_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(TableError, match="cannot be read as Parquet"):
        read_table(path, REQUIREMENTS)
    with pytest.raises(TableError, match="No such file"):
        read_table(tmp_path / "none.csv", REQUIREMENTS)
    with pytest.raises(TableError, match="regular file"):
        read_table(tmp_path, REQUIREMENTS, "csv")
    with pytest.raises(UsageError, match="suffix"):
        read_table(tmp_path / "table.xls", REQUIREMENTS)


def test_minimal_measured_table(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("﻿" + MINIMAL + "m,V100,torch,fp32,4,measured\n", encoding="utf-8")
    (row,) = read_table(path, REQUIREMENTS)
    assert row.batch_size == 4
    assert row.latency_ms is None
    assert row.mreq_bytes is None
    assert row.sm_share_pct == 100


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, "1", True])
def test_writers_refuse_what_readers_would(bad: object) -> None:
    with pytest.raises(TableError, match="row 1, column latency_ms"):
        render([replace(ROW, latency_ms=bad)], "json")  # type: ignore[arg-type]


def test_json_holds_schema_version_rows_and_null() -> None:
    document = json.loads(render([ROW], "json"))
    assert document["schema_version"] == REQUIREMENTS.version
    assert document["rows"][0]["power_w"] is None
    assert list(document["rows"][0]) == list(REQUIREMENTS.names)


def test_provenance_has_no_default() -> None:
    for name in ("source", "occupancy_source", "memory_source"):
        assert REQUIREMENTS.by_name[name].required
    with pytest.raises(TypeError, match="source"):
        Requirement(model="m", gpu="g", runtime="torch", dtype="fp32", batch_size=1)  # type: ignore[call-arg]


def test_unwritable_output_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("old")
    with pytest.raises(TableError):
        write_table(REQUIREMENTS, [replace(ROW, latency_ms=math.nan)], path)
    assert path.read_text() == "old"
    with pytest.raises(OutputError, match="folder"):
        write_table(REQUIREMENTS, [ROW], tmp_path, "csv")
    with pytest.raises(OutputError, match="cannot be written"):
        write_table(REQUIREMENTS, [ROW], tmp_path / "no" / "t.csv")
    with pytest.raises(OutputError, match="No space left"):
        write_table(REQUIREMENTS, [ROW] * 500, Path("/dev/full"), "csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv"]


def test_a_failing_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    path = tmp_path / "t.csv"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GkestimatorError, match="No space left"):
        write_table(REQUIREMENTS, [ROW], path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


def test_dataframe_keeps_types_and_missing_values() -> None:
    frame = to_dataframe([ROW, replace(ROW, latency_ms=None, host_bound=None)])
    assert list(frame.columns) == list(REQUIREMENTS.names)
    assert frame["latency_ms"].isna().tolist() == [False, True]
    assert frame["mreq_bytes"].iloc[0] == 2**40 + 1
    assert str(frame["host_bound"].dtype) == "boolean"


def test_kernel_dataset_round_trip(tmp_path: Path) -> None:
    row = KernelMeasurement(
        entry_id="e1", gpu="T4", runtime="torch", collector="nsys", op_type="MatMul", dtype="fp32",
        input_shapes="[[8,16],[16,4]]", family="linear", duration_us=12.5, quality="ok",
    )  # fmt: skip
    path = tmp_path / "k.parquet"
    write_table(KERNEL_DATASET, [row], path)
    assert read_table(path, KERNEL_DATASET) == (row,)
