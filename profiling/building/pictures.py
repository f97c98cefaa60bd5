"""The pictures of a report, as PNG. Matplotlib is imported here only, without a window system."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from gkestimator.core.extras import install_extra
from gkestimator.profiling.building.build import BuildResult
from gkestimator.profiling.building.choosing import entries_of, entry_key, longest_of
from gkestimator.profiling.building.sequences import USHER_PCT
from gkestimator.profiling.raw import EnvironmentSample
from gkestimator.reporting.style import BLUE, GREY, INK, STYLE
from gkestimator.reporting.text import picture_text
from gkestimator.tables import QUALITIES, KernelMeasurement

_RED = "#c8553d"
_AMBER = "#d9a441"
_COLOURS = ("#2a6f97", "#c8553d", "#588157", "#8e6c8a", "#b08968", "#1b998b", "#d9a441", "#6c757d")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "o")
_QUALITY = dict(zip(QUALITIES, (BLUE, _AMBER, _RED), strict=True))
_MOST_SAMPLES = 4000
_MOST_REASONS = 12
_SMALL_LEGEND = {"fontsize": 6.5, "handletextpad": 0.2, "borderaxespad": 0.2}
_MEASURES = (
    ("sm_clock_mhz", "clock, MHz", BLUE),
    ("power_w", "power, W", "#588157"),
    ("temperature_c", "temperature, °C", _AMBER),
)
Point = tuple[float, float]
Points = dict[str, list[Point]]  # by family, or by GPU
Measure = tuple[str, str, str]  # column, label and colour
# Rows of operator calls by family.
Groups = dict[str, list[list[KernelMeasurement]]]


def pictures(result: BuildResult) -> tuple[list[tuple[str, str, bytes]], list[str]]:
    """Return (file name, caption, PNG) of every picture there is something to show in, and lines on what is
    missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        return [], [f"no pictures: matplotlib is missing ({install_extra('plot')}); the rest is written"]
    made = []
    with mpl.rc_context(STYLE):
        for name, caption, draw in PICTURES:
            data = draw(result)
            if data is not None:
                made.append((name, caption, data))
    return made, []


def _figure(width: float, height: float, columns: int = 1, rows: int = 1, **how: Any) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    # Not pyplot: it would look for a window system and keep every figure.
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **how)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    # Without the version of matplotlib the same data gives the same bytes.
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _families(result: BuildResult) -> Groups:
    """Return operators by the family that took most of their time, the most frequent first."""
    families: Groups = {}
    for group in entries_of(result.rows).values():
        families.setdefault(longest_of(group).family, []).append(group)
    return dict(sorted(families.items(), key=lambda item: -len(item[1])))


def _few(families: Groups) -> Groups:
    """Return at most eight families, the rest as ``other``: more colours cannot be told apart."""
    most = len(_COLOURS)
    if len(families) <= most:
        return families
    names = list(families)
    few = {name: families[name] for name in names[: most - 1]}
    few["other"] = [group for name in names[most - 1 :] for group in families[name]]
    return few


def _scatter(axis: Any, number: int, name: str, points: Sequence[Point], size: int) -> None:
    """Draw the points of a family in its colour."""
    across, up = zip(*points, strict=True) if points else ((), ())
    marker = _MARKERS[number]
    colour = _COLOURS[number]
    axis.scatter(across, up, s=size, lw=0, alpha=0.75, color=colour, marker=marker, label=name)


def _name_bars(axis: Any, names: Sequence[str], totals: Sequence[int], title: str) -> None:
    """Name horizontal bars, and write their lengths beside them."""
    for place, total in enumerate(totals):
        axis.annotate(f" {total:,}", (total, place), va="center", fontsize=7)
    axis.set_yticks(range(len(names)), [picture_text(name) for name in names])
    axis.grid(axis="y", visible=False)
    axis.set(xlim=(0, 1.12 * max(totals)))
    axis.set_title(title, loc="left")


def _coverage(result: BuildResult) -> bytes:
    """Draw operators per family by quality, and where they lie in FLOPs and bytes."""
    families = _families(result)
    figure, (bars, plane) = _figure(8.6, max(2.8, 0.9 + 0.2 * len(families)), 2)
    names = list(families)[::-1]
    left = [0] * len(names)
    for quality in QUALITIES:
        counts = []
        for name in names:
            qualities = [group[0].quality for group in families[name]]
            counts.append(qualities.count(quality))
        if any(counts):
            colour = _QUALITY[quality]
            bars.barh(range(len(names)), counts, left=left, height=0.62, color=colour, label=quality)
        left = [a + b for a, b in zip(left, counts, strict=True)]
    _name_bars(bars, names, left, "Measured operators by family and quality")
    bars.set(xlabel="operators")
    bars.legend(loc="lower right")
    for number, (name, groups) in enumerate(_few(families).items()):
        points = []
        for group in groups:
            moved = _moved(group[0])
            flops = group[0].flops
            if moved and flops:
                points.append((moved, flops))
        _scatter(plane, number, name, points, 8)
    plane.set(xscale="log", yscale="log", xlabel="bytes, each operand once", ylabel="FLOPs")
    plane.set_title("Where they lie", loc="left")
    plane.legend(loc="upper left", **_SMALL_LEGEND)
    return _png(figure)


