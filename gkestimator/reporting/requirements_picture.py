"""Draw a requirement table: latency and throughput against batch, GPUs side by side; or bars of where the time goes."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from gkestimator.core.records import frozen
from gkestimator.reporting.style import INK, drawing, new_figure, saved
from gkestimator.reporting.text import picture_text, plural
from gkestimator.tables import KernelRow, Requirement
from gkestimator.tables.units import number_text

# Seven hues that differ for the colour-blind (Okabe and Ito, without their yellow), again with other dashes.
HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555")
_DASHES = ("-", "--", ":")
_MARKERS = ("o", "s", "^")
_MOST_LINES = len(HUES) * len(_DASHES)
_MOST_BARS = 40
_MOST_PANELS = 8
_WIDTH = 8.6  # inches
_CAPTION_LETTERS = 140
_PARTS = (
    ("arithmetic", "GPU: compute", "#0072b2"),
    ("memory", "GPU: memory traffic", "#56b4e9"),
    ("small", "GPU: small kernels", "#e69f00"),
    ("gpu", "GPU works", "#0072b2"),
    ("wait", "GPU waits for the host", "#b8bec4"),
    ("whole", "latency", "#8a949c"),
)
"""Parts of a bar: name, words, colour."""
_SIDES = {"compute": "arithmetic", "memory": "memory", "latency": "small", "host": "small"}
_SUBJECT = ("model", "dims", "runtime")
_LINE = ("gpu", "dtype", "sm_share_pct")
_Key: TypeAlias = tuple[Any, ...]


@frozen
class _Subject:
    """Hold the rows that one line of panels shows: a model under one runtime, at one choice of dimensions."""

    rows: tuple[Requirement, ...]

    @property
    def lines(self) -> dict[str, list[Requirement]]:
        """Return the rows of each GPU by its name, with dtype or share of the SMs where those differ here."""
        differing = [name for name in _LINE[1:] if len({getattr(row, name) for row in self.rows}) > 1]
        lines: dict[str, list[Requirement]] = defaultdict(list)
        for row in self.rows:
            words = [row.gpu]
            if "dtype" in differing:
                words.append(row.dtype)
            if "sm_share_pct" in differing:
                words.append(f"{row.sm_share_pct:g} % of SMs")
            lines[", ".join(words)].append(row)
        return lines

    @property
    def sizes(self) -> list[int]:
        """Return the batch sizes, ascending; a model without a batch has none."""
        return sorted({row.batch_size for row in self.rows if row.batch_size is not None})

    @property
    def title(self) -> str:
        """Return what all rows have in common."""
        first = self.rows[0]
        words = [first.model, first.dims, f"under {first.runtime}"]
        if len({row.dtype for row in self.rows}) == 1:
            words.append(first.dtype)
        if len(self.sizes) == 1:
            words.append(f"batch {self.sizes[0]}")
        return ", ".join(filter(None, words))


def draw_requirements(
    rows: Sequence[Requirement], form: str = "png", *, kernels: Sequence[KernelRow] = ()
) -> bytes:
    """Return the picture of a requirement table as ``png``, ``svg`` or ``pdf``.

    A model with several batch sizes gets latency and throughput against batch, a line with its 90 % band for every
    GPU; a model with one gets a bar for every GPU: how long the GPU works and how long it waits for the host.
    ``kernels`` (rows of the same estimate) divide the work into arithmetic, memory and small kernels.
    The same rows give the same bytes. Raises UsageError without matplotlib.
    """
    with drawing():
        return saved(requirements_figure(rows, kernels=kernels), form)


def requirements_figure(rows: Sequence[Requirement], *, kernels: Sequence[KernelRow] = ()) -> Any:
    """Return the same as a matplotlib figure, for notebooks. Raises UsageError without matplotlib."""
    with drawing():
        subjects = _subjects(rows)
        drawn = subjects[:_MOST_PANELS]
        heights = [2.7 if len(s.sizes) > 1 else 0.75 + 0.3 * min(len(s.rows), _MOST_BARS) for s in drawn]
        figure = new_figure(_WIDTH, sum(heights) + 0.8)
        panels = figure.subfigures(len(heights) or 1, 1, squeeze=False, height_ratios=heights or [1])[:, 0]
        sides = _time_by_side(kernels)
        for panel, subject in zip(panels, drawn, strict=False):
            panel.suptitle(picture_text(subject.title, 110), x=0.01, ha="left", fontsize=9.5, weight="bold")
            if len(subject.sizes) > 1:
                _draw_sweep(panel, subject)
            else:
                _draw_bars(panel, subject, sides)
        caption = "\n".join(textwrap.wrap(_caption(drawn, len(subjects)), _CAPTION_LETTERS))
        figure.supxlabel(caption, x=0.01, ha="left", fontsize=7)
        return figure


def _subjects(rows: Sequence[Requirement]) -> list[_Subject]:
    """Return the rows whose latency is known, by what they are of; a model of which nothing runs on a GPU has none."""
    groups: dict[_Key, list[Requirement]] = defaultdict(list)
    for row in rows:
        if row.latency_ms is not None and row.kernels != 0:
            groups[tuple(getattr(row, name) for name in _SUBJECT)].append(row)
    return [_Subject(rows=tuple(group)) for group in groups.values()]


def _time_by_side(kernels: Sequence[KernelRow]) -> Mapping[_Key, Mapping[str, float]]:
    """Return the kernels' time of each estimate by what bounds them."""
    sides: dict[_Key, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kernel in kernels:
        side = _SIDES.get(kernel.bound_by or "")
        if side is not None and kernel.duration_us is not None:
            sides[_estimate_of(kernel)][side] += kernel.duration_us * kernel.launches
    return sides


def _estimate_of(row: KernelRow | Requirement) -> _Key:
    return tuple(getattr(row, name) for name in (*_SUBJECT, *_LINE, "batch_size"))


def _does_not_fit(row: Requirement) -> bool:
    return row.mreq_pct is not None and row.mreq_pct > 100


def _draw_sweep(panel: Any, subject: _Subject) -> None:
    """Draw latency and throughput against batch, a line and a band for every GPU."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    left, right = panel.subplots(1, 2)
    for number, (name, rows) in enumerate(islice(subject.lines.items(), _MOST_LINES)):
        line = sorted(
            (row for row in rows if row.batch_size is not None), key=lambda row: row.batch_size or 0
        )
        times = [(row, row.latency_ms, row.latency_low_ms, row.latency_high_ms) for row in line]
        _draw_line(left, number, name, times)
        rates = [
            (row, _rate(row, row.latency_ms), _rate(row, row.latency_high_ms), _rate(row, row.latency_low_ms))
            for row in line
        ]
        _draw_line(right, number, name, rates)
    for axes, title in ((left, "latency of a batch, ms (log scale)"), (right, "samples a second")):
        axes.set_title(title, loc="left")
        axes.set_xscale("log", base=2)
        axes.set_xticks(subject.sizes)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("batch size")
    left.set_yscale("log")
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_minor_locator(NullLocator())
    right.set_ylim(bottom=0)
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    handles, names = left.get_legend_handles_labels()
    if any(_does_not_fit(row) for row in subject.rows):
        handles.append(left.plot([], [], "x", color=INK)[0])
        names.append("does not fit")
    panel.legend(handles, names, loc="outside right center", fontsize=7)


def _rate(row: Requirement, latency_ms: float | None) -> float | None:
    """Return samples a second at a latency; None where it is unknown."""
    if not latency_ms or row.batch_size is None:
        return None
    return 1e3 * row.batch_size / latency_ms


def _draw_line(
    axes: Any,
    number: int,
    name: str,
    points: Sequence[tuple[Requirement, float | None, float | None, float | None]],
) -> None:
    """Draw one GPU's estimates with their band; an open end has no band, what does not fit is crossed out."""
    colour = HUES[number % len(HUES)]
    turn = number // len(HUES)
    known = [(row.batch_size, value) for row, value, _, _ in points if value is not None]
    axes.plot(
        *zip(*known, strict=True),
        color=colour,
        linestyle=_DASHES[turn],
        marker=_MARKERS[turn],
        markersize=3,
        linewidth=1.4,
        label=picture_text(name, 34),
    )
    ends = [(row.batch_size, low, high) for row, _, low, high in points if low and high]
    if len(ends) > 1:
        sizes, lows, highs = zip(*ends, strict=True)
        axes.fill_between(sizes, lows, highs, color=colour, alpha=0.16, linewidth=0)
    crossed = [(row.batch_size, value) for row, value, _, _ in points if value and _does_not_fit(row)]
    if crossed:
        axes.plot(*zip(*crossed, strict=True), "x", color=INK, markersize=7, zorder=5)


def _parts_of(row: Requirement, sides: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of a row's latency, ms. Kernels that overlap on several streams share the GPU's time."""
    latency = row.latency_ms or 0.0
    if row.gpu_ms is None:
        return {}
    working = min(row.gpu_ms, latency)
    parts = {"gpu": working}
    total = sum(sides.values())
    if total > 0:
        parts = {side: working * spent / total for side, spent in sides.items()}
    return parts | {"wait": latency - working}


def _draw_bars(panel: Any, subject: _Subject, sides: Mapping[_Key, Mapping[str, float]]) -> None:
    """Draw a bar for every GPU: its latency, divided, with the interval."""
    axes = panel.subplots()
    bars = [(name, row) for name, line in subject.lines.items() for row in line][:_MOST_BARS]
    reach = max(row.latency_high_ms or row.latency_ms or 0.0 for _, row in bars)
    in_legend: set[str] = set()
    for place, (_, row) in enumerate(bars):
        parts = _parts_of(row, sides.get(_estimate_of(row), {}))
        end = _draw_bar(axes, place, parts or {"whole": row.latency_ms or 0.0}, in_legend)
        if row.latency_low_ms is not None and row.latency_high_ms is not None:
            ends = [row.latency_low_ms, row.latency_high_ms]
            axes.plot(ends, [place, place], color=INK, linewidth=1, marker="|", markersize=5)
            end = max(end, row.latency_high_ms)
        axes.text(end + 0.01 * reach, place, _bar_text(row), va="center", fontsize=7)
    axes.set_yticks(range(len(bars)), [picture_text(name, 34) for name, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * reach)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("latency, ms")
    panel.legend(loc="outside right center", fontsize=7)


def _draw_bar(axes: Any, place: int, parts: Mapping[str, float], in_legend: set[str]) -> float:
    """Draw the parts of a bar one after another, and return where it ends. ``in_legend``: parts that are named."""
    start = 0.0
    for name, words, colour in _PARTS:
        length = parts.get(name, 0.0)
        if length <= 0:
            continue
        label = "" if name in in_legend else words
        in_legend.add(name)
        axes.barh(place, length, left=start, height=0.62, color=colour, label=label, linewidth=0)
        start += length
    return start


def _bar_text(row: Requirement) -> str:
    text = f"{number_text(row.latency_ms)} ms"
    if row.latency_low_ms is not None and row.latency_high_ms is not None:
        text = f"{text} ({number_text(row.latency_low_ms)} to {number_text(row.latency_high_ms)})"
    elif row.latency_low_ms is not None:
        text = f"{text} (at least {number_text(row.latency_low_ms)})"
    if _does_not_fit(row):
        text = f"{text}, does not fit"
    return text


def _caption(subjects: Sequence[_Subject], all_subjects: int) -> str:
    """Say what the picture shows, so that it stands alone."""
    if not subjects:
        return "No latency is known of any row."
    rows = [row for subject in subjects for row in subject.rows]
    origin = "Estimated, not measured."
    if all(row.source == "measured" for row in rows):
        origin = "Measured."
    parts = [origin]
    if any(len(subject.sizes) > 1 for subject in subjects):
        parts.append("Lines: the estimate for each GPU; bands: its 90 % interval (nine of ten lie inside).")
    if any(len(subject.sizes) <= 1 for subject in subjects):
        parts.append("Bars: the time of one inference and what it consists of; black: its 90 % interval.")
        parts.append("Small kernels are shorter than their launch, or do not fill the GPU.")
    parts.append("Inputs lie on the GPU already; the time in which the host launches the work counts.")
    if any(len(subject.lines) > _MOST_LINES for subject in subjects):
        parts.append(f"At most {_MOST_LINES} GPUs are drawn as lines, {_MOST_BARS} as bars.")
    if all_subjects > len(subjects):
        parts.append(f"{plural(all_subjects - len(subjects), 'further table')} of other models is not drawn.")
    return " ".join(parts)
