"""Genuine exports of the real nsys, and rows of kernels put into them."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gkestimator.profiling.tools import NCU, NSYS, find_tool

_PROGRAM = """
import subprocess, sys, threading, time

try:
    from gkestimator.profiling.executors.nvtx_ranges import NvtxRanges
    domains = {name: NvtxRanges(name) for name in ("gkestimator", "other")}
    if not domains["gkestimator"].active:
        sys.exit("no profiler takes ranges")
    def ranged(domain, text):
        return domains[domain].range(text)
except ImportError:
    import nvtx
    def ranged(domain, text):
        return nvtx.annotate(text, domain=domain)

def work(name):
    for i in range(6):
        with ranged("other", f"around-{i}#1"):
            with ranged("gkestimator", f"{name}.{i % 4}#3"):
                time.sleep(0.001)
                with ranged("other", "inside"):
                    time.sleep(0.001)
        with ranged("other", f"{name}.0#3"):
            time.sleep(0.0005)

role = sys.argv[1]
child = subprocess.Popen([sys.executable, "-P", __file__, "second"]) if role == "first" else None
threads = [threading.Thread(target=work, args=(f"{role}-{i}",)) for i in range(2)]
for t in threads:
    t.start()
work(f"{role}-main")
for t in threads:
    t.join()
if child is not None:
    sys.exit(child.wait())
