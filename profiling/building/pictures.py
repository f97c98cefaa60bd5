"""The pictures of a report, as PNG. Matplotlib is imported here only, without a window system."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from gkestimator.profiling.building.build import BuildResult
from gkestimator.profiling.building.sequences import USHER_PCT, entries_of
from gkestimator.profiling.raw import EnvironmentSample
from gkestimator.reporting.style import BLUE, GREY, INK, STYLE
from gkestimator.tables import QUALITIES, KernelMeasurement

_RED, _AMBER = "#c8553d", "#d9a441"
_COLOURS = ("#2a6f97", "#c8553d", "#588157", "#8e6c8a", "#b08968", "#1b998b", "#d9a441", "#6c757d")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "o")
_QUALITY = dict(zip(QUALITIES, (BLUE, _AMBER, _RED), strict=True))
_MOST_SAMPLES = 4000


def pictures(result: BuildResult) -> tuple[list[tuple[str, str, bytes]], list[str]]:
    """(file name, caption, PNG) of every picture there is something to show in, and lines on what is missing."""
    try:
        import matplotlib as mpl
    except ImportError:
        return [], [
            "no pictures: matplotlib is missing (pip install 'gkestimator[plot]'); the rest is written"
        ]
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
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **how)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _families(result: BuildResult) -> dict[str, list[list[KernelMeasurement]]]:
    """Operators by the family that took most of their time, the most frequent first."""
    found: dict[str, list[list[KernelMeasurement]]] = {}
    for group in entries_of(result.rows).values():
        longest = max(group, key=lambda r: r.duration_us or 0.0)
        found.setdefault(longest.family, []).append(group)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _few(families: dict[str, list[list[KernelMeasurement]]]) -> dict[str, list[list[KernelMeasurement]]]:
    """At most eight, the rest as ``other``: more colours cannot be told apart."""
    names = list(families)
    if len(names) <= len(_COLOURS):
        return families
    kept = {name: families[name] for name in names[: len(_COLOURS) - 1]}
    kept["other"] = [group for name in names[len(_COLOURS) - 1 :] for group in families[name]]
    return kept


def _coverage(result: BuildResult) -> bytes:
    """Operators per family by quality, and where they lie in FLOPs and bytes."""
    families = _families(result)
    figure, (bars, plane) = _figure(8.6, max(2.8, 0.9 + 0.2 * len(families)), 2)
    names = list(families)[::-1]
    left = [0] * len(names)
    for quality in QUALITIES:
        counts = [sum(g[0].quality == quality for g in families[n]) for n in names]
        if any(counts):
            bars.barh(
                range(len(names)), counts, left=left, height=0.62, color=_QUALITY[quality], label=quality
            )
        left = [a + b for a, b in zip(left, counts, strict=True)]
    for at, total in enumerate(left):
        bars.annotate(f" {total:,}", (total, at), va="center", fontsize=7)
    bars.set_yticks(range(len(names)), names)
    bars.grid(axis="y", visible=False)
    bars.set(xlabel="operators", xlim=(0, 1.12 * max(left)))
    bars.set_title("Measured operators by family and quality", loc="left")
    bars.legend(loc="lower right")
    for at, (name, groups) in enumerate(_few(families).items()):
        places = [(_moved(g[0]), g[0].flops) for g in groups]
        shown = [(m, f) for m, f in places if m and f]
        plane.scatter(
            [m for m, _ in shown],
            [f for _, f in shown],
            s=8,
            lw=0,
            alpha=0.75,
            color=_COLOURS[at],
            marker=_MARKERS[at],
            label=name,
        )
    plane.set(xscale="log", yscale="log", xlabel="bytes, each operand once", ylabel="FLOPs")
    plane.set_title("Where they lie", loc="left")
    plane.legend(loc="upper left", fontsize=6.5, handletextpad=0.2, borderaxespad=0.2)
    return _png(figure)


def _moved(row: KernelMeasurement) -> int:
    return (row.input_bytes or 0) + (row.weight_bytes or 0) + (row.output_bytes or 0)


def _roofline(result: BuildResult) -> bytes | None:
    """Measured time against roofline, one panel per GPU; red: faster than physically possible."""
    refused = set(result.checks[1].entries)
    gpus: dict[str, dict[str, list[tuple[float, float, bool]]]] = {}
    for name, groups in _few(_families(result)).items():
        for group in groups:
            first = group[0]
            description = result.descriptions.get((first.entry_id, first.gpu, first.runtime))
            if description is None or not description.roofline_us or not first.entry_us:
                continue
            gpus.setdefault(first.gpu, {}).setdefault(name, []).append(
                (description.roofline_us, first.entry_us, first.entry_id in refused)
            )
    if not gpus:
        return None
    figure, axes = _figure(4.9 * len(gpus), 4.4, len(gpus), squeeze=False)
    for axis, (gpu, families) in zip(axes[0], gpus.items(), strict=True):
        points = [p for found in families.values() for p in found]
        across = [min(p[0] for p in points) / 1.5, max(p[0] for p in points) * 1.5]
        up = [min(*(p[1] for p in points), across[0] * 3) / 1.5, max(p[1] for p in points) * 1.5]
        ends = [min(across[0], up[0]), max(across[1], up[1])]
        axis.plot(ends, ends, color=GREY, lw=0.9)
        axis.plot(ends, [10 * e for e in ends], color=GREY, lw=0.6, ls=":")
        for at, (name, found) in enumerate(families.items()):
            axis.scatter(
                [p[0] for p in found],
                [p[1] for p in found],
                s=9,
                lw=0,
                alpha=0.75,
                color=_COLOURS[at],
                marker=_MARKERS[at],
                label=name,
            )
        wrong = [p for p in points if p[2]]
        if wrong:
            axis.scatter(
                [p[0] for p in wrong],
                [p[1] for p in wrong],
                s=42,
                lw=1.1,
                facecolors="none",
                edgecolors=_RED,
                label="faster than possible",
            )
        axis.set(xscale="log", yscale="log", xlim=across, ylim=up)
        axis.set(xlabel="roofline, us (line: as fast as that; dotted: ten times it)", ylabel="measured, us")
        axis.set_title(f"{gpu}: {len(points):,} operators", loc="left")
        axis.legend(loc="lower right", fontsize=6.5, handletextpad=0.2, borderaxespad=0.2)
    return _png(figure)


def _variation(result: BuildResult) -> bytes | None:
    """How much the launches' durations vary over the repeats."""
    found = [(max(r.duration_cv * 100, 0.01), r.quality) for r in result.rows if r.duration_cv is not None]
    if not found:
        return None
    figure, axis = _figure(5.2, 3.0)
    ends = [
        math.floor(4 * math.log10(min(v for v, _ in found))),
        math.ceil(4 * math.log10(max(v for v, _ in found))),
    ]
    edges = [10 ** (e / 8) for e in range(2 * ends[0], 2 * ends[1] + 3)]
    shown = [q for q in QUALITIES if any(found_q == q for _, found_q in found)]
    axis.hist(
        [[v for v, found_q in found if found_q == q] for q in shown],
        bins=edges,
        stacked=True,
        color=[_QUALITY[q] for q in shown],
        label=shown,
    )
    values = sorted(v for v, _ in found)
    middle = values[len(values) // 2]
    axis.axvline(middle, color=INK, lw=0.8, ls="--")
    axis.annotate(
        f" median {middle:.3g} %", (middle, 0.98), xycoords=("data", "axes fraction"), va="top", fontsize=7
    )
    axis.margins(y=0.16)
    axis.set(xscale="log", xlabel="standard deviation / mean over the repeats, %", ylabel="launches")
    axis.set_title(f"Variation of {len(found):,} launches", loc="left")
    if len(shown) > 1:
        axis.legend(loc="upper right")
    return _png(figure)


def _kernels(result: BuildResult) -> bytes | None:
    """How many kernels operators became, beside USHER's figures."""
    if not sum(n for k, n in result.table.counts.items() if k > 0):
        return None
    figure, axis = _figure(4.8, 3.0)
    ours = result.table.percent()
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
    """Clock, power and temperature over the run, with the moments at which the driver held the clocks down."""
    devices: dict[str, list[EnvironmentSample]] = {}
    for contents in result.contents:
        for name, samples in contents.environment.items():
            devices.setdefault(name, []).extend(samples)
    wanted = (
        ("clock, MHz", "sm_clock_mhz", BLUE),
        ("power, W", "power_w", "#588157"),
        ("temperature, °C", "temperature_c", _AMBER),
    )
    found = {
        name: sorted(samples, key=lambda s: s.unix_ns)
        for name, samples in devices.items()
        if any(getattr(s, w[1]) is not None for s in samples for w in wanted)
    }
    if not found:
        return None
    everything = [s for samples in found.values() for s in samples]
    measures = [w for w in wanted if any(getattr(s, w[1]) is not None for s in everything)]
    figure, axes = _figure(
        6.4,
        0.7 + 1.15 * len(measures) * len(found),
        rows=len(measures) * len(found),
        squeeze=False,
        sharex="col",
    )
    start = min(s.unix_ns for s in everything)
    panel = 0
    for name, samples in found.items():
        step = -(-len(samples) // _MOST_SAMPLES)
        minutes = [(s.unix_ns - start) / 6e10 for s in samples]
        held = [bool(set(s.throttled or ()) - {"gpu_idle"}) for s in samples]
        for number, (label, column, colour) in enumerate(measures):
            axis = axes[panel][0]
            panel += 1
            values = [math.nan if getattr(s, column) is None else getattr(s, column) for s in samples]
            axis.plot(minutes[::step], values[::step], color=colour, lw=0.8)
            for a, b in _spans(minutes, held):
                axis.axvspan(a, b, color=_RED, alpha=0.18, lw=0)
            axis.set_ylabel(label, fontsize=7)
            if number == 0:
                shaded = "; shaded: clocks held down" if any(held) else ""
                axis.set_title(f"{name}{shaded}", loc="left")
    axes[-1][0].set_xlabel("minutes since the first sample")
    return _png(figure)


def _spans(times: Sequence[float], held: Sequence[bool]) -> list[tuple[float, float]]:
    """Intervals in which ``held`` is true."""
    spans: list[tuple[float, float]] = []
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


_MOST_REASONS = 12


def _left_out(result: BuildResult) -> bytes | None:
    """What of the plans is not in the dataset, and why."""
    reasons: Counter[str] = Counter()
    measured = {r.entry_id for r in result.rows}
    for contents in result.contents:
        for entry_id, reason in {
            n.entry_id: f"{n.status}: {n.reason}" for n in contents.not_measured
        }.items():
            if entry_id not in measured:
                reasons[reason if len(reason) <= 60 else f"{reason[:59]}…"] += 1
        if contents.unstable:
            reasons["repeats launched different kernels"] += len(set(contents.unstable) - measured)
        if contents.unreached:
            reasons["not measured yet"] += contents.unreached
    shown = [(reason, n) for reason, n in reasons.most_common(_MOST_REASONS) if n][::-1]
    if not shown:
        return None
    figure, axis = _figure(6.4, 0.8 + 0.22 * len(shown))
    axis.barh(range(len(shown)), [n for _, n in shown], height=0.62, color=GREY)
    for at, (_, count) in enumerate(shown):
        axis.annotate(f" {count:,}", (count, at), va="center", fontsize=7)
    axis.set_yticks(range(len(shown)), [reason for reason, _ in shown])
    axis.grid(axis="y", visible=False)
    axis.set(xlabel="operators of the plan", xlim=(0, 1.12 * max(n for _, n in shown)))
    axis.set_title("Not in the dataset", loc="left")
    return _png(figure)


PICTURES: tuple[tuple[str, str, Callable[[BuildResult], bytes | None]], ...] = (
    ("coverage.png", "What was measured", _coverage),
    ("roofline.png", "Measured against roofline", _roofline),
    ("kernels.png", "Kernels per operator", _kernels),
    ("variation.png", "Variation over the repeats", _variation),
    ("conditions.png", "The device meanwhile", _conditions),
    ("left_out.png", "What is not in the dataset, and why", _left_out),
)
"""File name, caption and how it is drawn (None: nothing to show)."""
