"""Count where estimates of public models break relations that hold whatever the true values are. One table.

    GKEST_SHARED=... python benchmarks/relations.py [--models NAME,...] [--quick] [--details 10]

Every graph of models/ethz and models/timm at 17 batch sizes on 9 GPUs under PyTorch in its default type, in single and in half
precision, and under ONNX Runtime: latency and memory must not fall from one batch size to the next, and an A100 on PCIe
must not be slower than a V100. Beside them, at four shares of the SMs and one to four streams: no utilisation exceeds
what the share allows. What counts as broken is more than rounding (one part in a million).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from _shared import exported_models

from gkestimator.estimation import estimate_rows
from gkestimator.tables import Requirement

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128)
GPUS = ("P100-SXM2", "V100", "T4", "A100-PCIE-40GB", "A10", "RTX-3090", "L4", "L40S", "H100-SXM")
OLDER, NEWER = "V100-SXM2-16GB", "A100-PCIE-40GB"
WAYS = (("torch", "auto"), ("torch", "fp32"), ("torch", "fp16"), ("onnxruntime", "auto"))
SHARES = (10.0, 25.0, 50.0, 100.0)
STREAMS = (1, 2, 4)
ROUNDING = 1e-6
NOTABLE = 0.01


@dataclass
class Count:
    """Hold how many cases a relation was looked at in, and by how much it was broken where it was."""

    cases: int = 0
    broken: list[tuple[float, str]] = field(default_factory=list)

    def add(self, excess: float, where: str) -> None:
        """Count one case, ``excess`` (relative) beyond what the relation allows."""
        self.cases += 1
        if excess > ROUNDING:
            self.broken.append((excess, where))

    def line(self, name: str) -> str:
        """Return the line of the table."""
        notable = sum(excess > NOTABLE for excess, _ in self.broken)
        worst, where = max(self.broken, default=(0.0, ""))
        return (
            f"| {name} | {self.cases:,} | {len(self.broken):,} | {notable:,} | {100 * worst:.2g} % {where} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="", help="names of graphs; default: all")
    parser.add_argument("--quick", action="store_true", help="every fourth graph")
    parser.add_argument("--details", type=int, default=0, help="also the worst cases of each relation")
    given = parser.parse_args()
    paths = exported_models()
    if given.models:
        wanted = given.models.split(",")
        paths = [path for path in paths if path.stem in wanted]
    if given.quick:
        paths = paths[::4]
    counts: dict[str, Count] = defaultdict(Count)
    for path in paths:
        for runtime, dtype in WAYS:
            _by_batch(path, runtime, dtype, counts)
        _within_share(path, counts)
    print("| relation | cases | broken | by more than 1 % | worst |")
    print("|---|---:|---:|---:|---|")
    for name, count in counts.items():
        print(count.line(name))
        for excess, where in sorted(count.broken, reverse=True)[: given.details]:
            print(f"    {100 * excess:7.3f} % {where}")


def _by_batch(path: Path, runtime: str, dtype: str, counts: dict[str, Count]) -> None:
    answered = estimate_rows([path], gpus=list(GPUS), batch_sizes=BATCHES, runtime=runtime, dtype=dtype)
    by_gpu: dict[str, list[Requirement]] = defaultdict(list)
    for row in answered.rows:
        by_gpu[row.gpu].append(row)
    for gpu, rows in by_gpu.items():
        for less, more in pairwise(sorted(rows, key=lambda row: row.batch_size or 0)):
            where = f"{path.parent.name}/{path.stem} {gpu} {runtime} {more.dtype} {less.batch_size} -> {more.batch_size}"
            for name, column in (
                ("latency by batch", "latency_ms"),
                ("GPU time by batch", "gpu_ms"),
                ("memory by batch", "mreq_bytes"),
            ):
                before, after = getattr(less, column), getattr(more, column)
                counts[name].add(1 - after / before, where)
    for old, new in zip(by_gpu[OLDER], by_gpu[NEWER], strict=True):
        assert old.gpu_ms and new.gpu_ms
        where = f"{path.parent.name}/{path.stem} {runtime} {new.dtype} batch {new.batch_size}"
        counts["A100 on PCIe beside V100"].add(new.gpu_ms / old.gpu_ms - 1, where)


def _within_share(path: Path, counts: dict[str, Count]) -> None:
    for streams in STREAMS:
        answered = estimate_rows(
            [path], gpus=["V100", "L4", "H100-SXM"], batch_sizes=[1, 8, 32], sm_shares=SHARES, streams=streams, runtime="onnxruntime"
        )  # fmt: skip
        for row in answered.rows:
            where = f"{path.parent.name}/{path.stem} {row.gpu} batch {row.batch_size} share {row.sm_share_pct:g} % {streams} streams"
            for column, value, allowed in _bounded(row):
                counts[f"{column} within what the share allows"].add(value / allowed - 1, where)


def _bounded(row: Requirement) -> Iterator[tuple[str, float, float]]:
    """Yield each utilisation of a row, and the most that its share allows."""
    bounds = dict.fromkeys(
        ("dram_util_mean_pct", "l2_util_mean_pct", "occupancy_max_pct", "occupancy_mean_pct"), 100.0
    )
    bounds |= dict.fromkeys(
        ("sm_util_max_pct", "sm_util_mean_pct", "sm_util_busy_mean_pct"), row.sm_share_pct
    )
    for column, allowed in bounds.items():
        value = getattr(row, column)
        if value is not None:
            yield column, value, allowed


if __name__ == "__main__":
    main()
