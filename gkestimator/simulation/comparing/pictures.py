"""A comparison as pictures: measures against load or objective, and the distribution of latencies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gkestimator.documents.simulation import QUANTILES_PCT
from gkestimator.simulation.comparing.panels import MEASURES, Panel, panels_of
from gkestimator.simulation.comparing.results import Row
from gkestimator.simulation.comparing.run import Compared

__all__ = ["draw_pictures"]

_FORM = "svg"
_COLUMNS = ("on_time_pct", "goodput_rps", "gpus_used", "cost_per_hour")
_AXIS = {
    "rate_scale": "load (times the workload's rates)",
    "slo_scale": "SLO (times the workload's objectives)",
}
# Told apart by colour and by dashes, since colours alone fail some readers; the first policy is drawn on top.
_COLOURS = ("#2a6f97", "#c8553d", "#588157", "#9d4edd", "#b5838d", "#e09f3e", "#6c757d", "#3d405b", "#81b29a")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (2, 1)), (0, (6, 1.5, 1, 1.5)), (0, (1, 1)))
_ROOM = 0.055  # of the height of a panel: the least distance of two labels


def draw_pictures(rows: Sequence[Row], found: Compared) -> tuple[dict[str, bytes], str | None]:
    """Pictures by file name: for each workload and cluster the measures over load (and over objective), and the
    latencies' distribution at the load nearest to 1. Without matplotlib none, and why."""
    try:
        import matplotlib
    except ImportError:
        return {}, "no pictures: matplotlib is missing; pip install 'gkestimator[plot]'"
    from gkestimator.picture_style import STYLE

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
                pictures[_file(name)] = _over(panels, f"{workload} on {cluster}")
        for workload, cluster in dict.fromkeys((r.workload, r.cluster) for r in rows):
            here = [c for c in found.cells if _at(c, workload, cluster)]
            if any(c[2].get("simulation") for c in here):
                pictures[_file(f"{workload}-{cluster}-latency")] = _latencies(
                    here, f"{workload} on {cluster}"
                )
    return pictures, None


def _file(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name) + "." + _FORM


def _over(panels: Sequence[Panel], title: str) -> bytes:
    from matplotlib.figure import Figure

    from gkestimator.picture_style import saved

    columns = list(dict.fromkeys(p.where["arrivals"] for p in panels))
    shown = [
        c for c in _COLUMNS if any(v is not None for p in panels if p.measure.column == c for v in _all(p))
    ]
    figure = Figure(figsize=(3.7 * len(columns) + 0.6, 2.3 * len(shown) + 0.5), layout="constrained")
    grid = figure.subplots(len(shown), len(columns), squeeze=False, sharex=True, sharey="row")
    for i, column in enumerate(shown):
        for j, arrivals in enumerate(columns):
            axes = grid[i][j]
            panel = next(p for p in panels if p.measure.column == column and p.where["arrivals"] == arrivals)
            _lines(axes, panel)
            if i == 0:
                axes.set_title(f"arrivals: {arrivals}", loc="left")
            if i == len(shown) - 1:
                axes.set_xlabel(_AXIS[panel.x])
            if j == 0:
                axes.set_ylabel(MEASURES[column].title.replace(", ", ",\n"))
    figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
    return saved(figure, _FORM)


def _all(panel: Panel) -> list[float | None]:
    return [v for line in panel.values.values() for v in line]


def _lines(axes: Any, panel: Panel) -> None:
    ends: dict[str, float] = {}
    for number, (policy, line) in enumerate(panel.values.items()):
        known = [(x, v) for x, v in zip(panel.xs, line, strict=True) if v is not None]
        if not known:
            continue
        colour, dash = look(number)
        xs, values = zip(*known, strict=True)
        axes.plot(
            xs, values, color=colour, linestyle=dash, linewidth=2.0 if number == 0 else 1.2,
            marker="o", markersize=3.2 if number == 0 else 2.4, zorder=10 - number * 0.1,
        )  # fmt: skip
        ends[policy] = values[-1]
    if panel.measure.column.endswith("_pct"):
        axes.set_ylim(0, 104)
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlim(right=panel.xs[-1])
    _labels(axes, ends, {policy: number for number, policy in enumerate(panel.values)})


