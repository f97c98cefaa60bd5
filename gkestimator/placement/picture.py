"""The picture of a packing: two bars for every GPU, compute and memory, one colour for every model."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.documents import PlacedGpu, PlacementPlan, Replica
from gkestimator.placement.report import plan_content
from gkestimator.reporting.style import GREY, INK, STYLE, saved
from gkestimator.tables.layout import clipped, printable

PICTURE_SUFFIXES = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
_PER_ROW = 48  # pairs of bars side by side that can still be told apart on a page
_FEWEST = 6  # room for as many, so that one GPU's bars do not fill the page
_MOST_ROWS = 12
_MOST_NAMES = 60
_LABELLED = 24  # with more bars side by side their batch sizes could not be read
# Ten hues that differ for the colour-blind as far as ten can (Tableau 10), then the same with hatching.
_HUES = (
    "#4e79a7",
    "#f28e2b",
    "#59a14f",
    "#e15759",
    "#76b7b2",
    "#edc948",
    "#b07aa1",
    "#ff9da7",
    "#9c755f",
    "#86bcb6",
)
_PAPER: Any = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
_HATCHES = ("", "////", "....", "xxxx", "----", "oo")


@frozen
class _Pair:
    """GPUs that look alike: the first of them and how many there are."""

    gpu: PlacedGpu
    count: int


def check_drawable() -> None:
    """Raises UsageError without matplotlib (extra ``plot``): to be known before a plan is computed, not after."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as e:
        raise UsageError("a picture needs matplotlib: pip install 'gkestimator[plot]'") from e


def draw(plan: PlacementPlan, form: str) -> bytes:
    """The picture of ``plan`` as ``png``, ``svg`` or ``pdf``: the left bar of a pair is compute (Creq), the
    right and paler one memory (Mreq), in percent of the GPU; GPUs with the same content stand once, with their
    number. The same plan gives the same bytes."""
    check_drawable()
    import matplotlib
    from matplotlib.figure import Figure

    pairs = _pairs(plan)
    drawn = pairs[: _PER_ROW * _MOST_ROWS]
    per_row = min(_PER_ROW, max(_FEWEST, len(drawn)))
    rows = [drawn[i : i + per_row] for i in range(0, len(drawn), per_row)] or [[]]
    names = list(dict.fromkeys(r.model for p in drawn for r in p.gpu.replicas))
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "gkestimator"}):
        if len(names) <= 20:
            legend_columns = 1
        elif len(names) <= 40:
            legend_columns = 2
        else:
            legend_columns = 3
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
                handles=_handles(names),
                loc="outside right upper",
                ncols=legend_columns,
                fontsize=7,
                handlelength=1.4,
                labelspacing=0.35,
            )
        return saved(figure, form)


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
    boxes: dict[tuple[str, bool], list[Any]] = defaultdict(list)
    unknown: list[Any] = []
    for x, pair in enumerate(row):
        for compute in (True, False):
            left = x + (-0.38 if compute else 0.02)
            base = 0.0
            for replica in pair.gpu.replicas:
                value = _compute(replica) if compute else replica.mreq_pct
                # Unknown is not zero: an open box that says so.
                height = 8.0 if value is None else value
                corners = (
                    (left, base),
                    (left, base + height),
                    (left + 0.36, base + height),
                    (left + 0.36, base),
                )
                (unknown if value is None else boxes[replica.model, compute]).append(corners)
                if value is None:
                    _write(axes, left + 0.18, base + 4, "?")
                elif compute and per_row <= _LABELLED and value > 5:
                    _write(axes, left + 0.18, base + value / 2, f"{replica.batch_size:,}", bbox=_PAPER)
                base += height
    # A collection for each model: thousands of single bars would take a minute.
    for (model, compute), shapes in boxes.items():
        hue, hatch = look[model]
        _add(
            axes,
            shapes,
            facecolor=hue,
            hatch=hatch,
            alpha=1.0 if compute else 0.5,
            edgecolor="white",
            linewidth=0.5,
        )
    _add(axes, unknown, facecolor="none", edgecolor=INK, linestyle=":", linewidth=0.8)
    axes.axhline(100, color=INK, linewidth=0.8)
    axes.set_ylim(0, 1.04 * top)
    axes.set_xlim(-0.6, per_row - 0.4)
    axes.set_ylabel("% of the GPU")
    axes.grid(axis="x", visible=False)
    size = 7 if per_row <= 30 else 6
    axes.set_xticks([])
    under = _points_below(axes, 3)
    for x, pair in enumerate(row):  # texts: hundreds of ticks would take seconds
        _write(axes, x, 0, _label(pair), transform=under, va="top", fontsize=size)
    _types_below(axes, row, size)


def _points_below(axes: Any, points: float) -> Any:
    """Where x is a bar's number and y is ``points`` below the axis."""
    from matplotlib.transforms import ScaledTranslation

    shift = ScaledTranslation(0, -points / 72, axes.get_figure().dpi_scale_trans)
    return axes.get_xaxis_transform() + shift


def _write(axes: Any, x: float, y: float, text: str, **how: Any) -> None:
    found = axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": 6, "color": INK} | how)
    found.set_in_layout(False)  # inside the axes: nothing to make room for


def _add(axes: Any, shapes: Sequence[Any], **how: Any) -> None:
    from matplotlib.collections import PolyCollection

    found = PolyCollection(shapes, **how)
    found.set_in_layout(False)
    axes.add_collection(found, autolim=False)


def _label(pair: _Pair) -> str:
    number = pair.gpu.id.removeprefix(f"{pair.gpu.type}-")
    return clipped(number, 10) + (f"\n×{pair.count:,}" if pair.count > 1 else "")


def _types_below(axes: Any, row: Sequence[_Pair], size: float) -> None:
    """Each run of GPUs of one type, named below its numbers."""
    below = _points_below(axes, (3.2 if any(p.count > 1 for p in row) else 2.0) * size)
    start = 0
    for i in range(1, len(row) + 1):
        if i < len(row) and row[i].gpu.type == row[start].gpu.type:
            continue
        axes.plot([start - 0.4, i - 0.6], [0, 0], color=GREY, linewidth=0.8, clip_on=False, transform=below)
        name = clipped(row[start].gpu.type, max(16, math.floor(4.5 * (i - start))))
        axes.annotate(
            name,
            ((start + i - 1) / 2, 0),
            xycoords=below,
            xytext=(0, -2),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=size,
        )
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
