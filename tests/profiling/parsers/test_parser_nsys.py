"""The nsys parser on small files of our own: old and new schemas, what ties a kernel to a range, hostile files."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from gkestimator.core.errors import TableError
from gkestimator.profiling.parsers import parse_nsys
from gkestimator.profiling.parsers.spans import innermost, overlapping

PID = 0x0100_0042_0000_00
TID = PID | 7
NVTX = "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER)"
KERNEL = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER,"
    " globalPid INTEGER, demangledName INTEGER, shortName INTEGER, registersPerThread INTEGER, gridX INTEGER, gridY INTEGER,"
    " gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER)"
)
CALL = "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER)"
STRINGS = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)"


class Export:
    """An export under construction: NVTX domain 1 of process PID is ours."""

    def __init__(self, path: Path, *, nvtx: str = NVTX, kernel: str = KERNEL, strings: str = STRINGS) -> None:
        self.path = path
        self.connection = sqlite3.connect(path)
        for sql in (nvtx, kernel, CALL, strings):
            self.connection.execute(sql)
        self.connection.execute(
            "INSERT INTO StringIds VALUES (1, 'void k<float>(int)'), (2, 'k'), (3, 'gkestimator')"
        )

    def insert(self, table: str, **row: object) -> None:
        names = ", ".join(row)
        self.connection.execute(
            f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values())
        )

    def domain(self, text: str | None = "gkestimator", **row: object) -> None:
        self.insert(
            "NVTX_EVENTS",
            **{"start": 0, "eventType": 75, "text": text, "globalTid": TID, "domainId": 1, **row},
        )

    def range(self, text: str | None, start: int, end: int | None, **row: object) -> None:
        given = {
            "start": start,
            "end": end,
            "eventType": 59,
            "text": text,
            "globalTid": TID,
            "domainId": 1,
            **row,
        }
        self.insert("NVTX_EVENTS", **given)

    def call(self, correlation: int, start: int, end: int | None = None, thread: int = TID) -> None:
        end = start + 1 if end is None else end
        self.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, globalTid=thread, correlationId=correlation
        )

    def kernel(self, correlation: int | None, start: int, **row: object) -> None:
        given = {
            "start": start,
            "end": start + 10,
            "deviceId": 0,
            "streamId": 7,
            "correlationId": correlation,
            "globalPid": PID,
            "demangledName": 1,
            "shortName": 2,
            "registersPerThread": 32,
            "staticSharedMemory": 100,
            "dynamicSharedMemory": 28,
            **dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), 2),
            **row,
        }
        there = {r[1] for r in self.connection.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", **{k: v for k, v in given.items() if k in there})

    def done(self) -> Path:
        self.connection.commit()
        self.connection.close()
        return self.path


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "capture.sqlite")


def test_a_kernel_goes_to_the_range_of_its_call_though_it_runs_later(export: Export) -> None:
    export.domain()
    export.range("conv#2", 100, 200)
    export.range("relu#1", 300, 400)
    export.call(1, 150)
    export.call(2, 160)
    export.call(3, 350)
    export.kernel(3, 5000)
    export.kernel(2, 1000)
    export.kernel(1, 2000)
    capture = parse_nsys(export.done())
    assert [(r.entry_id, r.repeats, [k.start_ns for k in r.launches]) for r in capture.ranges] == [
        ("conv", 2, [2000, 1000]),
        ("relu", 1, [5000]),
    ]
    launch = capture.ranges[1].launches[0]
    assert (launch.name, launch.grid, launch.block, launch.duration_ns) == (
        "void k<float>(int)",
        (2, 2, 2),
        (2, 2, 2),
        10,
    )
    assert (launch.static_smem_bytes, launch.dynamic_smem_bytes, launch.smem_bytes) == (100, 28, 128)
    assert capture.problems == () and capture.unjoined == {}


def test_domain_and_text_may_be_string_ids(export: Export) -> None:
    export.connection.execute("INSERT INTO StringIds VALUES (9, 'conv#2')")
    export.domain(None, textId=3)
    export.range(None, 100, 200, textId=9)
    assert [r.entry_id for r in parse_nsys(export.done()).ranges] == ["conv"]


def test_ranges_of_other_domains_and_kinds_do_not_count(export: Export) -> None:
    export.domain()
    export.domain("other", domainId=2)
    export.range("conv#2", 100, 200, domainId=2)
    export.range("conv#2", 100, 200, domainId=0)
    export.range("no label", 100, 200)
    export.range("conv#0", 100, 200)
    export.range("gkestimator:conv#3", 300, 400, domainId=0)
    export.range("conv#2", 500, 600, eventType=60)
    capture = parse_nsys(export.done())
    assert [(r.entry_id, r.repeats) for r in capture.ranges] == [("conv", 3)]
    assert capture.problems == ("1 start/end ranges bear our labels; only push/pop ranges count",)


def test_domains_belong_to_processes(export: Export) -> None:
    export.domain()
    export.range("conv#2", 100, 200, globalTid=TID + (1 << 24))
    capture = parse_nsys(export.done())
    assert capture.ranges == ()
    assert "the name of their domain is missing" in capture.problems[1]


def test_what_cannot_be_joined_is_counted_by_reason(export: Export) -> None:
    export.domain()
    export.range("conv#2", 100, 200)
    export.range("cut#2", 300, None)
    export.call(1, 150)
    export.call(1, 250)
    export.call(2, 250)
    export.call(3, 350)
    export.call(4, 190, 210)
    export.call(5, 150, thread=TID + 1)
    export.call(6, 150)
    for correlation in (1, 2, 3, 4, 5, 77, None):
        export.kernel(correlation, 1000)
    export.kernel(6, 1000, end=999)
    capture = parse_nsys(export.done())
    assert capture.unjoined == {
        "with several calls that may have caused it": 1,
        "outside the ranges of entries": 2,
        "in a range that never ended": 1,
        "by a call that outlasts its range": 1,
        "without the host's call that caused it": 2,
        "with an end before the start": 1,
    }
    assert [r.launches for r in capture.ranges] == [()]
    assert capture.problems == ("1 ranges never ended: cut",)


def test_processes_may_share_correlation_ids(export: Export) -> None:
    other = TID + (1 << 24)
    for thread in (TID, other):
        export.domain(globalTid=thread)
        export.call(1, 150, thread=thread)
    export.range("mine#1", 100, 200)
    export.range("theirs#1", 100, 200, globalTid=other)
    export.kernel(1, 1000)
    export.kernel(1, 2000, globalPid=PID + (1 << 24))
    ranges = {r.entry_id: r for r in parse_nsys(export.done()).ranges}
    assert ranges["mine"].launches[0].start_ns == 1000
    assert ranges["theirs"].launches[0].start_ns == 2000


@pytest.mark.parametrize("processes", [1, 2])
def test_kernels_without_a_process_join_only_where_there_is_one(tmp_path: Path, processes: int) -> None:
    """An old schema: no globalPid, no shared memory; lazy exports lack whole tables."""
    export = Export(tmp_path / "old.sqlite", kernel=KERNEL.replace(" globalPid INTEGER,", ""))
    export.connection.execute("CREATE TABLE EXPORT_META_DATA (name TEXT, value TEXT)")
    export.connection.execute(
        "INSERT INTO EXPORT_META_DATA VALUES ('EXPORT_SCHEMA_VERSION', '2.7.1'), ('EXPORT_PRODUCT_VERSION', '2022.1')"
    )
    export.domain()
    export.range("conv#1", 100, 200)
    export.call(1, 150)
    export.call(2, 150, thread=TID + ((processes - 1) << 24))
    export.kernel(1, 1000)
    export.kernel(2, 2000)
    capture = parse_nsys(export.done())
    assert (capture.tool_version, capture.schema) == ("2022.1", "2.7.1")
    assert len(capture.ranges[0].launches) == (2 if processes == 1 else 0)


def test_an_export_without_cuda_or_ranges_is_read(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "bare.sqlite") as connection:
        connection.execute("CREATE TABLE x (y)")
    capture = parse_nsys(tmp_path / "bare.sqlite")
    assert capture.ranges == ()
    assert capture.problems == ("no NVTX events were recorded (table NVTX_EVENTS is absent)",)


def test_nested_ranges_are_told_and_the_innermost_counts(export: Export) -> None:
    export.domain()
    export.range("outer#1", 100, 400)
    export.range("inner#1", 200, 300)
    export.call(1, 250)
    export.call(2, 350)
    export.kernel(1, 1000)
    export.kernel(2, 2000)
    capture = parse_nsys(export.done())
    assert {r.entry_id: len(r.launches) for r in capture.ranges} == {"outer": 1, "inner": 1}
    assert "1 ranges of ours lie within others" in capture.problems[0]


def test_device_facts_are_those_of_the_gpu_that_ran(export: Export) -> None:
    export.connection.execute(
        "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, smCount INTEGER, cuDevice INTEGER)"
    )
    export.connection.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'A', 10, 1), (1, 'B', 20, 0)")
    export.kernel(1, 1000)
    assert parse_nsys(export.done()).device == {"id": 1, "name": "B", "smCount": 20, "cuDevice": 0}


def test_device_facts_that_may_be_anothers_are_left_out(export: Export) -> None:
    export.connection.execute(
        "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, smCount INTEGER, cuDevice INTEGER)"
    )
    export.connection.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'A', 10, NULL), (1, 'B', 10, NULL)")
    export.kernel(1, 1000, deviceId=5)
    capture = parse_nsys(export.done())
    assert capture.device == {"smCount": 10}
    assert "none that is surely device 5" in capture.problems[-1]


def refused(path: Path, match: str, **options: float) -> None:
    with pytest.raises(TableError, match=match) as caught:
        parse_nsys(path, **options)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite", kernel=KERNEL.replace(" gridX INTEGER,", ""))
    refused(export.done(), "CUPTI_ACTIVITY_KIND_KERNEL: lacks column gridX")


@pytest.mark.parametrize(
    ("column", "value"), [("streamId", "soon"), ("gridX", 1.5), ("correlationId", b"x"), ("end", None)]
)
def test_values_of_another_type_are_refused(export: Export, column: str, value: object) -> None:
    export.kernel(1, 1000, **{column: value})
    refused(export.done(), f"CUPTI_ACTIVITY_KIND_KERNEL.{column}: found .*, expected a whole number")


def test_a_kernel_without_a_name_is_refused(export: Export) -> None:
    export.kernel(1, 1000, demangledName=77, shortName=78)
    refused(export.done(), "the name of a kernel")


def test_names_are_printable_and_of_bounded_length(export: Export) -> None:
    export.connection.execute(
        "INSERT INTO StringIds VALUES (8, ?), (9, ?)", ("k\x1b[2J\n<float>", "k" * 100_000)
    )
    export.domain()
    export.range("conv#1", 100, 200)
    export.call(1, 150)
    export.kernel(1, 1000, demangledName=8)
    export.kernel(1, 2000, demangledName=9)
    first, second = parse_nsys(export.done()).ranges[0].launches
    assert first.name == r"k\u001b[2J <float>"
    assert len(second.name) == 65_536


def test_a_range_that_ends_before_it_starts_is_refused(export: Export) -> None:
    export.domain()
    export.range("conv#1", 200, 100)
    refused(export.done(), "ends at 100, before its start at 200")


def test_a_view_in_place_of_a_table_is_refused(export: Export) -> None:
    export.connection.execute("DROP TABLE NVTX_EVENTS")
    export.connection.execute(
        "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE c(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM c) SELECT * FROM c"
    )
    refused(export.done(), "found a view or virtual table")


def test_a_computed_column_does_not_count_as_one(tmp_path: Path) -> None:
    sneaky = NVTX.replace("start INTEGER", "start INTEGER AS (length(zeroblob(100000000))) VIRTUAL")
    refused(Export(tmp_path / "a.sqlite", nvtx=sneaky).done(), "NVTX_EVENTS: lacks column start")


def test_reading_ends_at_the_time_limit(export: Export) -> None:
    export.domain()
    export.connection.execute(
        "INSERT INTO NVTX_EVENTS (start, eventType) WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c LIMIT 200000) SELECT i, 59 FROM c"
    )
    refused(export.done(), "took more than 0 s", limit_s=0)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "not an SQLite file"),
        (b"QDSTRM" * 100, "nsys export --type sqlite"),
        (b"SQLite format 3\0" + bytes(200), "cannot be read as SQLite"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(content)
    refused(path, match)


def test_absent_files_and_folders_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none.sqlite", "No such file")
    refused(tmp_path, "not a regular file")


def test_nothing_is_written_beside_the_file(export: Export) -> None:
    export.connection.execute("PRAGMA journal_mode = WAL")
    path = export.done()
    content = path.read_bytes()
    parse_nsys(path)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == content


def test_innermost_is_the_latest_started_span_around() -> None:
    spans = [(0, 100), (10, 50), (20, 30), (60, 60), (200, 300)]
    calls = [(5, 6), (25, 26), (40, 41), (30, 31), (60, 60), (55, 56), (150, 151), (300, 301), (-1, 0)]
    assert innermost(spans, calls) == [0, 2, 1, 2, 3, 0, None, 4, None]
    assert overlapping(spans) == 3
