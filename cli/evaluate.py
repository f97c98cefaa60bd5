"""``gkest evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import say, say_written, to_stdout
from gkestimator.cli.parameters import PATH, options_from
from gkestimator.cli.progress import Progress
from gkestimator.core.errors import GkestimatorError
from gkestimator.core.outputs import refuse_overwriting
from gkestimator.evaluation.options import EvaluateRequest

if TYPE_CHECKING:
    from gkestimator.evaluation.host import HostFit


_FORMATS = ("table", "csv", "json", "markdown")


@gkest_command(
    "evaluate",
    "gkest evaluate --truth made-up-measurements.csv --models models",
    "gkest evaluate --truth made-up-measurements.csv --models models --report accuracy",
)
@section("How it runs")
@options_from(EvaluateRequest)
@section("Output")
@click.option("--report", type=PATH, help="Folder for report.md, rows.csv and plots.")
@click.option("--write-host", type=PATH, help="Fit this host and write its figures to this file.")
@click.option("--format", "form", type=click.Choice(_FORMATS), default="table", show_default=True)
def command(truth: Path, report: Path | None, write_host: Path | None, form: str, **options: Any) -> int:
    """Compare your own measurements with estimates of the same rows.

    TRUTH is a CSV with at least model, batch_size and latency_ms, or a requirement table with measured rows; with
    reserved_bytes, sm_util_mean_pct, occupancy_mean_pct and so on these are compared too. Models are found by file
    stem in --models, or the column is a path. Exit status: 0 done, 1 some rows could not be estimated, 2 none could or
    the command was wrong.
    """
    from gkestimator.evaluation.api import evaluate
    from gkestimator.evaluation.folder import REPORT_FILES, write_report
    from gkestimator.evaluation.text import host_words, render_evaluation, trust_words

    read = [
        truth,
        *options["models"],
        *options["gpu_specs"],
        *options["plugins"],
        *filter(None, [options["host"]]),
    ]
    refuse_overwriting({"--write-host": write_host}, read)
    if report is not None:
        for name in REPORT_FILES:
            refuse_overwriting({"--report": report / name}, read)
    with Progress() as progress:
        result = evaluate(truth, progress=progress, **options)
    if result.compared:
        to_stdout(render_evaluation(result, form))
    say(result.failures, "error")
    say((*result.messages, *trust_words(result)))
    if not result.compared:
        return 2
    fits: tuple[HostFit, ...] = ()
    partly = bool(result.failures)
    if write_host is not None:
        try:
            fits = result.write_host(write_host)
        except GkestimatorError as e:  # the comparison stands, and so does the report below
            say([f"--write-host: {e}"], "error")
            partly = True
        else:
            for fit in fits:
                say(host_words(fit))
            say_written(write_host)
    if report is not None:
        files, notes = write_report(result, report, fits=fits)
        say(notes)
        say([f"gkest: wrote {', '.join(p.name for p in files)} to {report}"])
    return 1 if partly else 0
