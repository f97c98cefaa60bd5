"""Time the parsers on 100,000 kernels: seconds and peak memory, each in a process of its own.

    python benchmarks/parse_speed.py [--kernels N]

Entries of 20 repeats of 2 kernels; as an nsys export, as a kineto trace (gzip) and, a hundredth of them (each kernel of
the counters' pass runs once, and an entry in six), as ncu's raw page with 60 metrics.
"""

from __future__ import annotations

import argparse
import gzip
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEATS, KERNELS_A_REPEAT = 20, 2
GAP = 10_000
NAME = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::f<float>, std::array<char*, 2> >(int, T2)"
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", type=int, default=100_000)
    parser.add_argument("--parse", nargs=2, metavar=("WHICH", "FILE"))
    options = parser.parse_args()
    if options.parse:
        parse(*options.parse)
        return
    with tempfile.TemporaryDirectory() as folder:
        for which, make, kernels in (
            ("nsys", make_nsys, options.kernels),
            ("kineto", make_kineto, options.kernels),
            ("ncu", make_ncu, max(1, options.kernels // 100)),
        ):
            path = make(Path(folder), kernels)
            print(f"{which}: {kernels:,} kernels, {path.stat().st_size / 1e6:.1f} MB: ", end="", flush=True)
            subprocess.run([sys.executable, "-P", __file__, "--parse", which, str(path)], check=True)


def parse(which: str, file: str) -> None:
    from gkestimator.profiling.parsers import parse_kineto, parse_ncu, parse_nsys, split_repeats

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun, cpu = time.perf_counter(), time.process_time()
    capture = {"nsys": parse_nsys, "kineto": parse_kineto, "ncu": parse_ncu}[which](Path(file))
    parsed, cpu = time.perf_counter(), time.process_time() - cpu
    if not all(split_repeats(r)[0] for r in capture.ranges):
        raise SystemExit("repeats were not found")
    ended = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    launches = sum(len(r.launches) for r in capture.ranges)
    print(
        f"{launches:,} joined to {len(capture.ranges):,} ranges in {parsed - begun:.2f} s ({cpu:.2f} s of CPU time), repeats cut in "
        f"{ended - parsed:.2f} s; peak memory {peak / 1024:.0f} MiB ({(peak - before) / 1024:.0f} more than at start)"
    )


def entries(kernels: int) -> range:
    return range(max(1, kernels // (REPEATS * KERNELS_A_REPEAT)))


def make_nsys(folder: Path, kernels: int) -> Path:
    path = folder / "capture.sqlite"
    connection = sqlite3.connect(path)
    kernel = (
        "start end deviceId contextId streamId correlationId globalPid demangledName shortName registersPerThread gridX gridY "
        "gridZ blockX blockY blockZ staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId graphNodeId"
    )
    for table, columns in {
        "META_DATA_EXPORT": "name value",
        "StringIds": "id value",
        "NVTX_EVENTS": "start end eventType text globalTid textId domainId",
        "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
        "CUPTI_ACTIVITY_KIND_KERNEL": kernel,
    }.items():
        connection.execute(f"CREATE TABLE {table} ({', '.join(columns.split())})")
    thread, process = (1 << 24) | 1, 1 << 24
    connection.execute("INSERT INTO StringIds VALUES (1, ?), (2, 'k')", (NAME,))
    connection.execute("INSERT INTO NVTX_EVENTS VALUES (0, NULL, 75, 'gkestimator', ?, NULL, 1)", (thread,))
    correlation = 0
    for i in entries(kernels):
        start = i * GAP * 100
        row = (start, start + GAP * 90, 59, f"Conv-fp32-{i:016x}#{REPEATS}", thread, None, 1)
        connection.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        for j in range(REPEATS * KERNELS_A_REPEAT):
            correlation += 1
            at = start + 10 + j * GAP
            # Besides the launch there are calls that launch nothing, as in a real capture.
            for number, offset in (
                (correlation, 0),
                (10**9 + 2 * correlation, 100),
                (10**9 + 2 * correlation + 1, 200),
            ):
                connection.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 2, 0)",
                    (at + offset, at + offset + 50, thread, number),
                )
            grid = j % KERNELS_A_REPEAT + 1
            row = (
                at + 5000,
                at + 9000,
                0,
                1,
                7,
                correlation,
                process,
                1,
                2,
                32,
                grid,
                1,
                1,
                128,
                1,
                1,
                0,
                0,
                0,
                0,
                correlation,
                None,
            )
            connection.execute(
                f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(row))})", row
            )
    connection.commit()
    connection.close()
    return path


def make_kineto(folder: Path, kernels: int) -> Path:
    path = folder / "trace.json.gz"
    correlation = 0
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}], "traceEvents": [\n')
        for i in entries(kernels):
            start = 4347229351983 + i * 1000
            label = f"gkestimator:Conv-fp32-{i:016x}#{REPEATS}"
            file.write(
                f'{{"ph": "X", "cat": "user_annotation", "name": "{label}", "pid": 1, "tid": 1, "ts": {start}.125, "dur": 900.5}}'
            )
            for j in range(REPEATS * KERNELS_A_REPEAT):
                correlation += 1
                when = f'"ts": {start + 1 + j * 10}.067, "dur": 4.128'
                file.write(
                    f',\n{{"ph": "X", "cat": "cpu_op", "name": "aten::relu", "pid": 1, "tid": 1, {when}, "args": {{"External id": {correlation}}}}}'
                )
                file.write(
                    f',\n{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, {when}, "args": {{"correlation": {correlation}}}}}'
                )
                file.write(
                    f',\n{{"ph": "X", "cat": "kernel", "name": "{NAME}", "pid": 0, "tid": 7, {when}, "args": {{"device": 0, "context": 1, "stream": 7, "correlation": {correlation}, '
                    f'"registers per thread": 26, "shared memory": 0, "blocks per SM": 1.18, "warps per SM": 4.74, "grid": [{j % KERNELS_A_REPEAT + 1}, 1, 1], "block": [64, 2, 1]}}}}'
                )
            file.write("\n" if i == entries(kernels)[-1] else ",\n")
        file.write("]}")
    return path


def make_ncu(folder: Path, kernels: int) -> Path:
    path = folder / "counters.csv"
    metrics = [f"unit__metric_{i}.sum" for i in range(58)]
    names = [
        "ID",
        "Process ID",
        "Process Name",
        "Kernel Name",
        "thread Domain:Push/Pop_Range:PL_Type",
        "gpu__time_duration.sum",
        "dram__bytes.sum",
        *metrics,
    ]
    units = ["", "", "", "", "", "usecond", "Mbyte", *["inst"] * len(metrics)]
    with path.open("w") as file:
        for row in (names, units):
            file.write(",".join(f'"{v}"' for v in row) + "\n")
        for i in range(kernels):
            row = [
                str(i),
                "1",
                "python",
                NAME,
                f"1 gkestimator:Conv-fp32-{i // 2:016x}#1:none",
                "12.25",
                "1.5",
                *(f"{i + j}.25" for j in range(58)),
            ]
            file.write(",".join(f'"{v}"' for v in row) + "\n")
    return path


if __name__ == "__main__":
    main()
