"""Judge estimates for GPUs that were not measured and write docs/explanation/transfer.md: ``python benchmarks/transfer.py``.

Every idea tried, with each chip left out in turn (all its boards, DeepBench's too), and what the specification alone
says of each GPU. Needs the extra ``train`` and GKEST_SHARED, a folder with ``data/neusight`` and ``data/deepbench``.
``--rows`` limits the rows per GPU and source; ``--only FAMILY...`` prints some families without writing the page.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from _shared import shared_dir
from _transfer_trials import TRIALS, Gpus, Predict, shipped

from gkestimator.core.kernels import KernelTable
from gkestimator.evaluation.splits import chips, hold_out_chip, thin
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.sustained import (
    sustained_bytes_per_s,
    sustained_clock_mhz,
    sustained_flops_per_s,
)
from gkestimator.training.rows import TrainingRows, kernel_table
from gkestimator.training.train import measured_rows

DOCS = Path(__file__).parents[1] / "docs"
FAMILIES = ("linear", "bmm", "conv", "elementwise", "softmax", "layernorm")
BARS = {
    "linear": "aim 22 %", "bmm": "aim 22 %", "conv": "aim 25 %",
    "elementwise": "aim 5 %", "softmax": "aim 12 %", "layernorm": "aim 12 %",
}  # fmt: skip
REPORTED = {"P4", "P100-PCIE-16GB", "T4", "V100-PCIE-32GB", "A100-PCIE-40GB", "A100-PCIE-80GB"}
HEAD = """# GPUs that were not measured

Written by `python benchmarks/transfer.py`; do not edit.

How wrong is an estimate for a GPU that nobody measured? Each measured GPU was taken for such a one: left out of the training, then
estimated. Mean error in percent, by kind of kernel:

"""
METHOD = """
The roofline is the usual estimate from peak figures alone. Every idea that was tried, each GPU, and what the shipped models say of nine
GPUs that nobody measured: [tables](../appendix/transfer.md).

## Where an estimate comes from

It starts from what the specification sustains (`gkestimator/kernel_models/sustained.py`): the clock that the power limit allows, from one
reference board per chip process; the DRAM bandwidth by kind of memory; the L2. The attainable time
(`gkestimator/kernel_models/attainable.py`) adds tiles and waves, repeated passes over rows, and traffic that L2 keeps. Regressors learn the
rest on features that mean the same on every GPU (`gkestimator/kernel_models/features/transfer.py`), with weights from predictions of
chips left out.

## How the error is counted

Each chip is left out with every board of it (DeepBench's V100 and P100 go with NeuSight's); FP32, NeuSight's `train` rows; mean absolute
percentage error of what the publisher measured, the launch gap of the rows taken as known (it belongs to the publisher's host and
method, not to the GPU), mean per GPU, then over GPUs. {rows} rows per GPU and source, fitted and tested.

Not free of the left-out GPU: which tiles a library generation has was read off kernel names, and where re-reading a row starts to miss L2
off row-wise kernels, of all five GPUs; V100 and A100 share one memory class and P4 and T4 another, each about what the other of
the pair measures; which idea is shipped, and how far weights are halved, was chosen on these tables. No clock, rate or
bandwidth is fitted to a GPU. For convolutions two ideas without the sustained clock do as well or slightly better; the sustained clock
stays, because boards such as the L4 hold little more than half of their boost clock.
"""
TABLES_HEAD = """# GPUs that were not measured: tables

Written by `python benchmarks/transfer.py`; do not edit. Mean absolute error in percent with each chip left out, by idea and GPU
([how it is counted](../explanation/transfer.md)).
"""
SUMMARISED = ("roofline", "analytical model", "nearest GPU, scaled")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--only", nargs="*", default=[], choices=FAMILIES)
    options = parser.parse_args()
    data = shared_dir() / "data"
    _, parts, gpus = measured_rows([data / "neusight", data / "deepbench"])
    rows = TrainingRows.concatenate([p.take(np.flatnonzero(p.table.precision == "fp32")) for p in parts])
    tables = [TABLES_HEAD]
    means: dict[str, dict[str, float]] = {}
    residuals: list[str] = []
    estimates: list[str] = []
    for family in options.only or FAMILIES:
        mine = rows.take(np.flatnonzero(rows.table.family == family))
        mine = mine.take(thin(mine, np.arange(len(mine)), most=options.rows))
        table, shown, means[family] = _family(family, mine, gpus)
        tables += table
        residuals += shown
        made = _estimates(family, TRIALS[shipped(family)](family, mine, gpus))
        estimates += made
        print("\n".join(table + shown + made), flush=True)
    tables += _residual_head() + residuals + [""] + _specifications() + _estimates_head() + estimates
    if not options.only:
        page = HEAD + "\n".join(_summary(means)) + "\n" + METHOD.format(rows=f"{options.rows:,}")
        (DOCS / "explanation/transfer.md").write_text(page, encoding="utf-8")
        (DOCS / "appendix/transfer.md").write_text("\n".join(tables) + "\n", encoding="utf-8")
    return 0


def _summary(means: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the table of ideas that a reader knows beside what is shipped, by family."""
    lines = [
        "| | " + " | ".join(f"{family} ({BARS[family]})" for family in means) + " |",
        "|---|" + "---:|" * len(means),
    ]
    for title in SUMMARISED:
        lines.append(f"| {title} | " + " | ".join(f"{mean[title]:.1f}" for mean in means.values()) + " |")
    ours = " | ".join(f"{mean[shipped(family)]:.1f}" for family, mean in means.items())
    return [*lines, f"| **gkestimator** | {ours} |"]