def _moved(row: KernelMeasurement) -> int:
    return (row.input_bytes or 0) + (row.weight_bytes or 0) + (row.output_bytes or 0)


def _roofline(result: BuildResult) -> bytes | None:
    """Draw measured time against roofline, one panel per GPU; red: faster than physically possible."""
    refused = set(result.checks[1].entries)
    gpus: dict[str, Points] = {}
    wrong: Points = {}
    for name, groups in _few(_families(result)).items():
        for group in groups:
            first = group[0]
            description = result.descriptions.get(entry_key(first))
            if description is None or not description.roofline_us or not first.entry_us:
                continue
            point = (description.roofline_us, first.entry_us)
            gpus.setdefault(first.gpu, {}).setdefault(name, []).append(point)
            if first.entry_id in refused:
                wrong.setdefault(first.gpu, []).append(point)
    if not gpus:
        return None
    figure, axes = _figure(4.9 * len(gpus), 4.4, len(gpus), squeeze=False)
    for axis, (gpu, families) in zip(axes[0], gpus.items(), strict=True):
        _draw_roofline(axis, gpu, families, wrong.get(gpu, []))
    return _png(figure)


def _draw_roofline(
    axis: Any,
    gpu: str,
    families: Points,
    wrong: Sequence[Point],
) -> None:
    points = [point for family in families.values() for point in family]
    rooflines, times = zip(*points, strict=True)
    across = [min(rooflines) / 1.5, max(rooflines) * 1.5]
    up = [min(*times, across[0] * 3) / 1.5, max(times) * 1.5]
    ends = [min(across[0], up[0]), max(across[1], up[1])]
    axis.plot(ends, ends, color=GREY, lw=0.9)
    axis.plot(ends, [10 * e for e in ends], color=GREY, lw=0.6, ls=":")
    for number, (name, family) in enumerate(families.items()):
        _scatter(axis, number, name, family, 9)
    if wrong:
        axis.scatter(
            *zip(*wrong, strict=True),
            s=42,
            lw=1.1,
            facecolors="none",
            edgecolors=_RED,
            label="faster than possible",
        )
    axis.set(xscale="log", yscale="log", xlim=across, ylim=up)
    axis.set(xlabel="roofline, us (line: as fast as that; dotted: ten times it)", ylabel="measured, us")
    axis.set_title(picture_text(f"{gpu}: {len(points):,} operators"), loc="left")
    axis.legend(loc="lower right", **_SMALL_LEGEND)


