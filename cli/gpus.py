"""``gkest gpus``."""

from __future__ import annotations

from pathlib import Path

import click

from gkestimator.cli.group import debug_option

__all__ = ["command"]


@click.command(name="gpus")
@click.argument("name", required=False)
@click.option(
    "--gpu-spec",
    "gpu_specs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="GPU file (TOML); repeatable.",
)
@debug_option
def command(name: str | None, gpu_specs: tuple[Path, ...]) -> None:
    """What is known of each GPU, and from where: a table of all, or every figure of NAME with unit and
    source."""
    from gkestimator.gpu_report import describe, overview
    from gkestimator.gpus import gpu_catalogue

    catalogue = gpu_catalogue(gpu_specs)
    if name is None:
        click.echo(overview([catalogue.resolve(n)[0] for n in catalogue.names()]), nl=False)
        return
    spec, note = catalogue.resolve(name)
    if note:
        click.echo(f"gkest: {note}", err=True)
    click.echo(describe(spec), nl=False)
