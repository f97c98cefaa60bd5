"""Time ``gkest profile build`` on a synthetic capture: seconds and peak memory of a process of its own.

    python benchmarks/build_speed.py [--kernels 100000] [--repeats 20] [--keep FOLDER]

One raw folder with one chunk, whose export holds at least the given number of kernel launches (the tables are those of
Nsight Systems 2023.4, the rows made up: ``_synthetic_raw.py``). To be shown: 100,000 in at most 60 s and 2 GB.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _synthetic_raw import sweep, write_chunk, write_run

from gkestimator.profiling.plan import SweepPlan


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        made = []
        launches = 0
        # About two kernels a call.
        for one in sweep(arguments.kernels // arguments.repeats, repeats=arguments.repeats):
            if launches >= arguments.kernels:
                break
            made.append(one)
            launches += len(one.kernels) * one.repeats
        raw = folder / "raw"
        write_run(raw, SweepPlan(runtime="torch", entries=tuple(m.entry for m in made)))
        chunk = write_chunk(raw, 0, made)
        size = (chunk / "capture.sqlite").stat().st_size
        print(f"{launches:,} launches of {len(made):,} operators, export of {size / 1e6:.0f} MB")
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-P", "-c", "from gkestimator.cli import main; main()", "profile", "build", raw,
             "-o", folder / "dataset.parquet"],
            check=True,
        )  # fmt: skip
        seconds = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = used.ru_utime + used.ru_stime
        print(
            f"build: {seconds:.1f} s, {busy:.1f} s of them at work (at most 60 s), peak {used.ru_maxrss / 2**20:.2f} GB "
            f"(at most 2 GB)"
        )


if __name__ == "__main__":
    main()
