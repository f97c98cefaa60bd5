"""``gkest gpus``."""

from __future__ import annotations

import click

from gkestimator.cli.group import gkest_command
from gkestimator.cli.outputs import say, tell
from gkestimator.cli.parameters import Paths, form_option, gpu_spec_option

_HELP = (
    "What is known of each GPU, and from where: a table of all, or every figure of NAME with unit and source."
)


@gkest_command(
    "gpus",
    "gkest gpus",
    "gkest gpus L4 --format json",
    help=_HELP,
)
@click.argument("name", required=False)
@gpu_spec_option
@form_option("table", "csv", "json", help="Table for people (default), or all figures in base units.")
def command(name: str | None, gpu_specs: Paths, form: str | None) -> None:
    """Print the table of all GPUs, or every figure of one."""
    from gkestimator.hardware.gpu_listing import LISTING_FORMATS, listing
    from gkestimator.hardware.gpu_report import describe, overview
    from gkestimator.hardware.gpus import gpu_catalogue

    catalogue = gpu_catalogue(gpu_specs)
    if name is None:
        sheets = [catalogue.sheet(n)[0] for n in catalogue.names()]
        tell(listing(sheets, form) if form in LISTING_FORMATS else overview(sheets))
        return
    sheet, note = catalogue.sheet(name)
    if note:
        say([f"gkest: {note}"])
    if form in LISTING_FORMATS:
        tell(listing([sheet], form))
        return
    tell(describe(sheet))
    if not sheet.missing():
        from gkestimator.bundles.basis import basis_of, basis_text
        from gkestimator.bundles.bundle import load_bundle

        tell("\n" + basis_text(basis_of(load_bundle(), catalogue.spec(name), catalogue)))
