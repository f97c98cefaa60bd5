"""``gkest profile build``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import debug_option
from gkestimator.cli.progress import Progress

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command(name="build")
@click.argument("raws", nargs=-1, required=True, type=_PATH, metavar="RAW...")
@click.option(
    "-o", "--output", required=True, type=_PATH, help="The dataset: a name ending in .parquet or .csv."
)
@click.option("--report", type=_PATH, help="Folder for report.md and plots.")
@click.option("--gpu-spec", "gpu_specs", type=_PATH, multiple=True, help="GPU file (TOML); repeatable.")
@debug_option
def command(raws: tuple[Path, ...], output: Path, report: Path | None, gpu_specs: tuple[Path, ...]) -> int:
    """Make a kernel dataset of what gkest profile run measured.

    RAW is the folder of a run, or a folder of several. Beside the dataset are written its provenance (.json), its
    lowering table (.lowering.json: which kernels each operator became) and, for a GPU that the catalogue does not
    know, its specification (.toml). Exit status: 0 done, 1 a part could not be used, 2 nothing could or the command
    was wrong. What was there under those names is replaced, save a .json that is no provenance (refused) and a .toml
    whose figures differ (used).
    """
    from gkestimator.errors import GkestimatorError
    from gkestimator.profiling.building import build_dataset
    from gkestimator.profiling.building.report import write_report
    from gkestimator.profiling.building.words import build_words, kernels_table, summary_words

    with Progress() as progress:
        result = build_dataset(raws, output, gpu_specs=gpu_specs, progress=progress)
    files = list(result.files)
    notes: list[str] = []
    unwritten = ""
    if report is not None:
        try:
            made, notes = write_report(result, report)
            files += made
        except GkestimatorError as e:  # the dataset is there
            unwritten = f"gkest: error: {e}"
    click.echo(summary_words(result))
    click.echo(kernels_table(result.table))
    for problem in result.problems:
        click.echo(f"gkest: error: {problem}", err=True)
    for line in (*build_words(result), *notes):
        click.echo(line, err=True)
    click.echo(f"gkest: wrote {', '.join(str(f) for f in files)}", err=True)
    if unwritten:
        click.echo(unwritten, err=True)
        return 1
    return result.exit_status