def _family(family: str, rows: TrainingRows, gpus: Gpus) -> tuple[list[str], list[str], dict[str, float]]:
    """Return the table of one family, the lines of its residuals, and each idea's mean error."""
    left_out = [boards for boards in chips(rows, gpus) if boards & REPORTED & set(rows.gpu.tolist())]
    names = [next(iter(sorted(boards & REPORTED & set(rows.gpu.tolist())))) for boards in left_out]
    if family == "linear":  # the P4's train rows are throttled and taken out
        keep = [i for i, n in enumerate(names) if n != "P4"]
        left_out, names = [left_out[i] for i in keep], [names[i] for i in keep]
    lines = [
        f"## {family} ({BARS[family]})",
        "",
        "| idea | mean | " + " | ".join(names) + " |",
        "|---|---:|" + "---:|" * len(names),
    ]
    shown: list[str] = []
    means: dict[str, float] = {}
    for title, trial in TRIALS.items():
        started = time.monotonic()
        errors = []
        for boards, name in zip(left_out, names, strict=True):
            split = hold_out_chip(rows, boards)
            predict = trial(family, rows.take(split.train), gpus)
            test = rows.take(split.test)
            ours = (test.gpu == name) & (test.source == "neusight/train")
            errors.append(_error(predict, test.take(np.flatnonzero(ours)), gpus))
            if title == shipped(family):
                shown += _residuals(family, predict, test, gpus)
        cells = " | ".join(f"{e:.1f}" for e in errors)
        means[title] = float(np.mean(errors))
        title = f"**{title}** (shipped)" if title == shipped(family) else title
        lines.append(f"| {title} | {np.mean(errors):.1f} | {cells} |")
        print(
            f"{family}: {title}: {np.mean(errors):.1f} ({time.monotonic() - started:.0f} s)", file=sys.stderr
        )
    return [*lines, ""], shown, means


def _predicted(predict: Predict, rows: TrainingRows, gpus: Gpus) -> np.ndarray:
    result = np.empty(len(rows))
    for name in set(rows.gpu.tolist()):
        index = np.flatnonzero(rows.gpu == name)
        result[index] = np.maximum(predict(rows.table.take(index), gpus[name]), 1.0)
    return result


def _error(predict: Predict, rows: TrainingRows, gpus: Gpus) -> float:
    measured = rows.as_measured_us(_predicted(predict, rows, gpus))
    return float(np.mean(np.abs(measured / rows.measured_us - 1)) * 100)


