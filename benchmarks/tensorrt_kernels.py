"""Judge TensorRT's convolutions: single ones on a V100 with layers left out, and those of engines with their GPU left out.

    GKEST_SHARED=... python benchmarks/tensorrt_kernels.py [--constants] [--cache FOLDER]

Writes ``docs/accuracy/tensorrt-kernels.md``. ``--constants`` prints instead how three constants of GPUs that were not
measured fit half of the small layers on a V100. Nested bundles are kept in ``.accuracy/``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from _shared import shared_dir
from _tensorrt_constants import V100, print_constants

from benchmarks.accuracy.workspace import ROOT, TENSORRT_FORMATS, Workspace
from gkestimator.bundles.bundle import Bundle, load_bundle
from gkestimator.core.kernels import KernelTable
from gkestimator.evaluation.cases import KernelCases, predict_cases
from gkestimator.evaluation.splits import HELD_OUT
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.least import least_us
from gkestimator.kernel_models.roofline import roofline
from gkestimator.training.plan import TENSORRT_PLANS
from gkestimator.training.rows import TrainingRows, layer_hash, shape_hash

PAGE = ROOT / "docs" / "accuracy" / "tensorrt-kernels.md"
BARS = {"fp32": 8.0, "fp16": 10.0, "int8": 12.0}
_SEEN = tuple(plan for plan in TENSORRT_PLANS if plan.scope == "seen")
_UNSEEN = tuple(plan for plan in TENSORRT_PLANS if plan.scope == "unseen")
_FOLDS = 4
_MOST_TESTED = 20_000  # of the V100 where it is left out
_CONSTANT_ROWS = 20_000
_PRECISIONS = ("fp32", "tf32", "fp16", "int8")
_BETTER = (("T4", "A100-PCIE-40GB"), ("A100-PCIE-40GB", "H100-SXM"), ("T4", "L40S"), ("L40S", "H100-SXM"))
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
Rows = list[list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Hold cases with the rows that they are of, in one order."""

    rows: TrainingRows
    cases: KernelCases

    def where(self, mask: np.ndarray) -> Judged:
        """Return the chosen cases."""
        index = np.flatnonzero(mask)
        return Judged(rows=self.rows.take(index), cases=self.cases.take(index))

    @property
    def precision(self) -> np.ndarray:
        """Return the precision of each."""
        return self.cases.precision

    def figures(self) -> list[str]:
        """Return n, mean, median, 90th percentile of errors, share inside, median width, and the baselines' means."""
        errors = self.cases.errors_pct()
        duration = self.cases.gpu_time_us
        known = np.isfinite(duration)
        inside = (self.cases.low_us <= duration) & (duration <= self.cases.high_us)
        width = 100 * (self.cases.high_us - self.cases.low_us) / self.cases.estimates["estimator"]
        return [
            f"{len(errors):,}",
            f"{errors.mean():.1f}",
            f"{np.median(errors):.1f}",
            f"{np.quantile(errors, 0.9):.1f}",
            f"{100 * inside[known].mean():.1f}",
            f"{np.median(width):.0f}",
            f"{self.cases.errors_pct('roofline').mean():.0f}",
            f"{self.cases.errors_pct('cuda').mean():.0f}",
        ]


_COLUMNS = ["n", "mean", "median", "p90", "inside", "width", "roofline", "CUDA x constant"]


def judge(space: Workspace, name: str, train: np.ndarray, test: np.ndarray, plans: Sequence) -> Judged:
    """Return what the recipe, trained on the rows ``train``, says of the rows ``test``, with the baselines."""
    bundle = space.bundle(name, np.flatnonzero(train), tuple(plans))
    rows = space.rows.take(np.flatnonzero(test))
    cases = predict_cases(bundle, rows, space.gpus)
    known = space.rows.take(np.flatnonzero(train))
    return Judged(rows=rows, cases=cases.with_estimate("cuda", scaled_us(space, known, rows)))


