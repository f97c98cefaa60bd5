"""Draw runs with re-planning: rate, GPUs in use and wait over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.placement.picture import check_drawable
from gkestimator.reporting.simulated import drawing
from gkestimator.reporting.style import GREY, INK, saved
from gkestimator.simulation.replanning.report import ReplanReport

# Three that the colour-blind tell apart too, and grey; dashes beside, for prints without colour.
_LOOKS = (("#2a6f97", "-"), ("#e07a1f", "-"), ("#6a994e", "--"), ("#7a5195", ":"))
_LEAST_WAIT_MS = 0.1  # shorter ones are drawn at the foot of the logarithmic axis


def draw_replanned(reports: Mapping[str, ReplanReport], form: str, *, title: str = "") -> bytes:
    """Return the picture of ``reports`` (by label, of one workload) as ``png``, ``svg`` or ``pdf``.

    The rate is drawn of the first. Above: requests answered on time, by time of arrival, and all that
    arrived; between: GPUs in use, with the re-plans of the first run; below: the mean wait until service by
    window, on a logarithmic axis. The same reports give the same bytes. Raises UsageError: no matplotlib, no
    report or more than four.
    """
    if not 1 <= len(reports) <= len(_LOOKS):
        raise UsageError(f"picture of re-planning: found {len(reports)} runs, expected 1 to {len(_LOOKS)}")
    check_drawable()
    first_label, first = next(iter(reports.items()))
    with drawing() as new_figure:
        figure = new_figure(figsize=(7.6, 5.4), layout="constrained")
        rate, gpus, wait = figure.subplots(3, 1, sharex=True, height_ratios=(1.0, 1.1, 1.1))
        edges = _edges(first)
        arrived = np.array(first.timeline.arrived) / np.diff(edges)
        steps = {"baseline": None, "color": GREY, "linestyle": "-"}
        rate.stairs(arrived, edges, linewidth=1.8, label="arrived (above)", **steps)
        for (label, report), (colour, dash) in zip(reports.items(), _LOOKS, strict=False):
            time = report.timeline
            edges = _edges(report)
            steps |= {"color": colour, "linestyle": dash}
            on_time = np.array(time.on_time) / np.diff(edges)
            waits = np.array(time.wait_mean_ms, np.float64)  # none where nothing was served
            rate.stairs(on_time, edges, linewidth=0.9, **steps)
            gpus.stairs(time.gpus, edges, linewidth=1.3, label=label, **steps)
            wait.stairs(np.maximum(waits, _LEAST_WAIT_MS), edges, linewidth=0.9, **steps)
        _mark_plans(gpus, first_label, first)
        rate.set_ylabel("on time, requests/s")
        rate.set_ylim(bottom=0)
        gpus.set_ylabel("GPUs in use")
        gpus.set_ylim(bottom=0)
        wait.set_ylabel("mean wait, ms")
        wait.set_yscale("log")
        wait.set_xlabel("time, s")
        wait.set_xlim(0, first.options.duration_ms / 1e3)
        figure.legend(loc="outside lower center", fontsize=7, ncols=3)
        rate.set_title((title or _title(first)).replace("$", r"\$"), loc="left")
        return saved(figure, form)


def _edges(report: ReplanReport) -> Any:
    """Return the ends of the timeline's windows in seconds, and 0 before them."""
    time = report.timeline
    edges = np.arange(len(time.gpus) + 1) * time.window_s
    edges[-1] = report.options.duration_ms / 1e3
    return edges


def _mark_plans(axes: Any, label: str, report: ReplanReport) -> None:
    """Draw a tick at the foot for each re-plan."""
    times = [d.time_s for d in report.decisions]
    if times:
        axes.plot(
            times,
            [0.02] * len(times),
            "|",
            color=INK,
            markersize=5,
            transform=axes.get_xaxis_transform(),
            label=f"re-plan of {label}",
        )


def _title(report: ReplanReport) -> str:
    totals = report.totals
    return (
        f"{report.policy}: {totals.decisions} re-plans, {totals.gpus_mean:.2f} GPUs in the mean, "
        f"{totals.gpus_peak} at most"
    )
