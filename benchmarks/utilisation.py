"""Fit the constants of occupancy: ``python benchmarks/utilisation.py`` (needs GKEST_SHARED).

Whole models on a V100 (P. Elvinger, master thesis 505, ETH Zurich 2024, table A.1). Printed for the development group,
whose errors constants may be fitted on, and for the report group, which nothing was fitted to:

- the mean error of the largest achieved occupancy by the share that streams of short blocks keep up
  (``launch.STEADY``) and by the waves that the end of a kernel loses (one half);
- the mean errors of mean SM utilisation and mean occupancy by the host's overhead a call. The thesis recorded these
  under a profiler, which slows the host's launches: at its latencies' 37 us the small, host-bound batches come out too
  busy. That is an inference, not documented.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from _shared import shared_dir

from gkestimator.estimation import estimate_rows
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.launch import Launch, blocks_per_sm
from gkestimator.tables import KernelRow, Requirement

DEVELOPMENT = ("densenet121", "mobilenet_v2", "inception_v3", "gpt2", "bloom_560")
HOSTS_US = (37, 42, 47, 52, 57)
SHARES = (0.92, 0.93, 0.94, 0.95, 0.96)
LOST_WAVES = (0.25, 0.5, 0.75, 1.0)
LONG_BLOCKS = ("linear", "bmm", "conv", "conv_transpose", "attention", "decode", "rnn", "fft", "sort", "host")
GPU = gpu_catalogue().resolve("V100-SXM2-16GB")[0]

Measured = dict[int, dict[str, str]]


def estimated(path: Path, batches: list[int], host_us: float, *, kernels: bool) -> tuple:
    """Rows and kernel rows of one model."""
    result = estimate_rows(
        [path], gpus=[GPU.name], batch_sizes=batches, dtype="fp32", host_overhead_us=host_us, kernels=kernels
    )
    return result.rows, result.kernel_rows


def streams(rows: list[KernelRow]) -> tuple[np.ndarray, np.ndarray]:
    """(theoretical occupancy in percent, waves) of the kernels of short blocks that fill at least one wave."""
    rows = [r for r in rows if r.family not in LONG_BLOCKS]

    def column(name: str) -> np.ndarray:
        return np.array([float(getattr(r, name)) for r in rows])

    launch = Launch(
        grid_blocks=column("grid_blocks"),
        block_threads=column("block_threads"),
        registers_per_thread=column("registers_per_thread"),
        shared_bytes=column("shared_bytes"),
    )
    fit = blocks_per_sm(launch, GPU)
    waves = launch.grid_blocks / (fit * GPU.sms)
    theoretical = 100 * fit * np.ceil(launch.block_threads / 32) / GPU.warps_per_sm
    full = waves >= 1
    return theoretical[full], waves[full]


def truth(row: Requirement, measured: Measured, column: str) -> float:
    """The thesis' figure for the row's batch size; NaN where it has none."""
    return float(measured[int(row.batch_size or 0)][column] or "nan")


def show_maximum(cases: list[tuple[np.ndarray, np.ndarray, float]]) -> None:
    """Table of mean errors of the largest occupancy."""
    print("largest occupancy, mean error in points: share kept up (across) by waves lost (down)")
    print(f"{'':6}" + "".join(f"{s:8.2f}" for s in SHARES))
    for lost in LOST_WAVES:
        errors = [
            np.nanmean([abs((t * s * w / (w + lost)).max() - value) for t, w, value in cases if len(w)])
            for s in SHARES
        ]
        print(f"{lost:6.2f}" + "".join(f"{e:8.2f}" for e in errors))


def main() -> int:
    """Exit status 0."""
    folder = shared_dir()
    with open(folder / "data/ethz/v100_profile.csv", newline="") as file:
        table = [r for r in csv.DictReader(file) if r["status"] == "clean"]
    paths = {p.stem: p for p in sorted((folder / "models/ethz").glob("*.onnx"))}
    for group in ("development", "report"):
        models = [m for m in paths if (m in DEVELOPMENT) == (group == "development")]
        maxima: list[tuple[np.ndarray, np.ndarray, float]] = []
        largest: list[float] = []
        means: dict[int, list[tuple[float, float]]] = {host: [] for host in HOSTS_US}
        for model in models:
            measured: Measured = {int(r["batch"]): r for r in table if r["model"] == model}
            for host in HOSTS_US:
                rows, kernels = estimated(paths[model], sorted(measured), host, kernels=host == HOSTS_US[0])
                for row in rows:
                    means[host].append(
                        (
                            float(row.sm_util_mean_pct) - truth(row, measured, "wavg_sm_util_pct"),
                            float(row.occupancy_mean_pct)
                            - truth(row, measured, "wavg_achieved_occupancy_pct"),
                        )
                    )
                    if host == HOSTS_US[0]:
                        mine = [k for k in kernels if k.batch_size == row.batch_size]
                        value = truth(row, measured, "achieved_occupancy_pct")
                        maxima.append((*streams(mine), value))
                        largest.append(float(row.occupancy_max_pct) - value)
        print(f"\n{group} group: {', '.join(models)}\n")
        if group == "development":
            show_maximum(maxima)
        print(f"largest occupancy as estimated: mean error {np.nanmean(np.abs(largest)):.2f} points")
        print("\nhost us    SM utilisation    mean occupancy   (mean error in points)")
        for host in HOSTS_US:
            sm, occupancy = np.nanmean(np.abs(np.array(means[host])), axis=0)
            print(f"{host:7}{sm:18.2f}{occupancy:18.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
