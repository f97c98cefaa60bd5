"""``gkest profile merge``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import gkest_command
from gkestimator.cli.outputs import say, say_written, tell
from gkestimator.cli.parameters import PATH, Paths, safe_csv_option


@gkest_command(
    "merge",
    "gkest profile merge kernels.parquet other.parquet -o both.parquet",
    "gkest profile merge kernels.parquet -o kernels.csv",
)
@click.argument("datasets", nargs=-1, required=True, type=PATH, metavar="DATASET...")
@click.option(
    "-o", "--output", required=True, type=PATH, help="The dataset: a name ending in .parquet or .csv."
)
@safe_csv_option
def command(datasets: Paths, output: Path) -> int:
    """Merge kernel datasets of several runs and machines; files of older versions become today's.

    An operator that several hold for one GPU and runtime is taken whole from one of them: better quality, then
    hardware counters, then more repeats, then less variation. Exit status: 0 done, 1 a dataset could not be read, 2
    none could.
    """
    from gkestimator.profiling.building import merge_datasets
    from gkestimator.profiling.building.words import kernels_table, merge_words

    result = merge_datasets(datasets, output)
    tell(merge_words(result))
    tell(kernels_table(result.table))
    say(result.problems, "error")
    say((*result.notes, *result.lines()))
    say_written(*result.files)
    return result.exit_status