def scaled_us(space: Workspace, known: TrainingRows, asked: TrainingRows) -> np.ndarray:
    """Return what ONNX Runtime's CUDA provider is estimated to take for ``asked``, times the constant that suits
    ``known`` best, of each family and precision (of all rows, for one that ``known`` lacks)."""
    bundle = load_bundle()
    if len(known) > _CONSTANT_ROWS:
        known = known.take(np.random.default_rng(0).choice(len(known), _CONSTANT_ROWS, replace=False))
    ratio = known.duration_us / _cuda_us(space, bundle, known)
    usable = np.isfinite(ratio)
    of_known = _kinds(known)
    kinds = _kinds(asked)
    result = _cuda_us(space, bundle, asked)
    for kind in np.unique(kinds):
        same = usable & (of_known == kind)
        chosen = same if same.any() else usable
        result[kinds == kind] *= np.median(ratio[chosen])
    return result


def _kinds(rows: TrainingRows) -> np.ndarray:
    return np.char.add(rows.table.family.astype(str), rows.table.precision.astype(str))


def _cuda_us(space: Workspace, bundle: Bundle, rows: TrainingRows) -> np.ndarray:
    variant = np.full(len(rows), "conv", dtype=object)
    table = replace(rows.table, variant=variant)
    cases = predict_cases(bundle, replace(rows, table=table), space.gpus)
    return cases.estimates["estimator"].copy()


def layers_left_out(space: Workspace) -> Iterator[tuple[str, str, Judged]]:
    """Yield each way of leaving shapes on the V100 out, by name and in words, with its cases."""
    mine = space.rows.gpu == V100
    table = space.rows.table
    pair = channels_hash(table)
    splits = (
        (
            "layers",
            "a layer is left out at every batch, in every precision, with and without a sum",
            layer_hash(table),
        ),
        ("channels", "all layers of the same numbers of channels are left out together", pair),
        ("shapes", "this project's usual split: another batch is another shape", shape_hash(table)),
    )
    for name, words, number in splits:
        train = mine & (number >= HELD_OUT)
        yield name, words, judge(space, f"tensorrt-{name}", train, mine & (number < HELD_OUT), _SEEN)


def channels_hash(table: KernelTable) -> np.ndarray:
    """Return a number in [0, 1) for each pair of channels in and out."""
    blank = {name: np.ones(len(table)) for name in table.columns if name.startswith("conv_")}
    for name in ("conv_in_channels", "conv_out_channels"):
        blank[name] = table.columns[name]
    return layer_hash(replace(table, columns={**table.columns, **blank}))


def gpus_left_out(space: Workspace) -> Iterator[tuple[str, Judged]]:
    """Yield each GPU with what the engines of the others say of it; the V100's single convolutions take no part in any."""
    engines = space.rows.source == "tensorrt_layers"
    for gpu in sorted(set(space.rows.gpu.tolist())):
        test = np.flatnonzero(space.rows.gpu == gpu)
        if len(test) > _MOST_TESTED:
            test = np.sort(np.random.default_rng(0).choice(test, _MOST_TESTED, replace=False))
        mask = np.zeros(len(space.rows), dtype=bool)
        mask[test] = True
        yield gpu, judge(space, f"tensorrt-gpu-{gpu}", engines & (space.rows.gpu != gpu), mask, _UNSEEN)


def gpus_kept_in(space: Workspace) -> Judged:
    """Return the engines' layers with their GPU in training: a quarter of the layers left out at a time."""
    engines = space.rows.source == "tensorrt_layers"
    fold = np.floor(layer_hash(space.rows.table) * 1e6).astype(int) % _FOLDS
    parts = []
    for number in range(_FOLDS):
        test = engines & (fold == number)
        parts.append(judge(space, f"tensorrt-fold-{number}", engines & (fold != number), test, _UNSEEN))
    rows = TrainingRows.concatenate([part.rows for part in parts])
    return Judged(rows=rows, cases=KernelCases.concatenate([part.cases for part in parts]))


def markdown(head: Sequence[str], rows: Rows) -> list[str]:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def by_precision(judged: Judged, first: Sequence[str]) -> Rows:
    """Return one row of figures a precision, behind the words ``first``."""
    rows = []
    for precision in _PRECISIONS:
        mask = judged.precision == precision
        if mask.any():
            rows.append([*first, precision, *judged.where(mask).figures()])
    return rows


