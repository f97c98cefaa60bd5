"""Change profilers' reports and folders of raw measurements: SQLite exports, traces, pages of counters, journals."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import shutil
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fuzz.mutating import ODD, changed_bytes, changed_values, dumped
from gkestimator.cli import run
from gkestimator.core.errors import GkestimatorError
from gkestimator.profiling.captures import Capture
from gkestimator.profiling.parsers import join, parse_kineto, parse_ncu, parse_nsys, split_repeats

_BUILD = ("profile", "build", "raw", "-o", "out.csv")
_PARSERS: dict[str, Callable[[Path], Capture]] = {
    "trace.json": parse_kineto,
    "trace.json.gz": parse_kineto,
    "page.csv": parse_ncu,
    "capture.sqlite": parse_nsys,
}
_COLUMNS = ("ID", "Process ID", "Process Name", "Kernel Name", "Stream", "Grid Size", "Block Size")
_RANGE = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"


def _trace() -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    for i in range(12):
        name = f"gkestimator:e{i}#2"
        events.append(
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": name,
                "pid": 1,
                "tid": 1,
                "ts": 1000 * i,
                "dur": 900,
            }
        )
        for j in range(2):
            number = 2 * i + j
            where = {"ph": "X", "ts": 1000 * i + 10 * j + 5, "dur": 3.001, "pid": 1, "tid": 1}
            kernel = {"device": 0, "stream": 7, "correlation": number, "grid": [1, 2, 3], "block": [32, 1, 1]}
            call = {"correlation": number}
            events.append({**where, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": call})
            events.append({**where, "cat": "kernel", "name": "void k<float>(int)", "tid": 7, "args": kernel})
            events.append({**where, "cat": "cpu_op", "name": "aten::relu", "tid": 2})
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "G"}], "traceEvents": events}


def _page() -> bytes:
    rows = [[*_COLUMNS, _RANGE, "gpu__time_duration.sum", "dram__bytes.sum"]]
    rows.append([*[""] * (len(_COLUMNS) + 1), "usecond", "Mbyte"])
    for i in range(30):
        label = f"1 gkestimator:e{i // 3}#1:none"
        rows.append(
            [str(i), "1", "python", "k(int)", "7", "(64, 2, 1)", "(16, 8, 1)", label, f"{i}.25", "1.5"]
        )
    return "".join(",".join(f'"{v}"' for v in row) + "\n" for row in rows).encode()


def prepare(cache: Path) -> None:
    """Write a raw folder of a run, and a report of each profiler."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from _synthetic_raw import small_run

    small_run(cache / "raw")
    (cache / "trace.json").write_text(json.dumps(_trace()))
    (cache / "trace.json.gz").write_bytes(gzip.compress((cache / "trace.json").read_bytes()))
    (cache / "page.csv").write_bytes(_page())
    shutil.copy(next((cache / "raw").rglob("capture.sqlite")), cache)
    with contextlib.chdir(cache), open(os.devnull, "w") as quiet, contextlib.redirect_stderr(quiet):
        if run(_BUILD):
            raise RuntimeError("the raw folder of valid reports is not built")
    for name in _PARSERS:
        _read(cache / name)


def _read(path: Path) -> int:
    """Return the exit status that reading the report would give; anything but an error of ours ends in a traceback."""
    try:
        capture = _PARSERS[path.name](path)
        for each in capture.ranges:
            split_repeats(each)
        join(capture, capture)
    except GkestimatorError as e:
        print(e)
        return 2
    return 0


def _change_database(rng: random.Random, path: Path) -> None:
    """Change some values of a SQLite file, or its tables; where that fails the file stays as it is."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(rng.choice((1, 1, 2, 5))):
            table = rng.choice(tables)
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')] or ["rowid"]
            column = rng.choice(columns)
            value = rng.choice([v for v in ODD if isinstance(v, str | float | int | None)])
            with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeError):
                match rng.randrange(6):
                    case 0:
                        connection.execute(f'UPDATE "{table}" SET "{column}" = ?', (value,))
                    case 1 | 2:
                        some = f"rowid % 20 = {rng.randrange(20)}"
                        connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {some}', (value,))
                    case 3:
                        connection.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
                    case 4:
                        connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
                    case 5:
                        connection.execute(f'DROP TABLE "{table}"')


def _change(rng: random.Random, path: Path) -> None:
    content = path.read_bytes()
    if path.suffix == ".sqlite" and rng.random() < 0.7:
        with contextlib.suppress(sqlite3.Error):
            _change_database(rng, path)
        return
    changed = changed_bytes(rng, content)
    # What was changed before may be no JSON any more: then its bytes are changed again.
    with contextlib.suppress(ValueError):
        if path.suffix == ".jsonl" and rng.random() < 0.7:
            lines = content.splitlines(keepends=True)
            at = rng.randrange(len(lines))
            lines[at] = dumped(changed_values(rng, json.loads(lines[at]))) + b"\n"
            changed = b"".join(lines)
        elif path.suffix == ".json" and rng.random() < 0.7:
            changed = dumped(changed_values(rng, json.loads(content)))
        elif path.suffix == ".gz" and rng.random() < 0.5:
            changed = gzip.compress(changed_bytes(rng, gzip.decompress(content)))
    path.write_bytes(changed)


def case(rng: random.Random, cache: Path, folder: Path) -> Sequence[str] | Callable[[], int]:
    """Return the building of a raw folder one of whose files is changed, or the reading of a changed report."""
    if rng.random() < 0.4:
        path = folder / rng.choice(list(_PARSERS))
        shutil.copy(cache / path.name, path)
        _change(rng, path)
        return lambda: _read(path)
    shutil.copytree(cache / "raw", folder / "raw")
    files = sorted(path for path in (folder / "raw").rglob("*") if path.is_file() and path.stat().st_size)
    for _ in range(rng.choice((1, 1, 1, 2))):
        _change(rng, rng.choice(files))
    return _BUILD
