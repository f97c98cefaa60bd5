"""``gkest profile``: the subcommands, loaded lazily."""

from __future__ import annotations

import importlib

import click

from gkestimator.cli.group import debug_option

SUBCOMMANDS = {
    "plan": "Choose the operators to measure, and say how long it will take.",
    "run": "Work a plan off under a profiler; resumes what was cut off.",
    "build": "Make a kernel dataset of what was measured.",
    "table": "Make the requirement table of the whole models that were measured.",
    "pairs": "Measure whole models side by side, two at a time.",
    "merge": "Merge kernel datasets of several runs and machines.",
}


class _Subcommands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which they are used."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import ``cli/profile_<name>.py``; its command is called ``command``."""
        if cmd_name not in SUBCOMMANDS:
            return None
        command: click.Command = importlib.import_module(f"gkestimator.cli.profile_{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of subcommands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


@click.group(name="profile", cls=_Subcommands)
@debug_option
def command() -> None:
    """Measure a GPU: plan, run, build; then gkest train."""
