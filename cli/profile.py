"""``gkest profile``: the subcommands, loaded lazily."""

from __future__ import annotations

import click

from gkestimator.cli.group import LazyGroup

SUBCOMMANDS = {
    "plan": "Choose the operators to measure, and say how long it will take.",
    "run": "Work a plan off under a profiler; resumes what was cut off.",
    "build": "Make a kernel dataset of what was measured.",
    "table": "Make the requirement table of the whole models that were measured.",
    "pairs": "Measure whole models side by side, two at a time.",
    "merge": "Merge kernel datasets of several runs and machines.",
}


@click.group(
    name="profile",
    cls=LazyGroup,
    sections={"Commands": SUBCOMMANDS},
    prefix="profiling.",
    examples=(
        "gkest profile plan --models models --dim sequence=128 --minutes 5 -o sweep.json",
        "gkest profile run sweep.json --minutes 10 -o raw",
    ),
)
def command() -> None:
    """Measure a GPU: plan, run, build; then gkest train."""
