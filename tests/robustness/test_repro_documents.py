"""Documents, tables and reports of few bytes that once cost minutes, gigabytes or a defect: one line, at once."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.texts import parse_json
from gkestimator.documents import read_cluster, read_plan, read_workload
from gkestimator.profiling.parsers import parse_kineto, parse_ncu
from gkestimator.profiling.raw import read_environment
from gkestimator.simulation.measured.reading import read_serving_log
from gkestimator.tables import REQUIREMENTS, read_table
from gkestimator.tables.reading import parquet_records

_WORKLOAD = "models:\n- {{name: m, rate_rps: {}, slo_ms: 100}}\n"


def refused(read: Callable[[Path], object], path: Path, content: str | bytes) -> str:
    """Return the one line in which ``content`` is refused, within two seconds of the processor's time."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    begun = time.process_time()
    with pytest.raises(GkestimatorError) as caught:
        list(read(path) or ())  # type: ignore[call-overload]
    assert time.process_time() - begun < 2
    assert str(caught.value).startswith(f"{path}")
    return str(caught.value)


@pytest.mark.parametrize(
    "number",
    [
        ":".join(["1"] * 300_000),
        "1:1:1.5",
        "0x" + "f" * 6000,
        "0b" + "1" * 6000,
        "9" * 5000,
        "-" + "1_" * 3000,
    ],
    ids=["base 60", "base 60 float", "hex", "binary", "digits", "underscores"],
)
def test_yaml_numbers_are_plain(tmp_path: Path, number: str) -> None:
    assert "line 2: found '" in refused(read_workload, tmp_path / "w.yaml", _WORKLOAD.format(number))
    cluster = f"gpus:\n- {{type: V100, count: {number}}}\n"
    assert "digits in base 10" in refused(read_cluster, tmp_path / "c.yaml", cluster)


def test_yaml_of_many_items_names_its_limit(tmp_path: Path) -> None:
    words = refused(read_workload, tmp_path / "w.yaml", "models: [" + "1," * 250_000 + "1]")
    assert "more than 200,000 items" in words and "GKEST_LIMITS=yaml_items=NUMBER" in words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "'a' stands twice"),
        ('{"a": ' + "[" * 70 + "]" * 70 + "}", "json_depth"),
        ("[" * 100_000, "json_depth"),
        ('{"a": ' + "9" * 301 + "}", "301 digits"),
        ('{"a": "\\ud800"}', "surrogates"),
        ('{"a": NaN}', "found NaN"),
    ],
)
def test_json_is_bounded_everywhere(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_json(text)
    assert words in refused(read_plan, tmp_path / "p.json", text)
    rows = f'{{"schema_version": 1, "rows": [{text}]}}'
    assert words in refused(lambda path: read_table(path, REQUIREMENTS), tmp_path / "t.json", rows)


def test_json_as_we_write_it_is_read() -> None:
    deep = json.loads("[" * 60 + "]" * 60)
    for value in (deep, {"a": [1, -2.5, None, "é\U0001f600", 10**299]}):
        assert parse_json(json.dumps(value)) == value
        assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize("repeats", [1, 8192])
def test_a_text_of_parquet_does_not_unpack_to_gigabytes(tmp_path: Path, repeats: int) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "bomb.parquet"
    long = arrow.DictionaryArray.from_arrays(arrow.array([0] * repeats, arrow.int32()), ["a" * 5_000_000])
    parquet.write_table(arrow.table({"model": long}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 20_000
    before = arrow.default_memory_pool().max_memory()
    words = refused(parquet_records, path, path.read_bytes())
    assert "5,000,000 characters of a cell" in words
    assert arrow.default_memory_pool().max_memory() - before < 50_000_000


def test_parquet_of_many_rows_or_bytes_is_refused_by_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(arrow.table({"batch_size": [1] * 2_000_000}), path, compression="zstd")
    assert path.stat().st_size < 40_000
    assert "found 2,000,000 rows" in refused(parquet_records, path, path.read_bytes())
    parquet.write_table(arrow.table({"batch_size": list(range(1000))}), path)
    monkeypatch.setenv("GKEST_LIMITS", "unpacked_bytes=4000")
    assert "bytes of unpacked pages" in refused(parquet_records, path, path.read_bytes())
    monkeypatch.setenv("GKEST_LIMITS", "rows=1000")
    assert len(list(parquet_records(path))) == 1000
    parquet.write_table(arrow.table({"model": [["m"], ["n"]]}), path)
    assert "values of type list" in refused(parquet_records, path, path.read_bytes())


def test_a_csv_of_one_line_is_refused(tmp_path: Path) -> None:
    def read(path: Path) -> object:
        return read_table(path, REQUIREMENTS)

    assert "line_characters" in refused(read, tmp_path / "t.csv", "a," * 3_000_000)


def test_traces_are_bounded_by_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json.gz"
    monkeypatch.setenv("GKEST_LIMITS", "trace_characters=1e6,trace_words=100,trace_events=1000")
    assert "trace_characters" in refused(
        parse_kineto, path, gzip.compress(b'{"traceEvents": [' + b" " * 10**7)
    )
    events = b'{"traceEvents": [' + b'{"a": nan},' * 1000
    assert "trace_words" in refused(parse_kineto, path, gzip.compress(events))
    events = b'{"traceEvents": [' + b'{"a": 1},' * 2000
    assert "trace_events" in refused(parse_kineto, path, gzip.compress(events))


def test_a_page_of_counters_with_endless_numbers(tmp_path: Path) -> None:
    head = '"ID","Process ID","Kernel Name","Grid Size","gpu__time_duration.sum","dram__bytes.sum"\n'
    units = '"","","","","second","Gbyte"\n'
    path = tmp_path / "page.csv"
    path.write_text(head + units + f'"0","1","k","({"9" * 400}, 1, 1)","1","{"9" * 308}"\n')
    (launch,) = parse_ncu(path).ranges[0].launches if parse_ncu(path).ranges else (None,)
    assert launch is None or launch.grid is None
    columns = ",".join(f'"a{i}"' for i in range(60_000))
    text = f'"ID","Process ID","Kernel Name",{columns},"a59999"\n'
    assert "'a59999' occurs twice" in refused(parse_ncu, path, text)


def test_a_sample_of_the_environment_beyond_a_float(tmp_path: Path) -> None:
    content = f'{{"unix_ns": 1, "power_w": -1{"0" * 400}}}\n'
    path = tmp_path / "environment.jsonl"
    assert "401 digits" in refused(lambda _: read_environment(tmp_path), path, content).replace("402", "401")


def test_a_log_that_lasts_for_ever(tmp_path: Path) -> None:
    content = "model,arrived_ms,total_ms\nm,0,1\nm,1e308,1\n"
    assert "three years" in refused(lambda path: [read_serving_log(path)], tmp_path / "log.csv", content)
