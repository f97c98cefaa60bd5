"""``gkest profile table``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import debug_option
from gkestimator.cli.progress import Progress

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command(name="table")
@click.argument("raws", nargs=-1, required=True, type=_PATH, metavar="RAW...")
@click.option(
    "-o", "--output", required=True, type=_PATH, help="The table: a name ending in .csv, .json or .parquet."
)
@click.option("--gpu-spec", "gpu_specs", type=_PATH, multiple=True, help="GPU file (TOML); repeatable.")
@debug_option
def command(raws: tuple[Path, ...], output: Path, gpu_specs: tuple[Path, ...]) -> int:
    """Make the requirement table of the whole models that gkest profile run measured.

    RAW is the folder of a run, or a folder of several. One row per model, GPU, runtime, dtype and batch size, with
    source "measured": what gkest evaluate --truth, gkest schedule and gkest export read. Beside the table are written
    its provenance (.provenance.json) and, for a GPU that the catalogue does not know, its specification (.toml). Exit
    status: 0 done, 1 a part could not be used, 2 nothing could or the command was wrong.
    """
    from gkestimator.profiling.tabling import build_table
    from gkestimator.profiling.tabling.words import closing_words, summary_words

    with Progress() as progress:
        result = build_table(raws, output, gpu_specs=gpu_specs, progress=progress)
    click.echo(summary_words(result))
    for problem in result.problems:
        click.echo(f"gkest: error: {problem}", err=True)
    for note in result.notes:
        click.echo(note, err=True)
    click.echo(f"gkest: wrote {', '.join(str(f) for f in result.files)}", err=True)
    for line in closing_words(result):
        click.echo(line, err=True)
    return result.exit_status
