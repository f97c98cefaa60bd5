"""Files cut and with bytes changed: an error of ours in one line, or a capture; never anything else, and in time."""

from __future__ import annotations

import gzip
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nsys_samples import genuine_export, insert_launches, nsight_tools

from gkestimator.core.errors import GkestimatorError, TableError
from gkestimator.profiling.captures import Capture
from gkestimator.profiling.parsers import join, parse_kineto, parse_ncu, parse_nsys, split_repeats

MUTATIONS = 150


def read(parse: Callable[[Path], Capture], path: Path) -> bool:
    """Whether ``path`` was read; refused otherwise, in one line that names it."""
    begun = time.monotonic()
    try:
        capture = parse(path)
        for found in capture.ranges:
            split_repeats(found)
        join(capture, capture)
    except GkestimatorError as e:
        assert "\n" not in str(e)
        assert str(path) in str(e)
        return False
    finally:
        assert time.monotonic() - begun < 30
    return True


def mutants(content: bytes, rng: random.Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        changed = bytearray(content)
        kind = rng.random()
        if kind < 0.6:
            for _ in range(rng.choice((1, 4, 64))):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
        elif kind < 0.8:
            at = rng.randrange(len(changed))
            changed[at : at + rng.choice((1, 16, 4096))] = b""
        else:
            at, size = rng.randrange(len(changed)), rng.choice((1, 16, 4096))
            changed[at : at + size] = rng.randbytes(size)
        yield bytes(changed)


def small_export(path: Path) -> Path:
    """An export of our own, which needs no nsys: 40 ranges, 400 kernels, some copies."""
    with sqlite3.connect(path) as connection:
        connection.executescript("""
            PRAGMA page_size = 1024;
            CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER, domainId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
              demangledName INTEGER, shortName INTEGER, registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER,
              staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, localMemoryPerThread INTEGER, localMemoryTotal INTEGER, gridId INTEGER, graphNodeId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
              bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
              bytes INTEGER, value INTEGER, memKind INTEGER, graphNodeId INTEGER);
            CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT, smCount INTEGER, cuDevice INTEGER);
            INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.7.2');
            INSERT INTO StringIds VALUES (0, 'gkestimator');
            INSERT INTO NVTX_EVENTS VALUES (1, NULL, 75, 'gkestimator', 16777217, NULL, 1);
        """)
        for i in range(40):
            row = (1_000_000 * i + 10, 1_000_000 * (i + 1), 59, f"entry{i}#4", 16777217, None, 1)
            connection.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    connection.close()
    insert_launches(path, random.Random(5), calls=400)
    assert len(parse_nsys(path).ranges) == 40
    return path


def test_an_export_cut_at_every_4_kib_is_refused(tmp_path: Path) -> None:
    content = small_export(tmp_path / "whole.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    for length in range(0, len(content), 4096):
        path.write_bytes(content[:length])
        with pytest.raises(TableError, match=r"cut\.sqlite: (cut short|not an SQLite file)"):
            parse_nsys(path)


@pytest.mark.slow
def test_exports_with_bytes_changed(tmp_path: Path) -> None:
    content = small_export(tmp_path / "whole.sqlite").read_bytes()
    path = tmp_path / "changed.sqlite"
    outcomes = []
    for changed in mutants(content, random.Random(1), 2 * MUTATIONS):
        path.write_bytes(changed)
        outcomes.append(read(parse_nsys, path))
    assert {True, False} <= set(outcomes)


@pytest.mark.slow
def test_genuine_exports_with_bytes_changed(tmp_path: Path) -> None:
    tools = nsight_tools("nsys")
    if not tools:
        pytest.skip("no nsys: neither in $GKEST_NSIGHT nor elsewhere")
    export = genuine_export(tools[0], tmp_path)
    if export is None:
        pytest.skip(f"{tools[0]} did not record all ranges: it takes none, or loses some on a busy machine")
    insert_launches(export, random.Random(1), calls=500)
    content = export.read_bytes()
    path = tmp_path / "changed.sqlite"
    for length in range(4096, len(content), len(content) // 40 // 4096 * 4096):
        path.write_bytes(content[:length])
        assert not read(parse_nsys, path)
    for changed in mutants(content, random.Random(2), MUTATIONS):
        path.write_bytes(changed)
        read(parse_nsys, path)


def trace() -> bytes:
    events = []
    for i in range(100):
        events.append(
            f'{{"ph": "X", "cat": "user_annotation", "name": "gkestimator:e{i}#2", "pid": 1, "tid": 1, "ts": {1000 * i}.125, "dur": 900.5}}'
        )
        for j in range(2):
            where = f'"ts": {1000 * i + 10 * j + 5}, "dur": 3.001'
            events.append(
                f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, {where}, "args": {{"correlation": {2 * i + j}}}}}'
            )
            events.append(
                f'{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, {where}, "args": {{"device": 0, "stream": 7, "correlation": {2 * i + j}, "grid": [1, 2, 3], "block": [32, 1, 1], "shared memory": 0}}}}'
            )
    return (
        '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "G"}], "traceEvents": ['
        + ",\n".join(events)
        + "]}"
    ).encode()


@pytest.mark.slow
@pytest.mark.parametrize("zipped", [False, True])
def test_traces_with_bytes_changed(tmp_path: Path, zipped: bool) -> None:
    content = gzip.compress(trace()) if zipped else trace()
    path = tmp_path / "changed.json"
    path.write_bytes(content)
    assert read(parse_kineto, path)
    for length in range(0, len(content), 4096):
        path.write_bytes(content[:length])
        assert not read(parse_kineto, path)
    outcomes = []
    for changed in mutants(content, random.Random(3), MUTATIONS):
        path.write_bytes(changed)
        outcomes.append(read(parse_kineto, path))
    assert False in outcomes


@pytest.mark.slow
def test_raw_pages_with_bytes_changed(tmp_path: Path) -> None:
    names = [
        "ID",
        "Process ID",
        "Process Name",
        "Kernel Name",
        "Stream",
        "thread Domain:Push/Pop_Range:PL_Type",
        "gpu__time_duration.sum",
        "dram__bytes.sum",
    ]
    rows = [names, ["", "", "", "", "", "", "usecond", "Mbyte"]]
    rows += [
        [str(i), "1", "python", "k(int)", "7", f"1 gkestimator:e{i // 3}#1:none", f"{i}.25", "1.5"]
        for i in range(300)
    ]
    content = "".join(",".join(f'"{v}"' for v in row) + "\n" for row in rows).encode()
    path = tmp_path / "changed.csv"
    path.write_bytes(content)
    assert len(parse_ncu(path).ranges) == 100
    for length in range(0, len(content), 4096):
        path.write_bytes(content[:length])
        read(parse_ncu, path)
    outcomes = []
    for changed in mutants(content, random.Random(4), MUTATIONS):
        path.write_bytes(changed)
        outcomes.append(read(parse_ncu, path))
    assert {True, False} <= set(outcomes)


@pytest.mark.slow
def test_reports_with_bytes_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's library meets them in a process of its own, where it may crash."""
    pytest.importorskip("ncu_report", reason="pip install ncu-report")
    reports = [
        r for ncu in nsight_tools("ncu") for r in sorted(ncu.parent.parent.glob("root/usr/**/*.ncu-rep"))
    ]
    if not reports:
        pytest.skip("no reports of Nsight Compute: $GKEST_NSIGHT names no installation with ncu")
    content = min(reports, key=lambda r: r.stat().st_size).read_bytes()
    path = tmp_path / "changed.ncu-rep"
    for length in range(4096, len(content), 4 * 4096):
        path.write_bytes(content[:length])
        assert not read(parse_ncu, path)
    for changed in mutants(content, random.Random(6), 12):
        path.write_bytes(changed)
        read(parse_ncu, path)
