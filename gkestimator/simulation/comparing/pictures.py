"""A comparison as pictures: measures against load or objective, and the distribution of latencies."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gkestimator.simulation.comparing.latencies import latency_picture
from gkestimator.simulation.comparing.look import labelled, look
from gkestimator.simulation.comparing.panels import MEASURES, PLANNED, Panel, panels_of
from gkestimator.simulation.comparing.results import Row
from gkestimator.simulation.comparing.run import Compared

_FORM = "svg"
_SERVED = ("on_time_pct", "goodput_rps")
_COLUMNS = (*_SERVED, "gpus_used", "cost_per_hour")
_AXIS = {
    "rate_scale": "load (times the workload's rates)",
    "slo_scale": "SLO (times the workload's objectives)",
}


def draw_pictures(rows: Sequence[Row], found: Compared) -> tuple[dict[str, bytes], str | None]:
    """Pictures by file name: for each workload and cluster the measures over load (and over objective), and the
    latencies' distribution at the load nearest to 1. Without matplotlib none, and why."""
    try:
        import matplotlib
    except ImportError:
        return {}, "no pictures: matplotlib is missing; pip install 'gkestimator[plot]'"
    from gkestimator.reporting.style import STYLE, saved

    pictures = {}
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "gkest", "svg.fonttype": "path"}):
        groups: dict[tuple[str, str, str, str], list[Panel]] = {}
        for panel in panels_of(rows, _COLUMNS):
            other = "slo_scale" if panel.x == "rate_scale" else "rate_scale"
            key = (panel.where["workload"], panel.where["cluster"], panel.x, panel.where[other])
            groups.setdefault(key, []).append(panel)
        several = len({(x, fixed) for _, _, x, fixed in groups}) > 1
        for (workload, cluster, x, fixed), panels in groups.items():
            by = "load" if x == "rate_scale" else "slo"
            name = f"{workload}-{cluster}-by-{by}" + (f"-at-{fixed}" if several else "")
            if any(len(p.xs) > 1 for p in panels):
                asked = _asked(rows, panels[0]) if x == "rate_scale" else {}
                pictures[_file(name)] = saved(_over(panels, f"{workload} on {cluster}", asked), _FORM)
        for workload, cluster in dict.fromkeys((r.workload, r.cluster) for r in rows):
            here = [
                (j, c, r)
                for j, c, r in found.cells
                if (j.labels["workload"], j.labels["cluster"]) == (workload, cluster)
            ]
            if any(r.get("simulation") for _, _, r in here):
                figure = latency_picture(here, f"{workload} on {cluster}")
                pictures[_file(f"{workload}-{cluster}-latency")] = saved(figure, _FORM)
    return pictures, None


def _file(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name) + "." + _FORM


def _asked(rows: Sequence[Row], panel: Panel) -> dict[float, float]:
    """Requests per second that the workload asks for, by load."""
    return {
        r.rate_scale: r.asked_rps
        for r in rows
        if r.asked_rps is not None
        and (r.workload, f"{r.slo_scale:g}") == (panel.where["workload"], panel.where["slo_scale"])
    }


def _over(panels: Sequence[Panel], title: str, asked: Mapping[float, float]) -> Any:
    """What was served in a row of panels for each measure, a column for each kind of arrivals; below, what the plans
    decide."""
    from matplotlib.figure import Figure

    arrivals = list(dict.fromkeys(p.where["arrivals"] for p in panels if "arrivals" in p.where))
    planned = [p for p in panels if p.measure.column in PLANNED and any(v is not None for v in _all(p))]
    rows = len(_SERVED) + bool(planned)
    columns = max(len(arrivals), len(planned))
    figure = Figure(figsize=(3.9 * columns, 2.5 * rows + 0.4), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for panel in panels:
        if panel.measure.column in PLANNED:
            if panel not in planned:
                continue
            axes = grid[-1][planned.index(panel)]
        else:
            axes = grid[_SERVED.index(panel.measure.column)][arrivals.index(panel.where["arrivals"])]
        axes.set_visible(True)
        _lines(axes, panel, asked if panel.measure.column == "goodput_rps" else {})
    for row in grid[: len(_SERVED)]:
        shown = row[: len(arrivals)]
        low = min(a.get_ylim()[0] for a in shown)
        high = max(a.get_ylim()[1] for a in shown)
        for axes in shown:
            axes.set_ylim(low, high)
    for panel, axes in _placed(panels, grid, arrivals, planned):
        ends = {p: line[-1] for p, line in panel.values.items() if line[-1] is not None}
        labelled(axes, ends, list(panel.values))
    figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
    return figure


def _placed(
    panels: Sequence[Panel], grid: Any, arrivals: Sequence[str], planned: Sequence[Panel]
) -> list[tuple[Panel, Any]]:
    found = [(p, grid[-1][i]) for i, p in enumerate(planned)]
    found += [
        (p, grid[_SERVED.index(p.measure.column)][arrivals.index(p.where["arrivals"])])
        for p in panels
        if p.measure.column in _SERVED
    ]
    return found


def _all(panel: Panel) -> list[float | None]:
    return [v for line in panel.values.values() for v in line]


def _lines(axes: Any, panel: Panel, asked: Mapping[float, float]) -> None:
    if asked:
        xs = [x for x in panel.xs if x in asked]
        axes.plot(xs, [asked[x] for x in xs], color="#999999", linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        axes.annotate(
            "asked",
            xy=(xs[-1], asked[xs[-1]]),
            xytext=(-3, -1),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=6.5,
            color="#777777",
        )
    for number, (policy, line) in enumerate(panel.values.items()):
        known = [(x, v) for x, v in zip(panel.xs, line, strict=True) if v is not None]
        if not known:
            continue
        colour, dash = look(number)
        first = number == 0
        axes.plot(
            *zip(*known, strict=True),
            color=colour,
            linestyle=dash,
            linewidth=2.0 if first else 1.2,
            marker="o",
            markersize=3.2 if first else 2.4,
            zorder=10 - number * 0.1,
        )
        if line[-1] is None:  # its label has no place beside the panel
            axes.annotate(
                policy,
                xy=known[-1],
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=6.5,
                color=colour,
            )
    if panel.measure.column.endswith("_pct"):
        least = min((v for v in _all(panel) if v is not None), default=0.0)
        axes.set_ylim(0 if least < 50 else 10 * math.floor(least / 10 - 0.5), 101.5)
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlim(right=panel.xs[-1])
    axes.set_xticks(panel.xs, [f"{x:g}" for x in panel.xs])
    axes.set_xlabel(_AXIS[panel.x])
    axes.set_ylabel(MEASURES[panel.measure.column].title.replace(", ", ",\n", 1))
    if "arrivals" in panel.where:
        axes.set_title(f"arrivals: {panel.where['arrivals']}", loc="left")
