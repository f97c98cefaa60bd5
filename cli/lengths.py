"""``gkest lengths``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gkestimator.cli.group import debug_option
from gkestimator.cli.progress import Progress
from gkestimator.errors import GkestimatorError

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command(name="lengths")
@click.argument("spec", type=_PATH, metavar="SPEC.yaml")
@click.option(
    "--table",
    "tables",
    type=_PATH,
    multiple=True,
    required=True,
    help="Requirement table with a row for each length; repeatable.",
)
@click.option("--rate-scale", type=float, default=1.0, show_default=True, help="Factor on the rate.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Default: the file's.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    help="Default: by suffix of -o, else table.",
)
@click.option("--plot", type=_PATH, help="Picture over time: .png, .svg or .pdf.")
@click.option("-o", "--output", type=_PATH, help="File to write to, wholly or not at all.")
@debug_option
def command(
    spec: Path, tables: tuple[Path, ...], rate_scale: float, seed: int | None, form: str | None, plot: Path | None,
    output: Path | None,
) -> int:  # fmt: skip
    """Serve requests of many lengths by runtimes of fixed lengths, simulated.

    SPEC.yaml names a model, GPUs, an SLO, the requests and the schemes to compare (docs/lengths.md). TABLE is a
    requirement table with a row for each length (`gkest estimate --dim seq=64`, 128, ...), estimated or measured. The
    result goes to stdout, or with -o to the file alone. Exit status: 0 done, 1 only the picture could not be written, 2
    the command or a file was wrong.
    """
    from gkestimator.outputs import by_suffix, refuse_overwriting
    from gkestimator.simulation.lengths.picture import PICTURE_SUFFIXES, check_drawable, draw_lengths
    from gkestimator.simulation.lengths.report import LENGTHS_SUFFIXES, lengths_words, render_lengths
    from gkestimator.simulation.lengths.running import simulate_lengths_files
    from gkestimator.simulation.lengths.spec import read_lengths_spec
    from gkestimator.tables import write_bytes

    refuse_overwriting({"-o": output, "--plot": plot}, (spec, *tables))
    form = form or ("table" if output is None else by_suffix("-o", output, LENGTHS_SUFFIXES))
    shape = None if plot is None else by_suffix("--plot", plot, PICTURE_SUFFIXES)
    if plot is not None:
        check_drawable()
    with Progress() as progress:
        run = simulate_lengths_files(
            read_lengths_spec(spec), tables, seed=seed, rate_scale=rate_scale, progress=progress
        )
    data = render_lengths(run, form)
    status = 0
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        write_bytes(output, data)
        click.echo(f"gkest: wrote {output}", err=True)
    if plot is not None and shape is not None:
        try:
            write_bytes(plot, draw_lengths(run, shape))
        except GkestimatorError as e:  # the result stands
            click.echo(f"gkest: error: --plot: {e}", err=True)
            status = 1
        else:
            click.echo(f"gkest: wrote {plot}", err=True)
    if form == "csv" or output is not None:
        for note in run.notes:
            click.echo(f"gkest: note: {note}", err=True)
    for line in lengths_words(run):
        click.echo(line, err=True)
    return status
