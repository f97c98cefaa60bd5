"""Fits the two figures of gkestimator/estimation/intervals.py: ``GKEST_SHARED=... python benchmarks/model_intervals.py``.

Reads the development group of the published whole models (no other row) and prints, for a grid of common shares and
structure terms, the share of rows inside the 90 % interval and the median half-width; the narrowest that holds nine
rows in ten is marked. Every model counts alike, however many batch sizes it was measured at.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from _shared import shared_dir

from gkestimator.estimation import estimate_rows, intervals, requirement

ETHZ = ("densenet121", "mobilenet_v2", "inception_v3", "gpt2", "bloom_560")
TIMM = (
    "convnext_tiny", "resnet50", "efficientnet_b0", "vit_base_patch16_224", "mixer_b16_224", "regnety_032", "inception_v4",
)  # fmt: skip
SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)
STRUCTURES = (0.05, 0.075, 0.1, 0.125, 0.15, 0.2)
HOST_US = 37.0


def cases(folder: Path) -> list[tuple[str, float, float, float]]:
    """(model, measured, estimate, high) in ms of every development row, with the figures now in place."""
    found = []
    with open(folder / "data/ethz/v100_profile.csv", newline="") as file:
        measured = [r for r in csv.DictReader(file) if r["status"] == "clean" and r["model"] in ETHZ]
    for model in ETHZ:
        rows = {
            int(r["batch"]): float(r["batch"]) / float(r["throughput_rps"]) * 1e3
            for r in measured
            if r["model"] == model
        }
        result = estimate_rows(
            [folder / f"models/ethz/{model}.onnx"], gpus=["V100-SXM2-16GB"], batch_sizes=sorted(rows), runtime="torch",
            dtype="fp32", host_overhead_us=HOST_US, include_copy=True,
        )  # fmt: skip
        found += [(model, rows[r.batch_size], r.latency_ms, r.latency_high_ms) for r in result.rows]
    with open(next((folder / "data/timm").glob("*.csv")), newline="") as file:
        table = {r["model"]: r for r in csv.DictReader(file)}
    for model in TIMM:
        name = next(k for k in table if k == model or k.startswith(f"{model}."))
        batch = int(table[name]["infer_batch_size"])
        result = estimate_rows(
            [folder / f"models/timm/{model}.onnx"], gpus=["RTX-3090"], batch_sizes=[batch], runtime="torch",
            dtype="amp", host_overhead_us=HOST_US,
        )  # fmt: skip
        row = result.rows[0]
        found.append(
            (f"timm/{model}", float(table[name]["infer_step_time"]), row.latency_ms, row.latency_high_ms)
        )
    return found


def main() -> None:
    """Print the grid."""
    folder = shared_dir()
    best: tuple[float, str] | None = None
    original = intervals.widen
    for share in SHARES:
        for structure in STRUCTURES:
            requirement.widen = lambda *a, s=share, t=structure: original(*a, common_share=s, structure=t)  # type: ignore[attr-defined]
            found = cases(folder)
            names = sorted({c[0] for c in found})
            held, width = [], []
            for name in names:
                mine = [c for c in found if c[0] == name]
                held.append(np.mean([abs(np.log(m / e)) <= np.log(h / e) + 1e-9 for _, m, e, h in mine]))
                width.append(np.median([h / e - 1 for _, _, e, h in mine]))
            inside, typical = 100 * float(np.mean(held)), 100 * float(np.median(width))
            line = f"common share {share:4.2f}  structure {structure:5.3f}  inside {inside:5.1f} %  half-width {typical:5.1f} %"
            print(line, flush=True)
            if inside >= 90 and (best is None or typical < best[0]):
                best = (typical, line)
    requirement.widen = original  # type: ignore[attr-defined]
    print(f"narrowest that holds nine in ten: {best[1] if best else 'none'}")


if __name__ == "__main__":
    main()