"""
_RANGES = 2 * 3 * 6 * 4
"""Two processes of three threads, six rounds of four ranges."""
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"


def nsight_tools(name: str) -> list[Path]:
    """Every ``name`` (nsys, ncu) of the folders in $GKEST_NSIGHT, else the one that is found elsewhere."""
    prefixes = [Path(p) / "bin" / name for p in os.environ.get("GKEST_NSIGHT", "").split(":") if p]
    found = [p for p in prefixes if p.is_file()]
    elsewhere = None if found else find_tool({"nsys": NSYS, "ncu": NCU}[name])
    return found or ([elsewhere] if elsewhere else [])


def genuine_export(nsys: Path, folder: Path) -> Path | None:
    """An export, not lazy, of two processes with three threads of ranges each; None where this nsys does not record
    them all."""
    program = folder / "program.py"
    program.write_text(_PROGRAM)
    # On a busy machine nsys loses ranges now and then, without a word.
    return next((export for _ in range(4) if (export := _recorded(nsys, program, folder)) is not None), None)


def _recorded(nsys: Path, program: Path, folder: Path) -> Path | None:
    options = [
        "-t",
        "nvtx,osrt",
        "--sample=none",
        "--cpuctxsw=none",
        "--force-overwrite=true",
        "-o",
        str(folder / "a"),
    ]
    recorded = subprocess.run(
        [str(nsys), "profile", *options, sys.executable, "-P", str(program), "first"],
        capture_output=True,
        timeout=120,
        cwd=folder,
        check=False,
    )
    export = folder / "a.sqlite"
    export.unlink(missing_ok=True)
    options = [
        "--type",
        "sqlite",
        "--lazy=false",
        "--quiet=true",
        "--force-overwrite=true",
        "-o",
        str(export),
    ]
    if recorded.returncode == 0:
        subprocess.run(
            [str(nsys), "export", *options, str(folder / "a.nsys-rep")],
            capture_output=True,
            timeout=120,
            check=False,
        )
    if not export.is_file():
        return None
    with sqlite3.connect(export) as connection:
        (ranges,) = connection.execute("SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 59").fetchone()
    return export if ranges == _RANGES else None


@dataclass(frozen=True)
class Inserted:
    """How many kernels, copies and fills were put in."""

    kernels: int
    memory: int


def insert_launches(path: Path, rng: random.Random, *, calls: int, graphs: bool = True) -> Inserted:
    """Put ``calls`` calls of the host in and around random ranges of the export's threads, most of which cause one launch, some
    none, some (CUDA graphs) several; a few launches have no call. Every launch starts at another nanosecond."""
    connection = sqlite3.connect(path)
    ranges = connection.execute(
        "SELECT globalTid, start, end FROM NVTX_EVENTS WHERE eventType = 59"
    ).fetchall()
    (text,) = connection.execute("SELECT max(id) + 1 FROM StringIds").fetchone()
    names = []
    for i in range(12):
        connection.execute(
            "INSERT INTO StringIds VALUES (?, ?)", (text, f"void ns::kernel{i}<float, (int){i}>(T1 *)")
        )
        connection.execute("INSERT INTO StringIds VALUES (?, ?)", (text + 1, f"kernel{i}"))
        names.append((text, text + 1))
        text += 2
    connection.execute("INSERT INTO StringIds VALUES (?, 'cudaLaunchKernel_v7000')", (text,))
    columns = {row[1] for row in connection.execute("PRAGMA table_info(TARGET_INFO_GPU)")}
    for number in range(2):
        facts = {"vmId": 0, "id": number, "name": f"NVIDIA Test {number}", "smCount": 132, "cuDevice": number}
        _insert(connection, "TARGET_INFO_GPU", {k: v for k, v in facts.items() if k in columns})
    correlation: dict[int, int] = {}
    starts: set[int] = set()
    count = {"kernel": 0, "memory": 0}

    def launch(process: int, number: int, begun: int, graph: bool) -> None:
        start = begun + rng.randrange(1, 200_000)
        while start in starts:
            start += 1
        starts.add(start)
        row = {
            "start": start,
            "end": start + rng.randrange(1, 100_000),
            "deviceId": 0,
            "contextId": 1,
            "streamId": rng.choice((7, 13, 14)),
            "correlationId": number,
            "globalPid": process,
        }
        if graph:
            row["graphNodeId"] = rng.randrange(1, 2**40)
        kind = rng.choice(("kernel",) * 8 + ("copy", "fill"))
        if kind == "kernel":
            demangled, short = rng.choice(names)
            row |= {
                "demangledName": demangled,
                "shortName": short,
                "registersPerThread": rng.randrange(16, 256),
            }
            row |= {f"grid{axis}": rng.randrange(1, 5000) for axis in "XYZ"}
            row |= {f"block{axis}": rng.randrange(1, 33) for axis in "XYZ"}
            row |= {
                "staticSharedMemory": rng.randrange(0, 48) * 1024,
                "dynamicSharedMemory": rng.randrange(0, 90_000),
            }
            row |= {"localMemoryPerThread": 0, "localMemoryTotal": 0, "gridId": len(starts)}
            _insert(connection, KERNELS, row)
        elif kind == "copy":
            row |= {"bytes": rng.randrange(1, 10**9), "copyKind": 1, "srcKind": 0, "dstKind": 2}
            _insert(connection, "CUPTI_ACTIVITY_KIND_MEMCPY", row)
        else:
            row |= {"bytes": rng.randrange(1, 10**9), "value": 0, "memKind": 2}
            _insert(connection, "CUPTI_ACTIVITY_KIND_MEMSET", row)
        count["kernel" if kind == "kernel" else "memory"] += 1

    for _ in range(calls):
        thread, first, last = rng.choice(ranges)
        process = thread & ~0xFFFFFF
        number = correlation[process] = correlation.get(process, 0) + 1
        begun = rng.randrange(first - 400_000, last + 400_000)
        ended = begun + rng.choice((1, 500, 5_000, 300_000))
        call = {"start": begun, "end": ended, "eventClass": 0, "globalTid": thread, "correlationId": number}
        _insert(connection, CALLS, {**call, "nameId": text, "returnValue": 0})
        what = rng.random()
        if graphs and what < 0.05:
            for _ in range(rng.randrange(2, 6)):
                launch(process, number, begun, True)
        elif what < 0.9:
            launch(process, number, begun, False)
    for _ in range(calls // 50):
        launch(ranges[0][0] & ~0xFFFFFF, 10**6 + len(starts), rng.randrange(*ranges[0][1:]), False)
    connection.commit()
    connection.close()
    return Inserted(count["kernel"], count["memory"])


def _insert(connection: sqlite3.Connection, table: str, row: dict[str, object]) -> None:
    names = ", ".join(f'"{name}"' for name in row)
    connection.execute(
        f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values())
    )


def report(nsys: Path, name: str, export: Path) -> str:
    """NVIDIA's report ``name`` of the export, as CSV."""
    command = [str(nsys), "stats", "-q", "--report", name, "--format", "csv", "--output", "-", str(export)]
    done = subprocess.run(command, capture_output=True, timeout=120, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""