def _residual_head() -> list[str]:
    return [
        "## Residuals of what is shipped",
        "",
        "Per left-out GPU and source: log(predicted / GPU time) where the launch does not hide the kernel (10th, 50th and",
        "90th percentile), and the mean error of what was measured. The middle differs from GPU to GPU by more than rows",
        "of one GPU scatter: errors on a new GPU are partly common to all its kernels.",
        "",
        "| family | GPU | source | rows | p10 | median | p90 | error % |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]


def _residuals(family: str, predict: Predict, rows: TrainingRows, gpus: Gpus) -> list[str]:
    lines = []
    for name in sorted(set(rows.gpu.tolist())):
        for source in sorted(set(rows.source[rows.gpu == name].tolist())):
            part = rows.take(np.flatnonzero((rows.gpu == name) & (rows.source == source)))
            predicted = _predicted(predict, part, gpus)
            known = np.isfinite(part.duration_us)
            low, middle, high = np.quantile(
                np.log(predicted[known] / part.duration_us[known]), (0.1, 0.5, 0.9)
            )
            lines.append(
                f"| {family} | {name} | {source} | {int(known.sum())} | {low:+.2f} | {middle:+.2f} | {high:+.2f} | "
                f"{_error(predict, part, gpus):.1f} |"
            )
    return lines


_SHOWN = ("L4", "A40", "L40S", "RTX-3090", "RTX-4090", "RTX-5090", "H100-PCIE", "H100-SXM", "H200")
_F = 4.0


def _specifications() -> list[str]:
    """What the specification says of every GPU, and what the installed bundle makes of five kernels."""
    lines = [
        "## What the specification alone sustains",
        "",
        "| GPU | boost MHz | sustained MHz | FP32 peak TFLOP/s | sustained | DRAM GB/s | sustained |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    catalogue = gpu_catalogue()
    for name in catalogue.complete_names():
        gpu = catalogue.spec(name)
        lines.append(
            f"| {name} | {gpu.boost_clock_mhz:.0f} | {sustained_clock_mhz(gpu):.0f} | {gpu.peak('fp32') / 1e12:.1f} | "
            f"{sustained_flops_per_s(gpu, 'fp32') / 1e12:.1f} | {gpu.dram_bytes_per_s / 1e9:.0f} | "
            f"{sustained_bytes_per_s(gpu) / 1e9:.0f} |"
        )
    return lines


def _estimates_head() -> list[str]:
    return [
        "",
        "## What the shipped models make of it",
        "",
        "Fitted on all rows of the table above: microseconds, FP32, and the share of the nominal peak or bandwidth. None of",
        "these GPUs was measured in FP32.",
        "",
        "| kernel | " + " | ".join(_SHOWN) + " |",
        "|---|" + "---:|" * len(_SHOWN),
    ]


def _estimates(family: str, predict: Predict) -> list[str]:
    """A line per kernel of ``family`` among :func:`_kernels`."""
    lines = []
    for title, table in _kernels().items():
        if table.family[0] != family:
            continue
        cells = []
        for name in _SHOWN:
            gpu = gpu_catalogue().spec(name)
            taken = float(predict(table, gpu)[0])
            columns = table.columns
            if family in ("linear", "bmm"):
                share = columns["flops"][0] / gpu.peak("fp32") * 1e6 / taken
            else:
                moved = columns["read_bytes"][0] + columns["write_bytes"][0]
                share = moved / gpu.dram_bytes_per_s * 1e6 / taken
            cells.append(f"{taken:.0f} ({100 * share:.0f} %)")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines


def _kernels() -> Mapping[str, KernelTable]:
    def product(family: str, batch: float, m: float, n: float, k: float) -> KernelTable:
        right = (1 if family == "linear" else batch) * n * k * _F
        sizes = {
            "gemm_batch": batch,
            "gemm_m": m,
            "gemm_n": n,
            "gemm_k": k,
            "rows": batch * m * n,
            "inputs": 2.0,
        }
        work = {"flops": 2 * batch * m * n * k, "read_bytes": batch * m * k * _F + right}
        work |= {"write_bytes": batch * m * n * _F, "weight_bytes": right if family == "linear" else 0.0}
        return _table(family, family, sizes | work)

    def rows_of(
        family: str, variant: str, rows: float, cols: float, weights: float, inputs: float = 1.0
    ) -> KernelTable:
        size = rows * cols * _F
        work = {"flops": rows * cols, "read_bytes": inputs * size + weights, "write_bytes": size}
        return _table(
            family, variant, work | {"rows": rows, "cols": cols, "weight_bytes": weights, "inputs": inputs}
        )

    return {
        "linear 4096 x 4096 x 4096": product("linear", 1, 4096, 4096, 4096),
        "linear 512 x 4096 x 1024": product("linear", 1, 512, 4096, 1024),
        "bmm 96 x (512 x 512 x 64)": product("bmm", 96, 512, 512, 64),
        "add, 64 million elements": rows_of("elementwise", "add", 64e6, 1, 0, inputs=2.0),
        "softmax 49152 x 512": rows_of("softmax", "softmax", 49152, 512, 0),
        "layer norm 65536 x 4096": rows_of("layernorm", "layer_norm", 65536, 4096, 2 * 4096 * _F),
    }


def _table(family: str, variant: str, columns: dict[str, float]) -> KernelTable:
    arrays = {name: np.array([value]) for name, value in columns.items()}
    return kernel_table(
        family=family, variant=variant, precision="fp32", columns={"element_bytes": _F, **arrays}
    )


if __name__ == "__main__":
    raise SystemExit(main())
