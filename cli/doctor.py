"""``gkest doctor``."""

from __future__ import annotations

import click
from gkestimator.cli.group import debug_option

__all__ = ["command"]


@click.command(name="doctor")
@debug_option
def command() -> None:
    """What this machine can do: GPU, driver, profilers, runtimes, bundles and where found, operators covered.

    Reads only; what is absent is said, never an error.
    """
    from gkestimator.doctor import diagnose

    for section, facts in diagnose():
        click.echo(section)
        for name, found in facts:
            click.echo(f"  {name:<22} {found}")