def by_kernel(judged: Judged) -> Rows:
    """Return mean errors and numbers of cases by precision, filter size and whether depthwise."""
    size = judged.rows.table.columns["conv_kernel_h"]
    rows = []
    for family in ("conv", "depthwise"):
        for precision in BARS:
            row = [family, precision]
            for kernel in (1, 3, 5, 7):
                part = judged.where(
                    (judged.cases.family == family) & (judged.precision == precision) & (size == kernel)
                )
                row.append(f"{part.cases.errors_pct().mean():.1f} ({len(part.cases):,})")
            rows.append(row)
    return rows


def by_time(judged: Judged) -> Rows:
    """Return mean errors by how long was measured."""
    edges = (0, 15, 30, 100, 1000, np.inf)
    rows = []
    for precision in BARS:
        row = [precision]
        for low, high in pairwise(edges):
            measured = judged.cases.measured_us
            part = judged.where((judged.precision == precision) & (measured > low) & (measured <= high))
            row.append(f"{part.cases.errors_pct().mean():.1f} ({len(part.cases):,})")
        rows.append(row)
    return rows


def defects(space: Workspace) -> list[str]:
    """Return what the rule of outliers says of the V100's rows."""
    rows = space.rows.take(np.flatnonzero(space.rows.gpu == V100))
    roof = roofline(rows.table, space.gpus[V100])
    too_fast = rows.duration_us < least_us(rows.table, space.gpus[V100], roof)
    slow = (rows.duration_us > 20 * roof.roofline_us) & (rows.measured_us > 100)
    key = np.stack([layer_hash(rows.table), rows.table.columns["conv_batch"], roof.compute_us], axis=1)
    order = np.lexsort((rows.table.columns["inputs"], *key[:, :2].T, rows.table.precision.astype(str)))
    pair = np.flatnonzero((key[order][1:, :2] == key[order][:-1, :2]).all(axis=1))
    pair = pair[rows.table.precision[order][pair] == rows.table.precision[order][pair + 1]]
    ratio = rows.measured_us[order][pair + 1] / rows.measured_us[order][pair]
    agrees = ratio[slow[order][pair]]
    near = 100 * (np.abs(np.log(agrees)) < np.log(1.5)).mean()
    return [
        "No row is left out. The rule was: a row is wrong if it is shorter than physics allows "
        f"({too_fast.sum()} of {len(rows):,} are),",
        "or if it is above 100 us and 20 times the roofline while the same layer with a sum behind it, measured apart, is not as",
        f"long. There are {slow.sum():,} such long rows, and {near:.0f} % of those with a partner lie within a factor of 1.5 of it:",
        "it is TensorRT's choice of kernel, not a slip of the clock.",
    ]


def sanity(space: Workspace) -> list[str]:
    """Return how often estimates of the engines' layers fall with the batch, or are slower on a better GPU."""
    engines = np.flatnonzero((space.rows.source == "tensorrt_layers") & (space.rows.table.family == "conv"))
    bundle = space.bundle("tensorrt-engines", engines, _UNSEEN)
    catalogue = gpu_catalogue()
    single = per_image(space.rows.take(engines).table)
    names = sorted({name for pair in _BETTER for name in pair})
    times = {}
    for name in names:
        gpu, _ = catalogue.resolve(name)
        for precision in ("fp16", "int8"):
            table = in_precision(single, precision)
            series = [bundle.predict(with_batch(table, batch), gpu).duration_us for batch in _BATCHES]
            times[name, precision] = np.array(series)
    falls = [(series[1:] < 0.99 * series[:-1]).ravel() for series in times.values()]
    text = [
        f"The engines' {len(engines)} dense layers at batches of 1 to 128, doubled step by step, on {len(names)} GPUs in fp16 and",
        f"int8: a larger batch is estimated more than 1 % shorter in {100 * np.concatenate(falls).mean():.1f} % of the steps.",
        "How often a better GPU is estimated more than 1 % slower (an L40S has the higher clock, which small layers feel):",
        "",
    ]
    for worse, better in _BETTER:
        slower = [
            (times[better, precision] > 1.01 * times[worse, precision]).ravel()
            for precision in ("fp16", "int8")
        ]
        text.append(f"- {better} after {worse}: {100 * np.concatenate(slower).mean():.1f} %")
    return text


