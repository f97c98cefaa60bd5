"""What the command writes of a run, whichever way it ran: the report, a picture, every request, closing words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gkestimator.core.outputs import by_suffix
from gkestimator.core.records import frozen
from gkestimator.simulation.picture import PICTURE_SUFFIXES, check_drawable, draw
from gkestimator.simulation.report import (
    SIMULATION_SUFFIXES,
    render_simulation,
    share_text,
    simulation_words,
)
from gkestimator.simulation.requests import REQUEST_SUFFIXES, check_writable, render_requests
from gkestimator.simulation.running import Simulated
from gkestimator.tables.units import UNKNOWN, number_text

if TYPE_CHECKING:
    from gkestimator.simulation.replanning.report import ReplanReport


@frozen
class Forms:
    """The form of the report, and of picture and requests (None: not asked for)."""

    report: str
    plot: str | None
    requests: str | None


def forms(form: str | None, output: Path | None, plot: Path | None, requests: Path | None) -> Forms:
    """Forms by option and suffix. To be known before anything is simulated: raises UsageError for an unknown
    suffix, without matplotlib or pyarrow where they are needed."""
    found = Forms(
        report=form or ("table" if output is None else by_suffix("-o", output, SIMULATION_SUFFIXES)),
        plot=None if plot is None else by_suffix("--plot", plot, PICTURE_SUFFIXES),
        requests=None if requests is None else by_suffix("--requests", requests, REQUEST_SUFFIXES),
    )
    if found.plot is not None:
        check_drawable()
    if found.requests is not None:
        check_writable(found.requests)
    return found


@frozen
class Output:
    """``data``: the report; ``plot`` and ``requests`` make theirs; ``notes`` and ``words`` are for stderr."""

    data: bytes
    plot: Callable[[], bytes]
    requests: Callable[[], bytes]
    notes: tuple[str, ...]
    words: tuple[str, ...]


def simulated_output(found: Simulated, chosen: Forms) -> Output:
    """What is written of a plan that served to the end."""
    report = found.report
    return Output(
        data=render_simulation(report, chosen.report),
        plot=lambda: draw(report, chosen.plot or "png"),
        requests=lambda: render_requests(found.system, found.result, chosen.requests or "csv"),
        notes=report.notes,
        words=tuple(simulation_words(report)),
    )


def replanned_output(report: ReplanReport, chosen: Forms) -> Output:
    """What is written of a run in which the policy planned again."""
    from gkestimator.simulation.replanning.picture import draw_replanned
    from gkestimator.simulation.replanning.words import render_replan

    t = report.totals
    cost = UNKNOWN if t.cost is None else f"{t.cost:,.2f}"
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
