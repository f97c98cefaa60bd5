"""Time whole processes, as a user starts them: seconds (median of 5) and peak memory.

GKEST_SHARED=... python benchmarks/cold_start.py
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from pathlib import Path

from _shared import shared_dir

REPEATS = 5


def spent(command: list[str]) -> tuple[float, float]:
    """Wall seconds and peak resident MiB of one run of ``command`` (its output is thrown away)."""
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        os.execv(command[0], command)
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    if status:
        sys.exit(f"{' '.join(command)} ended with status {os.waitstatus_to_exitcode(status)}")
    return seconds, usage.ru_maxrss / 1024


def main() -> None:
    gkest = shutil.which("gkest", path=str(Path(sys.executable).parent)) or shutil.which("gkest")
    if gkest is None:
        sys.exit("gkest is not installed in this environment")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    models = shared_dir() / "models"
    sizes = ["--batch-size", "1,4,8,16,32,64", "--gpu", "V100"]
    cases = {
        "gkest --help": [gkest, "--help"],
        "resnet50, 6 batch sizes, 1 GPU": [gkest, "estimate", str(models / "ethz/resnet50.onnx"), *sizes],
        "bert, 6 batch sizes, 1 GPU": [gkest, "estimate", str(models / "ethz/bert.onnx"), *sizes],
        "llama2_7b, 6 batch sizes, 1 GPU": [
            gkest,
            "estimate",
            str(models / "llm/llama2_7b_s512.onnx"),
            *sizes,
        ],
    }
    print(f"{'command':<36}{'median s':>10}{'min':>7}{'max':>7}{'peak MiB':>10}")
    for label, command in cases.items():
        spent(command)
        runs = [spent(command) for _ in range(REPEATS)]
        seconds = [s for s, _ in runs]
        print(
            f"{label:<36}{statistics.median(seconds):>10.2f}{min(seconds):>7.2f}{max(seconds):>7.2f}"
            f"{max(m for _, m in runs):>10.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
