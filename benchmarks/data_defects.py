"""Look for defects in the public measurements and write docs/appendix/data-defects.md: ``python benchmarks/data_defects.py``.

Needs the extra ``train`` and the environment variable GKEST_SHARED, a folder with ``data/neusight``, ``data/deepbench`` and
``data/vidur``. No model is fitted: what is compared is a measurement with physics, with its neighbours in the file, or with a
second measurement of the same thing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from _shared import shared_dir

from gkestimator.core.kernels import Family
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.roofline import roofline
from gkestimator.training.importers import neusight
from gkestimator.training.importers.files import read_columns
from gkestimator.training.rows import TrainingRows, shape_hash
from gkestimator.training.train import measured_rows

ROOT = Path(__file__).resolve().parent.parent
SWITCHED = 0.1  # a floor so far from the file's median is another speed of the host
SATURATED_WAVES = 16  # of 128 x 128 tiles, from where on time over roofline hardly depends on the shape


def main() -> int:
    """Exit status 0; 2 without the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, default=ROOT / "docs/appendix/data-defects.md")
    options = parser.parse_args()
    data = shared_dir() / "data"
    _, rows, gpus = measured_rows([data / name for name in ("neusight", "deepbench", "vidur")])
    lines = [
        "# Defects of the public measurements",
        "",
        "Written by `python benchmarks/data_defects.py`; do not edit. No model is fitted for this page.",
        "",
        *throttled(data / "neusight", gpus),
        *climbing(rows),
        *switching(rows),
        *sessions(rows, gpus),
        *impossible(rows, gpus),
        *repeated(rows),
    ]
    options.report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(options.report.read_text(encoding="utf-8"))
    return 0


def _large_products(rows: TrainingRows, gpus: Mapping[str, GpuSpec]) -> dict[str, tuple[float, int]]:
    """Median of time over roofline, and its rows, of products that fill the GPU many times and whose rows are whole
    16-byte vectors, per GPU."""
    result = {}
    c = rows.table.columns
    whole = (c["gemm_n"] % 4 == 0) & (c["gemm_k"] % 4 == 0)
    tiles = np.ceil(c["gemm_m"] / 128) * np.ceil(c["gemm_n"] / 128) * c["gemm_batch"]
    for gpu in sorted(set(rows.gpu.tolist())):
        mask = (rows.gpu == gpu) & (tiles >= SATURATED_WAVES * gpus[gpu].sms) & (c["gemm_k"] >= 256) & whole
        if mask.any():
            part = rows.take(np.flatnonzero(mask))
            ratio = part.measured_us / roofline(part.table, gpus[gpu]).roofline_us
            result[gpu] = (float(np.median(ratio)), int(mask.sum()))
    return result


def throttled(folder: Path, gpus: Mapping[str, GpuSpec]) -> list[str]:
    """The P4's linear rows of both files beside the other GPUs'."""
    train = _large_products(neusight.rows_of(folder / "train_linear.parquet"), gpus)
    larger = _large_products(neusight.rows_of(folder / "larger_linear.parquet"), gpus)
    count = int((read_columns(folder / "train_linear.parquet", ("Device",))["Device"] == "Tesla P4").sum())
    lines = [
        "## A throttled card: excluded",
        "",
        f"NeuSight linear, products of at least {SATURATED_WAVES} waves of 128x128 tiles with k at least 256: median of time",
        f"over roofline. The P4 was throttled while the train rows were taken; all {count:,} of them are left out",
        "everywhere.",
        "",
        "| GPU | train | rows | larger | rows |",
        "|---|---:|---:|---:|---:|",
    ]
    for gpu in sorted(set(train) & set(larger)):
        (a, n), (b, m) = train[gpu], larger[gpu]
        lines.append(f"| {gpu} | {a:.2f} | {n} | {b:.2f} | {m} |")
    return [*lines, ""]


def climbing(rows: list[TrainingRows]) -> list[str]:
    """The launch gap of convolutions at the start and the end of each GPU's part of the file."""
    lines = [
        "## A floor that climbs: corrected row by row",
        "",
        "NeuSight's convolutions, in the order of the file: 1 % quantile of the times (us) in ten equal parts, and the",
        "gap that the importer takes off at the first and the last row. Shapes are in random order, so it is the host that slows",
        "down; a GPU that slowed down would stretch long kernels by a factor, not all by an amount.",
        "",
        "| GPU | rows | 1 % quantile by tenth of the file | gap first | gap last |",
        "|---|---:|---|---:|---:|",
    ]
    for part in rows:
        if part.table.family[0] != Family.CONV or part.source[0] != "neusight/train":
            continue
        for gpu in sorted(set(part.gpu.tolist())):
            mine = part.take(np.flatnonzero(part.gpu == gpu))
            tenths = [f"{np.quantile(t, 0.01):.0f}" for t in np.array_split(mine.measured_us, 10)]
            lines.append(
                f"| {gpu} | {len(mine)} | {' '.join(tenths)} | {mine.gap_us[0]:.0f} | {mine.gap_us[-1]:.0f} |"
            )
    return [*lines, ""]


