"""``gkest lengths``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import gkest_command, section
from gkestimator.cli.outputs import deliver, say, write_beside
from gkestimator.cli.parameters import PATH, SEED, Paths, form_option
from gkestimator.cli.progress import Progress


@gkest_command(
    "lengths",
    "gkest lengths lengths.yaml --table lengths.csv",
    "gkest lengths lengths.yaml --table lengths.csv --rate-scale 0.5 -o lengths.json",
)
@click.argument("spec", type=PATH, metavar="SPEC.yaml")
@section("What to ask")
@click.option(
    "--table",
    "tables",
    type=PATH,
    multiple=True,
    required=True,
    help="Requirement table with a row for each length; repeatable.",
)
@click.option("--rate-scale", type=float, default=1.0, show_default=True, help="Factor on the rate.")
@click.option("--seed", type=SEED, help="Default: the file's.")
@section("Output")
@form_option("table", "csv", "json")
@click.option("--plot", type=PATH, help="Picture over time: .png, .svg or .pdf.")
@click.option("-o", "--output", type=PATH, help="File to write to, wholly or not at all.")
def command(
    spec: Path,
    tables: Paths,
    rate_scale: float,
    seed: int | None,
    form: str | None,
    plot: Path | None,
    output: Path | None,
) -> int:
    """Serve requests of many lengths by runtimes of fixed lengths, simulated.

    SPEC.yaml names a model, GPUs, an SLO, the requests and the schemes to compare (docs/how-to/lengths.md). TABLE is a
    requirement table with a row for each length (`gkest estimate --dim seq=64,128`), estimated or measured. The
    result goes to stdout, or with -o to the file alone. Exit status: 0 done, 1 only the picture could not be written, 2
    the command or a file was wrong.
    """
    from gkestimator.core.outputs import by_suffix, refuse_overwriting
    from gkestimator.reporting.simulated import REPORT_SUFFIXES
    from gkestimator.simulation.lengths.picture import PICTURE_SUFFIXES, check_drawable, draw_lengths
    from gkestimator.simulation.lengths.report import lengths_words, render_lengths
    from gkestimator.simulation.lengths.running import simulate_lengths_files
    from gkestimator.simulation.lengths.spec import read_lengths_spec

    # Before the simulation, not after.
    refuse_overwriting({"-o": output, "--plot": plot}, (spec, *tables))
    form = form or ("table" if output is None else by_suffix("-o", output, REPORT_SUFFIXES))
    shape = None if plot is None else by_suffix("--plot", plot, PICTURE_SUFFIXES)
    if plot is not None:
        check_drawable()
    with Progress() as progress:
        run = simulate_lengths_files(
            read_lengths_spec(spec), tables, seed=seed, rate_scale=rate_scale, progress=progress
        )
    data = render_lengths(run, form)
    deliver(data, output)
    drawn = write_beside("--plot", plot, lambda: draw_lengths(run, shape or "png"))
    if form == "csv" or output is not None:
        say(run.notes, "note")
    say(lengths_words(run))
    return 0 if drawn else 1
