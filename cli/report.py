"""``gkest report``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import gkest_command
from gkestimator.cli.outputs import deliver
from gkestimator.cli.parameters import PATH


@gkest_command(
    "report",
    "gkest report table.csv",
    "gkest report plan.json -o plan.html",
)
@click.argument("saved", type=PATH, metavar="FILE")
@click.option("-o", "--output", type=PATH, help="HTML file to write; default: FILE with the suffix .html.")
def command(saved: Path, output: Path | None) -> int:
    """Draw a saved requirement table, plan, simulation or comparison as one HTML page.

    FILE is what estimate, schedule or simulate wrote with -o, or a comparison's results.json. The page is one file: it
    needs no network and can be sent to others. Exit status: 0 done, 2 the file was wrong.
    """
    from gkestimator.core.outputs import refuse_overwriting
    from gkestimator.simulation.saved_pages import saved_page

    target = output or saved.with_suffix(".html")
    refuse_overwriting({"-o": target}, [saved])
    deliver(saved_page(saved), target)
    return 0
