"""Read and replay traces of up to 10 GB: rows per second, and peak memory, which must not grow with the file.

    python benchmarks/trace_memory.py [--gigabytes 0.1,1,10] [--format azure-llm|azure-functions-2021] [--folder /tmp]

Each size is a file written for it (rows made up, in order of the end of requests), read and replayed for 20 models in a
process of its own, then deleted. ``read`` is :class:`ReplayedArrivals`: parse, deal to the models, keep times in a temporary
file; ``replay`` is one pass over its chunks. Peak memory is the process's, interpreter and numpy included.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

_ROWS = 200_000
_FUNCTIONS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", default="0.1,1,10")
    parser.add_argument("--format", default="azure-llm", choices=("azure-llm", "azure-functions-2021"))
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        replay(given.read)
        return
    print(
        f"{given.format}: {'file':>8} {'rows':>12} {'read rows/s':>12} {'per CPU s':>11} {'replay req/s':>13} {'peak memory':>12}"
    )
    for size in given.gigabytes.split(","):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            path = Path(folder) / "trace.csv"
            written = write(path, given.format, int(float(size) * 1e9))
            done = subprocess.run(
                [sys.executable, __file__, "--read", str(path)], capture_output=True, text=True, check=True,
                env={**os.environ, "TMPDIR": folder},
            )  # fmt: skip
            rows, read, cpu, replayed, peak = (float(x) for x in done.stdout.split())
            assert rows == written
            print(
                f"{'':{len(given.format)}}  {float(size):>5g} GB {rows:>12,.0f} {rows / read:>12,.0f} {rows / cpu:>11,.0f} "
                f"{rows / replayed:>13,.0f} {peak / 2**20:>8,.0f} MiB",
                flush=True,
            )


def replay(path: Path) -> None:
    """Read and replay ``path``; prints rows, seconds and CPU seconds of reading, seconds of the replay, peak memory."""
    from gkestimator.simulation.arrivals.making import make_arrivals
    from gkestimator.simulation.arrivals.replay import Replay, ReplayedArrivals

    names = [f"m{i}" for i in range(20)]
    start, cpu = time.perf_counter(), time.process_time()
    arrivals = make_arrivals(path, [1.0] * 20, names, replay=Replay(rates="trace"))
    assert isinstance(arrivals, ReplayedArrivals)
    middle, cpu = time.perf_counter(), time.process_time() - cpu
    rows = sum(sum(map(len, c.times_ms)) for c in arrivals.chunks(arrivals.length_ms))
    end = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(rows, middle - start, cpu, end - middle, peak)


def write(path: Path, form: str, size: int) -> int:
    """Write at least ``size`` bytes of made-up rows; how many rows."""
    rng = np.random.default_rng(0)
    rows, micros = 0, 0
    with path.open("wb") as stream:
        header = (
            "TIMESTAMP,ContextTokens,GeneratedTokens"
            if form == "azure-llm"
            else "app,func,end_timestamp,duration"
        )
        stream.write(header.encode() + b"\n")
        while stream.tell() < size:
            times = micros + np.cumsum(rng.integers(0, 2000, _ROWS))
            micros = int(times[-1])
            stream.write((llm_rows if form == "azure-llm" else function_rows)(times, rng))
            rows += _ROWS
    return rows


def digits(values: np.ndarray, width: int) -> np.ndarray:
    """``values`` as text of ``width`` digits: (rows, width) of uint8."""
    return ((values[:, None] // 10 ** np.arange(width - 1, -1, -1)) % 10 + 48).astype(np.uint8)


def joined(parts: list[np.ndarray | bytes]) -> bytes:
    rows = len(next(p for p in parts if isinstance(p, np.ndarray)))
    columns = [
        p if isinstance(p, np.ndarray) else np.tile(np.frombuffer(p, np.uint8), (rows, 1)) for p in parts
    ]
    return np.concatenate(columns, axis=1).tobytes()


def llm_rows(micros: np.ndarray, rng: np.random.Generator) -> bytes:
    seconds = micros // 10**6
    days = np.datetime64("2023-11-16") + (seconds // 86400)
    date = np.array(np.datetime_as_string(days), "S10").view(np.uint8).reshape(-1, 10)
    parts = [date, b" ", digits(seconds // 3600 % 24, 2), b":", digits(seconds // 60 % 60, 2), b":",
             digits(seconds % 60, 2), b".", digits(micros % 10**6, 6), b"0,",
             digits(rng.integers(1000, 8000, len(micros)), 4), b",", digits(rng.integers(10, 100, len(micros)), 2), b"\n"]  # fmt: skip
    return joined(parts)


def function_rows(micros: np.ndarray, rng: np.random.Generator) -> bytes:
    which = rng.integers(0, _FUNCTIONS, len(micros))
    took = np.minimum(rng.integers(0, 60_000, len(micros)), micros // 1000)
    parts = [b"a" * 60, digits(which // 4, 4), b",", b"f" * 60, digits(which, 4), b",", digits(micros // 10**6, 8),
             b".", digits(micros % 10**6 // 1000, 3), b",", digits(took // 1000, 2), b".", digits(took % 1000, 3), b"\n"]  # fmt: skip
    return joined(parts)


if __name__ == "__main__":
    main()
