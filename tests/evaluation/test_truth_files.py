"""Truth tables as people and programs write them, and those that are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest

from gkestimator.core.errors import TableError
from gkestimator.evaluation import truth as truth_module
from gkestimator.evaluation.truth import Truth, read_truth
from gkestimator.tables import REQUIREMENTS, Requirement, write_table

HEAD = "model,batch_size,latency_ms\n"


def read(tmp_path: Path, content: str | bytes, name: str = "t.csv") -> Truth:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_truth(path)


@pytest.mark.parametrize(
    "content",
    [
        "model,batch_size,latency_ms\nm,4,3.5\n",
        "\ufeffmodel;batch_size;latency_ms\r\nm;4;3,5\r\n",
        "model\tbatch_size\tlatency_ms\nm\t4\t3.5\n\n",
        ' model , batch_size ,latency_ms,"a note"\r\n" m ", 4 ,3.5e0,"x, y"\r\n',
        "model,batch_size,throughput_rps\nm,4,1142.857142857143\n",
        "latency_ms,model,batch_size\n3.5,m,4.0\n",
    ],
)
def test_the_same_row_however_it_is_written(tmp_path: Path, content: str) -> None:
    (m,) = read(tmp_path, content).measurements
    assert (m.model, m.batch_size, m.gpu, m.runtime, m.dtype, m.dims) == ("m", 4, None, None, None, ())
    assert m.values == {"latency_ms": pytest.approx(3.5)}


def test_every_column_that_means_something(tmp_path: Path) -> None:
    (m,) = read(
        tmp_path,
        "model,gpu,runtime,dtype,batch_size,dims,sm_share_pct,latency_ms,reserved_bytes,sm_util_mean_pct,operator\n"
        'm,L4,onnxruntime,fp16,,"seq=128,past=0",50,,1048576,0,me\n',
    ).measurements
    assert (m.gpu, m.runtime, m.dtype, m.batch_size, m.sm_share_pct) == (
        "L4",
        "onnxruntime",
        "fp16",
        None,
        50,
    )
    assert m.dims == (("past", 0), ("seq", 128))
    assert m.values == {"reserved_bytes": 1048576, "sm_util_mean_pct": 0}  # an idle GPU is a measurement


def test_columns_that_are_not_used_are_named(tmp_path: Path) -> None:
    assert read(tmp_path, "model,batch_size,latency_ms,driver,host\nm,1,2,5,x\n").messages == (
        "t.csv: columns not used: driver, host",
    )


def measured_row(**changes: Any) -> Requirement:
    values: dict[str, Any] = {
        "model": "m", "gpu": "T4", "runtime": "torch", "dtype": "fp32", "batch_size": 2, "latency_ms": 5.0,
        "source": "measured", "occupancy_source": None, "memory_source": None,
    }  # fmt: skip
    return Requirement(**{**values, **changes})


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_a_requirement_table_is_a_truth(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    write_table(REQUIREMENTS, [measured_row(), measured_row(batch_size=4, latency_ms=9.0)], path)
    first, second = read_truth(path).measurements
    assert (first.gpu, first.runtime, first.batch_size, first.values) == (
        "T4",
        "torch",
        2,
        {"latency_ms": 5.0},
    )
    assert second.batch_size == 4


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_an_estimate_is_no_truth(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t.{suffix}"
    write_table(REQUIREMENTS, [measured_row(source="trained:default")], path)
    with pytest.raises(TableError, match="row 1, column source: found 'trained:default', expected measured"):
        read_truth(path)


def test_three_columns_in_json_and_parquet(tmp_path: Path) -> None:
    rows = [{"model": "m", "batch_size": 1, "latency_ms": 2.5}, {"model": "m", "batch_size": 2, "latency_ms": None,
            "mreq_bytes": 7}]  # fmt: skip
    one, two = read(tmp_path, json.dumps(rows), "t.json").measurements
    assert one.values == {"latency_ms": 2.5} and two.values == {"mreq_bytes": 7}
    pandas.DataFrame(rows).to_parquet(tmp_path / "t.parquet")
    assert read_truth(tmp_path / "t.parquet").measurements == (one, two)


@pytest.mark.parametrize(
    "content, words",
    [
        ("", "empty file"),
        ("\n\n", "empty file"),
        (HEAD, "no rows"),
        ("model,batch_size\nm,1\n", "column latency_ms is missing: found model, batch_size, expected latency_ms (milli"),
        ("model,batch_size,latency_s\nm,1,2\n", "column latency_ms is missing: found 'latency_s', expected latency_ms (m"),
        ("model,batch_size,Latency (s)\nm,1,2\n", "found 'Latency (s)', expected latency_ms (milliseconds a batch)"),
        ("model,batch_size,seconds\nm,1,2\n", "found 'seconds', expected latency_ms"),
        ("model,batch_size,time_us,reserved_bytes\nm,1,2,3\n", "found 'time_us', expected latency_ms"),
        ("model,bs,latency_ms\nm,1,2\n", "column batch_size is missing: found 'bs', expected batch_size"),
        ("network,batch_size,latency_ms\nm,1,2\n", "column model is missing: found 'network', expected model"),
        ("model,model,batch_size,latency_ms\nm,m,1,2\n", "column 'model' stands twice"),
        (HEAD + "m,1,nan\n", "row 1, column latency_ms: found nan, expected a finite number"),
        (HEAD + "m,1,inf\n", "row 1, column latency_ms: found inf"),
        (HEAD + "m,1,2\nm,2,-3\n", "row 2, column latency_ms: found -3.0, expected at least 0"),
        (HEAD + "m,1,0\n", "row 1, column latency_ms: found 0.0, expected more than 0"),
        (HEAD + "m,1,fast\n", "row 1, column latency_ms: found 'fast', expected a number (ms)"),
        (HEAD + "m,1,1_000\n", "found '1_000'"),
        (HEAD + 'm,1,"3,5"\n', "found '3,5'"),
        (HEAD + "m,1,\n", "found nothing measured"),
        (HEAD + "m,0,2\n", "row 1, column batch_size: found 0, expected at least 1"),
        (HEAD + "m,1.5,2\n", "row 1, column batch_size: found 1.5, expected a whole number"),
        (HEAD + ",1,2\n", "row 1, column model: found"),
        (HEAD + "a\x1b[31m,1,2\n", "expected a name or a path in printable characters"),
        (HEAD + "m,1\n", "row 1: found 2 cells, expected 3"),
        (HEAD + 'm,1,"2\n', "cannot be read as CSV"),
        (HEAD + "m,1,2\nn,1,2\nm,1,3\n", "rows 1 and 3 both measure m at batch 1; expected one row for each"),
        ("model,batch_size,latency_ms,dims\nm,1,2,seq\n", "column dims: found 'seq', expected name=number"),
        ("model,batch_size,throughput_rps\nm,,2\n", "a rate without batch_size"),
        (b"\xff\xfe\x00m\x00", "cannot be read as CSV in UTF-8"),
        (b"PAR1\0\0\0", "binary data"),
    ],
)  # fmt: skip
def test_what_is_refused_in_one_line(tmp_path: Path, content: str | bytes, words: str) -> None:
    with pytest.raises(TableError) as caught:
        read(tmp_path, content)
    text = str(caught.value)
    assert words in text and str(tmp_path / "t.csv") in text and "\n" not in text


@pytest.mark.parametrize(
    "content, words",
    [
        ("{", "cannot be read as JSON"),
        ("3", "expected a list of objects"),
        ("[3]", "row 1: found int, expected an object"),
        ('{"schema_version": 2, "rows": []}', "schema_version: found 2"),
        ('{"rows": []}', "no rows"),
        ('[{"model": "m", "batch_size": 1, "latency_ms": NaN}]', "found NaN"),
        ('[{"model": ["m"], "batch_size": 1, "latency_ms": 1}]', "row 1, column model"),
        ('[{"model": "m", "batch_size": true, "latency_ms": 1}]', "row 1, column batch_size"),
        ('[{"model": "m", "batch_size": 1, "latency_ms": "1"}]', "row 1, column latency_ms: found '1'"),
        ('[{"model": "m", "batch_size": 1' + "0" * 40 + ', "latency_ms": 1}]', "beyond 64 bits"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_what_is_refused_in_json(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(TableError) as caught:
        read(tmp_path, content, "t.json")
    assert words in str(caught.value)


def test_no_parquet_no_file_no_regular_file_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TableError, match="cannot be read as Parquet"):
        read(tmp_path, "model", "t.parquet")
    with pytest.raises(TableError, match="cannot be read: No such file"):
        read_truth(tmp_path / "absent.csv")
    with pytest.raises(TableError, match="other than a regular file"):
        read_truth("/dev/zero")
    with open(tmp_path / "huge.csv", "wb") as stream:
        stream.truncate(truth_module.MAX_TRUTH_BYTES + 1)  # a sparse file: nothing is written or read
    with pytest.raises(TableError, match="found 67,108,865 bytes, expected at most 67,108,864"):
        read_truth(tmp_path / "huge.csv")
    monkeypatch.setattr(truth_module, "MAX_TRUTH_ROWS", 2)
    with pytest.raises(TableError, match="more than 2 rows"):
        read(tmp_path, HEAD + "a,1,1\nb,1,1\nc,1,1\n")


GOOD = {
    "t.csv": b'model,gpu,batch_size,dims,latency_ms,reserved_bytes\nm,T4,1,"a=1,b=2",2.5,100\nn,L4,2,,3e1,\n',
    "t.json": b'{"schema_version": 1, "rows": [{"model": "m", "batch_size": 1, "latency_ms": 2.5, "dims": "a=1"}]}',
}
PIECES = (
    b"",
    b"\x00",
    b",",
    b";",
    b'"',
    b"\n",
    b"\r",
    b"-",
    b"e999",
    b"nan",
    b"\xff",
    b"[",
    b"{",
    b"1e400",
    b"=",
    b"_",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, name: str) -> None:
    """Every change of one place: it still says something that may be compared, or is refused in one line."""
    good = GOOD[name]
    refused = 0
    for at in range(0, len(good), 2):
        for piece in PIECES:
            try:
                rows = read(tmp_path, good[:at] + piece + good[at + 1 :], name).measurements
            except TableError as e:
                refused += 1
                assert "\n" not in str(e) and str(e).startswith(str(tmp_path / name))
            else:
                values = [v for m in rows for v in m.values.values()]
                assert rows and values and all(0 <= v < float("inf") for v in values)
    assert refused > len(good) // 2
