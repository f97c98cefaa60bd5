"""The distribution of latencies of a comparison's policies, at one load and objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gkestimator.documents.simulation import QUANTILES_PCT
from gkestimator.simulation.comparing.cells import Cell, CellJob
from gkestimator.simulation.comparing.look import look


def nearest(scales: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Of (load, objective) that nearest to the workload as it is."""
    return min(scales, key=lambda s: (abs(s[0] - 1), abs(s[1] - 1), s))


def latency_picture(cells: Sequence[tuple[CellJob, Cell, Mapping[str, Any]]], title: str) -> Any:
    """Share of the requests that arrived which were answered within a time, for the first seed: a line ends at the
    share that was answered at all."""
    from matplotlib.figure import Figure

    rate, slo = nearest([(j.labels["rate_scale"], j.labels["slo_scale"]) for j, _, _ in cells])
    kept = [(j, c, r) for j, c, r in cells if (j.labels["rate_scale"], j.labels["slo_scale"]) == (rate, slo)]
    seed = kept[0][1].seed
    arrivals = list(dict.fromkeys(c.arrivals.label for _, c, _ in kept))
    policies = list(dict.fromkeys(j.labels["policy"] for j, _, _ in kept))
    figure = Figure(figsize=(3.6 * len(arrivals) + 1.0, 3.1), layout="constrained")
    grid = figure.subplots(1, len(arrivals), squeeze=False, sharey=True, sharex=True)
    shown: dict[str, Any] = {}
    for axes, label in zip(grid[0], arrivals, strict=True):
        for job, cell, result in kept:
            totals = (result.get("simulation") or {}).get("totals") or {}
            if cell.arrivals.label != label or cell.seed != seed or not totals.get("latency_quantiles_ms"):
                continue
            number = policies.index(job.labels["policy"])
            colour, dash = look(number)
            lost = (totals["rejected_rps"] + totals["dropped_rps"]) / totals["arrived_rps"]
            (line,) = axes.plot(
                [max(q, 1e-2) for q in totals["latency_quantiles_ms"]],
                [q * (1 - lost) for q in QUANTILES_PCT],
                color=colour,
                linestyle=dash,
                linewidth=2.0 if number == 0 else 1.2,
                zorder=10 - number * 0.1,
            )
            shown[job.labels["policy"]] = line
        axes.set_xscale("log")
        axes.set_ylim(0, 102)
        axes.set_title(f"arrivals: {label}", loc="left")
        axes.set_xlabel("latency, ms")
    grid[0][0].set_ylabel("answered within it,\n% of the requests that arrived")
    names = [p for p in policies if p in shown]
    figure.legend([shown[p] for p in names], names, loc="outside right center", fontsize=7)
    figure.suptitle(f"{title}: latency, load x {rate:g}, SLO x {slo:g}", x=0.01, ha="left", fontsize=9.5)
    return figure