def per_image(table: KernelTable) -> KernelTable:
    """Return the same convolutions of one image each."""
    return with_batch(table, 1, of=table.columns["conv_batch"])


def with_batch(table: KernelTable, batch: int, of: np.ndarray | float = 1.0) -> KernelTable:
    """Return convolutions of ``of`` images as ones of ``batch`` images."""
    growth = batch / of
    columns = dict(table.columns)
    weights = columns["weight_bytes"]
    columns["read_bytes"] = weights + (columns["read_bytes"] - weights) * growth
    for name in ("flops", "write_bytes", "rows", "gemm_m", "conv_batch"):
        columns[name] = columns[name] * growth
    return replace(table, columns=columns)


def in_precision(table: KernelTable, precision: str) -> KernelTable:
    """Return the same convolutions with images and weights of another type."""
    size = {"fp16": 2.0, "int8": 1.0}[precision]
    columns = dict(table.columns)
    images = columns["conv_in_channels"] * columns["conv_in_h"] * columns["conv_in_w"] * columns["conv_batch"]
    filters = columns["gemm_batch"] * columns["gemm_n"] * columns["gemm_k"]
    results = columns["gemm_batch"] * columns["gemm_m"] * columns["gemm_n"]
    columns["weight_bytes"] = filters * size
    columns["write_bytes"] = results * size
    columns["read_bytes"] = (images + filters + (columns["inputs"] - 2) * results) * size
    columns["element_bytes"] = np.full(len(table), size)
    return replace(table, columns=columns, precision=np.full(len(table), precision, dtype=object))


def page(space: Workspace) -> list[str]:
    """Return the page, Markdown lines."""
    ways = list(layers_left_out(space))
    layers = ways[0][2]
    bars = []
    for precision, bar in BARS.items():
        part = layers.where(layers.precision == precision)
        mean, inside = (float(part.figures()[at]) for at in (1, 4))
        met = "yes" if mean <= bar and 87 <= inside <= 93 else "no"
        bars.append([f"V100, {precision}", f"{bar:g} %, 87-93 %", f"{mean:.1f} %, {inside:.1f} %", met])
    split_rows: Rows = []
    for name, _, judged in ways:
        split_rows += by_precision(judged, [name])
    gpu_rows: Rows = []
    shares = []
    for gpu, judged in gpus_left_out(space):
        shares.append((gpu, float(judged.figures()[4])))
        for family in ("conv", "depthwise"):
            part = judged.where(judged.cases.family == family)
            gpu_rows += by_precision(part, [gpu, family])
    kept = gpus_kept_in(space)
    kept_rows: Rows = []
    for gpu in sorted(set(kept.cases.gpu.tolist())):
        part = kept.where((kept.cases.gpu == gpu) & (kept.cases.family == "conv"))
        kept_rows += by_precision(part, [gpu])
    inside = ", ".join(f"{gpu} {share:.0f} %" for gpu, share in shares)
    words = [f"- **{name}**: {text}." for name, text, _ in ways]
    return [
        *_HEAD,
        "",
        *markdown(["line", "bar: mean error, inside", "reached", "met"], bars),
        "",
        f"GPUs left out, share inside (bar: at least 80 %): {inside}. The V100 misses it: its times are those of networks of one",
        "layer, with copies and with shapes that no engine had, while the intervals come from kernels inside engines.",
        "",
        *_DATA,
        "",
        *defects(space),
        "",
        "## Single convolutions on a V100, shapes left out",
        "",
        *words,
        "",
        *markdown(["left out", "precision", *_COLUMNS], split_rows),
        "",
        "Mean error (and cases) by the size of the filters, layers left out:",
        "",
        *markdown(["family", "precision", "1x1", "3x3", "5x5", "7x7"], by_kernel(layers)),
        "",
        "And by the time measured:",
        "",
        *markdown(["precision", "to 15 us", "to 30 us", "to 100 us", "to 1 ms", "beyond"], by_time(layers)),
        "",
        *_GPUS,
        "",
        *markdown(["GPU", "family", "precision", *_COLUMNS], gpu_rows),
        "",
        "The engines' dense layers with their GPU in training, a quarter of the layers left out at a time:",
        "",
        *markdown(["GPU", "precision", *_COLUMNS], kept_rows),
        "",
        "## Larger batches, better GPUs",
        "",
        *sanity(space),
    ]


