"""The picture of a simulation: where the latency comes from, how it is spread, and how it goes over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gkestimator.documents.simulation import QUANTILES_PCT, SimulatedModel, SimulationReport
from gkestimator.placement.picture import PICTURE_SUFFIXES, check_drawable
from gkestimator.reporting.style import BLUE, GREY, INK, STYLE, saved
from gkestimator.simulation.report import STAGE_NAMES
from gkestimator.tables.layout import clipped, printable

__all__ = ["PICTURE_SUFFIXES", "check_drawable", "draw"]

# Waiting in warm hues, work in blue; the lines of models have other hues.
_STAGE_HUES = {"router": "#f5dca8", "network": "#a9bfb5", "queue": "#d9a05b", "gpu": BLUE}
_STAGE_WORDS = {"router": "filling at the router", "network": "network", "queue": "queue", "gpu": "GPU"}
_MOST_BARS = 30
_FEWEST = 6  # room for as many bars, so that one model's does not fill the page
# Lines that can be told apart; the models with the least on time get a colour and a name, the others are grey.
_NAMED = 6
_HUES = ("#e15759", "#7a5195", "#4e79a7", "#59a14f", "#ff9da7", "#9c755f")


def draw(report: SimulationReport, form: str) -> bytes:
    """The picture of ``report`` as ``png``, ``svg`` or ``pdf``. Left: each model's mean latency by stage, its median
    and 99th percentile and its SLO. Right: the share of requests answered within a multiple of the SLO, and the
    share on time by time of arrival. The same report gives the same bytes."""
    check_drawable()
    import matplotlib
    from matplotlib.figure import Figure

    # The worst served first: they are what a reader looks for, and what is drawn where not all can be.
    models = sorted(report.models, key=lambda m: 101.0 if m.on_time_pct is None else m.on_time_pct)
    bars = models[:_MOST_BARS]
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "gkestimator"}):
        height = max(4.6, 1.6 + 0.27 * len(bars))
        figure = Figure(figsize=(10.5, height), layout="constrained")
        layout: Any = figure.get_layout_engine()
        layout.set(w_pad=0.1)  # names at the left edge would be cut
        panels: Any = figure.subplot_mosaic([["bars", "spread"], ["bars", "time"]], width_ratios=[1.15, 1])
        _bars(panels["bars"], bars, len(models))
        _spread(panels["spread"], models)
        _over_time(panels["time"], report, models)
        figure.suptitle(_title(report), x=0.01, ha="left", fontsize=9)
        return saved(figure, form)


def _name(text: str, limit: int = 22) -> str:
    return clipped(printable(text), limit).replace("$", r"\$")


def _bars(axes: Any, models: Sequence[SimulatedModel], there: int) -> None:
    rows = range(len(models))
    left = [0.0] * len(models)
    for stage in STAGE_NAMES:
        means = [getattr(m, stage).mean_ms or 0.0 for m in models]
        if not any(means):
            continue
        axes.barh(
            rows, means, left=left, height=0.62, color=_STAGE_HUES[stage], label=_STAGE_WORDS[stage], zorder=2
        )
        left = [a + b for a, b in zip(left, means, strict=True)]
    for values, marker, label in (
        ([m.latency_p50_ms for m in models], "o", "median"),
        ([m.latency_p99_ms for m in models], "D", "99th percentile"),
    ):
        at = [(v, i) for i, v in enumerate(values) if v is not None]
        axes.plot(
            [v for v, _ in at],
            [i for _, i in at],
            marker,
            color="white",
            markeredgecolor=INK,
            markersize=4,
            markeredgewidth=0.9,
            linestyle="none",
            label=label,
            zorder=4,
        )
    axes.vlines(
        [m.slo_ms for m in models],
        [i - 0.42 for i in rows],
        [i + 0.42 for i in rows],
        color=INK,
        linewidth=1.4,
        label="SLO",
        zorder=3,
    )
    # One model far beyond its objective must not flatten the others.
    longest = sorted(max(m.slo_ms, m.latency_p99_ms or 0.0) for m in models) or [1.0]
    top = min(longest[-1], 4 * max(m.slo_ms for m in models) if models else 1.0)
    axes.set_xlim(0, 1.06 * top)
    for i, m in enumerate(models):
        if m.latency_p99_ms is not None and m.latency_p99_ms > 1.06 * top:
            axes.text(1.05 * top, i, f"p99 {m.latency_p99_ms:,.0f} ▸", ha="right", va="center", fontsize=6.5)
        elif m.latency_mean_ms is None:
            axes.text(0.01 * top, i, "nothing answered", va="center", fontsize=6.5, color=INK)
    axes.set_yticks(list(rows), [f"{_name(m.model)}  {_percent(m.on_time_pct)}" for m in models], fontsize=7)
    axes.set_ylim(max(len(models), _FEWEST) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("latency (ms)")
    if there == len(models):
        cut = ""
    else:
        cut = f"; the {len(models)} worst of {there:,} models"
    axes.set_title(f"Mean latency by stage, and percent on time{cut}", loc="left")
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.1 if len(models) < 12 else -0.06),
        ncols=4,
        fontsize=7,
        handlelength=1.2,
        columnspacing=1.2,
    )


def _percent(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{int(10 * value) / 10:g} %"


def _look(models: Sequence[SimulatedModel]) -> dict[str, str]:
    return {m.model: _HUES[i] for i, m in enumerate(models[:_NAMED])}


def _spread(axes: Any, models: Sequence[SimulatedModel]) -> None:
    look = _look(models)
    most = 1.0
    for m in reversed(models):
        if m.latency_quantiles_ms is None:
            continue
        # Of all that came: what was refused or dropped is never answered.
        if m.arrived_rps:
            never = (m.rejected_rps + m.dropped_rps) / m.arrived_rps
        else:
            never = 0.0
        x = [v / m.slo_ms for v in m.latency_quantiles_ms]
        y = [q * (1 - never) for q in QUANTILES_PCT]
        hue = look.get(m.model)
        axes.plot(
            x,
            y,
            color=hue or GREY,
            linewidth=1.5 if hue else 0.8,
            zorder=3 if hue else 2,
            label=_name(m.model) if hue else None,
        )
        most = max(most, x[-1])
    axes.axvline(1, color=INK, linewidth=1.0)
    axes.text(1, 101, "SLO", ha="center", va="bottom", fontsize=7)
    axes.set_xscale("log")
    least = min((m.latency_quantiles_ms[1] / m.slo_ms for m in models if m.latency_quantiles_ms), default=0.1)
    axes.set_xlim(max(least * 0.8, 1e-3), max(1.5, min(most * 1.1, 100.0)))
    low, high = axes.get_xlim()
    ticks = [t for t in (m * 10.0**e for e in range(-3, 3) for m in (1, 2, 5)) if low <= t <= high]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 104)
    axes.set_ylabel("% of requests")
    axes.set_xlabel("latency as a multiple of the SLO")
    axes.set_title("Answered within", loc="left")
    if look:
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], fontsize=6.5, loc="upper left", handlelength=1.2)


def _over_time(axes: Any, report: SimulationReport, models: Sequence[SimulatedModel]) -> None:
    look = _look(models)
    window = report.settings.window_s
    by_name = {t.model: t for t in report.timeline}
    least = 100.0
    for m in reversed(models):
        found = by_name[m.model]
        middle = []
        share = []
        for i, (came, kept) in enumerate(zip(found.arrived, found.on_time, strict=True)):
            middle.append((i + 0.5) * window)
            share.append(100 * kept / came if came else math.nan)
        hue = look.get(m.model)
        axes.plot(middle, share, color=hue or GREY, linewidth=1.3 if hue else 0.7, zorder=3 if hue else 2)
        least = min([least, *(v for v in share if not math.isnan(v))])
    if report.settings.warmup_s:
        axes.axvspan(0, report.settings.warmup_s, color="#f2f2f2", zorder=0)
        if report.settings.warmup_s > 0.12 * report.settings.duration_s:
            axes.text(
                report.settings.warmup_s / 2,
                0.03,
                "warm-up",
                ha="center",
                fontsize=6.5,
                color=INK,
                transform=axes.get_xaxis_transform(),
            )
    axes.set_xlim(0, report.settings.duration_s)
    axes.set_ylim(0 if least < 80 else 10 * math.floor((least - 5) / 10), 104 if least < 80 else 101)
    axes.set_xlabel("time of arrival (s)")
    axes.set_ylabel("% on time")
    axes.set_title("On time of those let in, over time", loc="left")


def _title(report: SimulationReport) -> str:
    t = report.totals
    s = report.settings
    arrivals = _name(s.arrivals.rpartition("/")[2], 48)
    words = [
        f"Plan of {s.policy}, arrivals {arrivals}, {s.duration_s:g} s: on time {t.goodput_rps:,.6g} req/s",
        f"promised {t.promised_goodput_rps:,.6g}",
    ]
    if t.expected_goodput_rps is not None:
        words.append(f"expected {t.expected_goodput_rps:,.6g}")
    words.append(f"{t.gpus_used:,} GPU{'s' * (t.gpus_used != 1)}")
    return ", ".join(words)
