"""``gkest evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import say, say_written, to_stdout
from gkestimator.cli.parameters import PATH, Paths, form_option, options_from
from gkestimator.cli.progress import Progress
from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.escaping import utf8
from gkestimator.core.options import option_of
from gkestimator.core.outputs import refuse_overwriting
from gkestimator.evaluation.options import EvaluateRequest

if TYPE_CHECKING:
    from gkestimator.evaluation.host import HostFit


_FORMATS = ("table", "csv", "json", "markdown")


@gkest_command(
    "evaluate",
    "gkest evaluate --truth made-up-measurements.csv --models models",
    "gkest evaluate --serving log.csv --table table.csv --plan plan.json -o network.toml",
)
@section("What to ask")
@click.option("--truth", type=PATH, help=option_of(EvaluateRequest, "truth").help)
@section("A server's log")
@click.option("--serving", type=PATH, help="Log of a server (CSV, Parquet): fit network and host to it.")
@click.option(
    "--table", "tables", type=PATH, multiple=True, help="With --serving: requirement table; repeatable."
)
@click.option("--plan", type=PATH, help="With --serving: the plan that the server served (JSON).")
@click.option("-o", "--output", type=PATH, help="With --serving: file for the law (TOML).")
@section("How it runs")
@options_from(EvaluateRequest, but=("truth",))
@section("Output")
@click.option("--report", type=PATH, help="Folder for report.md, rows.csv and plots.")
@click.option("--write-host", type=PATH, help="Fit this host and write its figures to this file.")
@form_option(*_FORMATS, help="Of what is printed.", default="table", show_default=True)
def command(
    truth: Path | None,
    serving: Path | None,
    tables: Paths,
    plan: Path | None,
    output: Path | None,
    report: Path | None,
    write_host: Path | None,
    form: str,
    **options: Any,
) -> int:
    """Compare your own measurements with estimates of the same rows, or fit a server's network and host.

    TRUTH is a CSV with at least model, batch_size and latency_ms, or a requirement table with measured rows; with
    reserved_bytes, sm_util_mean_pct, occupancy_mean_pct and so on these are compared too. Models are found by file
    stem in --models, or the column is a path. Exit status: 0 done, 1 some rows could not be estimated, 2 none could or
    the command was wrong.

    With --serving, the log says when requests came, for which model and how long they took: what they take beyond queue
    and service is fitted, for --network of gkest simulate (docs/how-to/serving-logs.md).
    """
    if serving is not None:
        if truth is not None or report is not None or write_host is not None or options["models"]:
            raise UsageError(
                "--serving: has a use without --truth, --models, --report and --write-host alone"
            )
        return _serving(serving, tables, plan, output, options["gpu_specs"])
    if truth is None:
        raise UsageError(
            "--truth is missing, expected a table of measurements (or --serving, a server's log)"
        )
    for flag, value in {"--table": tables, "--plan": plan, "-o": output}.items():
        if value:
            raise UsageError(f"{flag} has a use with --serving alone")
    return _measurements(truth, report, write_host, form, options)


def _serving(
    log: Path, tables: Paths, plan: Path | None, output: Path | None, gpu_specs: tuple[Path | str, ...]
) -> int:
    from gkestimator.simulation.measured.serving import fit_serving
    from gkestimator.simulation.measured.serving_report import serving_text, write_network

    refuse_overwriting({"-o": output}, [log, *tables, *filter(None, [plan])])
    with Progress() as progress:
        fit = fit_serving(log, tables, plan, gpu_specs=gpu_specs, progress=progress)
    to_stdout(utf8(serving_text(fit)))
    if output is not None:
        write_network(fit.law.network, output)
        say_written(output)
    return 0


def _measurements(
    truth: Path, report: Path | None, write_host: Path | None, form: str, options: dict[str, Any]
) -> int:
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