_HEAD = """# TensorRT's convolutions

Written by `python benchmarks/tensorrt_kernels.py`; do not edit.

How far estimates of single TensorRT kernels are from published times. Errors are absolute, in percent of the time published;
`inside` is the share of 90 % intervals that hold the GPU time, `width` the median of (high - low) / estimate in percent.
Beside them: the roofline, and **CUDA x constant**, this project's estimate of the same convolution for ONNX Runtime's
CUDA provider times the one constant that suits the training rows of its precision best.
""".splitlines()
_DATA = """## What was measured

**Single convolutions** (Alibaba's lightweight-neural-architecture-search, V100-SXM2): 247,432 times in FP32, FP16 and INT8, with
and without a sum behind. They are means of ten times of a clock with steps of 1.024 us, as TensorRT's per-layer profiler has,
and the shortest takes 6.96 us: one layer's profiling events cost about 5.5 us, which is taken off as no GPU time. Small
FP16 convolutions take about 9 or about 28 us, seldom 18, which reads as one or three layers: the image is copied into another
layout and back where the kernel wants that. How many layers a time holds is not said, so copies stay part of the convolution. In an engine, neighbours
agree on a layout and most copies go: on a V100, estimates of small convolutions in FP16 are those of a network of one layer.
Since every precision is a permission, an estimate takes the fastest of those allowed, which caps this at the FP32 kernel's
time (12 us with its events). And in estimates of whole models (not on this page) convolutions below FP32 are held to the upper
end of the interval that the regressor of engines gives; that is judged, as no engine was measured on a V100.

**INT8 on a V100** ran on the CUDA cores (dp4a, up to 0.99 of its peak; there are no integer tensor cores). Where memory binds it
takes 0.77 of FP32 (median of dense layers) and 0.99 (depthwise), where a quarter of the bytes would give 0.25: images outside the
kernel stay in four bytes. So those rows say nothing of GPUs with integer tensor cores.

**Engines** (NVIDIA's trt-engine-explorer): 359 convolutions of ten engines on an A100, an RTX 3090 and a TITAN RTX. Their layer
times sum to more than the engine under a CUDA graph; the difference is spread evenly over the layers (1.7 to 7.5 us each).
""".splitlines()
_GPUS = """## GPUs left out

The regressor for GPUs that were not measured learns from engines alone, as a small correction of an anchor: tiles on tensor cores in
the kernels' own layout, FP16 summed in FP16 (twice the rate on GeForce boards), and before Ampere slices that wait for their
loads. The V100's single convolutions made every GPU that was left out worse, in three ways of using them (all rows, those
above 100 us, FP16 alone). The V100's row compares engines' kernels with a network of one layer, copies and choices for
odd shapes included; launch, step and depth of its anchor were fitted to half of its small layers (`--constants`), so
it is not wholly blind, while the others are. Depthwise convolutions have no regressor there (one GPU's rows), but the
analytical model.
""".splitlines()


def main() -> int:
    """Write the page, or print the constants' fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--constants", action="store_true", help="print the constants' fit instead")
    parser.add_argument("--cache", type=Path, default=ROOT / ".accuracy")
    options = parser.parse_args()
    space = Workspace(shared_dir(), options.cache, formats=TENSORRT_FORMATS)
    if options.constants:
        print_constants(space)
        return 0
    text = "\n".join(page(space)) + "\n"
    print(text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
