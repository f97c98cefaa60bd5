"""``gkest doctor``."""

from __future__ import annotations

import click

from gkestimator.cli.group import gkest_command

_HELP = """What this machine can do: GPU, driver, profilers, runtimes, bundles and where found, operators covered.

Reads only; what is absent is said, never an error.
"""


@gkest_command(
    "doctor",
    "gkest doctor",
    "gkest doctor --probe",
    help=_HELP,
)
@click.option("--probe", is_flag=True, help="Also make a small capture with each profiler (some seconds).")
def command(probe: bool) -> None:
    """Print what this machine can do, section by section."""
    from functools import partial

    from gkestimator.estimation.doctor import diagnose
    from gkestimator.profiling.diagnosis import profiler_facts

    for section, facts in diagnose(partial(profiler_facts, probing=probe)):
        click.echo(section)
        for name, fact in facts:
            click.echo(f"  {name:<25} {fact}")