def _variation(result: BuildResult) -> bytes | None:
    """Draw how much the launches' durations vary over the repeats."""
    by_quality: dict[str, list[float]] = {quality: [] for quality in QUALITIES}
    for row in result.rows:
        if row.duration_cv is not None:
            by_quality[row.quality].append(max(row.duration_cv * 100, 0.01))
    shown = {quality: values for quality, values in by_quality.items() if values}
    values = sorted(chain.from_iterable(shown.values()))
    if not values:
        return None
    figure, axis = _figure(5.2, 3.0)
    low = math.floor(4 * math.log10(values[0]))
    high = math.ceil(4 * math.log10(values[-1]))
    axis.hist(
        list(shown.values()),
        bins=[10 ** (e / 8) for e in range(2 * low, 2 * high + 3)],
        stacked=True,
        color=[_QUALITY[quality] for quality in shown],
        label=list(shown),
    )
    middle = values[len(values) // 2]
    axis.axvline(middle, color=INK, lw=0.8, ls="--")
    axis.annotate(
        f" median {middle:.3g} %", (middle, 0.98), xycoords=("data", "axes fraction"), va="top", fontsize=7
    )
    axis.margins(y=0.16)
    axis.set(xscale="log", xlabel="standard deviation / mean over the repeats, %", ylabel="launches")
    axis.set_title(f"Variation of {len(values):,} launches", loc="left")
    if len(shown) > 1:
        axis.legend(loc="upper right")
    return _png(figure)


def _kernels(result: BuildResult) -> bytes | None:
    """Draw how many kernels operators became, beside USHER's figures."""
    ours = result.table.percent()
    if not any(ours):
        return None
    figure, axis = _figure(4.8, 3.0)
    total = sum(result.table.counts.values())
    for shift, values, colour, label in (
        (-0.19, ours, BLUE, f"here ({total:,} operators)"),
        (0.19, USHER_PCT, GREY, "USHER (its own operators, TensorFlow and PyTorch)"),
    ):
        places = [i + shift for i in range(4)]
        axis.bar(places, values, width=0.36, color=colour, label=label)
        for place, value in zip(places, values, strict=True):
            axis.annotate(f"{value:.0f} %", (place, value), ha="center", va="bottom", fontsize=7)
    axis.set_xticks(range(4), ["1", "2", "3", "4 or more"])
    axis.grid(axis="x", visible=False)
    axis.set(xlabel="kernels", ylabel="% of operators", ylim=(0, 1.22 * max(*ours, *USHER_PCT)))
    axis.set_title("Kernels per operator", loc="left")
    axis.legend(loc="upper right", fontsize=7)
    return _png(figure)


def _conditions(result: BuildResult) -> bytes | None:
    """Draw clock, power and temperature over the run, with the moments at which the driver held the clocks down."""
    by_device: dict[str, list[EnvironmentSample]] = {}
    for contents in result.contents:
        for name, samples in contents.environment.items():
            by_device.setdefault(name, []).extend(samples)
    devices = {name: samples for name, samples in by_device.items() if _measures(samples)}
    everything = list(chain.from_iterable(devices.values()))
    measures = _measures(everything)
    if not measures:
        return None
    panels = len(measures) * len(devices)
    figure, axes = _figure(6.4, 0.7 + 1.15 * panels, rows=panels, squeeze=False, sharex="col")
    start = min(s.unix_ns for s in everything)
    for number, (name, samples) in enumerate(devices.items()):
        own = axes[number * len(measures) : (number + 1) * len(measures), 0]
        _draw_conditions(own, name, sorted(samples, key=lambda s: s.unix_ns), measures, start)
    axes[-1][0].set_xlabel("minutes since the first sample")
    return _png(figure)


def _measures(samples: Sequence[EnvironmentSample]) -> list[Measure]:
    """Return those of the measures of the environment that some of the samples hold."""
    held = []
    for measure in _MEASURES:
        if any(getattr(s, measure[0]) is not None for s in samples):
            held.append(measure)
    return held


def _draw_conditions(
    axes: Sequence[Any],
    name: str,
    samples: Sequence[EnvironmentSample],
    measures: Sequence[Measure],
    start: int,
) -> None:
    step = -(-len(samples) // _MOST_SAMPLES)
    minutes = [(s.unix_ns - start) / 6e10 for s in samples]
    held = [bool(set(s.throttled or ()) - {"gpu_idle"}) for s in samples]
    for axis, (column, label, colour) in zip(axes, measures, strict=True):
        known = [getattr(s, column) for s in samples]
        values = [math.nan if value is None else value for value in known]
        axis.plot(minutes[::step], values[::step], color=colour, lw=0.8)
        for begin, end in _spans(minutes, held):
            axis.axvspan(begin, end, color=_RED, alpha=0.18, lw=0)
        axis.set_ylabel(label, fontsize=7)
    shaded = "; shaded: clocks held down" if any(held) else ""
    axes[0].set_title(picture_text(f"{name}{shaded}"), loc="left")


def _spans(times: Sequence[float], held: Sequence[bool]) -> list[Point]:
    """Return the intervals in which ``held`` is true."""
    spans: list[Point] = []
    start: float | None = None
    for time, now in zip(times, held, strict=True):
        if now and start is None:
            start = time
        elif not now and start is not None:
            spans.append((start, time))
            start = None
    if start is not None:
        spans.append((start, times[-1]))
    return spans


def _left_out(result: BuildResult) -> bytes | None:
    """Draw what of the plans is not in the dataset, and why."""
    reasons: Counter[str] = Counter()
    measured = {r.entry_id for r in result.rows}
    for contents in result.contents:
        last = {n.entry_id: f"{n.status}: {n.reason}" for n in contents.not_measured}
        for entry_id, reason in last.items():
            if entry_id not in measured:
                reasons[reason if len(reason) <= 60 else f"{reason[:59]}…"] += 1
        reasons["repeats launched different kernels"] += len(set(contents.unstable) - measured)
        reasons["not measured yet"] += contents.unreached
    shown = [(reason, count) for reason, count in reasons.most_common(_MOST_REASONS) if count]
    if not shown:
        return None
    names, counts = zip(*reversed(shown), strict=True)
    figure, axis = _figure(6.4, 0.8 + 0.22 * len(shown))
    axis.barh(range(len(shown)), counts, height=0.62, color=GREY)
    _name_bars(axis, names, counts, "Not in the dataset")
    axis.set(xlabel="operators of the plan")
    return _png(figure)


# File name, caption and how it is drawn (None: nothing to show).
PICTURES: tuple[tuple[str, str, Callable[[BuildResult], bytes | None]], ...] = (
    ("coverage.png", "What was measured", _coverage),
    ("roofline.png", "Measured against roofline", _roofline),
    ("kernels.png", "Kernels per operator", _kernels),
    ("variation.png", "Variation over the repeats", _variation),
    ("conditions.png", "The device meanwhile", _conditions),
    ("left_out.png", "What is not in the dataset, and why", _left_out),
)
