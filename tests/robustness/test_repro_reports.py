"""Reports of profilers of few bytes that cost minutes or gigabytes, and named pipes among them: one line, at once."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from pathlib import Path

import pytest

from gkestimator.core.errors import TableError
from gkestimator.profiling.parsers import parse_kineto, parse_ncu, parse_nsys
from gkestimator.profiling.parsers.json_stream import stream_object
from gkestimator.profiling.parsers.spans import Causes, HostCall
from gkestimator.profiling.parsers.sqlite_file import open_sqlite
from gkestimator.profiling.records import read_records

ROWS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {}) SELECT 1 FROM n"
FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"


def export(path: Path, **tables: tuple[int, dict[str, str]]) -> Path:
    """Write an SQLite file whose tables have a column ``start`` and others that hold their default in all rows."""
    connection = sqlite3.connect(path)
    for table, (rows, columns) in tables.items():
        connection.execute(f"CREATE TABLE {table} (start INTEGER)")
        connection.execute(f"INSERT INTO {table} {ROWS.format(rows)}")
        for name, default in columns.items():
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} DEFAULT {default}")
    connection.commit()
    connection.close()
    return path


def test_a_text_that_stands_once_for_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = {"eventType": "59", "text": f"'{'a' * 10_000}'"}
    path = export(tmp_path / "a.sqlite", NVTX_EVENTS=(5_000, events))
    assert path.stat().st_size < 100_000
    monkeypatch.setenv("GKEST_LIMITS", "report_characters=1e6")
    with pytest.raises(TableError, match=r"NVTX_EVENTS: found 1,010,000 characters .*=report_characters="):
        parse_nsys(path)


def test_rows_are_counted_no_further_than_they_may_be(tmp_path: Path) -> None:
    path = export(tmp_path / "a.sqlite", many=(1_000, {}))
    with open_sqlite(path, limit_s=60) as file:
        assert file.count("many", at_most=1_000) == 1_000
    with pytest.raises(TableError, match="many: more than 999 rows"), open_sqlite(path, limit_s=60) as file:
        file.count("many", at_most=999)


def test_launches_of_one_key_have_one_cause() -> None:
    """A thousand launches of a thousand calls took a million steps."""

    class Counted(list[int | None]):
        looks = 0

        def __getitem__(self, index: object) -> int | None:  # type: ignore[override]
            Counted.looks += 1
            return super().__getitem__(index)  # type: ignore[index,no-any-return,call-overload]

    calls = [HostCall(start=10 + k, end=20 + k, thread=1) for k in range(1_000)]
    causes = Causes(calls, Counted([3] * 1_000))
    found = {causes.of((1, 7), range(1_000)) for _ in range(1_000)}
    assert {(c.place, c.start_ns, c.end_ns) for c in found} == {(3, 10, 1_019)}
    assert Counted.looks == 1_000


def test_many_calls_and_launches_of_one_correlation(tmp_path: Path) -> None:
    both = {"end": "2", "correlationId": "1"}
    path = export(
        tmp_path / "a.sqlite", **{FILLS: (20_000, both), CALLS: (20_000, {**both, "globalTid": "5"})}
    )
    capture = parse_nsys(path, limit_s=60)
    assert capture.unjoined == {"outside the ranges of entries": 20_000}


def test_fields_beside_the_events_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    long = json.dumps([[]] * 50_000)
    rest = "".join(f'"x{k}": {long}, ' for k in range(20))
    path.write_bytes(gzip.compress(f'{{{rest}"schemaVersion": 1, "traceEvents": []}}'.encode()))
    assert stream_object(path, "traceEvents", pytest.fail, keep=("schemaVersion",)) == {"schemaVersion": 1}
    assert parse_kineto(path).schema == "1"


def test_a_trace_that_takes_too_long_says_which_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + '{"a": 1},' * 200_000 + "{}]}")
    monkeypatch.setattr("gkestimator.profiling.parsers.json_stream.seconds_for", lambda name, size: 0.0)
    with pytest.raises(
        TableError, match=r"took more than 0 s; given up \(GKEST_LIMITS=report_seconds=NUMBER"
    ):
        parse_kineto(path)


@pytest.mark.parametrize("kind", ["pipe", "endless device"])
def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    records, counters = tmp_path / "records.jsonl", tmp_path / "counters.csv"
    for path in (records, counters):
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
    for read, path in ((lambda p: list(read_records(p)), records), (parse_ncu, counters)):
        with pytest.raises(TableError, match="other than a regular file"):
            read(path)
