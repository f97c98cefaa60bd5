"""Draw the report's pictures; matplotlib is imported where one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.evaluation.cases import KernelCases
from gkestimator.evaluation.metrics import inside_at_scales

from .figures import interval_rows, whole_interval_rows
from .kernels import gpu_cases, label_column
from .whole import WholeCase, whole_cases
from .workspace import SEED, Workspace

INK, GREY, SEEN, LEFT_OUT = "#333333", "#b0b0b0", "#2a6f97", "#c8553d"
_STYLE = {
    "font.size": 8, "axes.titlesize": 8.5, "axes.labelsize": 8, "axes.edgecolor": "#888888", "axes.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "xtick.color": INK, "ytick.color": INK,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "axes.grid": True, "grid.color": "#ececec",
    "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False, "figure.facecolor": "white",
    "text.color": INK, "axes.labelcolor": INK,
}  # fmt: skip
_POINTS = 900
_BINS = np.array([0, 1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, np.inf])
_SCALES = np.linspace(0, 2.5, 51)


def _figure(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update(_STYLE)
    return plt.subplots(*args, **kwargs)


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=100, metadata={"Software": None}, pil_kwargs={"optimize": True})
    plt.close(figure)
    _shrink(path)


def _shrink(path: Path) -> None:
    """Few colours are used: a palette of 64 makes the file a third of its size."""
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(64, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def _families(cases: KernelCases) -> list[tuple[str, np.ndarray]]:
    words = label_column(cases)
    return [(w, words == w) for w in sorted(set(words.tolist())) if (words == w).sum() >= 10]


def predicted_against_measured(cases: KernelCases, path: Path, title: str) -> None:
    """Log-log, a panel per family: GPU time predicted against measured, at most 900 points each."""
    found = _families(cases)
    columns = 5
    rows = -(-len(found) // columns)
    figure, axes = _figure(
        rows, columns, figsize=(10, 2.15 * rows + 0.4), layout="constrained", squeeze=False
    )
    rng = np.random.default_rng(SEED)
    for axis, (word, mask) in zip(axes.flat, found, strict=False):
        part = cases.take(mask)
        time = part.gpu_time_us
        at = np.flatnonzero(np.isfinite(time))
        at = at if len(at) <= _POINTS else rng.choice(at, _POINTS, replace=False)
        x, y = time[at], part.estimates["estimator"][at]
        ends = [min(x.min(), y.min()) / 1.3, max(x.max(), y.max()) * 1.3]
        axis.fill_between(ends, np.array(ends) / 1.25, np.array(ends) * 1.25, color="#f1f1f1", lw=0)
        axis.plot(ends, ends, color=GREY, lw=0.8)
        axis.scatter(x, y, s=4, alpha=0.4, color=SEEN if "seen" in title else LEFT_OUT, lw=0)
        axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        _decades(axis)
        axis.set_title(f"{word}  (n {int(np.isfinite(time).sum()):,})", loc="left")
    for axis in axes.flat[len(found) :]:
        axis.axis("off")
    figure.supxlabel("measured GPU time, µs (band: ± 25 %)", fontsize=8)
    figure.supylabel("predicted, µs", fontsize=8)
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    _save(figure, path)


def _decades(axis: Any) -> None:
    """Labels at powers of ten only; minor ones overlap on a short axis."""
    from matplotlib.ticker import LogLocator, NullLocator

    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(LogLocator(base=10, numticks=5))
        side.set_minor_locator(NullLocator())


def error_by_size(shapes: KernelCases, left: KernelCases | None, path: Path) -> None:
    """Median error (line) and 90th percentile (end of the band) by size of the kernel, a panel per family."""
    found = [w for w, _ in _families(shapes)]
    columns = 5
    rows = -(-len(found) // columns)
    figure, axes = _figure(
        rows, columns, figsize=(10, 2.0 * rows + 0.4), layout="constrained", squeeze=False, sharex=True
    )
    for axis, word in zip(axes.flat, found, strict=False):
        for cases, colour, name in ((shapes, SEEN, "GPU seen"), (left, LEFT_OUT, "GPU left out")):
            if cases is None:
                continue
            part = cases.take(label_column(cases) == word)
            place, middle, upper = _by_size(part)
            axis.fill_between(place, middle, upper, color=colour, alpha=0.13, lw=0)
            axis.plot(place, middle, color=colour, lw=1.3, marker="o", ms=2.5, label=name)
        axis.set(xscale="log", yscale="log", ylim=(0.3, 300))
        axis.set_yticks([1, 10, 100], ["1", "10", "100"])
        axis.set_title(word, loc="left")
    axes.flat[0].legend(fontsize=7, loc="upper right")
    for at, axis in enumerate(axes.flat):
        axis.tick_params(labelbottom=at + columns >= len(found))
    for axis in axes.flat[len(found) :]:
        axis.axis("off")
    figure.supxlabel("roofline time of the kernel, µs", fontsize=8)
    figure.supylabel("error %: median, band to the 90th percentile", fontsize=8)
    _save(figure, path)


def _by_size(cases: KernelCases) -> tuple[list[float], list[float], list[float]]:
    size, errors = cases.estimates["roofline"], cases.errors_pct()
    place, middle, upper = [], [], []
    for low, high in pairwise(_BINS):
        inside = (size >= low) & (size < high)
        if inside.sum() >= 10:
            place.append(float(np.exp(np.log(size[inside]).mean())))
            middle.append(float(np.median(errors[inside])))
            upper.append(float(np.quantile(errors[inside], 0.9)))
    return place, middle, upper


def intervals(space: Workspace, path: Path) -> bool:
    """Left: share inside by how far intervals are stretched. Right: width over median error. False without cases."""
    shapes, left = space.cases("shapes"), gpu_cases(space)
    if shapes is None:
        return False
    figure, axes = _figure(1, 3, figsize=(10, 3.4), layout="constrained", width_ratios=(1, 1, 1.15))
    for axis, cases, colour, name in (
        (axes[0], shapes, SEEN, "GPUs seen"), (axes[1], left, LEFT_OUT, "GPU left out"),
    ):  # fmt: skip
        axis.axhline(90, color=GREY, lw=0.8)
        axis.axvline(1, color=GREY, lw=0.8)
        for _, mask in _families(cases) if cases is not None else []:
            part = cases.take(mask)
            time = part.gpu_time_us
            known = np.isfinite(time) & part.trained
            if known.sum() >= 10:
                part = part.take(known)
                share = inside_at_scales(
                    part.estimates["estimator"], part.low_us, part.high_us, time[known], _SCALES
                )
                axis.plot(_SCALES, share, color=colour, lw=0.9, alpha=0.55)
        whole = [c for c in whole_cases(space, "whole") if c.table == ("ethz" if axis is axes[0] else "timm")]
        if whole:
            columns = [
                np.array([getattr(c, n) for c in whole])
                for n in ("latency_ms", "low_ms", "high_ms", "measured_ms")
            ]
            axis.plot(
                _SCALES, inside_at_scales(*columns, _SCALES), color=INK, lw=1.3, ls="--", label="whole models"
            )
            axis.legend(fontsize=7, loc="lower right")
        axis.set(xlim=(0, 2.5), ylim=(0, 101), xlabel="interval stretched by")
        axis.set_title(f"{name}: measurements inside, %", loc="left")
    _widths(space, axes[2])
    _save(figure, path)
    return True


def _widths(space: Workspace, axis: Any) -> None:
    found = list(interval_rows(space))
    names = sorted({w for _, w, _ in found}, reverse=True)
    models = {
        "seen": [s for k, w, s in whole_interval_rows(space) if k == "seen" and w.endswith("report")],
        "left out": [
            s for k, w, s in whole_interval_rows(space) if k != "seen" and w.endswith("AMP, report")
        ],
    }
    axis.axvline(4, color=GREY, lw=0.8)
    for kind, colour, shift in (("seen", SEEN, 0.15), ("left out", LEFT_OUT, -0.15)):
        mine = {w: s.width_over_error for k, w, s in found if k == kind and s.width_over_error is not None}
        axis.scatter(
            list(mine.values()),
            [names.index(w) + 1 + shift for w in mine],
            s=14,
            color=colour,
            label=f"GPU {kind}",
        )
        ratios = [s.width_over_error for s in models[kind] if s.width_over_error is not None]
        axis.scatter(ratios, [shift] * len(ratios), s=18, color=colour, marker="D")
    axis.set_yticks(range(len(names) + 1), ["whole models", *names])
    axis.set_xlim(0, None)
    axis.set_title("median width / median error (bar: 4)", loc="left")
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2)


def whole_models(cases: Sequence[WholeCase], path: Path) -> None:
    """Signed error per model: a dot per batch size, bars of the mean; report and development groups apart."""
    figure, axes = _figure(1, 2, figsize=(10, 4.0), layout="constrained")
    for axis, table, title in (
        (axes[0], "ethz", "V100-SXM2-16GB, fp32: a dot per batch size"), (axes[1], "timm", "RTX 3090, AMP"),
    ):  # fmt: skip
        mine = [c for c in cases if c.table == table]
        names = [
            (m, g)
            for g in ("development", "report")
            for m in sorted({c.model for c in mine if c.group == g}, reverse=True)
        ]
        axis.axvspan(-25, 25, color="#f4f4f4", lw=0)
        axis.axvline(0, color=GREY, lw=0.8)
        for y, (model, group) in enumerate(names):
            errors = [
                100 * (c.latency_ms / c.measured_ms - 1)
                for c in mine
                if c.model == model and c.group == group
            ]
            colour = SEEN if group == "report" else GREY
            axis.barh(y, float(np.mean(errors)), height=0.62, color=colour, alpha=0.55, lw=0)
            axis.scatter(
                errors, [y] * len(errors), s=9, color=INK if group == "report" else "#777777", lw=0, zorder=3
            )
        axis.set_yticks(range(len(names)), [m for m, _ in names])
        axis.grid(axis="y", visible=False)
        axis.set_title(title, loc="left")
    figure.supxlabel(
        "error of latency, % (band: ± 25 %; blue: report group, grey: development group)", fontsize=8
    )
    _save(figure, path)
