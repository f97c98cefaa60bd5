"""Draw a comparison: measures against load or objective, and the distribution of latencies."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gkestimator.core.extras import install_extra
from gkestimator.reporting.simulated import drawing, title_of
from gkestimator.reporting.style import saved
from gkestimator.reporting.text import picture_text
from gkestimator.simulation.arrays import Series
from gkestimator.simulation.comparing.latencies import latency_picture
from gkestimator.simulation.comparing.look import colour_of, label_ends, line_look
from gkestimator.simulation.comparing.panels import PLANNED, Panel, panels_of
from gkestimator.simulation.comparing.results import RowList
from gkestimator.simulation.comparing.run import Compared

_FORM = "svg"
_SERVED = ("on_time_pct", "goodput_rps")
_COLUMNS = (*_SERVED, "gpus_used", "cost_per_hour")
_AXIS = {
    "rate_scale": "load (times the workload's rates)",
    "slo_scale": "SLO (times the workload's objectives)",
}
_NAMES = {"rate_scale": "load", "slo_scale": "slo"}
_OTHER = {"rate_scale": "slo_scale", "slo_scale": "rate_scale"}


def draw_pictures(rows: RowList, compared: Compared) -> tuple[dict[str, bytes], str | None]:
    """Return pictures by file name; without matplotlib none, and why.

    They are, for each workload and cluster, the measures over load (and over objective), and the latencies'
    distribution at the load nearest to 1.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return {}, f"no pictures: matplotlib is missing; {install_extra('plot')}"
    pictures = {}
    with drawing(svg_hashsalt="gkest", svg_fonttype="path"):
        for name, figure in [*_measure_figures(rows), *_latency_figures(rows, compared)]:
            file = re.sub(r"[^A-Za-z0-9_.-]", "-", name)
            pictures[f"{file}.{_FORM}"] = saved(figure, _FORM)
    return pictures, None


def _measure_figures(rows: RowList) -> Iterator[tuple[str, Any]]:
    groups: dict[tuple[str, str, str, str], list[Panel]] = defaultdict(list)
    for panel in panels_of(rows, _COLUMNS):
        other = _OTHER[panel.x]
        groups[panel.where["workload"], panel.where["cluster"], panel.x, panel.where[other]].append(panel)
    several = len({(x, fixed) for _, _, x, fixed in groups}) > 1
    for (workload, cluster, x, fixed), panels in groups.items():
        if all(len(panel.xs) == 1 for panel in panels):
            continue
        name = f"{workload}-{cluster}-by-{_NAMES[x]}"
        if several:
            name += f"-at-{fixed}"
        asked = {}
        if x == "rate_scale":
            asked = _asked(rows, panels[0])
        yield name, _over(panels, f"{workload} on {cluster}", asked)


def _latency_figures(rows: RowList, compared: Compared) -> Iterator[tuple[str, Any]]:
    for workload, cluster in dict.fromkeys((r.workload, r.cluster) for r in rows):
        cells = []
        for job, cell, result in compared.cells:
            if (job.labels["workload"], job.labels["cluster"]) == (workload, cluster):
                cells.append((job, cell, result))
        if any(result.get("simulation") for _, _, result in cells):
            yield f"{workload}-{cluster}-latency", latency_picture(cells, f"{workload} on {cluster}")


def _asked(rows: RowList, panel: Panel) -> dict[float, float]:
    """Return the requests per second that the workload asks for, by load."""
    asked = {}
    for row in rows:
        same = (row.workload, f"{row.slo_scale:g}") == (panel.where["workload"], panel.where["slo_scale"])
        if same and row.asked_rps is not None:
            asked[row.rate_scale] = row.asked_rps
    return asked


def _over(panels: Sequence[Panel], title: str, asked: Mapping[float, float]) -> Any:
    """Return a figure of what was served and, below, of what the plans decide.

    It has a row of panels for each measure, and a column for each kind of arrivals.
    """
    from matplotlib.figure import Figure

    arrivals = list(dict.fromkeys(p.where["arrivals"] for p in panels if "arrivals" in p.where))
    planned = [p for p in panels if p.column in PLANNED and _known(p)]
    rows = len(_SERVED) + bool(planned)
    columns = max(len(arrivals), len(planned))
    figure = Figure(figsize=(3.9 * columns, 2.5 * rows + 0.4), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    placed = [(panel, grid[-1][i]) for i, panel in enumerate(planned)]
    for panel in panels:
        if panel.column in _SERVED:
            row = grid[_SERVED.index(panel.column)]
            placed.append((panel, row[arrivals.index(panel.where["arrivals"])]))
    for panel, axes in placed:
        axes.set_visible(True)
        if panel.column == "goodput_rps":
            _draw_asked(axes, panel.xs, asked)
        _draw_lines(axes, panel)
    for row in grid[: len(_SERVED)]:
        _equal_heights(row[: len(arrivals)])
    for panel, axes in placed:
        ends = {policy: line[-1] for policy, line in panel.values.items() if line[-1] is not None}
        label_ends(axes, ends, list(panel.values))
    title_of(figure, title)
    return figure


def _equal_heights(row: Any) -> None:
    """Give the panels of a row the widest of their ranges."""
    limits = [axes.get_ylim() for axes in row]
    low = min(bottom for bottom, _ in limits)
    high = max(top for _, top in limits)
    for axes in row:
        axes.set_ylim(low, high)


def _known(panel: Panel) -> list[float]:
    return [value for line in panel.values.values() for value in line if value is not None]


def _draw_asked(axes: Any, xs: Series, asked: Mapping[float, float]) -> None:
    """Draw the requests per second that the workload asks for."""
    loads = [x for x in xs if x in asked]
    if not loads:
        return
    rates = [asked[x] for x in loads]
    axes.plot(loads, rates, color="#999999", linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    place = {"xytext": (-3, -1), "textcoords": "offset points", "ha": "right", "va": "bottom"}
    axes.annotate("asked", xy=(loads[-1], rates[-1]), fontsize=6.5, color="#777777", **place)


def _draw_lines(axes: Any, panel: Panel) -> None:
    """Draw a line for each policy, and the axes."""
    for number, (policy, line) in enumerate(panel.values.items()):
        points = [(x, value) for x, value in zip(panel.xs, line, strict=True) if value is not None]
        if not points:
            continue
        size = 2.4 if number else 3.2
        axes.plot(*zip(*points, strict=True), marker="o", markersize=size, **line_look(number))
        if line[-1] is None:  # its label has no place beside the panel
            place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(policy, xy=points[-1], fontsize=6.5, color=colour_of(number), **place)
    if panel.column.endswith("_pct"):
        least = min(_known(panel), default=0.0)
        bottom = 0.0
        if least >= 50:
            bottom = 10 * math.floor(least / 10 - 0.5)
        axes.set_ylim(bottom, 101.5)
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlim(right=panel.xs[-1])
    axes.set_xticks(panel.xs, [f"{x:g}" for x in panel.xs])
    axes.set_xlabel(_AXIS[panel.x])
    axes.set_ylabel(panel.measure.title.replace(", ", ",\n", 1))
    if "arrivals" in panel.where:
        axes.set_title(picture_text(f"arrivals: {panel.where['arrivals']}"), loc="left")
