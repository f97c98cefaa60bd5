"""The picture of a packing: two bars for every GPU, compute and memory, one colour for every model."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from gkestimator.core.records import frozen
from gkestimator.documents import PlacedGpu, PlacementPlan, Replica
from gkestimator.placement.report import plan_content
from gkestimator.reporting.style import (
    GREY,
    INK,
    PICTURE_SUFFIXES,
    check_drawable,
    drawing,
    new_figure,
    saved,
)
from gkestimator.reporting.text import picture_text, plural
from gkestimator.tables.layout import clipped

__all__ = ["PICTURE_SUFFIXES", "check_drawable", "draw"]

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
    """Hold GPUs that look alike: the first of them and how many there are."""

    gpu: PlacedGpu
    count: int


@frozen
class _Look:
    """Say how a model's bars are filled."""

    hue: str
    hatch: str


def draw(plan: PlacementPlan, form: str) -> bytes:
    """Return the picture of ``plan`` as ``png``, ``svg`` or ``pdf``: the left bar of a pair is compute
    (Creq), the right and paler one memory (Mreq), in percent of the GPU; GPUs with the same content stand
    once, with their number. The same plan gives the same bytes. Raises UsageError without matplotlib."""
    pairs = _pairs(plan)
    drawn = pairs[: _PER_ROW * _MOST_ROWS]
    per_row = min(_PER_ROW, max(_FEWEST, len(drawn)))
    rows = [drawn[i : i + per_row] for i in range(0, len(drawn), per_row)] or [[]]
    names = list(dict.fromkeys(r.model for p in drawn for r in p.gpu.replicas))
    top = max([100.0, *(_height(p.gpu) for p in drawn)])
    legend_columns = min(3, 1 + max(0, len(names) - 1) // 20)
    plain = max(5.0, min(14.0, 1.0 + 0.42 * per_row))
    with drawing():
        figure = new_figure(plain + 1.6 * legend_columns, 0.9 + 2.3 * len(rows))
        panels = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
        looks = {name: _look(i) for i, name in enumerate(names)}
        for axes, row in zip(panels, rows, strict=True):
            _draw_row(axes, row, per_row, looks)
            axes.set_ylim(0, 1.04 * top)
            _names_below(axes, row, 7 if per_row <= 30 else 6)
        title = textwrap.wrap(_title(plan, len(pairs), len(drawn)), width=int(15 * plain))
        panels[0].set_title("\n".join(title), loc="left", fontsize=8.5)
        if names:
            figure.legend(
                handles=_handles(looks),
                loc="outside right upper",
                ncols=legend_columns,
                fontsize=7,
                handlelength=1.4,
                labelspacing=0.35,
            )
        return saved(figure, form)


def _pairs(plan: PlacementPlan) -> list[_Pair]:
    by_content: dict[object, list[PlacedGpu]] = {}
    for gpu in plan.gpus:
        by_content.setdefault(plan_content(gpu), []).append(gpu)
    return [_Pair(gpu=alike[0], count=len(alike)) for alike in by_content.values()]


def _height(gpu: PlacedGpu) -> float:
    compute = sum(_compute(r) or 0.0 for r in gpu.replicas)
    memory = sum(r.mreq_pct or 0.0 for r in gpu.replicas)
    return max(compute, memory)


def _compute(replica: Replica) -> float | None:
    """Return Creq, weighted with the part of the duty cycle that a replica runs, as in ``cuti_pct``."""
    if replica.creq_pct is None or replica.duty_cycle_ms is None:
        return replica.creq_pct
    return replica.creq_pct * replica.latency_ms / replica.duty_cycle_ms


def _draw_row(axes: Any, row: Sequence[_Pair], per_row: int, looks: Mapping[str, _Look]) -> None:
    bars = _Bars(axes, labelled=per_row <= _LABELLED)
    for x, pair in enumerate(row):
        bars.pile([(r, _compute(r)) for r in pair.gpu.replicas], x - 0.38, compute=True)
        bars.pile([(r, r.mreq_pct) for r in pair.gpu.replicas], x + 0.02, compute=False)
    # A collection for each model: thousands of single bars would take a minute.
    for (model, compute), shapes in bars.known.items():
        look = looks[model]
        alpha = 1.0 if compute else 0.5
        _add(
            axes,
            shapes,
            facecolor=look.hue,
            hatch=look.hatch,
            alpha=alpha,
            edgecolor="white",
            linewidth=0.5,
        )
    _add(axes, bars.unknown, facecolor="none", edgecolor=INK, linestyle=":", linewidth=0.8)
    axes.axhline(100, color=INK, linewidth=0.8)
    axes.set_xlim(-0.6, per_row - 0.4)
    axes.set_ylabel("% of the GPU")
    axes.grid(axis="x", visible=False)
    axes.set_xticks([])


class _Bars:
    """Pile up the boxes of a row's bars, by (model, whether it is compute), and write on them."""

    def __init__(self, axes: Any, *, labelled: bool) -> None:
        self._axes = axes
        self._labelled = labelled
        self.known: dict[tuple[str, bool], list[Any]] = defaultdict(list)
        self.unknown: list[Any] = []

    def pile(self, parts: Sequence[tuple[Replica, float | None]], left: float, *, compute: bool) -> None:
        """Add the bar that begins at ``left``: a box of its percent for each replica."""
        base = 0.0
        right = left + 0.36
        middle = left + 0.18
        for replica, percent in parts:
            # Unknown is not zero: an open box that says so.
            top = base + (8.0 if percent is None else percent)
            box = ((left, base), (left, top), (right, top), (right, base))
            if percent is None:
                self.unknown.append(box)
                _write(self._axes, middle, base + 4, "?")
            else:
                self.known[replica.model, compute].append(box)
                if compute and self._labelled and percent > 5:
                    size = f"{replica.batch_size:,}"
                    _write(self._axes, middle, base + percent / 2, size, bbox=_PAPER)
            base = top


def _names_below(axes: Any, row: Sequence[_Pair], size: float) -> None:
    """Write each GPU's number below its bars, and each run of GPUs of one type below its numbers."""
    numbers = _points_below(axes, 3)
    for x, pair in enumerate(row):  # texts: hundreds of ticks would take seconds
        _write(axes, x, 0, _label(pair), transform=numbers, va="top", fontsize=size)
    lines = 3.2 if any(p.count > 1 for p in row) else 2.0
    below = _points_below(axes, lines * size)
    start = 0
    for gpu_type, run in itertools.groupby(row, key=lambda p: p.gpu.type):
        end = start + len(list(run))
        axes.plot([start - 0.4, end - 0.6], [0, 0], color=GREY, linewidth=0.8, clip_on=False, transform=below)
        axes.annotate(
            clipped(gpu_type, max(16, math.floor(4.5 * (end - start)))),
            ((start + end - 1) / 2, 0),
            xycoords=below,
            xytext=(0, -2),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=size,
        )
        start = end


def _points_below(axes: Any, points: float) -> Any:
    """Return the transform where x is a bar's number and y is ``points`` below the axis."""
    from matplotlib.transforms import ScaledTranslation

    shift = ScaledTranslation(0, -points / 72, axes.get_figure().dpi_scale_trans)
    return axes.get_xaxis_transform() + shift


def _write(axes: Any, x: float, y: float, text: str, **how: Any) -> None:
    written = axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": 6, "color": INK} | how)
    written.set_in_layout(False)  # inside the axes: nothing to make room for


def _add(axes: Any, shapes: Sequence[Any], **how: Any) -> None:
    from matplotlib.collections import PolyCollection

    collection = PolyCollection(shapes, **how)
    collection.set_in_layout(False)
    axes.add_collection(collection, autolim=False)


def _label(pair: _Pair) -> str:
    number = clipped(pair.gpu.id.removeprefix(f"{pair.gpu.type}-"), 10)
    if pair.count == 1:
        return number
    return f"{number}\n×{pair.count:,}"


def _look(number: int) -> _Look:
    hatch = number // len(_HUES) % len(_HATCHES)
    return _Look(hue=_HUES[number % len(_HUES)], hatch=_HATCHES[hatch])


def _handles(looks: Mapping[str, _Look]) -> list[Any]:
    from matplotlib.patches import Patch

    handles = []
    for name, look in itertools.islice(looks.items(), _MOST_NAMES):
        label = picture_text(name, 24)
        if label.startswith("_"):  # a leading underscore hides an entry from matplotlib's legend
            label = f" {label}"
        handles.append(Patch(facecolor=look.hue, hatch=look.hatch, edgecolor="white", label=label))
    if len(looks) > _MOST_NAMES:
        handles.append(Patch(facecolor="none", label=f"and {len(looks) - _MOST_NAMES:,} more"))
    return handles


def _title(plan: PlacementPlan, pairs: int, drawn: int) -> str:
    totals = plan.totals
    parts = [
        f"{plan.policy}: {plural(totals.gpus_used, 'GPU')}",
        f"goodput {totals.goodput_rps:,.6g} req/s",
    ]
    if totals.expected_goodput_rps is not None:
        parts.append(f"expected {totals.expected_goodput_rps:,.6g}")
    if totals.cost_per_hour is not None:
        parts.append(f"{totals.cost_per_hour:,.2f} USD per hour")
    if plan.unserved:
        parts.append(f"{len(plan.unserved):,} models not wholly served")
    if pairs > drawn:
        parts.append(f"{drawn:,} of {pairs:,} different GPUs are drawn")
    sizes = ", with batch sizes" if drawn <= _LABELLED else ""
    text = ", ".join(parts) + f". Left bars: compute ({plan.creq}){sizes}; right, paler: memory."
    return text.replace("$", r"\$")
