"""``gkest profile table``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import gkest_command
from gkestimator.cli.outputs import say, say_written, tell
from gkestimator.cli.parameters import PATH, Paths, gpu_spec_option, safe_csv_option
from gkestimator.cli.progress import Progress


@gkest_command(
    "table",
    "gkest profile table raw -o measured.csv",
    "gkest profile table raw -o measured.json",
)
@click.argument("raws", nargs=-1, required=True, type=PATH, metavar="RAW...")
@click.option(
    "-o", "--output", required=True, type=PATH, help="The table: a name ending in .csv, .json or .parquet."
)
@safe_csv_option
@gpu_spec_option
def command(raws: Paths, output: Path, gpu_specs: Paths) -> int:
    """Make the requirement table of the whole models that gkest profile run measured.

    RAW is the folder of a run, or a folder of several. One row per model, GPU, runtime, dtype and batch size, with
    source "measured": what gkest evaluate --truth, gkest schedule and gkest export read. Beside the table are written
    its provenance (.provenance.json) and, for a GPU that the catalogue does not know, its specification (.toml). Exit
    status: 0 done, 1 a part could not be used, 2 nothing could or the command was wrong.
    """
    from gkestimator.profiling.tabling import build_table
    from gkestimator.profiling.tabling.table import closing_words, summary_words

    with Progress() as progress:
        result = build_table(raws, output, gpu_specs=gpu_specs, progress=progress)
    tell(summary_words(result))
    say(result.problems, "error")
    say(result.notes)
    say_written(*result.files)
    say(closing_words(result))
    return result.exit_status
