"""Draw the distribution of latencies of a comparison's policies, at one load and objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gkestimator.documents.simulation import QUANTILES_PCT
from gkestimator.reporting.simulated import title_of
from gkestimator.reporting.text import picture_text
from gkestimator.simulation.arrays import AnyByName, ValuesByName
from gkestimator.simulation.comparing.cells import Cell, CellJob
from gkestimator.simulation.comparing.look import line_look

_LEAST_MS = 1e-2  # shorter latencies are drawn here: the axis is logarithmic


def nearest(scales: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return that of the (load, objective) which is nearest to the workload as it is."""
    return min(scales, key=lambda s: (abs(s[0] - 1), abs(s[1] - 1), s))


def latency_picture(cells: Sequence[tuple[CellJob, Cell, AnyByName]], title: str) -> Any:
    """Return a figure of the share of the requests that arrived which were answered within a time.

    It is of the first seed. A line ends at the share that was answered at all.
    """
    from matplotlib.figure import Figure

    rate, slo = nearest([_scales(job) for job, _, _ in cells])
    shown = [(job, cell, result) for job, cell, result in cells if _scales(job) == (rate, slo)]
    seed = shown[0][1].seed
    arrivals = list(dict.fromkeys(cell.arrivals.label for _, cell, _ in shown))
    policies = list(dict.fromkeys(job.labels["policy"] for job, _, _ in shown))
    figure = Figure(figsize=(3.6 * len(arrivals) + 1.0, 3.1), layout="constrained")
    (row,) = figure.subplots(1, len(arrivals), squeeze=False, sharey=True, sharex=True)
    lines: ValuesByName = {}
    for job, cell, result in shown:
        simulation = result.get("simulation") or {}
        totals = simulation.get("totals") or {}
        if cell.seed != seed or not totals.get("latency_quantiles_ms"):
            continue
        policy = job.labels["policy"]
        axes = row[arrivals.index(cell.arrivals.label)]
        lost = (totals["rejected_rps"] + totals["dropped_rps"]) / totals["arrived_rps"]
        latencies = [max(q, _LEAST_MS) for q in totals["latency_quantiles_ms"]]
        answered = [q * (1 - lost) for q in QUANTILES_PCT]
        (lines[policy],) = axes.plot(latencies, answered, **line_look(policies.index(policy)))
    for axes, label in zip(row, arrivals, strict=True):
        axes.set_xscale("log")
        axes.set_ylim(0, 102)
        axes.set_title(picture_text(f"arrivals: {label}"), loc="left")
        axes.set_xlabel("latency, ms")
    row[0].set_ylabel("answered within it,\n% of the requests that arrived")
    names = [policy for policy in policies if policy in lines]
    figure.legend([lines[name] for name in names], names, loc="outside right center", fontsize=7)
    title_of(figure, f"{title}: latency, load x {rate:g}, SLO x {slo:g}")
    return figure


def _scales(job: CellJob) -> tuple[float, float]:
    return job.labels["rate_scale"], job.labels["slo_scale"]