def look(number: int) -> tuple[str, Any]:
    """Colour and dashes of the ``number``-th policy."""
    return _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]


def _labels(axes: Any, ends: Mapping[str, float], numbers: Mapping[str, int]) -> None:
    """The policies' names beside their last points, moved apart where they would cover each other."""
    low, high = axes.get_ylim()
    places = spread([(v - low) / (high - low) for v in ends.values()], _ROOM)
    for policy, value, place in zip(ends, ends.values(), places, strict=True):
        colour, _ = look(numbers[policy])
        at = (value - low) / (high - low)
        axes.annotate(
            policy, xy=(1.0, at), xytext=(1.05, place), xycoords="axes fraction", textcoords="axes fraction",
            color=colour, fontsize=6.8, va="center", fontweight="bold" if numbers[policy] == 0 else "normal",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 0},
            annotation_clip=False,
        )  # fmt: skip


def spread(places: Sequence[float], room: float) -> list[float]:
    """``places`` (0 to 1) moved as little as keeps them ``room`` apart, in their order, within 0 and 1 as far as they
    fit: pools of neighbours are centred on the mean of what they want."""
    order = sorted(range(len(places)), key=lambda i: (places[i], i))
    pools: list[list[int]] = []
    starts: list[float] = []
    for i in order:
        pools.append([i])
        starts.append(_within(places[i], 0.0))
        while len(pools) > 1 and starts[-1] < starts[-2] + room * len(pools[-2]):
            last = pools.pop()
            starts.pop()
            pools[-1] += last
            wanted = [places[k] - room * n for n, k in enumerate(pools[-1])]
            starts[-1] = _within(sum(wanted) / len(wanted), room * (len(wanted) - 1))
    found = [0.0] * len(places)
    for pool, start in zip(pools, starts, strict=True):
        for n, k in enumerate(pool):
            found[k] = start + room * n
    return found


def _within(start: float, length: float) -> float:
    return max(0.0, min(start, 1.0 - length))


def _at(cell: Any, workload: str, cluster: str) -> bool:
    job, _, _ = cell
    return bool(job.labels["workload"] == workload and job.labels["cluster"] == cluster)


def _latencies(cells: Sequence[Any], title: str) -> bytes:
    """Share of the answered requests by latency, at the load and objective nearest to 1 and the first seed."""
    from matplotlib.figure import Figure

    from gkestimator.picture_style import saved

    def far(job: Any) -> tuple[float, float]:
        return (abs(job.labels["rate_scale"] - 1), abs(job.labels["slo_scale"] - 1))

    nearest = min((job for job, _, _ in cells), key=far)
    rate, slo = nearest.labels["rate_scale"], nearest.labels["slo_scale"]
    kept = [(j, c, r) for j, c, r in cells if (j.labels["rate_scale"], j.labels["slo_scale"]) == (rate, slo)]
    seed = kept[0][1].seed
    arrivals = list(dict.fromkeys(c.arrivals.label for _, c, _ in kept))
    policies = list(dict.fromkeys(j.labels["policy"] for j, _, _ in kept))
    figure = Figure(figsize=(3.7 * len(arrivals) + 0.6, 3.0), layout="constrained")
    grid = figure.subplots(1, len(arrivals), squeeze=False, sharey=True, sharex=True)
    for axes, label in zip(grid[0], arrivals, strict=True):
        for job, cell, result in kept:
            totals = (result.get("simulation") or {}).get("totals") or {}
            quantiles = totals.get("latency_quantiles_ms")
            if cell.arrivals.label != label or cell.seed != seed or not quantiles:
                continue
            number = policies.index(job.labels["policy"])
            colour, dash = look(number)
            axes.plot(
                [max(q, 1e-2) for q in quantiles], QUANTILES_PCT, color=colour, linestyle=dash,
                linewidth=2.0 if number == 0 else 1.2, label=job.labels["policy"], zorder=10 - number * 0.1,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_title(f"arrivals: {label}", loc="left")
        axes.set_xlabel("latency, ms")
    grid[0][0].set_ylabel("answered within it, %")
    handles, names = grid[0][-1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", fontsize=7)
    figure.suptitle(
        f"{title}: latency of answered requests, load x {rate:g}, SLO x {slo:g}",
        x=0.01,
        ha="left",
        fontsize=9.5,
    )
    return saved(figure, _FORM)
