"""``gkest gpus``."""

from __future__ import annotations

import click

from gkestimator.cli.group import debug_option
from gkestimator.cli.outputs import say
from gkestimator.cli.parameters import Paths, gpu_spec_option

_HELP = (
    "What is known of each GPU, and from where: a table of all, or every figure of NAME with unit and source."
)


@click.command(name="gpus", help=_HELP)
@click.argument("name", required=False)
@gpu_spec_option
@debug_option
def command(name: str | None, gpu_specs: Paths) -> None:
    """Print the table of all GPUs, or every figure of one."""
    from gkestimator.hardware.gpu_report import describe, overview
    from gkestimator.hardware.gpus import gpu_catalogue

    catalogue = gpu_catalogue(gpu_specs)
    if name is None:
        click.echo(overview([catalogue.sheet(n)[0] for n in catalogue.names()]), nl=False)
        return
    sheet, note = catalogue.sheet(name)
    if note:
        say([f"gkest: {note}"])
    click.echo(describe(sheet), nl=False)
    if not sheet.missing():
        from gkestimator.bundles.basis import basis_of, basis_text
        from gkestimator.bundles.bundle import load_bundle

        click.echo("\n" + basis_text(basis_of(load_bundle(), catalogue.spec(name), catalogue)), nl=False)
