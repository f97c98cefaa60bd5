"""The picture of a packing: two bars for every GPU, compute and memory, one colour for every model."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gkestimator.documents import PlacedGpu, PlacementPlan, Replica
from gkestimator.errors import UsageError
from gkestimator.picture_style import GREY, INK, STYLE
from gkestimator.placement.report import plan_content
from gkestimator.tables.layout import clipped, printable

__all__ = ["PICTURE_SUFFIXES", "draw"]

PICTURE_SUFFIXES = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
# Files that do not change from run to run: matplotlib would write the date and its version.
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_PER_ROW = 48  # pairs of bars side by side that can still be told apart on a page
_FEWEST = 6  # room for as many, so that one GPU's bars do not fill the page
_MOST_ROWS = 12
_MOST_NAMES = 60
_LABELLED = 24  # with more bars side by side their batch sizes could not be read
# Ten hues that differ for the colour-blind as far as ten can (Tableau 10), then the same with hatching.
_HUES = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#86bcb6",
)  # fmt: skip
_PAPER: Any = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
_HATCHES = ("", "////", "....", "xxxx", "----", "oo")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """GPUs that look alike: the first of them and how many there are."""

    gpu: PlacedGpu
    count: int


def draw(plan: PlacementPlan, form: str) -> bytes:
    """The picture of ``plan`` as ``png``, ``svg`` or ``pdf``: the left bar of a pair is compute (Creq), the
    right and paler one memory (Mreq), in percent of the GPU; GPUs with the same content stand once, with their
    number. The same plan gives the same bytes."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as e:
        raise UsageError("a picture needs matplotlib: pip install 'gkestimator[plot]'") from e
    pairs = _pairs(plan)
    drawn = pairs[: _PER_ROW * _MOST_ROWS]
    per_row = min(_PER_ROW, max(_FEWEST, len(drawn)))
    rows = [drawn[i : i + per_row] for i in range(0, len(drawn), per_row)] or [[]]
    names = list(dict.fromkeys(r.model for p in drawn for r in p.gpu.replicas))
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "gkestimator"}):
        legend_columns = 1 if len(names) <= 20 else 2 if len(names) <= 40 else 3
        plain = max(5.0, min(14.0, 1.0 + 0.42 * per_row))
        width = plain + 1.6 * legend_columns
        figure = Figure(figsize=(width, 0.9 + 2.3 * len(rows)), layout="constrained")
        found: Any = figure.subplots(len(rows), 1, squeeze=False)
        top = max([100.0, *(_height(p.gpu) for p in drawn)])
        for axes, row in zip(found[:, 0], rows, strict=True):
            _draw_row(axes, row, per_row, top, names)
        title = textwrap.wrap(_title(plan, len(pairs), len(drawn)), width=int(15 * plain))
        found[0, 0].set_title("\n".join(title), loc="left", fontsize=8.5)
        if names:
            figure.legend(
                handles=_handles(names), loc="outside right upper", ncols=legend_columns, fontsize=7,
                handlelength=1.4, labelspacing=0.35,
            )  # fmt: skip
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, dpi=150, metadata=_METADATA[form])
    return buffer.getvalue()


def _pairs(plan: PlacementPlan) -> list[_Pair]:
    found: dict[tuple[object, ...], list[PlacedGpu]] = {}
    for gpu in plan.gpus:
        found.setdefault(plan_content(gpu), []).append(gpu)
    return [_Pair(gpu=alike[0], count=len(alike)) for alike in found.values()]


def _height(gpu: PlacedGpu) -> float:
    return max(sum(_compute(r) or 0.0 for r in gpu.replicas), sum(r.mreq_pct or 0.0 for r in gpu.replicas))


def _compute(replica: Replica) -> float | None:
    """Creq, weighted with the part of the duty cycle that a replica runs, as in ``cuti_pct``."""
    if replica.creq_pct is None or replica.duty_cycle_ms is None:
        return replica.creq_pct
    return replica.creq_pct * replica.latency_ms / replica.duty_cycle_ms


