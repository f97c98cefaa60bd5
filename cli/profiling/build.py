"""``gkest profile build``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import gkest_command
from gkestimator.cli.outputs import say, say_written, tell
from gkestimator.cli.parameters import PATH, Paths, gpu_spec_option, safe_csv_option
from gkestimator.cli.progress import Progress


@gkest_command(
    "build",
    "gkest profile build raw -o kernels.parquet",
    "gkest profile build raw -o kernels.csv --report profile-report",
)
@click.argument("raws", nargs=-1, required=True, type=PATH, metavar="RAW...")
@click.option(
    "-o", "--output", required=True, type=PATH, help="The dataset: a name ending in .parquet or .csv."
)
@click.option("--report", type=PATH, help="Folder for report.md and plots.")
@safe_csv_option
@gpu_spec_option
def command(raws: Paths, output: Path, report: Path | None, gpu_specs: Paths) -> int:
    """Make a kernel dataset of what gkest profile run measured.

    RAW is the folder of a run, or a folder of several. Beside the dataset are written its provenance (.json), its
    lowering table (.lowering.json: which kernels each operator became) and, for a GPU that the catalogue does not
    know, its specification (.toml). Exit status: 0 done, 1 a part could not be used, 2 nothing could or the command
    was wrong. What was there under those names is replaced, save a .json that is no provenance (refused) and a .toml
    whose figures differ (used).
    """
    from gkestimator.core.errors import GkestimatorError
    from gkestimator.profiling.building import build_dataset
    from gkestimator.profiling.building.report import write_report
    from gkestimator.profiling.building.words import build_words, kernels_table, summary_words

    with Progress() as progress:
        result = build_dataset(raws, output, gpu_specs=gpu_specs, progress=progress)
    files = list(result.files)
    notes: list[str] = []
    unwritten: list[GkestimatorError] = []
    if report is not None:
        try:
            made, notes = write_report(result, report)
            files += made
        except GkestimatorError as e:  # the dataset is there
            unwritten.append(e)
    tell(summary_words(result))
    tell(kernels_table(result.table))
    say(result.problems, "error")
    say((*build_words(result), *notes))
    say_written(*files)
    say(unwritten, "error")
    if unwritten:
        return 1
    return result.exit_status
