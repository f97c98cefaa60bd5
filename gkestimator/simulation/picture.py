"""Draw a simulation: where the latency comes from, how it is spread, and how it goes over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gkestimator.documents.simulation import QUANTILES_PCT, SimulatedModel, SimulationReport
from gkestimator.placement.picture import PICTURE_SUFFIXES, check_drawable
from gkestimator.reporting.simulated import drawing, title_of
from gkestimator.reporting.style import BLUE, GREY, INK, saved
from gkestimator.reporting.text import picture_text, plural
from gkestimator.simulation.arrays import NumberOrNone, ValuesByName

__all__ = ["PICTURE_SUFFIXES", "check_drawable", "draw"]

# Waiting in warm hues, work in blue; the lines of models have other hues.
_STAGE_HUES = {"router": "#f5dca8", "network": "#a9bfb5", "queue": "#d9a05b", "gpu": BLUE}
_STAGE_WORDS = {"router": "filling at the router", "network": "network", "queue": "queue", "gpu": "GPU"}
_MOST_BARS = 30
_NAME = 22  # characters of a model's name
_FEWEST = 6  # room for as many bars, so that one model's does not fill the page
_SMALL = 6.5  # size of words inside a panel
# One model far beyond its objective must not flatten the others: so many times the largest SLO are shown.
_MOST_SLOS = 4
_BEYOND = 1.06
_LOG_TICKS = tuple(digit * 10.0**power for power in range(-3, 3) for digit in (1, 2, 5))
# The models with the least on time get a colour and a name, the others are grey: more lines cannot be told apart.
_HUES = ("#e15759", "#7a5195", "#4e79a7", "#59a14f", "#ff9da7", "#9c755f")


def draw(report: SimulationReport, form: str) -> bytes:
    """Return the picture of ``report`` as ``png``, ``svg`` or ``pdf``.

    Left: each model's mean latency by stage, its median and 99th percentile and its SLO. Right: the share of
    requests answered within a multiple of the SLO, and the share on time by time of arrival. The same report
    gives the same bytes.
    """
    check_drawable()
    # The worst served first: they are what a reader looks for, and what is drawn where not all can be.
    models = sorted(report.models, key=_on_time_pct)
    bars = models[:_MOST_BARS]
    with drawing() as new_figure:
        height = max(4.6, 1.6 + 0.27 * len(bars))
        figure = new_figure(figsize=(10.5, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.1)  # names at the left edge would be cut
        panels = figure.subplot_mosaic([["bars", "spread"], ["bars", "time"]], width_ratios=[1.15, 1])
        _draw_bars(panels["bars"], bars, len(models))
        _draw_spread(panels["spread"], models)
        _draw_over_time(panels["time"], report, models)
        title_of(figure, _title(report), size=9)
        return saved(figure, form)


def _on_time_pct(model: SimulatedModel) -> float:
    """Return the share on time; a model that nothing came for stands behind all others."""
    if model.on_time_pct is None:
        return 101.0
    return model.on_time_pct


def _draw_bars(axes: Any, models: Sequence[SimulatedModel], total: int) -> None:
    """Draw a bar of stages for each of ``models``, with its percentiles and its SLO."""
    _stack_stages(axes, models)
    _mark_percentile(axes, [m.latency_p50_ms for m in models], "o", "median")
    _mark_percentile(axes, [m.latency_p99_ms for m in models], "D", "99th percentile")
    rows = np.arange(len(models))
    slos = [m.slo_ms for m in models]
    axes.vlines(slos, rows - 0.42, rows + 0.42, color=INK, linewidth=1.4, label="SLO", zorder=3)
    _limit_bars(axes, models)
    names = [f"{picture_text(m.model, _NAME)}  {_percent(m.on_time_pct)}" for m in models]
    axes.set_yticks(rows, names, fontsize=7)
    axes.set_ylim(max(len(models), _FEWEST) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("latency (ms)")
    cut = ""
    if total > len(models):
        cut = f"; the {len(models)} worst of {total:,} models"
    axes.set_title(f"Mean latency by stage, and percent on time{cut}", loc="left")
    below = -0.06
    if len(models) < 12:
        below = -0.1
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, below),
        ncols=4,
        fontsize=7,
        handlelength=1.2,
        columnspacing=1.2,
    )


def _stack_stages(axes: Any, models: Sequence[SimulatedModel]) -> None:
    left = [0.0] * len(models)
    for stage, hue in _STAGE_HUES.items():
        means = [getattr(m, stage).mean_ms or 0.0 for m in models]
        if not any(means):
            continue
        words = _STAGE_WORDS[stage]
        axes.barh(range(len(models)), means, left=left, height=0.62, color=hue, label=words, zorder=2)
        left = [a + b for a, b in zip(left, means, strict=True)]


def _mark_percentile(axes: Any, values: Sequence[NumberOrNone], marker: str, label: str) -> None:
    rows = [i for i, value in enumerate(values) if value is not None]
    known = [value for value in values if value is not None]
    axes.plot(
        known,
        rows,
        marker,
        linestyle="none",
        label=label,
        zorder=4,
        color="white",
        markeredgecolor=INK,
        markersize=4,
        markeredgewidth=0.9,
    )


def _limit_bars(axes: Any, models: Sequence[SimulatedModel]) -> None:
    """End the axis where all but far outliers end, and say what lies beyond it."""
    longest = max([max(m.slo_ms, m.latency_p99_ms or 0.0) for m in models], default=1.0)
    largest_slo = max([m.slo_ms for m in models], default=1.0)
    top = min(longest, _MOST_SLOS * largest_slo)
    axes.set_xlim(0, _BEYOND * top)
    for i, m in enumerate(models):
        if m.latency_p99_ms is not None and m.latency_p99_ms > _BEYOND * top:
            text = f"p99 {m.latency_p99_ms:,.0f} ▸"
            axes.text(1.05 * top, i, text, ha="right", va="center", fontsize=_SMALL)
        elif m.latency_mean_ms is None:
            axes.text(0.01 * top, i, "nothing answered", va="center", fontsize=_SMALL, color=INK)


def _percent(value: NumberOrNone) -> str:
    if value is None:
        return "–"
    return f"{int(10 * value) / 10:g} %"


def _line_look(number: int, named_width: float, other_width: float) -> ValuesByName:
    """Return how the line of the ``number``-th worst model looks: its own hue, or grey behind those."""
    if number < len(_HUES):
        return {"color": _HUES[number], "linewidth": named_width, "zorder": 3}
    return {"color": GREY, "linewidth": other_width, "zorder": 2}


def _draw_spread(axes: Any, models: Sequence[SimulatedModel]) -> None:
    """Draw the share of the requests that each model answered within a multiple of its SLO."""
    furthest = 1.0
    for number, m in reversed(list(enumerate(models))):
        if m.latency_quantiles_ms is None:
            continue
        # Of all that came: what was refused or dropped is never answered.
        never = 0.0
        if m.arrived_rps:
            never = (m.rejected_rps + m.dropped_rps) / m.arrived_rps
        multiples = [v / m.slo_ms for v in m.latency_quantiles_ms]
        answered = [q * (1 - never) for q in QUANTILES_PCT]
        name = None
        if number < len(_HUES):
            name = picture_text(m.model, _NAME)
        axes.plot(multiples, answered, label=name, **_line_look(number, 1.5, 0.8))
        furthest = max(furthest, multiples[-1])
    axes.axvline(1, color=INK, linewidth=1.0)
    axes.text(1, 101, "SLO", ha="center", va="bottom", fontsize=7)
    axes.set_xscale("log")
    starts = [m.latency_quantiles_ms[1] / m.slo_ms for m in models if m.latency_quantiles_ms]
    low = max(min(starts, default=0.1) * 0.8, 1e-3)
    high = max(1.5, min(furthest * 1.1, 100.0))
    axes.set_xlim(low, high)
    ticks = [t for t in _LOG_TICKS if low <= t <= high]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 104)
    axes.set_ylabel("% of requests")
    axes.set_xlabel("latency as a multiple of the SLO")
    axes.set_title("Answered within", loc="left")
    if models:
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], labels[::-1], fontsize=_SMALL, loc="upper left", handlelength=1.2)


def _draw_over_time(axes: Any, report: SimulationReport, models: Sequence[SimulatedModel]) -> None:
    """Draw each model's share on time by the time of arrival."""
    settings = report.settings
    timelines = {t.model: t for t in report.timeline}
    least = 100.0
    for number, m in reversed(list(enumerate(models))):
        timeline = timelines[m.model]
        middles = []
        shares = []
        for i, (came, in_time) in enumerate(zip(timeline.arrived, timeline.on_time, strict=True)):
            middles.append((i + 0.5) * settings.window_s)
            share = math.nan
            if came:
                share = 100 * in_time / came
                least = min(least, share)
            shares.append(share)
        axes.plot(middles, shares, **_line_look(number, 1.3, 0.7))
    warmup = settings.warmup_s
    if warmup:
        axes.axvspan(0, warmup, color="#f2f2f2", zorder=0)
    if warmup > 0.12 * settings.duration_s:
        where = axes.get_xaxis_transform()
        axes.text(warmup / 2, 0.03, "warm-up", ha="center", fontsize=_SMALL, color=INK, transform=where)
    axes.set_xlim(0, settings.duration_s)
    if least < 80:
        axes.set_ylim(0, 104)
    else:
        axes.set_ylim(10 * math.floor((least - 5) / 10), 101)
    axes.set_xlabel("time of arrival (s)")
    axes.set_ylabel("% on time")
    axes.set_title("On time of those let in, over time", loc="left")


def _title(report: SimulationReport) -> str:
    t = report.totals
    s = report.settings
    arrivals = picture_text(s.arrivals.rpartition("/")[2], 48)
    title = f"Plan of {s.policy}, arrivals {arrivals}, {s.duration_s:g} s: on time {t.goodput_rps:,.6g} req/s"
    title += f", promised {t.promised_goodput_rps:,.6g}"
    if t.expected_goodput_rps is not None:
        title += f", expected {t.expected_goodput_rps:,.6g}"
    return f"{title}, {plural(t.gpus_used, 'GPU')}"
