"""``gkest evaluate``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gkestimator.cli.group import debug_option
from gkestimator.cli.parameters import DIM
from gkestimator.cli.progress import Progress
from gkestimator.errors import GkestimatorError, UsageError

if TYPE_CHECKING:
    from gkestimator.evaluation.host import HostFit

__all__ = ["command"]

_PATH = click.Path(path_type=Path)
_FORMATS = ("table", "csv", "json", "markdown")


@click.command(name="evaluate")
@click.option("--truth", required=True, type=_PATH, help="Table of measurements (CSV, JSON, Parquet).")
@click.option("--models", multiple=True, type=_PATH, help="Model files or folders; repeatable.")
@click.option("--gpu", help="GPU of rows that name none.")
@click.option("--runtime", default="torch", show_default=True, help="Runtime of rows that name none.")
@click.option("--dtype", default="auto", show_default=True, help="Dtype of rows that name none.")
@click.option("--dim", "dims", type=DIM, multiple=True, help="Dimension of rows that name none; repeatable.")
@click.option("--batch-dim", metavar="NAME", help="Name of the batch dimension where it is not found.")
@click.option("--attention", type=click.Choice(["fused", "eager"]), help="How attention is launched.")
@click.option(
    "--unfold-batchnorm/--no-unfold-batchnorm",
    default=True,
    show_default=True,
    help="torch: run BatchNorms that the exporter folded into convolutions.",
)
@click.option("--streams", type=click.IntRange(1, 1024), help="CUDA streams; default: the runtime's.")
@click.option("--trip-count", type=click.IntRange(0), help="Iterations of loops whose count is not known.")
@click.option("--host-overhead-us", type=float, help="Host time per framework call.")
@click.option("--host", type=_PATH, help="This host's figures (TOML of --write-host).")
@click.option("--context-mib", type=float, help="Memory of the CUDA context and library handles.")
@click.option("--include-copy", is_flag=True, help="The measurements include moving inputs and outputs.")
@click.option(
    "--one-process", is_flag=True, help="Memory: a model's rows ran one after another in one process."
)
@click.option("--bundle", "bundles", type=_PATH, multiple=True, help="Estimator bundle; repeatable.")
@click.option("--gpu-spec", "gpu_specs", type=_PATH, multiple=True, help="GPU file (TOML); repeatable.")
@click.option("--plugin", "plugins", type=_PATH, multiple=True, help="Python file with rules; it is run.")
@click.option("--allow-unknown", is_flag=True, help="Lower bounds in spite of unknown operators.")
@click.option("--report", type=_PATH, help="Folder for report.md, rows.csv and plots.")
@click.option("--write-host", type=_PATH, help="Fit this host and write its figures to this file.")
@click.option("--format", "form", type=click.Choice(_FORMATS), default="table", show_default=True)
@debug_option
def command(
    truth: Path, dims: tuple[tuple[str, int], ...], report: Path | None, write_host: Path | None, form: str,
    **options: Any,
) -> int:  # fmt: skip
    """Compare your own measurements with estimates of the same rows.

    TRUTH is a CSV with at least model, batch_size and latency_ms, or a requirement table with measured rows; with
    reserved_bytes, sm_util_mean_pct, occupancy_mean_pct and so on these are compared too. Models are found by file
    stem in --models, or the column is a path. Exit status: 0 done, 1 some rows could not be estimated, 2 none could or
    the command was wrong.
    """
    from gkestimator.evaluation.api import evaluate
    from gkestimator.evaluation.folder import REPORT_FILES, write_report
    from gkestimator.evaluation.text import host_words, render_evaluation, trust_words

    read = (
        truth,
        *options["models"],
        *options["gpu_specs"],
        *options["plugins"],
        *filter(None, [options["host"]]),
    )
    written = () if report is None else tuple(report / name for name in REPORT_FILES)
    for path in (*filter(None, [write_host]), *written):
        _refuse_overwriting(path, read)
    with Progress() as progress:
        result = evaluate(truth, dims=dict(dims), progress=progress, **options)
    if result.compared:
        stream = sys.stdout.buffer
        stream.write(render_evaluation(result, form))
        stream.flush()
    for failure in result.failures:
        click.echo(f"gkest: error: {failure}", err=True)
    for line in (*result.messages, *trust_words(result)):
        click.echo(line, err=True)
    if not result.compared:
        return 2
    fits: tuple[HostFit, ...] = ()
    partly = bool(result.failures)
    if write_host is not None:
        try:
            fits = result.write_host(write_host)
        except GkestimatorError as e:  # the comparison stands, and so does the report below
            click.echo(f"gkest: error: --write-host: {e}", err=True)
            partly = True
        else:
            for line in (words for fit in fits for words in host_words(fit)):
                click.echo(line, err=True)
            click.echo(f"gkest: wrote {write_host}", err=True)
    if report is not None:
        files, notes = write_report(result, report, fits=fits)
        for note in notes:
            click.echo(note, err=True)
        click.echo(f"gkest: wrote {', '.join(p.name for p in files)} to {report}", err=True)
    return 1 if partly else 0


def _refuse_overwriting(output: Path, read: tuple[Path, ...]) -> None:
    """``--write-host measured.csv`` is a slip that would cost the measurements."""
    for path in read:
        try:
            same = output.samefile(path)
        except (OSError, ValueError):
            continue  # one of the two does not exist: nothing to lose
        if same and not output.is_dir():
            raise UsageError(f"{output}: is also read (as {path}); expected a file of its own")