def _draw_row(axes: Any, row: Sequence[_Pair], per_row: int, top: float, names: Sequence[str]) -> None:
    look = {name: _look(i) for i, name in enumerate(names)}
    for x, pair in enumerate(row):
        for side, values in (
            (-0.2, [_compute(r) for r in pair.gpu.replicas]),
            (0.2, [r.mreq_pct for r in pair.gpu.replicas]),
        ):
            base = 0.0
            for replica, value in zip(pair.gpu.replicas, values, strict=True):
                hue, hatch = look[replica.model]
                if value is None:  # unknown is not zero: an open box that says so
                    axes.bar(
                        x + side,
                        8,
                        0.36,
                        bottom=base,
                        fill=False,
                        edgecolor=hue,
                        linestyle=":",
                        linewidth=0.8,
                    )
                    axes.text(x + side, base + 4, "?", ha="center", va="center", fontsize=6)
                    base += 8
                    continue
                axes.bar(
                    x + side, value, 0.36, bottom=base, color=hue, hatch=hatch, alpha=1.0 if side < 0 else 0.5,
                    edgecolor="white", linewidth=0.5,
                )  # fmt: skip
                if side < 0 and per_row <= _LABELLED and value > 5:
                    axes.text(
                        x + side, base + value / 2, f"{replica.batch_size:,}", ha="center", va="center", fontsize=6,
                        color=INK, bbox=_PAPER,
                    )  # fmt: skip
                base += value
    axes.axhline(100, color=INK, linewidth=0.8)
    axes.set_ylim(0, 1.04 * top)
    axes.set_xlim(-0.6, per_row - 0.4)
    axes.set_ylabel("% of the GPU")
    axes.grid(axis="x", visible=False)
    axes.tick_params(axis="x", length=0)
    size = 7 if per_row <= 30 else 6
    axes.set_xticks(range(len(row)), [_label(p) for p in row], fontsize=size)
    _types_below(axes, row, size)


def _label(pair: _Pair) -> str:
    number = pair.gpu.id.removeprefix(f"{pair.gpu.type}-")
    return clipped(number, 10) + (f"\n×{pair.count:,}" if pair.count > 1 else "")


def _types_below(axes: Any, row: Sequence[_Pair], size: float) -> None:
    """Each run of GPUs of one type, named below its numbers."""
    from matplotlib.transforms import ScaledTranslation

    points = (3.2 if any(p.count > 1 for p in row) else 2.0) * size
    figure = axes.get_figure()
    below = axes.get_xaxis_transform() + ScaledTranslation(0, -points / 72, figure.dpi_scale_trans)
    start = 0
    for i in range(1, len(row) + 1):
        if i < len(row) and row[i].gpu.type == row[start].gpu.type:
            continue
        axes.plot([start - 0.4, i - 0.6], [0, 0], color=GREY, linewidth=0.8, clip_on=False, transform=below)
        name = clipped(row[start].gpu.type, max(16, math.floor(4.5 * (i - start))))
        axes.annotate(
            name, ((start + i - 1) / 2, 0), xycoords=below, xytext=(0, -2), textcoords="offset points",
            ha="center", va="top", fontsize=size,
        )  # fmt: skip
        start = i


def _look(number: int) -> tuple[str, str]:
    return _HUES[number % len(_HUES)], _HATCHES[number // len(_HUES) % len(_HATCHES)]


def _handles(names: Sequence[str]) -> list[Any]:
    from matplotlib.patches import Patch

    handles = []
    for i, name in enumerate(names[:_MOST_NAMES]):
        hue, hatch = _look(i)
        # A leading underscore hides an entry from matplotlib's legend, a dollar sign begins a formula.
        label = clipped(printable(name), 24).replace("$", r"\$")
        handles.append(
            Patch(
                facecolor=hue, hatch=hatch, edgecolor="white", label=label if label[0] != "_" else f" {label}"
            )
        )
    if len(names) > _MOST_NAMES:
        handles.append(Patch(facecolor="none", label=f"and {len(names) - _MOST_NAMES:,} more"))
    return handles


def _title(plan: PlacementPlan, pairs: int, drawn: int) -> str:
    totals = plan.totals
    words = [
        f"{plan.policy}: {totals.gpus_used:,} GPU{'s' * (totals.gpus_used != 1)}",
        f"goodput {totals.goodput_rps:,.6g} req/s",
    ]
    if totals.expected_goodput_rps is not None:
        words.append(f"expected {totals.expected_goodput_rps:,.6g}")
    if totals.cost_per_hour is not None:
        words.append(f"{totals.cost_per_hour:,.2f} USD per hour")
    if plan.unserved:
        words.append(f"{len(plan.unserved):,} models not wholly served")
    if pairs > drawn:
        words.append(f"{drawn:,} of {pairs:,} different GPUs are drawn")
    sizes = ", with batch sizes" if drawn <= _LABELLED else ""
    text = ", ".join(words) + f". Left bars: compute ({plan.creq}){sizes}; right, paler: memory."
    return text.replace("$", r"\$")