def switching(rows: list[TrainingRows]) -> list[str]:
    """How many rows were taken while the host ran at another speed than usual."""
    lines = [
        "## Hosts that switch speed: corrected row by row",
        "",
        "NeuSight train rows whose local floor (what the shortest kernels around them took) differs by more than",
        f"{SWITCHED:.0%} from the median floor of the GPU and the operator; the floor goes into the row's gap.",
        "",
        "| family | GPU | rows | switched | lowest floor us | highest floor us |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for part in rows:
        family = str(part.table.family[0])
        if family == Family.CONV or part.source[0] != "neusight/train":
            continue
        kinds = np.char.add(part.table.variant.astype(str), part.table.columns["inputs"].astype(str))
        for gpu in sorted(set(part.gpu.tolist())):
            count = switched = 0
            low, high = np.inf, 0.0
            for kind in np.unique(kinds):
                floor = (part.gap_us + part.hold_us)[(part.gpu == gpu) & (kinds == kind)]
                off = np.abs(floor / np.median(floor) - 1) > SWITCHED
                count, switched = count + len(floor), switched + int(off.sum())
                low, high = min(low, float(floor.min())), max(high, float(floor.max()))
            if switched:
                lines.append(f"| {family} | {gpu} | {count} | {switched} | {low:.0f} | {high:.0f} |")
    return [*lines, ""]


def sessions(rows: list[TrainingRows], gpus: Mapping[str, GpuSpec]) -> list[str]:
    """Whether two sessions on one GPU agree where shapes matter little."""
    lines = [
        "## Sessions that disagree: kept",
        "",
        f"Median of time over roofline of linear layers of at least {SATURATED_WAVES} waves with k at least 256, in NeuSight's train and",
        "larger files (without the P4), where rows are whole 16-byte vectors. The shapes are alike, the cards ran at other clocks",
        "(T4, P100 and V100 faster in the larger session). No feature of a shape tells which session it is from, so an error",
        "of this size on the other session is not avoidable.",
        "",
        "| GPU | train | rows | larger | rows |",
        "|---|---:|---:|---:|---:|",
    ]
    found: dict[str, dict[str, tuple[float, int]]] = {}
    for source in ("neusight/train", "neusight/larger"):
        parts = [p for p in rows if p.source[0] == source and p.table.family[0] == Family.LINEAR]
        found[source] = _large_products(TrainingRows.concatenate(parts), gpus)
    for gpu in sorted(set(found["neusight/train"]) & set(found["neusight/larger"])):
        (a, n), (b, m) = (found[s][gpu] for s in ("neusight/train", "neusight/larger"))
        lines.append(f"| {gpu} | {a:.2f} | {n} | {b:.2f} | {m} |")
    return [*lines, ""]


def impossible(rows: list[TrainingRows], gpus: Mapping[str, GpuSpec]) -> list[str]:
    """Rows faster than the hardware: above the peak rate, or above the DRAM bandwidth with operands beyond the L2."""
    lines = [
        "## Faster than the hardware",
        "",
        "Rows whose GPU time is less than their arithmetic at the peak rate (3x3 and 5x5 convolutions excepted, which",
        "Winograd speeds up), or less than their bytes at the nominal bandwidth although these are more than four times",
        "the L2. Kept.",
        "",
        "| family | GPU | source | rows | above peak | above bandwidth | least time over roofline |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for part in rows:
        c = part.table.columns
        for gpu in sorted(set(part.gpu.tolist())):
            index = np.flatnonzero((part.gpu == gpu) & np.isfinite(part.duration_us))
            if not len(index):
                continue
            mine = part.take(index)
            roof = roofline(mine.table, gpus[gpu])
            winograd = np.isin(np.nan_to_num(c["conv_kernel_h"][index], nan=1), (3, 5))
            counted = np.isin(mine.table.family.astype(str), ("linear", "bmm", "conv"))
            compute = (mine.duration_us < roof.compute_us) & counted & ~winograd
            size = (c["read_bytes"] + c["write_bytes"])[index]
            memory = (mine.duration_us < roof.memory_us) & (size > 4 * gpus[gpu].l2_bytes)
            if compute.any() or memory.any():
                least = float((mine.duration_us / roof.roofline_us)[compute | memory].min())
                lines.append(
                    f"| {mine.table.family[0]} | {gpu} | {mine.source[0]} | {len(mine)} | {int(compute.sum())} "
                    f"| {int(memory.sum())} | {least:.2f} |"
                )
    return [*lines, ""]


def repeated(rows: list[TrainingRows]) -> list[str]:
    """How far two measurements of one kernel on one GPU lie apart within a source."""
    lines = [
        "## Repeated measurements",
        "",
        "Kernels that a source measured more than once on one GPU: largest over smallest time. They are kept (Vidur's are",
        "reduced to their median on import). DeepBench's products differ in which operands are transposed, which the sizes",
        "do not tell.",
        "",
        "| source | family | kernels repeated | median ratio | worst ratio |",
        "|---|---|---:|---:|---:|",
    ]
    for part in rows:
        key = np.stack([shape_hash(part.table), np.unique(part.gpu.astype(str), return_inverse=True)[1]])
        _, which, count = np.unique(key, axis=1, return_inverse=True, return_counts=True)
        which = which.reshape(-1)
        most, least = np.zeros(len(count)), np.full(len(count), np.inf)
        np.maximum.at(most, which, part.measured_us)
        np.minimum.at(least, which, part.measured_us)
        apart = (most / least)[count > 1]
        if len(apart):
            lines.append(
                f"| {part.source[0]} | {part.table.family[0]} | {len(apart)} | {np.median(apart):.3f} | {apart.max():.2f} |"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
