"""Write what the command says of a run, whichever way it ran: report, picture, every request, closing words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gkestimator.core.outputs import by_suffix
from gkestimator.core.records import frozen
from gkestimator.reporting.simulated import REPORT_SUFFIXES, share_text
from gkestimator.simulation.arrays import Names
from gkestimator.simulation.picture import PICTURE_SUFFIXES, check_drawable, draw
from gkestimator.simulation.report import render_simulation, simulation_words
from gkestimator.simulation.requests import REQUEST_SUFFIXES, check_writable, render_requests
from gkestimator.simulation.running import Simulated
from gkestimator.tables.units import UNKNOWN, number_text

if TYPE_CHECKING:
    from gkestimator.simulation.replanning.report import ReplanReport


@frozen
class Forms:
    """Hold the form of the report, and of picture and requests (None: not asked for)."""

    report: str
    plot: str | None
    requests: str | None


def forms(form: str | None, output: Path | None, plot: Path | None, requests: Path | None) -> Forms:
    """Return the forms by option and suffix. They are to be known before anything is simulated.

    Raises UsageError for an unknown suffix, or without matplotlib or pyarrow where they are needed.
    """
    picture = table = None
    if form is None and output is not None:
        form = by_suffix("-o", output, REPORT_SUFFIXES)
    if plot is not None:
        picture = by_suffix("--plot", plot, PICTURE_SUFFIXES)
    if requests is not None:
        table = by_suffix("--requests", requests, REQUEST_SUFFIXES)
    if picture is not None:
        check_drawable()
    if table is not None:
        check_writable(table)
    return Forms(report=form or "table", plot=picture, requests=table)


@frozen
class Output:
    """Hold the report (``data``), what makes the other files, and ``notes`` and ``words`` for stderr."""

    data: bytes
    plot: Callable[[], bytes]
    requests: Callable[[], bytes]
    notes: Names
    words: Names


def simulated_output(simulated: Simulated, chosen: Forms) -> Output:
    """Return what is written of a plan that served to the end."""
    report = simulated.report
    return Output(
        data=render_simulation(report, chosen.report),
        plot=lambda: draw(report, chosen.plot or "png"),
        requests=lambda: render_requests(simulated.system, simulated.result, chosen.requests or "csv"),
        notes=report.notes,
        words=tuple(simulation_words(report)),
    )


def replanned_output(report: ReplanReport, chosen: Forms) -> Output:
    """Return what is written of a run in which the policy planned again."""
    from gkestimator.simulation.replanning.picture import draw_replanned
    from gkestimator.simulation.replanning.words import render_replan

    t = report.totals
    cost = UNKNOWN
    if t.cost is not None:
        cost = f"{t.cost:,.2f}"
    words = (
        f"{report.policy} changed its plan {t.changes:,} times ({t.loads:,} models loaded): "
        f"{share_text(t.on_time_pct)} % of the requests on time, on {number_text(t.gpus_mean)} GPUs in the mean "
        f"and {t.gpus_peak:,} at most ({cost} USD).",
    )
    return Output(
        data=render_replan(report, chosen.report),
        plot=lambda: draw_replanned({report.policy: report}, chosen.plot or "png"),
        requests=lambda: b"",
        notes=tuple(report.notes),
        words=words,
    )
