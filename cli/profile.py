"""``gkest profile``: the subcommands, loaded lazily."""

from __future__ import annotations

import click

from gkestimator.cli.group import LazyGroup, debug_option

SUBCOMMANDS = {
    "plan": "Choose the operators to measure, and say how long it will take.",
    "run": "Work a plan off under a profiler; resumes what was cut off.",
    "build": "Make a kernel dataset of what was measured.",
    "table": "Make the requirement table of the whole models that were measured.",
    "pairs": "Measure whole models side by side, two at a time.",
    "merge": "Merge kernel datasets of several runs and machines.",
}


@click.group(name="profile", cls=LazyGroup, modules=SUBCOMMANDS, prefix="profiling.")
@debug_option
def command() -> None:
    """Measure a GPU: plan, run, build; then gkest train."""
