"""``gkest compare``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import gkest_command
from gkestimator.cli.outputs import say
from gkestimator.cli.parameters import PATH


@gkest_command(
    "compare",
    "gkest compare comparison.yaml -o results",
    "gkest compare comparison.yaml -o results --processes 1",
)
@click.argument("spec", type=PATH, metavar="SPEC.yaml")
@click.option(
    "-o", "--output", required=True, type=PATH, help="Folder of the comparison; gone on with if there."
)
@click.option(
    "--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="Who computes."
)
@click.option(
    "--processes", type=click.IntRange(1, 1024), help="Processes of this machine; default: one for each core."
)
def command(spec: Path, output: Path, engine: str, processes: int | None) -> int:
    """Compare placement policies over workloads, clusters, loads and objectives, each plan served in simulation.

    SPEC names tables, policies, workloads, clusters, arrivals and scales (docs/how-to/comparing.md); every combination
    is a cell. Cells that the folder holds already are not computed again. The table goes to stdout; with the pictures
    it is in the folder too (report.md, results.csv, results.json). Exit status: 0 done, 1 where cells were refused or
    failed, 2 the command or a file was wrong.
    """
    from gkestimator.cli.progress import Progress
    from gkestimator.profiling.host import usable_cores
    from gkestimator.simulation.comparing.report import write_report
    from gkestimator.simulation.comparing.run import run_comparison
    from gkestimator.simulation.comparing.spec import read_spec

    # A wrong cell is refused before any is computed.
    asked = read_spec(spec)
    with Progress() as progress:
        results = run_comparison(
            asked,
            output,
            engine=engine,
            processes=processes or usable_cores(),
            progress=progress,
        )
    report = write_report(asked, results, output)
    click.echo(report.text, nl=False)
    say(report.words)
    return 0 if report.whole else 1
